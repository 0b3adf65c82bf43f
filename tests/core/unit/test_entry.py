"""An entry of a dump should read as os-ken reads it."""

import struct
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.flows import wire as wire_module
from dfmeta.flows.entry import Entry, Lean, read
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import Action, Flow, Opaque, SetField
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.wire import Wire
from dfmeta.identity.key import SLOT6
from dfmeta.model import OFPORT_MAX, Endpoint, GuestAddress, NextHop
from tests.core.unit.support import TAP6, address6, stats_bytes
from tests.harness.examples import examples

WIRE = Wire(Layout())
MACS = st.binary(min_size=6, max_size=6).map(lambda mac: mac.hex(":"))
IPS = st.integers(0, 0xFFFFFFFF).map(IPv4Address)
ADDRESSES = st.dictionaries(
    st.sampled_from((0, 1, 5, 7)), st.builds(GuestAddress, MACS, IPS), max_size=2
)
HOPS = st.lists(
    st.builds(NextHop, IPS.filter(lambda ip: int(ip) > 0).map(str), MACS),
    max_size=2,
    unique_by=lambda hop: hop.ip,
).map(tuple)
GUESTS = st.builds(
    ServedEndpoint, st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.just(0)), ADDRESSES, HOPS
)
TAPS = st.builds(
    Tap,
    st.integers(1, OFPORT_MAX),
    MACS,
    st.integers(1, 65535),
    IPS.map(str),
    st.just("169.254.169.254"),
)


def entry_of(mod: Any, *, cookie: int | None = None, packets: int = 3, octets: int = 180) -> Entry:
    """What a switch's dump has for the flow of *mod*."""
    return Entry(stats_bytes(mod, cookie=cookie, packets=packets, octets=octets))


def as_os_ken(entry: Entry) -> Lean | None:
    """The values of an entry that os-ken reads from it; None if it cannot."""
    stats = entry.stats()
    if stats is None:
        return None
    actions: list[Action] = []
    goto = None
    for step in stats.instructions:
        match step:
            case ofp_parser.OFPInstructionActions(type=ofp.OFPIT_APPLY_ACTIONS):
                actions += [wire_module._read_action(action, 0) for action in step.actions]
            case ofp_parser.OFPInstructionGotoTable(table_id=table):
                goto = table
            case ofp_parser.OFPInstructionMeter(meter_id=meter):
                actions.append(Opaque(f"meter:{meter}"))
            case _:
                actions.append(Opaque("another instruction"))
    counts = stats.packet_count, stats.byte_count
    match = wire_module._fields(stats.match)
    place = stats.table_id, stats.priority, stats.cookie
    return Lean(*place, *counts, match, tuple(actions), goto)


def known(lean: Lean | None) -> Lean | None:
    """The same without the text of instructions that only os-ken knows."""
    if lean is None:
        return None
    other = Opaque("another instruction")
    steps = [
        other if isinstance(step, Opaque) and step.text.startswith("instruction:") else step
        for step in lean.actions
    ]
    return replace(lean, actions=tuple(steps))


@settings(deadline=None, max_examples=examples(13))
@given(GUESTS, TAPS)
def test_flows_of_ours_read_as_os_ken_reads_them(guest: ServedEndpoint, tap: Tap) -> None:
    for flow in (*fixed_flows(tap), *guest_flows(guest, tap)):
        entry = entry_of(WIRE.add(flow))
        found = WIRE.found(entry)
        assert found is not None
        assert found.flow == flow
        assert read(entry, WIRE._odd_action) == as_os_ken(entry)


def flows() -> list[Flow]:
    known = {0: GuestAddress("fa:16:3e:00:00:01", IPv4Address(1)), SLOT6 + 1: address6()}
    return [*fixed_flows(TAP6), *guest_flows(ServedEndpoint(Endpoint(13), known), TAP6)]


@settings(deadline=None, max_examples=examples(13))
@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
@example(bytes(10) + b"\xff\xff\x01\x02\x03\x04", bytes(16))
def test_addresses_of_ipv6_are_in_one_form(one: bytes, other: bytes) -> None:
    """os-ken writes some of them with dots; a flow has Python's form."""
    source, destination = (str(IPv6Address(packed)) for packed in (one, other))
    mod = WIRE.add(flows()[0])
    mod.match = ofp_parser.OFPMatch(eth_type=0x86DD, ip_proto=6, ipv6_dst=destination)
    action = ofp_parser.OFPActionSetField(ipv6_src=source)
    mod.instructions = [ofp_parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, [action])]
    lean = read(entry_of(mod), WIRE._odd_action)
    assert lean is not None
    assert dict(lean.match)["ipv6_dst"] == destination
    assert lean.actions == (SetField("ipv6_src", source),)
    assert lean == as_os_ken(entry_of(mod))


@settings(deadline=None, max_examples=examples(50))
@given(st.sampled_from(flows()), st.data())
def test_what_is_not_as_we_sent_it_reads_as_os_ken_reads_it(flow: Flow, data: Any) -> None:
    entry = bytearray(entry_of(WIRE.add(flow)))
    # Neither the entry's own length nor the cookie's prefix: that is who is asked at all.
    places = st.one_of(st.integers(2, 23), st.integers(28, len(entry) - 1))
    for _ in range(data.draw(st.integers(1, 3))):
        entry[data.draw(places)] = data.draw(st.integers(0, 255))
    odd = Entry(entry)
    lean = read(odd, WIRE._odd_action)
    if lean is None:
        return  # and os-ken may not even come to an end with it
    expected = as_os_ken(odd)
    if expected is not None:
        assert known(lean) == expected


def test_another_instruction_makes_a_difference() -> None:
    parser = ofp_parser
    flow = flows()[0]
    for step in (
        parser.OFPInstructionWriteMetadata(5, 7),
        parser.OFPInstructionActions(ofp.OFPIT_WRITE_ACTIONS, [parser.OFPActionOutput(3)]),
    ):
        mod = WIRE.add(flow)
        mod.instructions = [step]
        found = WIRE.found(entry_of(mod))
        assert found is not None
        assert found.flow is not None
        assert found.flow.match_key == flow.match_key
        assert found.flow != flow


def test_foreign_and_unreadable_entries_are_left_out() -> None:
    entry = entry_of(WIRE.add(flows()[0]))
    assert WIRE.found(Entry(entry[:48] + b"\xff" * (len(entry) - 48))) is None
    assert WIRE.found(entry_of(WIRE.add(flows()[0]), cookie=0x1234)) is None


def test_a_message_is_cut_into_its_entries() -> None:
    entries = [entry_of(WIRE.add(flow)) for flow in flows()]
    body = b"".join(entries)
    head = struct.pack("!BBHI", ofp.OFP_VERSION, ofp.OFPT_MULTIPART_REPLY, 16 + len(body), 9)
    data = head + struct.pack("!HH4x", ofp.OFPMP_FLOW, 0) + body
    message = ofp_parser.msg_parser(
        WIRE.datapath, ofp.OFP_VERSION, ofp.OFPT_MULTIPART_REPLY, len(data), 9, bytearray(data)
    )
    assert message.body == entries
    assert all(isinstance(one, Entry) for one in message.body)


def test_an_entry_that_is_too_short_or_too_long_is_refused() -> None:
    entry = bytearray(entry_of(WIRE.add(flows()[0])))
    for length in (0, 8, 55, 4000):
        entry[:2] = struct.pack("!H", length)
        with pytest.raises(struct.error):
            Entry.parser(entry, 0)
