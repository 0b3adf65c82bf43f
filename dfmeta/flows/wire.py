"""Converts flows to os-ken's OpenFlow 1.3 messages and back. Only this module knows both forms.

The flow that :func:`Wire.found` reads from a dump equals the flow that :func:`Wire.add` was given,
so that a comparison shows exactly which messages to send; a test on a real switch checks that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any

from os_ken.lib.packet import ether_types
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser
from os_ken.ofproto.nicira_ext import NXT_SET_CONTROLLER_ID
from os_ken.ofproto.ofproto_common import NX_EXPERIMENTER_ID
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from dfmeta.flows import openflow, pipeline
from dfmeta.flows.entry import Entry, Lean, read
from dfmeta.model import Endpoint


@dataclass(frozen=True, slots=True)
class DumpedFlow:
    """A flow of ours in a dump."""

    flow: openflow.Flow | None
    """None when its table, its priority or its cookie is not one that this release declares for any
    version of the cookie."""
    entry: Lean

    @property
    def key(self) -> tuple[pipeline.Purpose, tuple[tuple[str, openflow.Value], ...]] | None:
        """:attr:`Flow.match_key` of the flow; None without it."""
        return self.flow.match_key if self.flow is not None else None

    @property
    def current(self) -> openflow.Flow | None:
        """The flow, if its cookie has the present version."""
        return self.flow if pipeline.purpose_of(self.entry.cookie) is not None else None


class Wire:
    """Builds OpenFlow 1.3 messages for one datapath and reads its replies.

    :param layout: the numbers of tables and priorities.
    :param datapath: datapath for os-ken's messages; without a connection, as in tests, a plain
        protocol descriptor is used.
    """

    def __init__(self, layout: pipeline.Layout, datapath: Any = None) -> None:
        self.layout = layout
        self.datapath = datapath if datapath is not None else ProtocolDesc(version=ofp.OFP_VERSION)
        self._classification = layout.classification_table

    def add(self, flow: openflow.Flow) -> Any:
        """Return a message that adds *flow*, and replaces a flow with the same key."""
        flags = ofp.OFPFF_SEND_FLOW_REM if flow.purpose.is_shared else 0
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=pipeline.cookie_of(flow.purpose),
            table_id=self.layout.table(flow.purpose),
            command=ofp.OFPFC_ADD,
            priority=self.layout.priority(flow.purpose),
            flags=flags,
            match=_match(dict(flow.match)),
            instructions=self._instructions(flow),
        )

    def remove(self, flow: openflow.Flow) -> Any:
        """Return a message that deletes exactly *flow*, if it exists and is ours."""
        return self._delete_strict(
            self.layout.table(flow.purpose),
            self.layout.priority(flow.purpose),
            _match(dict(flow.match)),
        )

    def remove_found(self, dumped: DumpedFlow) -> Any:
        """Return a message that deletes exactly the flow that a dump contained."""
        entry = dumped.entry
        return self._delete_strict(entry.table, entry.priority, _match(dict(entry.match)))

    def remove_all(self) -> Any:
        """Return a message that deletes all flows of ours, in all tables."""
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=pipeline.COOKIE_PREFIX,
            cookie_mask=pipeline.COOKIE_PREFIX_MASK,
            table_id=ofp.OFPTT_ALL,
            command=ofp.OFPFC_DELETE,
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            match=ofp_parser.OFPMatch(),
        )

    def dump_all(self) -> Any:
        """Return a message that requests all flows of ours, in all tables.

        Those of a run with other tables are found by it alone. The switch reads the flows of all
        programs for it.
        """
        return self._dump(ofp.OFPTT_ALL, None)

    def dump_tables(self) -> list[Any]:
        """Return messages that request the flows of ours in our tables, one for each table."""
        return [self._dump(table, None) for table in self.layout.numbers()]

    def dump(self, purpose: pipeline.Purpose, *, out_port: int = ofp.OFPP_ANY) -> Any:
        """Return a message that requests all flows of one purpose.

        :param out_port: request only flows that output to that port.
        """
        return self._dump(self.layout.table(purpose), purpose, out_port)

    def count_tables(self) -> list[Any]:
        """Return messages that request the number of flows of ours in our tables."""
        return [self._count(table, None) for table in self.layout.numbers()]

    def count(self, purpose: pipeline.Purpose, endpoint: Endpoint | None = None) -> Any:
        """Return a message that requests the number of flows of one purpose, and of their packets.

        :param endpoint: count only the flows of that endpoint.
        """
        match = openflow.canonical(openflow.frames_of(endpoint)) if endpoint is not None else ()
        return self._count(self.layout.table(purpose), purpose, match)

    def list_ports(self) -> Any:
        """Return a message that requests the list of ports."""
        return ofp_parser.OFPPortDescStatsRequest(self.datapath)

    def set_controller_id(self, controller_id: int) -> Any:
        """Return a message that directs packet-ins for *controller_id* to this connection only.

        NXT_SET_CONTROLLER_ID of Open vSwitch's nicira-ext.h; os-ken has no class for it.
        """
        return ofp_parser.OFPExperimenter(
            self.datapath,
            experimenter=NX_EXPERIMENTER_ID,
            exp_type=NXT_SET_CONTROLLER_ID,
            data=bytes(6) + controller_id.to_bytes(2, "big"),
        )

    def set_async(self) -> Any:
        """Return a message that enables packet-ins of actions and events of removed flows and of
        ports, and no others.

        Without it, a connection to a bridge's management socket gets no packet-ins.
        """
        packet_in = 1 << ofp.OFPR_ACTION
        ports = 1 << ofp.OFPPR_ADD | 1 << ofp.OFPPR_DELETE | 1 << ofp.OFPPR_MODIFY
        removed = 1 << ofp.OFPRR_DELETE | 1 << ofp.OFPRR_GROUP_DELETE
        return ofp_parser.OFPSetAsync(self.datapath, [packet_in, 0], [ports, 0], [removed, 0])

    def packet_out(self, ofport: int, actions: Iterable[openflow.Action], frame: bytes) -> Any:
        """Return a message that sends *frame* on as if it had come in at *ofport*."""
        return ofp_parser.OFPPacketOut(
            self.datapath,
            buffer_id=ofp.OFP_NO_BUFFER,
            in_port=ofport,
            actions=[_action(action, self._classification) for action in actions],
            data=frame,
        )

    def barrier(self) -> Any:
        """Return a message that the switch answers once it has processed all earlier ones."""
        return ofp_parser.OFPBarrierRequest(self.datapath)

    def bundle(self, bundle_id: int, mods: Iterable[Any]) -> list[Any]:
        """Return messages that apply all of *mods* together, in their order, or none of them."""
        flags = ofp.ONF_BF_ATOMIC | ofp.ONF_BF_ORDERED
        return [
            self._bundle_control(bundle_id, ofp.ONF_BCT_OPEN_REQUEST, flags),
            *(ofp_parser.ONFBundleAddMsg(self.datapath, bundle_id, flags, mod, []) for mod in mods),
            self._bundle_control(bundle_id, ofp.ONF_BCT_COMMIT_REQUEST, flags),
        ]

    def found(self, entry: Entry) -> DumpedFlow | None:
        """Read one entry of a flow dump; None when it is not a flow of ours or cannot be read."""
        lean = read(entry, self._odd_action)
        if lean is None or not pipeline.is_ours(lean.cookie):
            return None
        purpose = self._purpose_at(pipeline.present(lean.cookie), lean.table, lean.priority)
        goto = self.layout.stage(lean.goto) if lean.goto is not None else None
        flow = (
            openflow.Flow(purpose, lean.match, lean.actions, goto) if purpose is not None else None
        )
        return DumpedFlow(flow, lean)

    def removed(self, message: Any) -> openflow.Flow | None:
        """Read a flow-removed message, which has no actions; None when the flow was not ours, or is
        not as this release declares it."""
        purpose = self._purpose_at(message.cookie, message.table_id, message.priority)
        return openflow.Flow(purpose, _fields(message.match)) if purpose is not None else None

    def _purpose_at(self, cookie: int, table: int, priority: int) -> pipeline.Purpose | None:
        purpose = self.layout.purpose(cookie)
        if purpose is None or self.layout.priority(purpose) != priority:
            return None
        return purpose if self.layout.table(purpose) == table else None

    def _instructions(self, flow: openflow.Flow) -> list[Any]:
        instructions: list[Any] = []
        if flow.actions:
            actions = [_action(action, self._classification) for action in flow.actions]
            instructions.append(ofp_parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions))
        if flow.goto is not None:
            instructions.append(ofp_parser.OFPInstructionGotoTable(self.layout.number(flow.goto)))
        return instructions

    def _odd_action(self, data: bytes) -> openflow.Action:
        return _odd_action(data, self._classification)

    def _dump(
        self, table: int, purpose: pipeline.Purpose | None, out_port: int = ofp.OFPP_ANY
    ) -> Any:
        cookie, mask = _cookies(purpose)
        return ofp_parser.OFPFlowStatsRequest(
            self.datapath,
            table_id=table,
            out_port=out_port,
            out_group=ofp.OFPG_ANY,
            cookie=cookie,
            cookie_mask=mask,
        )

    def _count(
        self,
        table: int,
        purpose: pipeline.Purpose | None,
        match: Iterable[tuple[str, openflow.Value]] = (),
    ) -> Any:
        cookie, mask = _cookies(purpose)
        return ofp_parser.OFPAggregateStatsRequest(
            self.datapath, 0, table, ofp.OFPP_ANY, ofp.OFPG_ANY, cookie, mask, _match(dict(match))
        )

    def _delete_strict(self, table: int, priority: int, match: Any) -> Any:
        return ofp_parser.OFPFlowMod(
            self.datapath,
            cookie=pipeline.COOKIE_PREFIX,
            cookie_mask=pipeline.COOKIE_PREFIX_MASK,
            table_id=table,
            command=ofp.OFPFC_DELETE_STRICT,
            priority=priority,
            out_port=ofp.OFPP_ANY,
            out_group=ofp.OFPG_ANY,
            match=match,
        )

    def _bundle_control(self, bundle_id: int, kind: int, flags: int) -> Any:
        return ofp_parser.ONFBundleCtrlMsg(self.datapath, bundle_id, kind, flags, [])


def _cookies(purpose: pipeline.Purpose | None) -> tuple[int, int]:
    """Return cookie and mask of all flows of ours, or of those of one purpose."""
    if purpose is None:
        return pipeline.COOKIE_PREFIX, pipeline.COOKIE_PREFIX_MASK
    return pipeline.cookie_of(purpose), 0xFFFFFFFFFFFFFFFF


def _match(fields: dict[str, Any]) -> Any:
    """Return os-ken's match. os-ken orders fields by number, Nicira's before OpenFlow's, but a
    prerequisite has to precede the field that needs it (OpenFlow 1.3.5, 7.2.3.3). So Nicira's name
    for the type is used together with ip_frag."""
    if "ip_frag" in fields and "eth_type" in fields:
        fields["eth_type_nxm"] = fields.pop("eth_type")
    return ofp_parser.OFPMatch(**fields)


def _fields(match: Any) -> tuple[tuple[str, openflow.Value], ...]:
    """Read a match of :func:`_match`; the type may have either of the two names."""
    return openflow.canonical(
        {name.removesuffix("_nxm"): _plain(name, value) for name, value in match.items()}
    )


def _plain(name: str, value: Any) -> Any:
    """Return a value of os-ken in the form of :class:`Flow`: os-ken writes some IPv6 addresses with
    the last 32 bits as IPv4."""
    if not name.startswith("ipv6_") or not isinstance(value, str) or "." not in value:
        return value
    return str(IPv6Address(value))


def _action(action: openflow.Action, classification: int) -> Any:
    match action:
        case openflow.SetField(field=field, value=value):
            return ofp_parser.OFPActionSetField(**{field: value})
        case openflow.Move(source=source, field=field, bits=bits):
            return ofp_parser.NXActionRegMove(src_field=source, dst_field=field, n_bits=bits)
        case openflow.Output(port=port):
            return ofp_parser.OFPActionOutput(port)
        case openflow.ToController(controller_id=controller_id):
            return ofp_parser.NXActionController(
                max_len=ofp.OFPCML_NO_BUFFER, controller_id=controller_id, reason=ofp.OFPR_ACTION
            )
        case openflow.PushVlan():
            return ofp_parser.OFPActionPushVlan(ether_types.ETH_TYPE_8021Q)
        case openflow.PopVlan():
            return ofp_parser.OFPActionPopVlan()
        case openflow.Reclassify():
            return ofp_parser.NXActionResubmitTable(table_id=classification)
        case openflow.Opaque():
            raise TypeError(f"{action} was read from a switch and cannot be sent")


@lru_cache
def _odd_action(data: bytes, classification: int) -> openflow.Action:
    """Read an action from its bytes. Cached: the flows of all ports have the same few actions."""
    return _read_action(ofp_parser.OFPAction.parser(data, 0), classification)


def _read_action(action: Any, classification: int) -> openflow.Action:
    match action:
        case ofp_parser.OFPActionSetField():
            return openflow.SetField(action.key, _plain(action.key, action.value))
        case ofp_parser.NXActionRegMove(src_ofs=0, dst_ofs=0):
            # Open vSwitch returns the NXM names of the fields, even when others were sent.
            source, field = (n.removesuffix("_nxm") for n in (action.src_field, action.dst_field))
            return openflow.Move(source, field, action.n_bits)
        case ofp_parser.OFPActionOutput():
            return openflow.Output(action.port)
        case ofp_parser.NXActionController(max_len=ofp.OFPCML_NO_BUFFER):
            return openflow.ToController(action.controller_id)
        case ofp_parser.OFPActionPushVlan(ethertype=ether_types.ETH_TYPE_8021Q):
            return openflow.PushVlan()
        case ofp_parser.OFPActionPopVlan():
            return openflow.PopVlan()
        case ofp_parser.NXActionResubmitTable(in_port=0xFFF8, table_id=table) if (
            table == classification
        ):
            return openflow.Reclassify()
        case _:
            return openflow.Opaque(str(action))
