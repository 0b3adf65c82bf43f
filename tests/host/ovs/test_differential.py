"""The model of :mod:`tests.flowsim` and Open vSwitch do the same with the same frames.

Both are fed the same bytes. What the model sends out is shown to ``ofproto/trace`` again, so that
Open vSwitch's own reading of the frame is compared with the fields that it would have sent.
"""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow
from dfmeta.flows.key import IN_PORT, SLOTS
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint, GuestAddress, NextHop
from tests.core.flows.frames import arp, ethernet, ipv4, tcp
from tests.harness.examples import examples
from tests.host.ovs.made_up import (
    IN_PORTS,
    MACS,
    TAP_MAC,
    Frames,
    State,
    cases,
    endpoints,
    flag_sets,
    macs,
    mangled,
    of_endpoint,
    overwritten,
    quick,
    tags,
    tcp_ports,
)
from tests.host.ovs.pair import METERS, SYN_METERS, Pair, bare_flow, own_pair
from tests.host.ovs.switch import GUESTS, TAP_PORT, encode

HOST_IP = "169.254.1.1"


pair = own_pair


# What is made up

IPS = ["10.0.0.5", "10.0.0.6", "0.0.0.0", METADATA_IP, HOST_IP, "255.255.255.255"]
KEYS = [str(IN_PORT.key_of(Endpoint(ofport), slot)) for ofport in GUESTS for slot in SLOTS[:3]]
ips = st.sampled_from(IPS + KEYS) | st.integers(0, 0xFFFFFFFF).map(lambda n: str(IPv4Address(n)))
fragments = st.sampled_from([0, 0, 0, 0x4000, 0x2000, 0x0001, 0x2001, 0x1FFF, 0x8000])


@st.composite
def towards_service(draw: st.DrawFn) -> bytes:
    """TCP that a guest might send to the service, well formed, and what looks much like it."""
    src = draw(st.sampled_from(IPS[:2]))
    dst = draw(st.sampled_from([METADATA_IP, METADATA_IP, HOST_IP]))
    dport = draw(st.sampled_from([80, 80, 443]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), dport=dport)
    packet = ipv4(segment, dst=dst, src=src, fragment=draw(fragments))
    return ethernet(packet, dst=draw(macs), src=draw(st.sampled_from(MACS)), tags=draw(tags))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """TCP that the proxy might send to a key."""
    src = draw(st.sampled_from([METADATA_IP, HOST_IP, "10.0.0.5"]))
    dst, sport = draw(st.sampled_from(KEYS)), draw(st.sampled_from([9775, 9775, 80]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), sport=sport, dport=draw(tcp_ports))
    packet = ipv4(segment, dst=dst, src=src, fragment=draw(fragments))
    return ethernet(packet, dst=draw(macs), src=TAP_MAC)


@st.composite
def any_ip(draw: st.DrawFn) -> bytes:
    """IPv4 with whatever inside, options before it, and lengths that may lie."""
    src, dst = draw(ips), draw(ips)
    inside = draw(st.binary(max_size=40))
    if draw(st.booleans()):
        ports = {"dport": draw(tcp_ports), "sport": draw(tcp_ports)}
        inside = tcp(dst=dst, src=src, flags=draw(flag_sets), **ports)
    proto = draw(st.sampled_from([6, 6, 17, 1, 0, 255]))
    packet = bytearray(ipv4(inside, dst=dst, src=src, proto=proto, fragment=draw(fragments)))
    options = draw(st.sampled_from([0, 0, 1, 10]))
    packet[20:20] = b"\x01" * (4 * options)
    packet[0] = draw(st.sampled_from([0x45 + options, 0x45 + options, 0x65, 0x40, 0x44, 0x4F]))
    length = draw(st.sampled_from([len(packet), len(packet), 0, 20, 39, 0xFFFF]))
    packet[2:4] = struct.pack("!H", length)
    return ethernet(bytes(packet), dst=draw(macs), src=draw(macs), tags=draw(tags))


