"""doc/source/owns.rst should say what the code does, and this check should notice when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.docs.owned import FACTS, faults

PAGE = (Path(__file__).parents[3] / "doc/source/owns.rst").read_text(encoding="utf-8")


def test_the_page_says_what_the_code_does() -> None:
    assert faults(PAGE) == []


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_is_missing_is_noticed(fact: str) -> None:
    flat = " ".join(PAGE.split())
    assert f"{fact!r} is not said" in faults(flat.replace(fact, ""))


@pytest.mark.parametrize(
    ("said", "instead", "found"),
    [
        ("8 KEY_ARP, ", "", "bits 15 to 0"),
        ("now 1", "now 2", "bits 31 to 24"),
        ("datapath_type, controller", "datapath_type", "of Bridge these are read"),
        ("   * - 201\n", "   * - 202\n", "table 201 is metadata service reply"),
    ],
)
def test_a_row_that_is_wrong_is_noticed(said: str, instead: str, found: str) -> None:
    assert said in PAGE
    (fault,) = faults(PAGE.replace(said, instead))
    assert fault.startswith(found)
