"""The ratios of the comparison should be those of the measurements that the page refers to."""

from __future__ import annotations

import re

import pytest

from tests.core.docs.page import rows
from tests.harness.netns import ROOT

SOURCE = ROOT / "doc/source"
PAGE = (SOURCE / "comparison.rst").read_text(encoding="utf-8")
LOADS = (1, 32, 256)
COLUMNS = {"haproxy": 2, "Neutron": 3}


def measured(clients: int) -> dict[str, tuple[str, ...]]:
    """The rows of a load with a connection for each request, by proxy."""
    text = (SOURCE / "performance-new.inc").read_text(encoding="utf-8")
    table = re.split(r"^\.\. list-table:: ", text, flags=re.MULTILINE)
    (part,) = [one for one in table if re.match(rf"{clients} clients?, a connection", one)]
    return {row[0]: row for row in rows(part)}


RATIOS = [row for row in rows(PAGE) if re.search(r", of \w+$", row[0])]


@pytest.mark.parametrize("row", RATIOS, ids=lambda row: row[0])
def test_a_ratio_is_as_measured(row: tuple[str, ...]) -> None:
    proxy, _, peer = row[0].rpartition(", of ")
    assert list(row[1:]) == [measured(clients)[proxy][COLUMNS[peer]] for clients in LOADS]


def test_there_are_ratios() -> None:
    assert len(RATIOS) == 4


@pytest.mark.parametrize(
    ("file", "row", "number"),
    [
        ("performance-storm.inc", "dfmeta", "0.414"),
        ("performance-storm.inc", "neutron", "1.93"),
        ("performance-storm.inc", "neutron", "147 of 4,200"),
        ("performance-memory.inc", "dfmeta", "117"),
        ("performance-memory.inc", "neutron, 10 guests a network", "562"),
    ],
)
def test_a_number_is_as_measured(file: str, row: str, number: str) -> None:
    text = (SOURCE / file).read_text(encoding="utf-8")
    (found,) = [one for one in rows(text) if one[0] == row]
    assert number in found
    words = " ".join(PAGE.split()).replace("failed requests of", "of")
    assert number in words
