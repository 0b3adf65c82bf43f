"""States of ports that are observed: which one counts, what is logged, what is counted."""

import logging
import uuid
from dataclasses import replace

import pytest

from dfmeta.cmd.rows import port_rows
from dfmeta.cmd.watch import without_project
from dfmeta.identity.port_states import CHANGES, PortStateMonitor
from dfmeta.identity.registry import Registry
from dfmeta.model import Port, PortId, PortState

INSTANCE = str(uuid.uuid4())
PORT = Port("tap1", "row1", 1, instance_id=INSTANCE, project_id="p")


def test_an_observed_state_takes_the_place_of_served_alone() -> None:
    registry = Registry()
    registry.set_port(PORT)
    dead = replace(PORT, name="tap2", row="row2", ofport=2, dead=True)
    registry.set_port(dead)
    causes = {PortState.NO_CONNECTION: "silent", PortState.CUT_OFF: ""}
    conditions = PortStateMonitor(
        registry, {state: lambda _p, s=state: causes[s] for state in causes}
    )
    assert conditions.of(PORT) == (PortState.NO_CONNECTION, "silent")
    assert conditions.of(dead)[0] is PortState.DEAD
    causes[PortState.CUT_OFF] = "down"
    assert conditions.of(PORT) == (PortState.CUT_OFF, "down"), "the cause before the effect"
    rows = port_rows(registry, conditions=conditions)
    assert [(row["state"], row["fault"]) for row in rows] == [("cut off", "down"), ("dead", "")]


def test_each_state_is_counted_once_and_logged_at_its_beginning_and_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry()
    registry.set_port(PORT)
    cause = "silent"
    conditions = PortStateMonitor(registry, {PortState.NO_CONNECTION: lambda _port: cause})
    with caplog.at_level(logging.INFO):
        conditions.review()
        conditions.review()
    assert [record.getMessage() for record in caplog.records] == [
        "Port tap1: no connection: silent"
    ]
    assert (conditions.count(PortState.SERVED), conditions.count(PortState.NO_CONNECTION)) == (0, 1)
    cause = ""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        conditions.review()
    assert "no longer in the state 'no connection'" in caplog.text
    assert (conditions.count(PortState.SERVED), conditions.count(PortState.NO_CONNECTION)) == (1, 0)


def test_a_guest_that_makes_its_port_change_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    registry, now, cause = Registry(), 0.0, ""
    registry.set_port(PORT)
    observers = {PortState.CUT_OFF: lambda _port: cause}
    conditions = PortStateMonitor(registry, observers, clock=lambda: now)
    with caplog.at_level(logging.INFO):
        for turn in range(50):
            now, cause = turn, "down" if turn % 2 else ""
            conditions.review()
    assert len(caplog.records) == CHANGES
    caplog.clear()
    now, cause = 200.0, "down"
    conditions.review()
    assert "Port tap1: cut off: down" in caplog.text


def test_a_port_that_is_gone_counts_no_more() -> None:
    registry = Registry()
    registry.set_port(replace(PORT, project_id=""))
    conditions = PortStateMonitor(registry, {PortState.NO_PROJECT: without_project})
    conditions.review()
    assert conditions.count(PortState.NO_PROJECT) == 1
    registry.remove_port(PortId("row1"))
    conditions.review()
    assert [conditions.count(state) for state in PortState] == [0] * len(PortState)
