"""Flows as they are beside those that ought to be, others' flows, and the colours of a listing."""

import io
import sys
from dataclasses import replace
from ipaddress import IPv6Network

import pytest

from dfmeta.cli import common, doctor_command
from dfmeta.doctor import checks_flows
from dfmeta.doctor.checks_flows import takes
from dfmeta.doctor.finding import CheckStatus, Finding
from dfmeta.doctor.flow_diff import FlowState, addresses_of, entries, faulty, wanted_flows
from dfmeta.flows.integration_bridge import guest_http, guest_syn
from dfmeta.flows.openflow import Flow, Foreign, Seen, Value
from dfmeta.flows.pipeline import BR_META, Layout, cookie_of, table_of
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint, PortState
from tests.core.unit.doctor.values import (
    ADDRESS,
    IP,
    META_IP,
    META_NUMBER,
    META_PORT,
    META_TAP,
    PORT,
    PORT6,
    SERVICE6,
    SETTINGS,
    TAP,
    TAP6,
    TAP_TO_META,
    meta_keys,
)
from tests.core.unit.support import PORT_FLOWS

LAYOUT = Layout(table_base=100, classification_table=3, hook_priority=500)


def seen(flow: Flow, /, **changes: object) -> Seen:
    number = LAYOUT.table(flow.purpose)
    flow_ = Seen(flow, number, LAYOUT.priority(flow.purpose), cookie_of(flow.purpose), 7, 420)
    return replace(flow_, **changes)  # type: ignore[arg-type]  # fields by name


def test_desired_flows_on_the_switch_are_ok() -> None:
    wanted = wanted_flows([PORT], TAP)
    rows = entries([seen(flow) for flow in wanted], wanted, layout=LAYOUT)
    assert {row.state for row in rows} == {FlowState.OK}
    assert faulty(rows) == ()
    served = ("classification", "metadata service", "metadata service reply")
    tables = (*served, "subport", "container source")
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
    changed = replace(second, actions=(), goto=None)
    odd = replace(changed, match=(("in_port", 4),))
    dumped = [seen(first), seen(odd), seen(first, flow=None, table=9)]
    dumped += [seen(flow) for flow in rest]
    states = sorted(
        str(row.state) for row in entries(dumped, (first, second, *rest), layout=LAYOUT)
    )
    assert states == ["missing", *["ok"] * 10, "unknown", "unknown"]
    moved = replace(first, goto=None)
    (row,) = entries([seen(moved)], [first], layout=LAYOUT)
    assert row.state is FlowState.DIFFERS


def test_dropping_flow_of_a_guest_that_floods_is_no_fault() -> None:
    flow = guest_syn(Endpoint(1))
    (row,) = entries([seen(guest_syn(Endpoint(1), floods=True))], [flow], layout=LAYOUT)
    assert (row.state, faulty([row])) == (FlowState.FLOOD, ())
    unwanted, unchecked = (
        entries([seen(guest_syn(Endpoint(1), floods=True))], wanted, layout=LAYOUT)[0].state
        for wanted in ((), None)
    )
    assert (unwanted, unchecked) == (FlowState.UNKNOWN, FlowState.UNCHECKED)
    other = guest_http(Endpoint(1))
    (row,) = entries([seen(replace(other, goto=None))], [other], layout=LAYOUT)
    assert row.state is FlowState.DIFFERS


def test_nothing_is_judged_without_knowledge_but_what_is_never_ours() -> None:
    (flow, *_) = wanted_flows([], TAP)
    rows = entries([seen(flow), seen(flow, flow=None, table=9)], None, layout=LAYOUT)
    assert [row.state for row in rows] == [FlowState.UNCHECKED, FlowState.UNKNOWN]
    assert [row.table for row in rows] == ["classification", "9"]


def test_a_key_is_read_with_the_hosts_own_prefix() -> None:
    keys = Keys(IPv6Network("fd12:3456:789a:1::/64"))
    dumped = [seen(flow) for flow in wanted_flows([PORT6], replace(TAP6, keys=keys))]
    for scheme, ofports in ((keys, {1}), (IN_PORT, {None})):
        rows = entries(dumped, None, layout=LAYOUT, keys=scheme)
        assert {row.ofport for row in rows if row.purpose == "key-nd"} == ofports


