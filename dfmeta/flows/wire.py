"""Flows ↔ os-ken's OpenFlow 1.3 messages. The one place that knows both forms.

What :func:`Wire.found` reads from a dump equals what :func:`Wire.add` was given, so that a
comparison of the two says exactly what to send; a test on a real switch holds that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from dfmeta.flows.entry import Entry, Lean, read
from dfmeta.flows.flow import (
    Action,
    Flow,
    Move,
    Opaque,
    Output,
    SetField,
    ToController,
    Value,
    canonical,
)
from dfmeta.flows.pipeline import (
    COOKIE_PREFIX,
    COOKIE_PREFIX_MASK,
    Layout,
    Purpose,
    cookie_of,
    is_ours,
    present,
    purpose_of,
)

WHOLE_PACKET = 0xFFFF
NX_EXPERIMENTER = 0x2320
NXT_SET_CONTROLLER_ID = 20


@dataclass(frozen=True, slots=True)
class DumpedFlow:
    """A flow of ours as a dump shows it."""

    flow: Flow | None
    """None when its place or its cookie is not one of today's declaration."""
    table: int
    priority: int
    cookie: int
    match: Any
    """os-ken's match, or the entry that has it, to delete exactly this flow."""
    packets: int = 0
    bytes: int = 0
    former: Flow | None = None
    """What it would be, but for the version in its cookie: another release has put it there."""

    elsewhere: Flow | None = None
    """What it would be, but for its table or priority: another configuration has put it there."""

    @property
    def read(self) -> Flow | None:
        """The flow, whichever release has put it there."""
        return self.flow or self.former