@st.composite
def any_arp(draw: st.DrawFn) -> bytes:
    """ARP and RARP of all kinds: questions, answers, probes, gratuitous, with odd heads."""
    op = draw(st.sampled_from([1, 1, 1, 2, 0, 3, 255, 256, 257]))
    ends = {"sha": draw(macs), "spa": draw(ips), "tha": draw(macs), "tpa": draw(ips)}
    packet = bytearray(arp(op=op, **ends))
    at = draw(st.none() | st.integers(0, 5))
    if at is not None:
        packet[at] = draw(st.integers(0, 255))
    kind = draw(st.sampled_from([0x0806, 0x0806, 0x0806, 0x8035]))
    return ethernet(bytes(packet), dst=draw(macs), src=draw(macs), kind=kind, tags=draw(tags))


@st.composite
def any_ethernet(draw: st.DrawFn) -> bytes:
    """Other protocols, 802.3 with LLC and SNAP, and IPv4 or ARP in such a frame."""
    kind = draw(st.sampled_from([0x86DD, 0x88CC, 0x8847, 0x0800, 0x0806, 46, 0, 0x05FF, 0x0600]))
    heads = ["", "424203", "aaaa030000000800", "aaaa030000000806", "aaaa0300000c0800"]
    llc = bytes.fromhex(draw(st.sampled_from([*heads, "aaaa03000000002e"])))
    payload = draw(towards_service())[14:] if draw(st.booleans()) else draw(st.binary(max_size=60))
    return ethernet(llc + payload, dst=draw(macs), src=draw(macs), kind=kind, tags=draw(tags))