def test_flows_of_the_second_bridge_are_listed_with_the_guest_that_they_serve() -> None:
    layout, keys = Layout(pipeline=BR_META), meta_keys()
    wanted = wanted_flows([META_PORT], META_TAP)
    dumped = [
        Seen(
            flow, layout.table(flow.purpose), layout.priority(flow.purpose), cookie_of(flow.purpose)
        )
        for flow in wanted
    ]
    rows = entries(dumped, wanted, layout=layout, keys=keys, bridge="br-meta")
    assert {(row.state, row.bridge) for row in rows} == {(FlowState.OK, "br-meta")}
    of_guest = [(row.purpose, row.ofport) for row in rows if row.key == META_IP]
    assert sorted(of_guest) == [("meta-key-arp", 1), ("meta-reply", 1), ("meta-source", 1)]
    at = {(row.purpose, row.ofport) for row in rows if row.table == "meta classification"}
    assert ("meta-from-patch", META_TAP.patch) in at
    tables = [table_of(stage).name for stage in layout.pipeline.tables]
    assert [*dict.fromkeys(row.table for row in rows)] == tables
    less = entries(dumped[1:], wanted, layout=layout, keys=keys, bridge="br-meta")
    assert [(row.state, row.bridge) for row in faulty(less)] == [(FlowState.MISSING, "br-meta")]


def test_addresses_are_read_from_flows_whose_owners_are_not_known() -> None:
    wanted = wanted_flows([META_PORT], TAP_TO_META)
    keys = meta_keys()
    keys.owners.clear()
    addresses = list(addresses_of(map(seen, wanted), keys))
    assert addresses == [(META_PORT.endpoint, META_NUMBER, ADDRESS)]


NAMES = {Endpoint(1): "tap1"}


TAKEN4: list[dict[str, Value]] = [
    {"eth_type": 0x0800},
    {"eth_type": 0x0806},
    {"eth_type": 0x0806, "arp_spa": "10.0.0.5"},
    {"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": 80},
    {"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": (64, 0xFFC0)},
    {"eth_type": 0x0800, "ipv4_dst": ("169.254.0.0", "255.255.0.0")},
    {"eth_type": 0x0800, "ipv4_src": "10.0.0.5"},
    {"eth_src": "fa:16:3e:00:00:01"},
    {"vlan_vid": 0},
    {"ct_state": (0, 0x20)},
    {"reg2": 0},
]
LEFT4: list[dict[str, Value]] = [
    {"eth_type": 0x86DD},
    {"eth_type": 0x0806, "arp_op": 2},
    {"eth_type": 0x0806, "arp_tpa": "10.0.0.1"},
    {"eth_type": 0x0800, "ip_proto": 17},
    {"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": 22},
    {"eth_type": 0x0800, "ipv4_dst": ("10.0.0.0", "255.0.0.0")},
    {"vlan_vid": 0x1FFF},
    {"vlan_vid": (0x1000, 0x1000)},
    {"ct_state": (0x20, 0x20)},
    {"reg2": 5},
    {"icmpv4_type": 8},
    {"eth_type_nxm": 0x86DD},
]
TAKEN: list[dict[str, Value]] = [
    {},
    {"in_port": 1},
    {"eth_type": 0x86DD},
    {"eth_type": 0x86DD, "ip_proto": 6, "tcp_dst": 80},
    {"eth_type": 0x86DD, "ipv6_dst": ("fe80::", "ffc0::")},
    {"eth_type": 0x86DD, "ipv6_dst": "ff02::1:fffe:a9fe"},
    {"eth_type": 0x86DD, "ipv6_src": "fe80::1"},
    {"eth_type": 0x86DD, "ip_proto": 58},
    {"eth_type": 0x86DD, "ip_proto": 58, "icmpv6_type": 135},
    {"ip_proto": 58, "icmpv6_type": 135, "ipv6_nd_target": SERVICE6[0]},
    {"tun_ipv6_src": "::"},
]
LEFT: list[dict[str, Value]] = [
    {"in_port": 2},
    {"eth_type": 0x0800},
    {"eth_type": 0x0806},
    {"eth_type": 0x86DD, "ip_proto": 17},
    {"eth_type": 0x86DD, "ip_proto": 6, "tcp_dst": 443},
    {"eth_type": 0x86DD, "ip_proto": 6, "ipv6_dst": "ff02::1"},
    {"eth_type": 0x86DD, "ipv6_dst": "ff02::1:ff00:254"},
    {"eth_type": 0x86DD, "ip_proto": 58, "icmpv6_type": 136},
    {"icmpv6_type": 135, "ipv6_nd_target": "fe80::1"},
    {"tun_ipv6_src": "2001:db8::1"},
    {"arp_op": 1},
    {"ipv4_dst": IP},
    {"vlan_vid": 0x1FFF},
]
TAGGED: list[tuple[dict[str, Value], bool]] = [
    ({"vlan_vid": 0}, False),
    ({"vlan_vid": 0x1000 | 300}, True),
    ({"vlan_vid": 0x1000 | 301}, False),
    ({"vlan_vid": (0x1000, 0x1000), "in_port": 1}, True),
    ({"vlan_tci_nxm": (0x1000 | 300, 0x1FFF)}, True),
    ({"in_port": 2}, False),
    ({}, True),
]


