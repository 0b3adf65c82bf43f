"""The page about dfmeta-cni should name each key and code, and its examples should be accepted."""

import json
import re
from pathlib import Path

from dfmeta.guest.cni import Code, host_api
from tests.core.docs.page import rows, sections
from tests.harness.netns import ROOT

PAGE = (ROOT / "doc/source/dfmeta-cni.rst").read_text(encoding="utf-8")
SOURCE = Path(host_api.__file__).read_text(encoding="utf-8")
LISTS = [
    json.loads(text)
    for text in re.findall(r"^\.\. code-block:: json\n\n((?:   .*\n)+)", PAGE, re.MULTILINE)
]
CODES = (
    ("VERSION", 1),
    ("UNKNOWN", 3),
    ("ENVIRONMENT", 4),
    ("IO", 5),
    ("DECODE", 6),
    ("CONFIGURATION", 7),
    ("LATER", 11),
    ("UNAVAILABLE", 50),
    ("SHORT", 51),
    ("MTU", 100),
    ("REFUSED", 101),
    ("CONFLICT", 102),
    ("EXHAUSTED", 103),
    ("DIFFERENT", 104),
)


def table(title: str) -> dict[str, tuple[str, ...]]:
    """Rows of the table in a section by their first cell, without its heading."""
    (section,) = (section for section in sections(PAGE) if section.title == title)
    result = [row for part in section.paragraphs for row in rows(part)]
    return {row[0].strip("- `"): row[1:] for row in result[1:]}


def test_each_key_is_on_the_page_with_its_default() -> None:
    keys = set(re.findall(r'_(?:text|switch)\(\s*"(\w+)"', SOURCE))
    keys |= set(re.findall(r'config\.get\("(\w+)", ', SOURCE)) - {"cniVersion"}
    listed = table("Network configuration")
    assert listed.keys() == keys - {"name"}
    assert host_api.ENDPOINT in listed["endpoint"][0]
    assert host_api.DATABASE in listed["db"][0]
    assert listed["timeout"][0].strip() == str(host_api.PATIENCE)


def test_each_code_is_on_the_page() -> None:
    assert [(name, getattr(Code, name)) for name, _code in CODES] == [*CODES]
    assert set(table("Errors")) == {str(code) for _name, code in CODES}


def test_both_links_have_an_example() -> None:
    assert [config["plugins"][0].get("link", "vlan") for config in LISTS] == ["vlan", "ovs"]
