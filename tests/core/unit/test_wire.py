"""Messages should say on the wire what was meant, and a dump should read as what was sent."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, NamedTuple

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.flows.integration_bridge import (
    ServedEndpoint,
    Tap,
    fixed_flows,
    guest_flows,
    towards_proxy,
)
from dfmeta.flows.openflow import TAGGED, Flow, Opaque, Output, SetField
from dfmeta.flows.pipeline import (
    BR_INT,
    BR_META,
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    TABLES,
    TABLES_TAKEN,
    Layout,
    Purpose,
    Register,
    Stage,
    cookie_of,
    purpose_of,
)
from dfmeta.flows.wire import DumpedFlow, Wire
from dfmeta.identity.key import SLOT6
from dfmeta.model import OFPORT_MAX, Binding, Endpoint, NextHop
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

ELSEWHERE = Tap(ofport=7, mac=TAP.mac, port=8080, ip="192.0.2.1", guest_ip="169.254.169.254")
HOPS = (NextHop("10.0.0.2", "fa:16:3e:00:00:02"), NextHop("192.0.2.2"))
GUEST = ServedEndpoint(Endpoint(13), {0: address(), 5: address("10.0.0.6", "fa:16:3e:00:00:02")})
GUEST6 = ServedEndpoint(
    Endpoint(14),
    {0: address(), SLOT6 + 1: address6(), SLOT6 + 16: address6(service=SERVICE6[1])},
    floods=(Purpose.SYN, Purpose.GUEST_SYN),
)
BINDING = Binding("fa:16:3e:00:00:05", IPv4Address("10.0.0.5"))
FLOWS = list(
    dict.fromkeys(
        [
            *fixed_flows(TAP),
            *guest_flows(GUEST, TAP),
            *guest_flows(ServedEndpoint(Endpoint(OFPORT_MAX), {7: address()}, HOPS), ELSEWHERE),
            *fixed_flows(TAP6),
            *guest_flows(replace(GUEST6, binding=BINDING), TAP6),
        ]
    )
)
LAYOUTS = [Layout(), Layout(table_base=60, classification_table=7, hook_priority=500)]
WIRES = [Wire(layout) for layout in LAYOUTS]


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


def on_each_wire() -> Iterator[tuple[Wire, Flow, Any]]:
    """Each flow in each layout, and the flow-mod that adds it."""
    for wire in WIRES:
        for flow in FLOWS:
            yield wire, flow, sent(wire.add(flow)).body


def test_every_purpose_has_a_flow_here() -> None:
    assert {flow.purpose for flow in FLOWS} == set(BR_INT.purposes)


def test_dump_reads_as_the_flow_that_was_added() -> None:
    for wire, flow, mod in on_each_wire():
        found = as_found(wire, stats_of(mod, packets=3, octets=180))
        assert (found.current, found.flow) == (flow, flow)
        assert (found.entry.packets, found.entry.bytes) == (3, 180), flow
        assert found.entry.cookie == cookie_of(flow.purpose), flow


def test_added_flow_has_its_declared_place() -> None:
    for wire, flow, mod in on_each_wire():
        assert mod.command == ofp.OFPFC_ADD, flow
        assert mod.table_id == wire.layout.table(flow.purpose), flow
        assert mod.priority == wire.layout.priority(flow.purpose), flow
        assert (mod.idle_timeout, mod.hard_timeout) == (0, 0), flow
        assert mod.buffer_id == ofp.OFP_NO_BUFFER, flow


def test_removal_is_reported_of_hooks_alone_and_names_the_flow() -> None:
    for wire, flow, mod in on_each_wire():
        reported = bool(mod.flags & ofp.OFPFF_SEND_FLOW_REM)
        assert reported == (flow.purpose.stage is Stage.CLASSIFY), flow
        found = wire.removed(removed_of(mod))
        assert found is not None, flow
        assert found.match_key == flow.match_key


def test_deletion_names_the_place_and_only_our_cookies() -> None:
    for wire, flow, added in on_each_wire():
        for message in (wire.remove(flow), wire.remove_found(as_found(wire, stats_of(added)))):
            gone = sent(message).body
            assert gone.command == ofp.OFPFC_DELETE_STRICT, flow
            assert (gone.table_id, gone.priority) == (added.table_id, added.priority), flow
            assert dict(gone.match.items()) == dict(added.match.items())
            assert (gone.cookie, gone.cookie_mask) == (COOKIE_PREFIX, COOKIE_PREFIX_MASK), flow
            assert (gone.out_port, gone.out_group) == (ofp.OFPP_ANY, ofp.OFPG_ANY), flow


def test_our_flows_are_deleted_by_cookie_alone() -> None:
    for wire in WIRES:
        mod = sent(wire.remove_all()).body
        assert (mod.command, mod.table_id) == (ofp.OFPFC_DELETE, ofp.OFPTT_ALL)
        assert (mod.cookie, mod.cookie_mask) == (COOKIE_PREFIX, COOKIE_PREFIX_MASK)
        assert dict(mod.match.items()) == {}


def test_flow_of_another_release_reads_as_the_present_one() -> None:
    for wire, flow, mod in on_each_wire():
        mod.cookie += 1 << 24
        found = as_found(wire, stats_of(mod))
        assert (found.current, found.flow) == (None, flow)


def test_foreign_flow_is_not_read() -> None:
    for wire in WIRES:
        mod = sent(wire.add(FLOWS[0])).body
        mod.cookie = 0x1234
        assert wire.found(stats_of(mod)) is None
        assert wire.removed(removed_of(mod)) is None


def test_misplaced_flow_has_no_meaning_but_can_be_removed() -> None:
    wire, first = WIRES[0], fixed_flows(TAP)[0]
    for name, value in (
        ("cookie", cookie_of(Purpose.FROM_TAP) + (1 << 24)),
        ("priority", 299),
        ("table_id", 5),
    ):
        mod = sent(wire.add(first)).body
        setattr(mod, name, value)
        found = as_found(wire, stats_of(mod))
        assert found.current is None, name
        gone = sent(wire.remove_found(found)).body
        assert (gone.table_id, gone.priority) == (mod.table_id, mod.priority), name
        assert wire.removed(removed_of(mod)) is None, name


UNKNOWN = [
    ofp_parser.OFPActionGroup(3),
    ofp_parser.OFPActionPushVlan(0x88A8),
    ofp_parser.NXActionResubmitTable(table_id=4),
    ofp_parser.NXActionRegMove(src_field="eth_src", dst_field="eth_dst", n_bits=8, src_ofs=8),
    ofp_parser.NXActionController(max_len=128, controller_id=1, reason=ofp.OFPR_ACTION),
]


def test_unknown_action_is_opaque_and_makes_a_difference() -> None:
    wire = WIRES[0]
    reply = next(flow for flow in FLOWS if flow.purpose is Purpose.REPLY)
    for action in UNKNOWN:
        mod = sent(wire.add(reply)).body
        mod.instructions[0].actions.append(action)
        found = as_found(wire, stats_of(mod)).flow
        assert found is not None, action
        assert found.match_key == reply.match_key
        assert found != reply, action
        assert isinstance(found.actions[-1], Opaque), action


def test_a_frame_is_sent_on_as_if_it_had_come_in_at_its_port() -> None:
    wire = Wire(Layout())
    actions = towards_proxy(Endpoint(13), 0, tap=TAP)
    body = sent(wire.packet_out(13, actions, b"frame")).body
    assert isinstance(body, PacketOut)
    assert (body.in_port, body.buffer_id, body.frame) == (13, ofp.OFP_NO_BUFFER, b"frame")
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


def test_only_packet_ins_of_actions_removed_flows_and_ports_are_asked_for() -> None:
    masks = sent(Wire(Layout()).set_async()).body
    assert masks[:2] == (1 << ofp.OFPR_ACTION, 0)
    assert masks[2:4] == (0b111, 0)
    assert masks[4] & 1 << ofp.OFPRR_DELETE
    assert not masks[4] & 1 << ofp.OFPRR_IDLE_TIMEOUT


def test_controller_id_is_encoded_as_open_vswitch_reads_it() -> None:
    body = sent(Wire(Layout()).set_controller_id(0xD1FE)).body
    assert (body.experimenter, body.exp_type) == (0x2320, 20)
    assert bytes(body.data) == b"\0\0\0\0\0\0\xd1\xfe"


class Asked(NamedTuple):
    """Selection of flows of a multipart request."""

    kind: int
    table: int
    cookie: int
    cookie_mask: int
    match: dict[str, Any]


def asked(message: Any) -> Asked:
    request = sent(message)
    table, *outs, cookie, mask = struct.unpack_from("!B3xII4xQQ", request.raw, 16)
    assert outs == [ofp.OFPP_ANY, ofp.OFPG_ANY]
    match = dict(ofp_parser.OFPMatch.parser(request.raw, 48).items())
    return Asked(request.body, table, cookie, mask, match)


OURS = COOKIE_PREFIX, COOKIE_PREFIX_MASK
FLOW, SUM = ofp.OFPMP_FLOW, ofp.OFPMP_AGGREGATE


def test_requests_of_all_flows_select_our_cookies() -> None:
    for wire in WIRES:
        assert asked(wire.dump_all()) == (FLOW, ofp.OFPTT_ALL, *OURS, {})
        tables = [wire.layout.number(stage) for stage in BR_INT.tables]
        for kind, messages in ((FLOW, wire.dump_tables()), (SUM, wire.count_tables())):
            assert sorted(map(asked, messages)) == [(kind, t, *OURS, {}) for t in sorted(tables)]


def test_requests_of_a_purpose_select_its_table_and_cookie() -> None:
    every_bit = (1 << 64) - 1
    for wire in WIRES:
        for purpose in BR_INT.purposes:
            selected = wire.layout.table(purpose), cookie_of(purpose), every_bit
            assert asked(wire.dump(purpose)) == (FLOW, *selected, {})
            assert asked(wire.count(purpose)) == (SUM, *selected, {})
            untagged = {"in_port": 13, "vlan_vid": 0}
            assert asked(wire.count(purpose, Endpoint(13))) == (SUM, *selected, untagged)
            tagged = {"in_port": 13, "vlan_vid": TAGGED | 100}
            assert asked(wire.count(purpose, Endpoint(13, 100))) == (SUM, *selected, tagged)


def test_flow_with_a_meter_reads_as_another_flow() -> None:
    """No flow of dfmeta has one: the reconcile replaces it."""
    wire = WIRES[0]
    for flow in FLOWS:
        mod = sent(wire.add(flow)).body
        mod.instructions.insert(0, ofp_parser.OFPInstructionMeter(7))
        found = as_found(wire, stats_of(mod)).flow
        assert found is not None, flow
        assert found.match_key == flow.match_key
        assert found.actions == (Opaque("meter:7"), *flow.actions)


LAYOUT = Layout()
DECLARED = [LAYOUT, Layout(table_base=60, classification_table=59), Layout(pipeline=BR_META)]


def test_every_purpose_and_every_stage_is_declared() -> None:
    assert {*BR_INT.purposes, *BR_META.purposes} == set(Purpose)
    assert {*BR_INT.tables, *BR_META.tables} == set(Stage)
    for pipeline in (BR_INT, BR_META):
        assert {purpose.stage for purpose in pipeline.purposes} == set(pipeline.tables)
        assert all(table.why.endswith(".") for table in pipeline.tables.values())


def test_a_register_is_set_and_read_in_one_table_alone() -> None:
    """A frame with a register of ours never leaves dfmeta's own tables, but for one register."""
    assert not TABLES[Stage.CLASSIFY].sets & set(Register)
    readers = {Stage.SUBPORT: {Register.TAG}, Stage.CLASSIFY: {Register.CHECKED}}
    for stage, table in TABLES.items():
        assert table.matches & set(Register) == readers.get(stage, set())
        assert table.reclassifies == (Register.CHECKED in table.sets)
        if table.sets & set(Register):
            assert table.successors <= {Stage.ND, Stage.SUBPORT}


