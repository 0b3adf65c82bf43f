"""The picture of doc/source/pipeline.rst and its generated tables should say what the code does."""

from dfmeta.flows.pipeline import BR_INT, TABLES, Purpose, Stage
from tests.core.docs.sources import ROOT
from tools import draw_pipeline


def test_each_kind_of_flow_has_a_sample() -> None:
    assert {flow.purpose for flow in draw_pipeline.sample_flows()} == set(BR_INT.purposes)


def test_picture_is_current() -> None:
    written = (ROOT / "doc/source" / draw_pipeline.PICTURE).read_text(encoding="utf-8")
    assert written == draw_pipeline.picture(), "out of date: run tools/draw-pipeline"


def test_arrows_of_the_picture_are_the_declared_successors() -> None:
    assert draw_pipeline.descriptions(Purpose).keys() == set(Purpose)
    for stage in TABLES:
        ways = {
            way
            for purpose in draw_pipeline.in_order(stage)
            for way in draw_pipeline.exits(purpose)
            if isinstance(way, Stage)
        }
        assert ways == TABLES[stage].successors, stage
