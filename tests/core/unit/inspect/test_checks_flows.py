"""Findings of doctor in the flows of IPv4 and IPv6, and the guest that an address names."""

from __future__ import annotations

from dfmeta.flows.classify import guest_syn
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.flows.flow import Value
from dfmeta.flows.nd import bare_request
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.flows.service import first_syn
from dfmeta.inspect import checks_meters, checks_switch
from dfmeta.inspect.facts import Foreign, MeterFact, Seen
from dfmeta.inspect.finding import Finding, Status
from dfmeta.inspect.ledger import entries, wanted_flows
from dfmeta.inspect.overlap import takes
from dfmeta.model import Endpoint
from tests.core.unit.inspect.values import IP, PORT, SERVICE6, SETTINGS, TAP, TAP6

NAMES = {Endpoint(1): "tap1"}


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


def test_matches_that_take_guests_packets_of_ipv6_or_of_a_tagged_subport() -> None:
    for matches, taken in ((TAKEN, True), (LEFT, False)):
        for match in matches:
            assert takes(match, {Endpoint(1)}, ip=SERVICE6[0]) is taken, match
    for match in ({"eth_type": 0x86DD, "ip_proto": 58}, {"ipv6_src": "fe80::1"}):
        assert not takes(match, {Endpoint(1)}, ip=IP), match
    for match, taken in TAGGED:
        assert takes(match, {Endpoint(1, 300)}, ip=IP) is taken, match


def test_foreign_flow_is_named_with_the_address_that_it_takes() -> None:
    flow = Foreign(0xBAD, 300, {"eth_type": 0x86DD, "ipv6_dst": SERVICE6[1]}, "drop")

    def judge(*ip6: str) -> Finding:
        (found,) = checks_switch.foreign_flows([flow], NAMES, wanted=SETTINGS, ip6=ip6)
        return found

    assert f"takes packets of guests to {SERVICE6[1]}: cookie 0xbad" in judge(*SERVICE6).text
    for fine, text in (
        (judge(), f"ARP of {IP}"),
        (judge(SERVICE6[0]), f"TCP/80 and neighbour discovery of {SERVICE6[0]}"),
    ):
        assert fine.status is Status.OK
        assert fine.text.endswith(text)


def test_missing_flow_of_ipv6_is_named_with_the_service() -> None:
    there = [Seen(flow, 0, 0, 0) for flow in wanted_flows([PORT], TAP)]
    rows = entries(there, wanted_flows([PORT], TAP6), layout=SETTINGS.layout)
    found, *_ = checks_switch.our_flows(rows, "", bridge="br-int")
    assert found.status is Status.WRONG
    assert f"guest-fragment of port 1 to {SERVICE6[0]}" in found.text
    rows = entries(there[1:], wanted_flows([PORT], TAP), layout=SETTINGS.layout)
    (found,) = checks_switch.our_flows(rows, "", bridge="br-int")
    assert found.text.endswith(": from-tap of port 9")


def test_flows_that_share_a_meter_are_limited_by_it() -> None:
    flows = [
        Seen(first_syn(Endpoint(1), IPV4, meter=5), 200, 100, 1),
        Seen(first_syn(Endpoint(1), IPV6, meter=5), 200, 100, 1),
        Seen(bare_request(Endpoint(1), meter=5), 200, 100, 1),
        Seen(guest_syn(Endpoint(1), SERVICE6[0], IPV6, meter=6), 0, 300, 1),
    ]
    there = [
        MeterFact(5, RATES[Purpose.SYN], 3, 3),
        MeterFact(6, RATES[Purpose.GUEST_SYN], 4, 1),
    ]

    def judge(found: list[Seen], meters: list[MeterFact]) -> Finding:
        return checks_meters.meters(found, meters, names=NAMES, wanted=SETTINGS)

    for order in (flows, flows[::-1]):
        finding = judge(order, there)
        assert finding.status is Status.OK
        assert "3 first SYNs dropped, 4 SYNs dropped" in finding.text
    bare = Seen(bare_request(Endpoint(1), meter=None), 200, 100, 1)
    assert "SYNs of tap1 are not limited" in judge([*flows, bare], there).text
