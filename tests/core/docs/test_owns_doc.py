"""doc/source/owns.rst should say what the code does."""

from __future__ import annotations

from tests.core.docs.owned import faults
from tests.core.docs.sources import ROOT

PAGE = (ROOT / "doc/source/owns.rst").read_text(encoding="utf-8")


def test_page_has_the_objects_tables_cookies_and_columns_of_the_code() -> None:
    assert faults(PAGE) == []


def test_wrong_row_is_reported() -> None:
    for row, instead, fault in (
        ("8 KEY_ARP, ", "", "bits 15 to 0"),
        ("datapath_type, controller", "datapath_type", "of Bridge these are read"),
        ("   * - 201\n", "   * - 202\n", "table 201 is metadata service reply"),
    ):
        (reported,) = faults(PAGE.replace(row, instead))
        assert reported.startswith(fault)