def test_matches_that_take_guests_packets() -> None:
    for matches, ip, taken in (
        *((TAKEN4, IP, True), (LEFT4, IP, False)),
        *((TAKEN, SERVICE6[0], True), (LEFT, SERVICE6[0], False)),
    ):
        for match in matches:
            assert takes(match, {Endpoint(1)}, ip=ip) is taken, match
    for match in ({"eth_type": 0x86DD, "ip_proto": 58}, {"ipv6_src": "fe80::1"}):
        assert not takes(match, {Endpoint(1)}, ip=IP), match
    for match, taken in TAGGED:
        assert takes(match, {Endpoint(1, 300)}, ip=IP) is taken, match


def test_foreign_flow_is_named_with_the_address_that_it_takes() -> None:
    flow = Foreign(0xBAD, 300, {"eth_type": 0x86DD, "ipv6_dst": SERVICE6[1]}, "drop")

    def judge(*ip6: str) -> Finding:
        (finding,) = checks_flows.foreign_flows([flow], NAMES, wanted=SETTINGS, ip6=ip6)
        return finding

    assert f"takes packets of guests to {SERVICE6[1]}: cookie 0xbad" in judge(*SERVICE6).text
    for fine, text in (
        (judge(), f"ARP of {IP}"),
        (judge(SERVICE6[0]), f"TCP/80 and neighbour discovery of {SERVICE6[0]}"),
    ):
        assert fine.status is CheckStatus.OK
        assert fine.text.endswith(text)


def test_missing_flow_of_ipv6_is_named_with_the_service() -> None:
    dumped = [Seen(flow, 0, 0, 0) for flow in wanted_flows([PORT], TAP)]
    rows = entries(dumped, wanted_flows([PORT], TAP6), layout=SETTINGS.layout)
    finding, *_ = checks_flows.our_flows(rows, "", bridge="br-int")
    assert finding.status is CheckStatus.WRONG
    assert f"guest-fragment of port 1 to {SERVICE6[0]}" in finding.text
    rows = entries(dumped[1:], wanted_flows([PORT], TAP), layout=SETTINGS.layout)
    (finding,) = checks_flows.our_flows(rows, "", bridge="br-int")
    assert finding.text.endswith(": from-tap of port 9")


GREEN, RED, YELLOW = "\x1b[32m", "\x1b[1;31m", "\x1b[33m"


def test_states_have_colours_on_a_terminal_save_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    colours = {"ok": GREEN, "warning": YELLOW, "wrong": RED, "unknown": YELLOW}
    rows = [{"status": str(state_), "text": "ok [red]wrong[/red]"} for state_ in CheckStatus]
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for terminal, environment in ((True, {}), (True, {"NO_COLOR": "1"}), (False, {})):
        output = io.StringIO()
        output.isatty = lambda terminal=terminal: terminal  # type: ignore[method-assign]
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", output)
            for name, value in environment.items():
                patched.setenv(name, value)
            columns = {"status": "STATUS", "text": "FOUND"}
            common.print_rows(rows, columns, common.TABLE, styles=doctor_command.STYLES)
        coloured = terminal and not environment
        for state, colour in colours.items():
            assert (f"{colour}{state}" in output.getvalue()) is coloured
        assert output.getvalue().count(GREEN) == coloured, "a text of its own has no colour"
        assert "[red]wrong[/red]" in output.getvalue()
