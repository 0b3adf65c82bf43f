"""The declaration should be complete, acyclic and readable from a cookie."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows.pipeline import (
    BR_INT,
    BR_META,
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    TABLES,
    TABLES_TAKEN,
    Layout,
    MetaPurpose,
    MetaStage,
    Purpose,
    Register,
    Stage,
    cookie_of,
    is_ours,
    purpose_of,
)

LAYOUT = Layout()
LAYOUTS = [LAYOUT, Layout(table_base=60, classification_table=59), Layout(pipeline=BR_META)]


def test_every_purpose_and_every_stage_is_declared() -> None:
    for pipeline, purposes, stages in (
        (BR_INT, Purpose, Stage),
        (BR_META, MetaPurpose, MetaStage),
    ):
        assert set(pipeline.purposes) == set(purposes)
        assert {one.stage for one in pipeline.purposes.values()} == set(pipeline.tables)
        assert set(pipeline.tables) == set(stages)
        assert all(table.why.endswith(".") for table in pipeline.tables.values())


def test_a_register_is_set_and_read_in_one_table_alone() -> None:
    """A frame with a register of ours never leaves dfmeta's own tables."""
    assert not TABLES[Stage.CLASSIFY].sets & set(Register)
    for stage, table in TABLES.items():
        assert table.matches & set(Register) == (
            {Register.TAG} if stage is Stage.SUBPORT else set()
        )
        if table.sets & set(Register):
            assert table.successors <= {Stage.ND, Stage.SUBPORT}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_packet_only_goes_to_higher_tables_and_every_table_is_reached(layout: Layout) -> None:
    reached = {next(iter(layout.pipeline.tables))}
    for stage, table in layout.pipeline.tables.items():
        assert all(layout.number(one) > layout.number(stage) for one in table.successors)
        reached |= table.successors
    assert reached == set(layout.pipeline.tables)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_table_of_ours_drops_what_nothing_else_matches(layout: Layout) -> None:
    of = layout.pipeline.stage
    _classify, *ours = layout.pipeline.tables
    for stage in ours:
        mine = [layout.priority(one) for one in layout.pipeline.purposes if of(one) is stage]
        assert min(mine) == 0


def test_a_cookie_with_the_stage_of_another_table_has_no_purpose() -> None:
    assert purpose_of(cookie_of(Purpose.REPLY) ^ 1 << 16) is None


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_foreign_cookie_is_not_ours(cookie: int) -> None:
    if cookie & COOKIE_PREFIX_MASK != COOKIE_PREFIX:
        assert not is_ours(cookie)
        assert purpose_of(cookie) is None


def test_the_default_layout_has_the_contracts_numbers() -> None:
    assert (LAYOUT.number(Stage.CLASSIFY), LAYOUT.priority(Purpose.GUEST_HTTP)) == (0, 300)
    assert LAYOUT.number(Stage.SERVICE) == LAYOUT.table_base == 200
    others = (Stage.REPLY, Stage.ND, Stage.SUBPORT)
    assert [LAYOUT.number(stage) for stage in others] == [201, 202, 203]
    assert TABLES_TAKEN == 4


def test_a_layout_takes_the_options_numbers() -> None:
    layout = Layout(table_base=60, classification_table=7, hook_priority=500)
    assert [layout.number(stage) for stage in Stage] == [7, 60, 61, 62, 63]
    assert [layout.stage(number) for number in (7, 60, 61, 62, 63)] == list(Stage)
    assert layout.stage(0) is None
    assert layout.priority(Purpose.GUEST_ARP) == layout.priority(Purpose.FROM_TAP) == 500