class Wire:
    """Builds OpenFlow 1.3 messages for one datapath and reads what it sends.

    :param layout: the numbers of tables and priorities.
    :param datapath: what os-ken's messages are bound to; a plain protocol descriptor serves where
        there is no connection, as in tests.
    """

    def __init__(self, layout: Layout, datapath: Any = None) -> None:
        self.layout = layout
        self.datapath = datapath if datapath is not None else ProtocolDesc(version=ofp.OFP_VERSION)

    def add(self, flow: Flow) -> Any:
        """Message that puts *flow* in, in place of the one at its place."""
        flags = ofp.OFPFF_SEND_FLOW_REM if self.layout.pipeline.is_shared(flow.purpose) else 0
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=cookie_of(flow.purpose),
            table_id=self.layout.table(flow.purpose),
            command=ofp.OFPFC_ADD,
            priority=self.layout.priority(flow.purpose),
            flags=flags,
            match=_match(dict(flow.match)),
            instructions=self._instructions(flow),
        )

    def remove(self, flow: Flow) -> Any:
        """Message that takes exactly *flow* away, if it is there and ours."""
        return self._delete_strict(
            self.layout.table(flow.purpose),
            self.layout.priority(flow.purpose),
            _match(dict(flow.match)),
        )

    def remove_found(self, found: DumpedFlow) -> Any:
        """Message that takes exactly the flow that a dump showed away."""
        match = found.match.stats().match if isinstance(found.match, Entry) else found.match
        match = _match(dict(_fields(match)))
        return self._delete_strict(found.table, found.priority, match)

    def remove_all(self) -> Any:
        """Message that takes every flow of ours away, in all tables."""
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=COOKIE_PREFIX,
            cookie_mask=COOKIE_PREFIX_MASK,
            table_id=ofp.OFPTT_ALL,
            command=ofp.OFPFC_DELETE,
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            match=ofp_parser.OFPMatch(),
        )

    def dump(self, purpose: Purpose | None = None, *, out_port: int = ofp.OFPP_ANY) -> Any:
        """Message that asks for all flows of ours, or those of one purpose.

        :param out_port: asks for those alone that output to that port.
        """
        cookie, mask = _cookies(purpose)
        return ofp_parser.OFPFlowStatsRequest(
            self.datapath,
            table_id=ofp.OFPTT_ALL,
            out_port=out_port,
            out_group=ofp.OFPG_ANY,
            cookie=cookie,
            cookie_mask=mask,
        )

    def count(self, purpose: Purpose | None = None) -> Any:
        """Message that asks how many flows of ours there are, or of one purpose, and their
        packets."""
        cookie, mask = _cookies(purpose)
        return ofp_parser.OFPAggregateStatsRequest(
            self.datapath,
            0,
            ofp.OFPTT_ALL,
            ofp.OFPP_ANY,
            ofp.OFPG_ANY,
            cookie,
            mask,
            ofp_parser.OFPMatch(),
        )

    def list_ports(self) -> Any:
        """Message that asks which ports there are."""
        return ofp_parser.OFPPortDescStatsRequest(self.datapath)

    def dump_meters(self, meter: int = ofp.OFPM_ALL) -> Any:
        """Message that asks for all meters, anybody's, or for one; :class:`.metering.MeterConfig`
        for each."""
        return ofp_parser.OFPMeterConfigStatsRequest(self.datapath, 0, meter)

    def meter_stats(self, meter: int = ofp.OFPM_ALL) -> Any:
        """Message that asks what all meters have counted, anybody's, or one;
        :class:`.metering.MeterCount` for each."""
        return ofp_parser.OFPMeterStatsRequest(self.datapath, 0, meter)

    def add_meter(self, meter: int, rate: int) -> Any:
        """Message that makes *meter* drop what exceeds *rate* packets a second."""
        return self._meter(ofp.OFPMC_ADD, meter, rate)

    def remove_meter(self, meter: int) -> Any:
        """Message that takes *meter* away, and with it the flows that use it."""
        return self._meter(ofp.OFPMC_DELETE, meter, 0)

    def set_controller_id(self, controller_id: int) -> Any:
        """Message that makes packet-ins for *controller_id* come to this connection alone.

        NXT_SET_CONTROLLER_ID of Open vSwitch's nicira-ext.h; os-ken has no class for it.
        """
        return ofp_parser.OFPExperimenter(
            self.datapath,
            experimenter=NX_EXPERIMENTER,
            exp_type=NXT_SET_CONTROLLER_ID,
            data=bytes(6) + controller_id.to_bytes(2, "big"),
        )

    def set_async(self) -> Any:
        """Message that asks for packet-ins of actions, removed flows and ports, and nothing else.

        A connection to a bridge's management socket gets no packet-in without it.
        """
        packet_in = 1 << ofp.OFPR_ACTION
        ports = 1 << ofp.OFPPR_ADD | 1 << ofp.OFPPR_DELETE | 1 << ofp.OFPPR_MODIFY
        removed = 1 << ofp.OFPRR_DELETE | 1 << ofp.OFPRR_GROUP_DELETE
        removed |= 1 << OFPRR_METER_DELETE
        return ofp_parser.OFPSetAsync(self.datapath, [packet_in, 0], [ports, 0], [removed, 0])

    def packet_out(self, ofport: int, actions: Iterable[Action], frame: bytes) -> Any:
        """Message that sends *frame* on as if it had come in at *ofport*."""
        return ofp_parser.OFPPacketOut(
            self.datapath,
            buffer_id=ofp.OFP_NO_BUFFER,
            in_port=ofport,
            actions=[_action(one) for one in actions],
            data=frame,
        )

    def barrier(self) -> Any:
        """Message that is answered once all before it is done."""
        return ofp_parser.OFPBarrierRequest(self.datapath)

    def bundle(self, bundle_id: int, mods: Iterable[Any]) -> list[Any]:
        """Messages that make *mods* take effect together, in their order, or not at all."""
        flags = ofp.ONF_BF_ATOMIC | ofp.ONF_BF_ORDERED
        return [
            self._bundle_control(bundle_id, ofp.ONF_BCT_OPEN_REQUEST, flags),
            *(ofp_parser.ONFBundleAddMsg(self.datapath, bundle_id, flags, mod, []) for mod in mods),
            self._bundle_control(bundle_id, ofp.ONF_BCT_COMMIT_REQUEST, flags),
        ]

    def found(self, stats: Any) -> DumpedFlow | None:
        """Read one entry of a flow dump; None when it is not a flow of ours, or not readable."""
        if isinstance(stats, Entry):
            lean = read(stats, _odd_action)
            if lean is not None:
                return self._found(stats, lean)
            stats = stats.stats()
            if stats is None:
                return None
        if not is_ours(stats.cookie):
            return None
        flow, former, elsewhere = self._judge(
            self._flow(stats), stats.cookie, table=stats.table_id, priority=stats.priority
        )
        return DumpedFlow(
            flow,
            table=stats.table_id,
            priority=stats.priority,
            cookie=stats.cookie,
            match=stats.match,
            packets=stats.packet_count,
            bytes=stats.byte_count,
            former=former,
            elsewhere=elsewhere,
        )

    def removed(self, message: Any) -> DumpedFlow | None:
        """Read a flow-removed message; it has no actions. None when the flow was not ours."""
        if not is_ours(message.cookie):
            return None
        purpose = self._purpose_at(message.cookie, message.table_id, message.priority)
        match = _fields(message.match)
        return DumpedFlow(
            Flow(purpose, match) if purpose is not None else None,
            table=message.table_id,
            priority=message.priority,
            cookie=message.cookie,
            match=message.match,
        )

    def _found(self, entry: Entry, lean: Lean) -> DumpedFlow | None:
        if not is_ours(lean.cookie):
            return None
        purpose = purpose_of(present(lean.cookie))
        goto = self.layout.stage(lean.goto) if lean.goto is not None else None
        flow, former, elsewhere = self._judge(
            Flow(purpose, lean.match, lean.actions, goto, lean.meter) if purpose else None,
            lean.cookie,
            table=lean.table,
            priority=lean.priority,
        )
        return DumpedFlow(
            flow,
            table=lean.table,
            priority=lean.priority,
            cookie=lean.cookie,
            match=entry,
            packets=lean.packets,
            bytes=lean.bytes,
            former=former,
            elsewhere=elsewhere,
        )

    def _judge(
        self, flow: Flow | None, cookie: int, *, table: int, priority: int
    ) -> tuple[Flow | None, Flow | None, Flow | None]:
        """Return what was read as ``flow``, ``former`` or ``elsewhere`` of :class:`DumpedFlow`."""
        if self._purpose_at(present(cookie), table, priority) is None:
            return None, None, flow
        return (flow, None, None) if present(cookie) == cookie else (None, flow, None)

    def _purpose_at(self, cookie: int, table: int, priority: int) -> Purpose | None:
        purpose = purpose_of(cookie)
        if purpose is None or self.layout.priority(purpose) != priority:
            return None
        return purpose if self.layout.table(purpose) == table else None

    def _flow(self, stats: Any) -> Flow | None:
        purpose = purpose_of(present(stats.cookie))
        if purpose is None:
            return None
        actions: list[Action] = []
        goto, meter = None, None
        for instruction in stats.instructions:
            match instruction:
                case ofp_parser.OFPInstructionActions(type=ofp.OFPIT_APPLY_ACTIONS):
                    actions.extend(_read_action(one) for one in instruction.actions)
                case ofp_parser.OFPInstructionGotoTable():
                    goto = self.layout.stage(instruction.table_id)
                case ofp_parser.OFPInstructionMeter():
                    meter = instruction.meter_id
                case _:
                    actions.append(Opaque(str(instruction)))
        return Flow(purpose, _fields(stats.match), tuple(actions), goto, meter)

    def _instructions(self, flow: Flow) -> list[Any]:
        instructions: list[Any] = []
        if flow.meter is not None:
            instructions.append(ofp_parser.OFPInstructionMeter(flow.meter))
        if flow.actions:
            actions = [_action(one) for one in flow.actions]
            instructions.append(ofp_parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions))
        if flow.goto is not None:
            instructions.append(ofp_parser.OFPInstructionGotoTable(self.layout.number(flow.goto)))
        return instructions

    def _delete_strict(self, table: int, priority: int, match: Any) -> Any:
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=COOKIE_PREFIX,
            cookie_mask=COOKIE_PREFIX_MASK,
            table_id=table,
            command=ofp.OFPFC_DELETE_STRICT,
            priority=priority,
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            match=match,
        )

    def _meter(self, command: int, meter: int, rate: int) -> Any:
        # A burst of less than a second's packets drops the second of two SYNs that come at once.
        bands = [ofp_parser.OFPMeterBandDrop(rate, rate)] if rate else []
        flags = ofp.OFPMF_PKTPS | ofp.OFPMF_BURST
        return ofp_parser.OFPMeterMod(
            self.datapath, command=command, flags=flags, meter_id=meter, bands=bands
        )

    def _bundle_control(self, bundle_id: int, kind: int, flags: int) -> Any:
        return ofp_parser.ONFBundleCtrlMsg(self.datapath, bundle_id, kind, flags, [])


