"""Pages should have the numbers, names and words of the code."""

import json
import re

from dfmeta import conf
from dfmeta.devices import validate
from dfmeta.proxy import recent
from tests.core.docs.facts import FACTS
from tests.core.docs.page import rows
from tests.core.docs.sources import ROOT

SOURCE = ROOT / "doc/source"


def text(page: str) -> str:
    """Return a page on one line."""
    return " ".join((SOURCE / f"{page}.rst").read_text(encoding="utf-8").split())


def test_each_page_has_the_facts_of_the_code() -> None:
    for page, facts in FACTS.items():
        content = text(page)
        assert [fact for fact in facts() if fact not in content] == [], page


def test_page_on_status_has_the_members_that_count_requests() -> None:
    page = (SOURCE / "status.rst").read_text(encoding="utf-8")
    block = re.search(r'^ {4}"requests": .*?(?=,\n {4}")', page, re.DOTALL | re.MULTILINE)
    assert block is not None
    requests = json.loads("{" + block.group() + "}")["requests"]
    assert set(requests) == {*recent.CLASSES, "last_at", "last_status"}


def test_page_on_limits_names_no_option_as_absent_that_exists() -> None:
    names = {option.name for _group, options in conf.own_opts() for option in options}
    assert not names & {*re.findall(r"no option ``(\w+)``", text("limits"))}


def test_tags_of_the_examples_are_those_that_they_look_for() -> None:
    page = (SOURCE / "devices.rst").read_text(encoding="utf-8")
    tags = set(re.findall(r"(?:,tag=|--tag )(\w+)", page))
    assert set(re.findall(r"^ +/dev/disk/by-role/(\w+) ", page, re.MULTILINE)) == {"oracledb"}
    assert re.findall(r"^ +Property=DFMETA_TAGS=(\w+)$", page, re.MULTILINE) == ["storage"]
    assert {"oracledb", "storage"} <= tags
    validate({"devices": [{"type": "disk", "bus": "pci", "tags": sorted(tags)}]})


def test_ratios_of_the_comparison_are_the_measured_ones() -> None:
    measurements = (SOURCE / "performance-new.inc").read_text(encoding="utf-8")
    tables = re.split(r"^\.\. list-table:: ", measurements, flags=re.MULTILINE)
    compared = (SOURCE / "comparison.rst").read_text(encoding="utf-8")
    ratios = [row for row in rows(compared) if re.search(r", of \w+$", row[0])]
    assert len(ratios) == 4
    for first, *shares in ratios:
        proxy, _, peer = first.rpartition(", of ")
        for clients, share in zip((1, 32, 256), shares, strict=True):
            (table,) = [
                table for table in tables if re.match(rf"{clients} clients?, a conn", table)
            ]
            measured = {row[0]: row for row in rows(table)}
            assert share == measured[proxy][{"haproxy": 2, "Neutron": 3}[peer]], (first, clients)
