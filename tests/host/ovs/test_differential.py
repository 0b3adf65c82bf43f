"""The model of :mod:`tests.flowsim` and Open vSwitch do the same with the same frames.

Both are fed the same bytes. What the model sends out is shown to ``ofproto/trace`` again, so that
Open vSwitch's own reading of the frame is compared with the fields that it would have sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow
from dfmeta.flows.key import IN_PORT
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint, GuestAddress, NextHop
from tests.core.flows.frames import ethernet, icmpv6, ipv4, ipv6, link_layer, tcp
from tests.core.flows.world import SERVICE6
from tests.harness.examples import FIXED, examples
from tests.host.ovs import made_up4, made_up6
from tests.host.ovs.made_up import MACS, TAP_MAC, Frames, cases
from tests.host.ovs.made_up4 import HOST_IP, IPS
from tests.host.ovs.made_up6 import GUEST_IPS, HOST_IP6
from tests.host.ovs.pair import METERS, Pair, bare_flow, own_pair
from tests.host.ovs.switch import GUESTS, TAP_PORT

# tools/soak runs them with more frames.
pytestmark = pytest.mark.hypothesis
pair = own_pair
TAP6 = Tap(TAP_PORT, TAP_MAC, 9775, ip6=HOST_IP6, guest_ip6=SERVICE6)
ICMPV6: Mapping[str, int] = {"eth_type": 0x86DD, "ip_proto": 58}
NS = {**ICMPV6, "icmpv6_type": 135, "icmpv6_code": 0}
MAC_SET = parser.OFPActionSetField(ipv6_nd_tll=MACS[0])


@pytest.mark.parametrize("kind", [made_up4, made_up6], ids=["IPv4", "IPv6"])
def test_the_model_and_open_vswitch_agree_on_every_frame_in_every_state(
    pair: Pair, kind: Any
) -> None:
    pair.agree_on(cases(kind.states(), kind.likely, kind.frames))


# tools/soak tries the other address as well.
# tools/soak tries the other address as well.
@pytest.mark.parametrize("ip", [HOST_IP, METADATA_IP][: examples(1)])
def test_they_agree_on_combinations_of_tcp_flags(pair: Pair, ip: str) -> None:
    """A quarter of all, from a known and an unknown address, tagged or not, and from the proxy."""
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=ip)
    known = GuestAddress(MACS[0], IPv4Address(IPS[0]))
    guest = Guest(Endpoint(1), METERS[1], {4: known})
    pair.install([*fixed_flows(tap), *guest_flows(guest, tap)])
    key, sent = str(IN_PORT.key_of(Endpoint(1), 4)), Frames()
    tried = range(0, 0x1000, 5 if FIXED else 1)
    for flags in tried:
        for src, vlan in ((IPS[0], []), (IPS[1], []), (IPS[0], [7])):
            packet = ipv4(tcp(dst=METADATA_IP, src=src, flags=flags), dst=METADATA_IP, src=src)
            sent.append((1, ethernet(packet, dst=TAP_MAC, src=MACS[0], tags=vlan)))
        packet = ipv4(tcp(dst=key, src=ip, flags=flags, sport=9775), dst=key, src=ip)
        sent.append((TAP_PORT, ethernet(packet, dst=MACS[1], src=TAP_MAC)))
    first = sum(flags & 0x12 == 0x02 for flags in tried)  # SYN without ACK
    assert pair.compare(sent) == {
        "controller": first,
        "dropped": len(tried) - first,
        **dict.fromkeys(("proxy", "untouched", "guest"), len(tried)),
    }


def test_they_agree_on_types_and_codes_of_icmpv6(pair: Pair) -> None:
    """Those near neighbour discovery and some others, with and without the sender's MAC."""
    pair.install([*fixed_flows(TAP6), *guest_flows(Guest(Endpoint(1), METERS[1]), TAP6)])
    sent, ends = Frames(), {"dst": SERVICE6[0], "src": GUEST_IPS[0]}
    body = bytes(4) + IPv6Address(SERVICE6[0]).packed
    kinds = [0, 1, 127, *range(128, 140), 255] if FIXED else range(256)
    for kind in kinds:
        for code in (0, 1, 255):
            for options in (b"", link_layer(1, MACS[0])):
                message = icmpv6(body + options, kind=kind, code=code, **ends)
                packet = ipv6(message, proto=58, **ends)
                sent.append((1, ethernet(packet, dst=TAP_MAC, src=MACS[0], kind=0x86DD)))
    untouched = len(kinds) * 6 - 2
    assert pair.compare(sent) == {"controller": 1, "back": 1, "untouched": untouched}


# Messages


