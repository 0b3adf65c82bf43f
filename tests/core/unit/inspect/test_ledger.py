"""Flows as they are beside those that ought to be: what is named ok, missing, changed, unknown."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv6Network

from dfmeta.flows.flow import Flow
from dfmeta.flows.key import IN_PORT, InPortKeys
from dfmeta.flows.pipeline import BR_META, TABLES, Layout, cookie_of, table_name
from dfmeta.inspect.facts import Seen
from dfmeta.inspect.ledger import (
    State,
    addresses_of,
    entries,
    faulty,
    wanted_flows,
    wanted_meta_flows,
)
from dfmeta.model import PortState
from tests.core.unit.inspect.values import (
    ADDRESS,
    ADDRESS6,
    META_IP,
    META_NUMBER,
    META_PORT,
    META_TAP,
    PORT,
    PORT6,
    TAP,
    TAP6,
    TAP_TO_META,
    meta_keys,
)
from tests.core.unit.support import PORT_FLOWS

LAYOUT = Layout(table_base=100, classification_table=3, hook_priority=500)


def seen(flow: Flow, /, **changes: object) -> Seen:
    number = LAYOUT.table(flow.purpose)
    one = Seen(flow, number, LAYOUT.priority(flow.purpose), cookie_of(flow.purpose), 7, 420)
    return replace(one, **changes)  # type: ignore[arg-type]


def test_all_that_ought_to_be_there_is_ok_whatever_its_meter() -> None:
    wanted = wanted_flows([PORT], TAP)
    there = [seen(replace(flow, meter=5)) for flow in wanted]
    rows = entries(there, wanted, layout=LAYOUT)
    assert {row.state for row in rows} == {State.OK}
    assert faulty(rows) == ()
    tables = ("classification", "metadata service", "metadata service reply", "subport")
    assert tuple(dict.fromkeys(row.table for row in rows)) == tables


def test_ports_that_are_not_to_have_flows_want_none() -> None:
    fixed = wanted_flows([], TAP)
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
    assert states == ["missing", *["ok"] * 6, "unknown", "unknown"]
    moved = replace(first, goto=None)
    (row,) = entries([seen(moved)], [first], layout=LAYOUT)
    assert row.state is State.DIFFERS


def test_nothing_is_judged_without_knowledge_but_what_is_never_ours() -> None:
    (flow, *_) = wanted_flows([], TAP)
    rows = entries([seen(flow), seen(flow, flow=None, table=9)], None, layout=LAYOUT)
    assert [row.state for row in rows] == [State.UNCHECKED, State.UNKNOWN]
    assert [row.table for row in rows] == ["classification", "9"]


def test_a_flow_is_listed_with_its_port_its_key_and_its_address() -> None:
    rows = {
        row.purpose: row
        for row in entries(map(seen, wanted_flows([PORT], TAP)), None, layout=LAYOUT)
    }
    for purpose in ("address", "reply"):
        assert (rows[purpose].ofport, rows[purpose].key) == (1, "128.0.0.1")
        assert rows[purpose].address == "10.0.0.5"
    assert (rows["syn"].ofport, rows["syn"].key, rows["syn"].address) == (1, "", "")
    assert (rows["from-tap"].ofport, rows["service-drop"].ofport) == (9, None)
    assert (rows["syn"].packets, rows["syn"].bytes) == (7, 420)


def test_flows_of_ipv6_are_told_by_address_service_and_version() -> None:
    rows = entries(map(seen, wanted_flows([PORT6], TAP6)), None, layout=LAYOUT)
    of6 = {row.purpose: row for row in rows if row.family == 6}
    key = "fd00:a9fe:a9fe:a9fe:1::1"
    for purpose in ("address", "reply"):
        row = of6[purpose]
        assert (row.ofport, row.key, row.address) == (1, key, str(ADDRESS6.ip))
        assert row.service == str(ADDRESS6.service)
    assert (of6["key-nd"].ofport, of6["key-nd"].key, of6["key-nd"].address) == (1, key, "")
    assert of6["guest-dad"].ofport is None
    for purpose in ("guest-syn", "guest-http", "guest-fragment", "guest-nd", "service-nd"):
        services = [row.service for row in rows if (row.purpose, row.family) == (purpose, 6)]
        assert sorted(services) == sorted(TAP6.guest_ip6)
    assert {row.table for row in rows} == {table.name for table in TABLES.values()}
    (syn,) = [row for row in rows if (row.purpose, row.family) == ("guest-syn", 4)]
    assert (syn.ofport, syn.service) == (1, TAP6.guest_ip)


def test_a_host_without_ipv6_lacks_no_flow_of_it() -> None:
    there = [seen(flow) for flow in wanted_flows([PORT], TAP)]
    assert not faulty(entries(there, wanted_flows([PORT], TAP), layout=LAYOUT))
    lost = faulty(entries(there, wanted_flows([PORT], TAP6), layout=LAYOUT))
    assert {(row.state, row.family) for row in lost} == {(State.MISSING, 6), (State.MISSING, None)}
    assert [row.purpose for row in lost if row.family is None] == ["nd-drop"]


def test_a_key_is_read_with_the_hosts_own_prefix() -> None:
    keys = InPortKeys(IPv6Network("fd12:3456:789a:1::/64"))
    there = [seen(flow) for flow in wanted_flows([PORT6], replace(TAP6, keys=keys))]
    for known, ofports in ((keys, {1}), (IN_PORT, {None})):
        rows = entries(there, None, layout=LAYOUT, keys=known)
        assert {row.ofport for row in rows if row.purpose == "key-nd"} == ofports


def test_flows_of_the_second_bridge_are_listed_with_the_guest_that_they_serve() -> None:
    layout, keys = Layout(pipeline=BR_META), meta_keys()
    wanted = wanted_meta_flows([META_PORT], META_TAP)
    there = [
        Seen(one, layout.table(one.purpose), layout.priority(one.purpose), cookie_of(one.purpose))
        for one in wanted
    ]
    rows = entries(there, wanted, layout=layout, keys=keys, bridge="br-meta")
    assert {(row.state, row.bridge) for row in rows} == {(State.OK, "br-meta")}
    mine = [(row.purpose, row.ofport) for row in rows if row.key == META_IP]
    assert sorted(mine) == [("meta-key-arp", 1), ("meta-reply", 1), ("meta-source", 1)]
    at = {(row.purpose, row.ofport) for row in rows if row.table == "meta classification"}
    assert ("meta-from-patch", META_TAP.patch) in at
    numbers = [layout.table(flow.purpose) for flow in wanted]
    assert [row.table for row in rows] == [
        table_name(stage)
        for stage in layout.pipeline.tables
        for _ in range(numbers.count(layout.number(stage)))
    ]
    less = entries(there[1:], wanted, layout=layout, keys=keys, bridge="br-meta")
    assert [(row.state, row.bridge) for row in faulty(less)] == [(State.MISSING, "br-meta")]


def test_addresses_are_read_from_flows_whose_owners_are_not_known() -> None:
    wanted = wanted_flows([META_PORT], TAP_TO_META)
    keys = meta_keys()
    keys.owners.clear()
    found = list(addresses_of(map(seen, wanted), keys))
    assert found == [(META_PORT.endpoint, META_NUMBER, ADDRESS)]