any_frame = st.one_of(
    towards_service(),
    answers(),
    any_ip(),
    any_arp(),
    any_ethernet(),
    mangled(towards_service() | answers() | any_arp()),
)
frames = st.lists(st.tuples(st.sampled_from(IN_PORTS), any_frame), min_size=20, max_size=40)
HOPS = ["10.0.0.2", "192.0.2.2", "10.0.0.5", "1.0.0.1", METADATA_IP]
next_hops = st.builds(NextHop, st.sampled_from(HOPS), st.sampled_from(["", MACS[1]]))
addresses = st.builds(
    GuestAddress, st.sampled_from(MACS[:2]), st.sampled_from([IPv4Address(ip) for ip in IPS[:3]])
)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Which guests there are, and which of their addresses in which slots."""
    guests = []
    for endpoint in draw(endpoints()):
        ofport = endpoint.ofport
        known = draw(st.lists(addresses, unique=True, max_size=5))
        slots = draw(st.permutations(SLOTS))
        meter = draw(st.sampled_from([METERS[ofport], None]))
        syn_meter = draw(st.sampled_from([SYN_METERS[ofport], None]))
        given = dict(zip(slots, known, strict=False))
        hops = tuple(draw(st.lists(next_hops, unique_by=lambda hop: hop.ip, max_size=3)))
        only = draw(st.sampled_from(["", *MACS[:1]])) if endpoint.vid else ""
        guests.append(Guest(endpoint, meter, given, syn_meter, hops, only))
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=draw(st.sampled_from([METADATA_IP, HOST_IP])))
    return State(tap, tuple(guests))


@st.composite
def likely(draw: st.DrawFn, state: State) -> tuple[int, bytes]:
    """A frame that the flows of *state* are about, now and then with a byte overwritten."""
    guest = draw(st.sampled_from(state.guests))
    anyone = st.tuples(st.sampled_from(SLOTS), addresses)
    known = list(guest.addresses.items())
    slot, who = draw(st.sampled_from(known) | anyone if known else anyone)
    ip, key, tap = str(who.ip), str(IN_PORT.key_of(guest.endpoint, slot)), state.tap
    flags, kind = draw(flag_sets), draw(st.integers(0, 3))
    asked = key if kind == 3 else METADATA_IP
    if kind == 2:
        asked = draw(st.sampled_from([METADATA_IP, *HOPS]))
    if kind == 0:
        packet = ipv4(tcp(dst=asked, src=ip, flags=flags), dst=asked, src=ip)
        frame = ethernet(packet, dst=draw(macs), src=who.mac)
    elif kind == 1:
        packet = ipv4(tcp(dst=key, src=tap.ip, sport=tap.port, flags=flags), dst=key, src=tap.ip)
        frame = ethernet(packet, dst=draw(macs), src=tap.mac)
    else:
        packet = arp(op=1, sha=who.mac, spa=ip, tha=draw(macs), tpa=asked)
        frame = ethernet(packet, dst=draw(macs), src=draw(macs), kind=0x0806)
    if kind % 2:
        return TAP_PORT, draw(overwritten(frame))
    frame = draw(of_endpoint(guest.endpoint, draw(overwritten(frame))))
    return guest.endpoint.ofport, frame


def test_the_model_and_open_vswitch_agree_on_every_frame_in_every_state(pair: Pair) -> None:
    pair.agree_on(cases(states(), likely, frames))


# tools/soak tries the other address as well.
@pytest.mark.parametrize("ip", [HOST_IP, METADATA_IP][: examples(1)])
def test_they_agree_on_all_combinations_of_tcp_flags(pair: Pair, ip: str) -> None:
    """All 4,096, from a known and an unknown address, tagged or not, and back from the proxy."""
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=ip)
    known = GuestAddress(MACS[0], IPv4Address(IPS[0]))
    guest = Guest(Endpoint(1), METERS[1], {4: known})
    pair.install([*fixed_flows(tap), *guest_flows(guest, tap)])
    key, sent = str(IN_PORT.key_of(Endpoint(1), 4)), Frames()
    for flags in range(0x1000):
        for src, vlan in ((IPS[0], []), (IPS[1], []), (IPS[0], [7])):
            packet = ipv4(tcp(dst=METADATA_IP, src=src, flags=flags), dst=METADATA_IP, src=src)
            sent.append((1, ethernet(packet, dst=TAP_MAC, src=MACS[0], tags=vlan)))
        packet = ipv4(tcp(dst=key, src=ip, flags=flags, sport=9775), dst=key, src=ip)
        sent.append((TAP_PORT, ethernet(packet, dst=MACS[1], src=TAP_MAC)))
    fates = pair.compare(sent)
    assert fates == {
        "controller": 0x400,  # SYN without ACK
        "dropped": 0xC00,
        "proxy": 0x1000,
        "untouched": 0x1000,
        "guest": 0x1000,
    }


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
    flows = three_guests()
    pair.install(flows)
    data, last = encode(pair.wire, [pair.wire.dump()], 1)
    pair.answers.clear()
    pair.model.feed(data)
    for answers in (pair.answers, pair.connection.exchange(data, last)):
        entries = [entry for one in answers[:-1] for entry in read(one).body]
        found = [one.flow for one in map(pair.wire.found, entries) if one is not None]
        assert len(found) == len(flows)
        assert set(found) == set(flows)


def read(message: bytes) -> Any:
    """Parse a message as os-ken does."""
    head = struct.unpack_from("!BBHI", message)
    return ofproto_parser.msg(ProtocolDesc(version=ofp.OFP_VERSION), *head, message)


def three_guests() -> list[Flow]:
    """Three guests with the same two addresses."""
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=HOST_IP)
    known = {slot: GuestAddress(MACS[0], IPv4Address(IPS[slot])) for slot in (0, 1)}
    hops = (NextHop("10.0.0.2", MACS[1]), NextHop("192.0.2.2"))
    guests = [Guest(Endpoint(ofport), METERS[ofport], known, next_hops=hops) for ofport in GUESTS]
    return [*fixed_flows(tap), *(one for guest in guests for one in guest_flows(guest, tap))]


@pytest.mark.parametrize(
    ("match", "actions"),
    [
        pytest.param({"tcp_dst": 80}, [], id="a port without its protocol"),
        pytest.param({"ipv4_dst": "10.0.0.1"}, [], id="an address without its type"),
        pytest.param({"eth_type": 0x0800, "arp_op": 1}, [], id="ARP in IPv4"),
        pytest.param({"eth_type": 0x0800, "ip_proto": 17, "tcp_dst": 1}, [], id="TCP in UDP"),
        pytest.param(
            {"eth_type": 0x0800},
            [parser.OFPActionSetField(tcp_dst=80)],
            id="a port set on any IP",
        ),
        pytest.param({}, [parser.OFPActionSetField(arp_op=2)], id="an opcode set on anything"),
        pytest.param({}, [parser.OFPActionSetField(vlan_vid=0x1007)], id="a VID without a tag"),
        pytest.param(
            {"eth_type": 0x0800},
            [parser.NXActionRegMove("arp_spa", "reg0", 32)],
            id="a move from a field that is not there",
        ),
        pytest.param({}, [parser.OFPActionSetField(in_port=3)], id="in_port set"),
        pytest.param({}, [parser.OFPActionSetField(eth_type=3)], id="eth_type set"),
    ],
)
def test_what_the_model_raises_on_open_vswitch_refuses(
    pair: Pair, match: dict[str, Any], actions: list[Any]
) -> None:
    pair.refuse(bare_flow(pair.wire, actions, match=match))


# What dfmeta may emit soon: registers, tags

SOON: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "in_port into an address": (
        {"eth_type": 0x0800, "ip_proto": 6},
        [
            parser.NXActionRegMove("in_port_nxm", "ipv4_src", 16),
            parser.NXActionRegLoad((16 << 6) | 15, "ipv4_src", 0x8000),
        ],
    ),
    "a nested container's tag taken off": (
        {"vlan_vid": (0x1000, 0x1000), "eth_type": 0x0800},
        [
            parser.NXActionRegMove("vlan_vid", "reg1", 12),
            parser.OFPActionPopVlan(),
            parser.NXActionRegMove("reg1", "eth_src", 12, 0, 20),
        ],
    ),
    "a tag put on": (
        {"vlan_vid": 0},
        [
            parser.OFPActionPushVlan(0x8100),
            parser.OFPActionSetField(vlan_vid=0x1123),
            parser.OFPActionSetField(eth_dst=MACS[1]),
        ],
    ),
    "a VID changed, the priority kept": (
        {"vlan_vid": (0x1000, 0x1000)},
        [parser.OFPActionSetField(vlan_vid=0x1456)],
    ),
    "registers": (
        {},
        [
            parser.OFPActionSetField(reg0=0x12345678),
            parser.NXActionRegLoad((4 << 6) | 7, "reg0", 0xAB),
            parser.NXActionRegMove("reg0", "eth_src", 24, 8, 3),
        ],
    ),
    "sent back": ({}, [parser.OFPActionOutput(ofp.OFPP_IN_PORT), parser.OFPActionOutput(1)]),
}


@settings(quick, max_examples=examples(10))
@given(sent=frames)
def test_they_agree_on_registers_and_tags(pair: Pair, sent: Frames) -> None:
    everything = {"out_port": ofp.OFPP_ANY, "out_group": ofp.OFPG_ANY}
    theirs = {"cookie": 7, "cookie_mask": 0xFF, "table_id": ofp.OFPTT_ALL, **everything}
    pair.feed(pair.wire.remove_all())
    for match, actions in SOON.values():
        steps = [*actions, parser.OFPActionOutput(2)]
        pair.feed(
            bare_flow(pair.wire, [], command=ofp.OFPFC_DELETE, **theirs),
            bare_flow(pair.wire, steps, match=match, priority=5, cookie=7),
        )
        pair.compare(sent)