def test_they_refuse_the_same_messages_with_the_same_errors(pair: Pair) -> None:
    wire, bundle = pair.wire, pair.wire.bundle
    tap = Tap(TAP_PORT, TAP_MAC, 9775)
    good = guest_flows(Guest(Endpoint(1), METERS[1]), tap)
    bad = guest_flows(Guest(Endpoint(2), 99), tap)
    pair.feed(wire.add_meter(METERS[1], 50))
    pair.feed(*map(wire.add, bad))
    answers = pair.feed(*bundle(0xFFFF, map(wire.add, (*good, *bad))))
    assert sum(one[1] == ofp.OFPT_ERROR for one in answers) == 2
    assert len(pair.model.flows) == 1 + len(bad) - 1
    pair.feed(wire.remove_meter(99))
    pair.feed(wire.count())


def test_a_removed_meter_takes_its_flows_along(pair: Pair) -> None:
    pair.install(three_guests())
    pair.feed(pair.wire.remove_meter(METERS[2]))
    packet = ipv4(tcp(dst=METADATA_IP, src="10.1.1.1"), dst=METADATA_IP, src="10.1.1.1")
    syn = ethernet(packet, dst=TAP_MAC, src=MACS[0])
    assert pair.compare([(ofport, syn) for ofport in GUESTS]) == {"controller": 2, "dropped": 1}
    pair.feed(pair.wire.count())


def test_deletions_take_the_same_flows_away(pair: Pair) -> None:
    flows, wire = three_guests(), pair.wire
    pair.install(flows)
    pair.feed(bare_flow(wire, [], match={"in_port": 1}, cookie=5, table_id=200))
    for one in flows[::2]:
        pair.feed(wire.remove(one), wire.count())
    loose = {"command": ofp.OFPFC_DELETE, "out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY}
    before = len(pair.model.flows)
    pair.feed(bare_flow(wire, [], match={"in_port": 1}, table_id=200, **loose), wire.count())
    assert 1 < len(pair.model.flows) < before
    pair.feed(wire.remove_all(), wire.count())
    assert [one.cookie for one in pair.model.flows] == [0]


def test_a_dump_of_either_reads_the_same(pair: Pair) -> None:
    pair.read_alike(three_guests())


def three_guests() -> list[Flow]:
    """Three guests with the same two addresses."""
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=HOST_IP)
    known = {slot: GuestAddress(MACS[0], IPv4Address(IPS[slot])) for slot in (0, 1)}
    hops = (NextHop("10.0.0.2", MACS[1]), NextHop("192.0.2.2"))
    guests = [Guest(Endpoint(ofport), METERS[ofport], known, next_hops=hops) for ofport in GUESTS]
    return [*fixed_flows(tap), *(one for guest in guests for one in guest_flows(guest, tap))]


NOT_TAKEN: list[tuple[str, dict[str, Any], list[Any]]] = [
    ("a port without its protocol", {"tcp_dst": 80}, []),
    ("an address without its type", {"ipv4_dst": "10.0.0.1"}, []),
    ("ARP in IPv4", {"eth_type": 0x0800, "arp_op": 1}, []),
    ("TCP in UDP", {"eth_type": 0x0800, "ip_proto": 17, "tcp_dst": 1}, []),
    ("a port set on any IP", {"eth_type": 0x0800}, [parser.OFPActionSetField(tcp_dst=80)]),
    ("an opcode set on anything", {}, [parser.OFPActionSetField(arp_op=2)]),
    ("a VID without a tag", {}, [parser.OFPActionSetField(vlan_vid=0x1007)]),
    (
        "a move from a field that is not there",
        {"eth_type": 0x0800},
        [parser.NXActionRegMove("arp_spa", "reg0", 32)],
    ),
    ("in_port set", {}, [parser.OFPActionSetField(in_port=3)]),
    ("eth_type set", {}, [parser.OFPActionSetField(eth_type=3)]),
    ("IPv6 in IPv4", {"eth_type": 0x0800, "ipv6_dst": "::1"}, []),
    ("IPv4 in IPv6", {"eth_type": 0x86DD, "ipv4_dst": "10.0.0.1"}, []),
    ("in IPv4", {"eth_type": 0x0800, "ip_proto": 58, "icmpv6_type": 135}, []),
    ("a target without a type", {**ICMPV6, "ipv6_nd_target": "::1"}, []),
    ("a router's target", {**ICMPV6, "icmpv6_type": 133, "ipv6_nd_target": "::1"}, []),
    ("an advertisement's source", {**NS, "icmpv6_type": 136, "ipv6_nd_sll": MACS[0]}, []),
    ("a solicitation's target", {**NS, "ipv6_nd_tll": MACS[0]}, []),
    ("a MAC set in a solicitation", NS, [MAC_SET]),
    (
        "a MAC set in what has become an advertisement",
        NS,
        [parser.OFPActionSetField(icmpv6_type=136), MAC_SET],
    ),
    ("flags of anything", ICMPV6, [parser.OFPActionSetField(nd_reserved=0)]),
    ("a type of anything", {"eth_type": 0x86DD}, [parser.OFPActionSetField(icmpv6_type=1)]),
]


def test_open_vswitch_refuses_flows_on_which_the_model_raises(pair: Pair) -> None:
    for name, match, actions in NOT_TAKEN:
        pair.refuse(bare_flow(pair.wire, actions, match=match), name)
