"""doc/source/pipeline.rst and its picture should say what the code does."""

import re

from dfmeta.flows.pipeline import PURPOSES, TABLES, Layout, Purpose, Stage
from tests.core.docs.page import sections
from tests.core.docs.sources import ROOT
from tools import draw_pipeline

LAYOUT = Layout()
PAGE = (ROOT / "doc/source/pipeline.rst").read_text(encoding="utf-8")


def test_each_purpose_has_a_section_below_its_table() -> None:
    listed = {one.title: one for one in sections(PAGE)}
    titles = [f"Table {LAYOUT.number(stage)}: {TABLES[stage].name}" for stage in TABLES]
    assert [title for title in listed if title.startswith("Table ")] == titles
    for purpose, place in PURPOSES.items():
        section = listed[purpose.name]
        number, priority = LAYOUT.number(place.stage), LAYOUT.priority(purpose)
        assert section.chapter == f"Table {number}: {TABLES[place.stage].name}", purpose.name
        assert re.search(rf"(A p|P)riority-{priority} flows? that match", section.text), purpose


def test_picture_and_index_are_current() -> None:
    for name, content in (
        (draw_pipeline.PICTURE, draw_pipeline.picture()),
        (draw_pipeline.INDEX, draw_pipeline.index()),
    ):
        written = (ROOT / "doc/source" / name).read_text(encoding="utf-8")
        assert written == content, f"{name} is out of date: run tools/draw-pipeline"


def test_arrows_of_the_picture_are_the_declared_successors() -> None:
    assert draw_pipeline.descriptions().keys() == set(Purpose) == set(PURPOSES)
    for stage in Stage:
        ways = {
            way
            for purpose in draw_pipeline.in_order(stage)
            for way in draw_pipeline.exits(purpose)
            if isinstance(way, Stage)
        }
        assert ways == TABLES[stage].successors, stage
