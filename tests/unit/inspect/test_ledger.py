"""Flows as they are beside those that ought to be: what is named ok, missing, changed, unknown."""

from __future__ import annotations

from dataclasses import replace

from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Layout, Purpose, cookie_of
from dfmeta.inspect.facts import Seen
from dfmeta.inspect.ledger import (
    State,
    endpoint_of,
    entries,
    faulty,
    purpose_name,
    slot_of,
    wanted_flows,
)
from dfmeta.model import PortState
from tests.unit.inspect.values import ADDRESS, PORT, TAP
from tests.unit.support import PORT_FLOWS

LAYOUT = Layout(table_base=100, classification_table=3, hook_priority=500)


def seen(flow: Flow, /, **changes: object) -> Seen:
    number = LAYOUT.number(flow.stage)
    one = Seen(flow, number, LAYOUT.priority(flow.purpose), cookie_of(flow.purpose), 7, 420)
    return replace(one, **changes)  # type: ignore[arg-type]


def test_all_that_ought_to_be_there_is_ok_whatever_its_meter() -> None:
    wanted = wanted_flows([PORT], TAP)
    there = [seen(replace(flow, meter=5)) for flow in wanted]
    rows = entries(there, wanted, layout=LAYOUT)
    assert {row.state for row in rows} == {State.OK}
    assert faulty(rows) == ()
    assert {row.table for row in rows} == {
        "classification",
        "metadata service",
        "metadata service reply",
    }
    assert [row.table for row in rows] == sorted(row.table for row in rows)


def test_ports_that_are_not_to_have_flows_want_none() -> None:
    fixed = wanted_flows([], TAP)
    assert len(fixed) == 4
    for state in (PortState.DEAD, PortState.BROKEN, PortState.NO_OFPORT):
        assert wanted_flows([replace(PORT, state=state)], TAP) == fixed
    addresses = 3 * len(PORT.addresses)
    wanted = wanted_flows([replace(PORT, state=PortState.NO_INSTANCE)], TAP)
    assert len(wanted) == len(fixed) + PORT_FLOWS + addresses
    assert wanted_flows([replace(PORT, ofport=None)], TAP) == fixed


def test_missing_changed_and_unknown_flows_are_told_apart() -> None:
    first, second, *rest = wanted_flows([], TAP)
    changed = replace(second, actions=(), goto=None, meter=None)
    odd = replace(changed, match=(("in_port", 4),))
    found = [seen(first), seen(odd), seen(first, flow=None, table=9)]
    found += [seen(one) for one in rest]
    states = sorted(str(row.state) for row in entries(found, (first, second, *rest), layout=LAYOUT))
    assert states == ["missing", "ok", "ok", "ok", "unknown", "unknown"]
    moved = replace(first, goto=None)
    (row,) = entries([seen(moved)], [first], layout=LAYOUT)
    assert row.state is State.DIFFERS


def test_without_knowledge_nothing_is_judged_but_what_is_never_ours() -> None:
    (flow, *_) = wanted_flows([], TAP)
    rows = entries([seen(flow), seen(flow, flow=None, table=9)], None, layout=LAYOUT)
    assert [(row.state, row.table) for row in rows] == [
        (State.UNCHECKED, "classification"),
        (State.UNKNOWN, "9"),
    ]


def test_whom_a_flow_serves_is_read_from_its_match_its_key_or_its_actions() -> None:
    by_purpose = {flow.purpose: flow for flow in wanted_flows([PORT], TAP)}
    slot = {1: ADDRESS}
    other = {f.purpose: f for f in wanted_flows([replace(PORT, addresses=slot)], TAP)}
    assert endpoint_of(by_purpose[Purpose.GUEST_HTTP]) == (1, "")
    assert endpoint_of(by_purpose[Purpose.FROM_TAP]) == (9, "")
    assert endpoint_of(by_purpose[Purpose.SERVICE_DROP]) == (None, "")
    for purpose in (Purpose.ADDRESS, Purpose.REPLY, Purpose.KEY_ARP):
        assert endpoint_of(by_purpose[purpose]) == (1, "128.0.0.1")
        assert slot_of(by_purpose[purpose]) == 0
        assert slot_of(other[purpose]) == 1
    assert slot_of(by_purpose[Purpose.SYN]) is None
    rows = {
        row.purpose: row for row in entries(map(seen, by_purpose.values()), None, layout=LAYOUT)
    }
    assert rows["address"].address == rows["reply"].address == "10.0.0.5"
    assert rows["syn"].address == ""
    assert (rows["syn"].packets, rows["syn"].bytes) == (7, 420)


def test_a_reply_to_what_is_no_key_serves_nobody() -> None:
    odd = Flow(Purpose.REPLY, (("ipv4_dst", "10.0.0.1"),))
    assert endpoint_of(odd) == (None, "10.0.0.1")
    assert slot_of(odd) is None
    assert slot_of(Flow(Purpose.ADDRESS, (("in_port", 3),))) is None


def test_purposes_have_names_for_people() -> None:
    assert purpose_name(Purpose.GUEST_HTTP) == "guest-http"