@pytest.mark.parametrize("layout", DECLARED)
def test_a_packet_only_goes_to_higher_tables_and_every_table_is_reached(layout: Layout) -> None:
    reached = {next(iter(layout.pipeline.tables))}
    for stage, table in layout.pipeline.tables.items():
        assert all(
            layout.number(successor) > layout.number(stage) for successor in table.successors
        )
        reached |= table.successors
    assert reached == set(layout.pipeline.tables)


@pytest.mark.parametrize("layout", DECLARED)
def test_every_table_of_ours_drops_what_nothing_else_matches(layout: Layout) -> None:
    _classify, *ours = layout.pipeline.tables
    for stage in ours:
        mine = [
            layout.priority(purpose)
            for purpose in layout.pipeline.purposes
            if purpose.stage is stage
        ]
        assert min(mine) == 0


def test_a_cookie_with_the_stage_of_another_table_has_no_purpose() -> None:
    assert purpose_of(cookie_of(Purpose.REPLY) ^ 1 << 16) is None


def test_the_default_layout_has_the_contracts_numbers() -> None:
    assert (LAYOUT.number(Stage.CLASSIFY), LAYOUT.priority(Purpose.GUEST_HTTP)) == (0, 300)
    assert LAYOUT.number(Stage.SERVICE) == LAYOUT.table_base == 200
    others = (Stage.REPLY, Stage.ND, Stage.SUBPORT, Stage.SOURCE)
    assert [LAYOUT.number(stage) for stage in others] == [201, 202, 203, 204]
    assert TABLES_TAKEN == 5


def test_a_layout_takes_the_options_numbers() -> None:
    layout = Layout(table_base=60, classification_table=7, hook_priority=500)
    assert [layout.number(stage) for stage in BR_INT.tables] == [7, 60, 61, 62, 63, 64]
    assert [layout.stage(number) for number in (7, 60, 61, 62, 63, 64)] == list(BR_INT.tables)
    assert layout.stage(0) is None
    assert layout.priority(Purpose.GUEST_ARP) == layout.priority(Purpose.FROM_TAP) == 500