OFPRR_METER_DELETE = 4
"""OpenFlow 1.4's reason for a flow that went with its meter; Open vSwitch gives it on 1.3 too."""


def _cookies(purpose: Purpose | None) -> tuple[int, int]:
    """Cookie and mask of all flows of ours, or of those of one purpose."""
    if purpose is None:
        return COOKIE_PREFIX, COOKIE_PREFIX_MASK
    return cookie_of(purpose), 0xFFFFFFFFFFFFFFFF


def _match(fields: dict[str, Any]) -> Any:
    """os-ken's match. It puts fields in the order of their numbers, Nicira's before OpenFlow's,
    but a prerequisite has to come before what needs it (OpenFlow 1.3.5, 7.2.3.3): so ip_frag
    goes with Nicira's name for the type."""
    if "ip_frag" in fields and "eth_type" in fields:
        fields["eth_type_nxm"] = fields.pop("eth_type")
    return ofp_parser.OFPMatch(**fields)


def _fields(match: Any) -> tuple[tuple[str, Value], ...]:
    """Read what :func:`_match` makes, in whichever of the two names."""
    return canonical({name.removesuffix("_nxm"): value for name, value in match.items()})


def _action(action: Action) -> Any:
    match action:
        case SetField(field=field, value=value):
            return ofp_parser.OFPActionSetField(**{field: value})
        case Move(source=source, field=field, bits=bits):
            return ofp_parser.NXActionRegMove(src_field=source, dst_field=field, n_bits=bits)
        case Output(port=port):
            return ofp_parser.OFPActionOutput(port)
        case ToController(controller_id=controller_id):
            return ofp_parser.NXActionController(
                max_len=WHOLE_PACKET, controller_id=controller_id, reason=ofp.OFPR_ACTION
            )
        case Opaque():
            raise TypeError(f"{action} was read from a switch and cannot be sent")


@lru_cache(256)
def _odd_action(data: bytes) -> Action:
    """Read an action from its bytes. The same few are in every port's flows."""
    return _read_action(ofp_parser.OFPAction.parser(data, 0))


def _read_action(action: Any) -> Action:
    match action:
        case ofp_parser.OFPActionSetField():
            return SetField(action.key, action.value)
        case ofp_parser.NXActionRegMove(src_ofs=0, dst_ofs=0):
            # Open vSwitch gives the fields back by their NXM names, whatever they were sent as.
            source, field = (n.removesuffix("_nxm") for n in (action.src_field, action.dst_field))
            return Move(source, field, action.n_bits)
        case ofp_parser.OFPActionOutput():
            return Output(action.port)
        case ofp_parser.NXActionController(max_len=0xFFFF):
            return ToController(action.controller_id)
        case _:
            return Opaque(str(action))
