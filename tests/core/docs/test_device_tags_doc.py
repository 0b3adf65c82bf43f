"""The page on device roles in a guest should have each option, bound and place of the program."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dfmeta.guest import snippet, tag_devices

PAGE = Path(__file__).parents[3] / "doc/source/device-tags-guest.rst"
OPTIONS = sorted(
    option
    for action in tag_devices.parser()._actions
    for option in action.option_strings
    if option not in ("-h", "--help", "--sysfs")
)


def words() -> str:
    return " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_on_the_page(option: str) -> None:
    assert f"``{option}" in words()


@pytest.mark.parametrize("source", ["auto", "service", "config-drive"])
def test_a_source_is_on_the_page(source: str) -> None:
    assert f"``--source {source}``" in words()
    assert tag_devices.parser().parse_args(["--source", source]).source == source


def test_the_numbers_are_the_programs() -> None:
    options = tag_devices.parser().parse_args([])
    for text in (
        f"request, {options.timeout:g} unless given",
        f"addresses, {options.attempts} unless given",
        f"more than {tag_devices.MAX_ENCODED} bytes when encoded",
        f"after the {tag_devices.MAX_TAGS}th",
        f"more than {tag_devices.MAX_VALUE} bytes",
        (
            f"{tag_devices.MAX_BYTES >> 20} MiB, {tag_devices.MAX_DEPTH} levels and "
            f"{tag_devices.MAX_DEVICES:,} devices"
        ),
        f"the first {tag_devices.MAX_INTERFACES} interfaces",
    ):
        assert text in words()


@pytest.mark.parametrize(
    "place", [tag_devices.RULES, tag_devices.DOCUMENT, snippet.PER_BOOT, tag_devices.IPV4]
)
def test_a_place_is_on_the_page(place: str) -> None:
    assert place in words()


def test_the_pages_oldest_python_parses_the_program() -> None:
    assert "any Python from 3.6 on" in words()
    source = Path(tag_devices.__file__).read_text(encoding="utf-8")
    assert ast.parse(source, feature_version=(3, 6))
