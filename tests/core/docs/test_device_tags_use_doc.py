"""The page on using device tags should name what the guest's program makes, and keep its rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dfmeta.devices import validate
from dfmeta.devices.schema import TAG_MAX
from dfmeta.guest import snippet, tag_devices

PAGE = (Path(__file__).parents[3] / "doc/source/device-tags-use.rst").read_text(encoding="utf-8")
TAGS = set(re.findall(r"(?:,tag=|--tag )(\w+)", PAGE))


@pytest.mark.parametrize(
    "line",
    [
        f"rm {tag_devices.RULES}",
        f"rm {snippet.PER_BOOT}",
        f"rm -r {Path(snippet.PROGRAM).parent}",
    ],
)
def test_each_file_that_stays_in_a_guest_is_taken_out(line: str) -> None:
    assert f"     {line}\n" in PAGE


def test_what_the_examples_look_for_is_what_they_tag() -> None:
    assert {"oracledb", "storage"} <= TAGS
    assert set(re.findall(r"^ +/dev/disk/by-role/(\w+) ", PAGE, re.MULTILINE)) == {"oracledb"}
    assert re.findall(r"^ +Property=DFMETA_TAGS=(\w+)$", PAGE, re.MULTILINE) == ["storage"]
    validate({"devices": [{"type": "disk", "bus": "pci", "tags": sorted(TAGS)}]})


def test_the_page_has_the_length_of_a_tag() -> None:
    assert f"A tag has 1 to {TAG_MAX} characters" in PAGE
