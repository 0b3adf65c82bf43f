"""Messages should say on the wire what was meant, and a dump should read as what was sent."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow, Opaque, Output, SetField
from dfmeta.flows.key import SLOT6
from dfmeta.flows.pipeline import (
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    PURPOSES,
    Layout,
    Purpose,
    Stage,
    cookie_of,
)
from dfmeta.flows.service import Tap, towards_proxy
from dfmeta.flows.wire import DumpedFlow, Wire
from dfmeta.model import OFPORT_MAX, Endpoint, NextHop
from tests.core.unit.support import (
    SERVICE6,
    TAP,
    TAP6,
    Bundle,
    Datapath,
    PacketOut,
    Sent,
    address,
    address6,
    removed_of,
    stats_of,
    unpack,
)
from tests.harness.examples import examples

ELSEWHERE = Tap(ofport=7, mac=TAP.mac, port=8080, ip="192.0.2.1", guest_ip="169.254.169.254")
HOPS = (NextHop("10.0.0.2", "fa:16:3e:00:00:02"), NextHop("192.0.2.2"))
GUEST = Guest(
    Endpoint(13), 77, {0: address(), 5: address("10.0.0.6", "fa:16:3e:00:00:02")}, syn_meter=78
)
GUEST6 = Guest(
    Endpoint(14),
    79,
    {0: address(), SLOT6 + 1: address6(), SLOT6 + 16: address6(service=SERVICE6[1])},
    syn_meter=80,
)
FLOWS = list(
    dict.fromkeys(
        [
            *fixed_flows(TAP),
            *guest_flows(GUEST, TAP),
            *guest_flows(Guest(Endpoint(OFPORT_MAX), None, {7: address()}, None, HOPS), ELSEWHERE),
            *fixed_flows(TAP6),
            *guest_flows(GUEST6, TAP6),
        ]
    )
)
LAYOUTS = [Layout(), Layout(table_base=60, classification_table=7, hook_priority=500)]
NAMES = [f"{flow.purpose.name.lower()}-{number}" for number, flow in enumerate(FLOWS)]


def sent(message: Any, xid: int = 5) -> Sent:
    message.set_xid(xid)
    message.serialize()
    (one,) = unpack(bytes(message.buf))
    assert one.xid == xid
    return one


def as_found(wire: Wire, stats: Any) -> DumpedFlow:
    found = wire.found(stats)
    assert found is not None
    return found


@pytest.fixture(params=LAYOUTS, ids=["default", "other"])
def wire(request: pytest.FixtureRequest) -> Wire:
    return Wire(request.param)


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_a_dump_reads_as_what_was_added(wire: Wire, flow: Flow) -> None:
    stats = stats_of(sent(wire.add(flow)).body, packets=3, octets=180)
    found = as_found(wire, stats)
    assert found.flow == flow
    assert (found.packets, found.bytes) == (3, 180)
    assert found.cookie == cookie_of(flow.purpose)


@settings(deadline=None, max_examples=examples(16))
@given(
    st.integers(1, OFPORT_MAX),
    st.integers(1, 65535),
    st.ip_addresses(v=4),
    st.ip_addresses(v=6),
    st.binary(min_size=6, max_size=6),
)
def test_whatever_a_guest_calls_itself_a_dump_reads_as_what_was_added(
    ofport: int, proxy_port: int, ip: IPv4Address, ip6: IPv6Address, mac: bytes
) -> None:
    wire = Wire(Layout())
    tap = replace(TAP6, port=proxy_port, ip="192.0.2.1")
    known = {0: address(str(ip), mac.hex(":")), SLOT6 + 1: address6(str(ip6), mac.hex(":"))}
    for flow in guest_flows(Guest(Endpoint(ofport), 0x10000 + ofport, known), tap):
        assert as_found(wire, stats_of(sent(wire.add(flow)).body)).flow == flow


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_an_added_flow_stands_at_its_declared_place(wire: Wire, flow: Flow) -> None:
    mod = sent(wire.add(flow)).body
    assert mod.command == ofp.OFPFC_ADD
    assert mod.table_id == wire.layout.table(flow.purpose)
    assert mod.priority == wire.layout.priority(flow.purpose)
    assert (mod.idle_timeout, mod.hard_timeout) == (0, 0)
    assert mod.buffer_id == ofp.OFP_NO_BUFFER


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_the_switch_tells_when_a_hook_goes_and_only_then(wire: Wire, flow: Flow) -> None:
    mod = sent(wire.add(flow)).body
    told = bool(mod.flags & ofp.OFPFF_SEND_FLOW_REM)
    assert told == (PURPOSES[flow.purpose].stage is Stage.CLASSIFY)


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_a_flow_removed_message_names_the_flow(wire: Wire, flow: Flow) -> None:
    found = wire.removed(removed_of(sent(wire.add(flow)).body))
    assert found is not None
    assert found.flow is not None
    assert found.flow.match_key == flow.match_key


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_removing_names_what_adding_named_and_only_ours(wire: Wire, flow: Flow) -> None:
    added = sent(wire.add(flow)).body
    for message in (wire.remove(flow), wire.remove_found(as_found(wire, stats_of(added)))):
        gone = sent(message).body
        assert gone.command == ofp.OFPFC_DELETE_STRICT
        assert (gone.table_id, gone.priority) == (added.table_id, added.priority)
        assert dict(gone.match.items()) == dict(added.match.items())
        assert (gone.cookie, gone.cookie_mask) == (COOKIE_PREFIX, COOKIE_PREFIX_MASK)
        assert (gone.out_port, gone.out_group) == (ofp.OFPP_ANY, ofp.OFPG_ANY)


def test_all_of_ours_go_by_cookie_alone(wire: Wire) -> None:
    mod = sent(wire.remove_all()).body
    assert mod.command == ofp.OFPFC_DELETE
    assert mod.table_id == ofp.OFPTT_ALL
    assert (mod.cookie, mod.cookie_mask) == (COOKIE_PREFIX, COOKIE_PREFIX_MASK)
    assert dict(mod.match.items()) == {}


@pytest.mark.parametrize("flow", FLOWS, ids=NAMES)
def test_a_flow_of_another_release_tells_what_it_would_be_today(wire: Wire, flow: Flow) -> None:
    mod = sent(wire.add(flow)).body
    mod.cookie += 1 << 24
    found = as_found(wire, stats_of(mod))
    assert (found.flow, found.former, found.read) == (None, flow, flow)
    now = as_found(wire, stats_of(sent(wire.add(flow)).body))
    assert (now.flow, now.former, now.read) == (flow, None, flow)


def test_a_flow_of_others_is_not_read(wire: Wire) -> None:
    mod = sent(wire.add(FLOWS[0])).body
    mod.cookie = 0x1234
    assert wire.found(stats_of(mod)) is None
    assert wire.removed(removed_of(mod)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"cookie": cookie_of(Purpose.FROM_TAP) + (1 << 24)},
        {"priority": 299},
        {"table_id": 5},
    ],
    ids=["version", "priority", "table"],
)
def test_a_flow_of_ours_out_of_its_place_has_no_meaning_but_can_be_removed(
    change: dict[str, int],
) -> None:
    wire = Wire(Layout())
    mod = sent(wire.add(fixed_flows(TAP)[0])).body
    for name, value in change.items():
        setattr(mod, name, value)
    found = as_found(wire, stats_of(mod))
    assert found.flow is None
    assert found.elsewhere == (None if "cookie" in change else fixed_flows(TAP)[0])
    gone = sent(wire.remove_found(found)).body
    assert (gone.table_id, gone.priority) == (mod.table_id, mod.priority)
    removed = wire.removed(removed_of(mod))
    assert removed is not None
    assert removed.flow is None


UNKNOWN = [
    ofp_parser.OFPActionGroup(3),
    ofp_parser.OFPActionPushVlan(0x88A8),
    ofp_parser.NXActionResubmitTable(table_id=4),
    ofp_parser.NXActionRegMove(src_field="eth_src", dst_field="eth_dst", n_bits=8, src_ofs=8),
    ofp_parser.NXActionController(max_len=128, controller_id=1, reason=ofp.OFPR_ACTION),
]


@pytest.mark.parametrize("action", UNKNOWN, ids=lambda action: type(action).__name__)
def test_an_action_that_we_never_send_is_opaque_and_differs(action: Any) -> None:
    wire = Wire(Layout())
    reply = next(flow for flow in FLOWS if flow.purpose is Purpose.REPLY)
    mod = sent(wire.add(reply)).body
    mod.instructions[0].actions.append(action)
    found = as_found(wire, stats_of(mod))
    assert found.flow is not None
    assert found.flow.match_key == reply.match_key
    assert found.flow != reply
    assert isinstance(found.flow.actions[-1], Opaque)


@pytest.mark.parametrize(
    "instruction",
    [
        ofp_parser.OFPInstructionWriteMetadata(1, 1),
        ofp_parser.OFPInstructionActions(ofp.OFPIT_CLEAR_ACTIONS, []),
        ofp_parser.OFPInstructionActions(ofp.OFPIT_WRITE_ACTIONS, [ofp_parser.OFPActionOutput(1)]),
    ],
    ids=["metadata", "clear", "write"],
)
def test_an_instruction_that_we_never_send_is_opaque(instruction: Any) -> None:
    wire = Wire(Layout())
    mod = sent(wire.add(fixed_flows(TAP)[1])).body
    mod.instructions.append(instruction)
    found = as_found(wire, stats_of(mod)).flow
    assert found is not None
    assert [type(action) for action in found.actions] == [Opaque]


def test_an_opaque_action_cannot_be_put_into_a_message() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        Wire(Layout()).packet_out(13, [Opaque("learn(…)")], b"")


def test_a_frame_is_sent_on_as_if_it_had_come_in_at_its_port() -> None:
    wire = Wire(Layout())
    actions = towards_proxy(Endpoint(13), 0, tap=TAP)
    body = sent(wire.packet_out(13, actions, b"frame")).body
    assert isinstance(body, PacketOut)
    assert (body.in_port, body.buffer_id, body.frame) == (13, ofp.OFP_NO_BUFFER, b"frame")
    assert [type(action) for action in body.actions] == [
        ofp_parser.OFPActionSetField,
        ofp_parser.OFPActionSetField,
        ofp_parser.OFPActionSetField,
        ofp_parser.OFPActionOutput,
    ]
    read = [(action.key, action.value) for action in body.actions[:-1]]
    assert read == [(a.field, a.value) for a in actions if isinstance(a, SetField)]
    assert Output(body.actions[-1].port) == actions[-1]


def test_a_bundle_opens_adds_in_order_and_commits() -> None:
    wire = Wire(Layout(), Datapath())
    messages = wire.bundle(8, [wire.add(flow) for flow in FLOWS[:3]])
    bodies = [sent(message, xid).body for xid, message in enumerate(messages, 1)]
    assert all(isinstance(body, Bundle) and body.number == 8 for body in bodies)
    assert {body.flags for body in bodies} == {ofp.ONF_BF_ATOMIC | ofp.ONF_BF_ORDERED}
    assert bodies[0].step == ofp.ONF_BCT_OPEN_REQUEST
    assert bodies[-1].step == ofp.ONF_BCT_COMMIT_REQUEST
    inner = [body.message.body for body in bodies[1:-1]]
    assert [as_found(wire, stats_of(mod)).flow for mod in inner] == FLOWS[:3]


def test_a_meter_drops_what_exceeds_its_packets_a_second() -> None:
    body = sent(Wire(Layout()).add_meter(65549, 50)).body
    assert (body.command, body.meter, body.rates) == (ofp.OFPMC_ADD, 65549, (50,))
    assert body.flags == ofp.OFPMF_PKTPS | ofp.OFPMF_BURST


def test_a_meter_is_removed_by_its_number() -> None:
    body = sent(Wire(Layout()).remove_meter(65549)).body
    assert (body.command, body.meter, body.rates) == (ofp.OFPMC_DELETE, 65549, ())


def test_only_packet_ins_of_actions_removed_flows_and_ports_are_asked_for() -> None:
    masks = sent(Wire(Layout()).set_async()).body
    assert masks[:2] == (1 << ofp.OFPR_ACTION, 0)
    assert masks[2:4] == (0b111, 0)
    assert masks[4] & 1 << ofp.OFPRR_DELETE
    assert not masks[4] & 1 << ofp.OFPRR_IDLE_TIMEOUT


def test_the_controller_id_is_told_as_open_vswitch_reads_it() -> None:
    body = sent(Wire(Layout()).set_controller_id(0xD1FE)).body
    assert (body.experimenter, body.exp_type) == (0x2320, 20)
    assert bytes(body.data) == b"\0\0\0\0\0\0\xd1\xfe"


def test_a_barrier_is_a_barrier() -> None:
    assert sent(Wire(Layout()).barrier()).kind == ofp.OFPT_BARRIER_REQUEST


@pytest.mark.parametrize(
    ("name", "kind"), [("dump", ofp.OFPMP_FLOW), ("count", ofp.OFPMP_AGGREGATE)]
)
def test_dumps_ask_for_flows_of_ours_in_all_tables(name: str, kind: int) -> None:
    import struct

    one = sent(getattr(Wire(Layout()), name)())
    assert one.body == kind
    table, out_port, group, cookie, mask = struct.unpack_from("!B3xII4xQQ", one.raw, 16)
    assert (table, out_port, group) == (ofp.OFPTT_ALL, ofp.OFPP_ANY, ofp.OFPG_ANY)
    assert (cookie, mask) == (COOKIE_PREFIX, COOKIE_PREFIX_MASK)
    match = ofp_parser.OFPMatch.parser(one.raw, 48)
    assert dict(match.items()) == {}


def test_the_dump_of_meters_asks_for_all() -> None:
    one = sent(Wire(Layout()).dump_meters())
    assert one.body == ofp.OFPMP_METER_CONFIG
    assert int.from_bytes(one.raw[16:20], "big") == ofp.OFPM_ALL


def test_every_purpose_is_held_against_the_wire() -> None:
    assert {flow.purpose for flow in FLOWS} == set(PURPOSES)
