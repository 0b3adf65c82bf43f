"""One value for a flow, from which both its addition and its deletion are derived.

:func:`flow` builds a flow and checks it against the declaration in :mod:`dfmeta.flows.pipeline` and
against the prerequisites of its match fields (OpenFlow 1.3.5, 7.2.3.8): os-ken serialises a match
on ``tcp_dst`` without ``ip_proto`` and reports no error, and Open vSwitch then drops the field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from os_ken.lib.packet.arp import ARP_REPLY as ARP_REPLY
from os_ken.lib.packet.arp import ARP_REQUEST as ARP_REQUEST
from os_ken.lib.packet.ether_types import ETH_TYPE_ARP as ETH_TYPE_ARP
from os_ken.lib.packet.ether_types import ETH_TYPE_IP as ETH_TYPE_IP
from os_ken.lib.packet.ether_types import ETH_TYPE_IPV6 as ETH_TYPE_IPV6
from os_ken.lib.packet.icmpv6 import ND_NEIGHBOR_ADVERT as ND_NEIGHBOR_ADVERT
from os_ken.lib.packet.icmpv6 import ND_NEIGHBOR_SOLICIT as ND_NEIGHBOR_SOLICIT
from os_ken.lib.packet.in_proto import IPPROTO_ICMPV6 as IPPROTO_ICMPV6
from os_ken.lib.packet.in_proto import IPPROTO_TCP as IPPROTO_TCP
from os_ken.ofproto import nicira_ext
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta import errors, model
from dfmeta.flows.pipeline import Purpose, Stage, Table, table_of

Value = int | str | tuple[int, int] | tuple[str, str]
"""Value of a match field: plain, or with its mask. Addresses are text, other values numbers."""

UNTAGGED = ofp.OFPVID_NONE
"""The frame has no 802.1Q tag. Without it, a flow matches tagged frames as well."""
TAGGED = ofp.OFPVID_PRESENT
"""Set together with the VLAN id of the frame's 802.1Q tag (OpenFlow 1.3.5, 7.2.3.7)."""
PORT_IN_PORT = ofp.OFPP_IN_PORT
"""Back to the port on which the packet came in (OpenFlow 1.3, A.2.1)."""
IP_FRAG_ANY = nicira_ext.FLOW_NW_FRAG_ANY
"""nw_frag of ovs-fields(7): set in the first fragment of a packet and in every later one."""

_IP: Mapping[str, frozenset[int]] = {"eth_type": frozenset({ETH_TYPE_IP, ETH_TYPE_IPV6})}
_V4: Mapping[str, frozenset[int]] = {"eth_type": frozenset({ETH_TYPE_IP})}
_V6: Mapping[str, frozenset[int]] = {"eth_type": frozenset({ETH_TYPE_IPV6})}
_TCP: Mapping[str, frozenset[int]] = {**_IP, "ip_proto": frozenset({IPPROTO_TCP})}
_ARP: Mapping[str, frozenset[int]] = {"eth_type": frozenset({ETH_TYPE_ARP})}
_ICMPV6: Mapping[str, frozenset[int]] = {**_V6, "ip_proto": frozenset({IPPROTO_ICMPV6})}
_ND: Mapping[str, frozenset[int]] = {
    **_ICMPV6,
    "icmpv6_type": frozenset({ND_NEIGHBOR_SOLICIT, ND_NEIGHBOR_ADVERT}),
}

_PREREQUISITES: Mapping[str, Mapping[str, frozenset[int]]] = {
    "ip_proto": _IP,
    "ip_frag": _IP,
    "ipv4_src": _V4,
    "ipv4_dst": _V4,
    "ipv6_src": _V6,
    "ipv6_dst": _V6,
    "tcp_src": _TCP,
    "tcp_dst": _TCP,
    "tcp_flags": _TCP,
    "icmpv6_type": _ICMPV6,
    "icmpv6_code": _ICMPV6,
    "ipv6_nd_target": _ND,
    "ipv6_nd_sll": {**_ICMPV6, "icmpv6_type": frozenset({ND_NEIGHBOR_SOLICIT})},
    "arp_op": _ARP,
    "arp_spa": _ARP,
    "arp_tpa": _ARP,
    "arp_sha": _ARP,
    "arp_tha": _ARP,
}


@dataclass(frozen=True, slots=True)
class SetField:
    """Set *field* to *value*."""

    field: str
    value: int | str


@dataclass(frozen=True, slots=True)
class Move:
    """Copy the first *bits* of *source* into *field*."""

    source: str
    field: str
    bits: int


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet out of *port*."""

    port: int


@dataclass(frozen=True, slots=True)
class ToController:
    """Send the whole packet to the controller connection with that id."""

    controller_id: int


@dataclass(frozen=True, slots=True)
class PushVlan:
    """Put an 802.1Q tag on the frame; a following :class:`SetField` sets its VLAN id."""


@dataclass(frozen=True, slots=True)
class PopVlan:
    """Take the outermost 802.1Q tag off the frame."""


@dataclass(frozen=True, slots=True)
class Reclassify:
    """Send the packet through the classification table again."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """An action found on the switch that dfmeta never sends."""

    text: str


Action = SetField | Move | Output | ToController | PushVlan | PopVlan | Reclassify | Opaque


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow of ours, free of the switch's numbers. Build it with :func:`flow`."""

    purpose: Purpose
    match: tuple[tuple[str, Value], ...]
    actions: tuple[Action, ...] = ()
    goto: Stage | None = None

    @property
    def match_key(self) -> tuple[Purpose, tuple[tuple[str, Value], ...]]:
        """Identity of the flow on the switch: an added flow with the same key replaces it."""
        return self.purpose, self.match

    def field(self, name: str) -> Value | None:
        """Return the value of match field *name*, or None when the flow does not match on it."""
        return next((value for field, value in self.match if field == name), None)


def frames_of(endpoint: model.Endpoint) -> dict[str, Value]:
    """Return the match of all frames that come in at *endpoint*, and of no others."""
    tag = TAGGED | endpoint.vid if endpoint.vid else UNTAGGED
    return {"in_port": endpoint.ofport, "vlan_vid": tag}


def comes_in_at(flow: Flow) -> model.Endpoint | None:
    """Return the endpoint that :func:`frames_of` put into a flow's match; None for other forms.

    A flow that does not match on the tag counts as one of the untagged endpoint.
    """
    ofport, tag = flow.field("in_port"), flow.field("vlan_vid")
    if not isinstance(ofport, int):
        return None
    if tag is None or tag == UNTAGGED:
        return model.Endpoint(ofport)
    if isinstance(tag, int) and tag & TAGGED and tag != TAGGED:
        return model.Endpoint(ofport, tag & ~TAGGED)
    return None


def canonical(match: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """Return a match in a fixed order, so that two matches with the same fields are equal."""
    return tuple(sorted(match.items()))


def flow(
    purpose: Purpose,
    match: Mapping[str, Value],
    *,
    actions: Iterable[Action] = (),
    goto: Stage | None = None,
) -> Flow:
    """Build a flow.

    :raises PipelineError: when the flow uses anything that its table does not declare, or a field
        of its match lacks a prerequisite.
    """
    built = Flow(purpose, canonical(match), tuple(actions), goto)
    table = table_of(purpose.stage)
    _check_match(table, match)
    for action in built.actions:
        _check_action(table, action)
    if goto is not None and goto not in table.successors:
        raise _refuse(table, f"{goto.name} is not among its successors")
    return built


def _check_match(table: Table, match: Mapping[str, Value]) -> None:
    stray = match.keys() - table.matches
    if stray:
        raise _refuse(table, f"it may not match {', '.join(sorted(stray))}")
    for name in match:
        for needed, values in _PREREQUISITES.get(name, {}).items():
            if match.get(needed) not in values:
                either = " or ".join(f"{value:#x}" for value in sorted(values))
                raise _refuse(table, f"{name} needs {needed}={either} in the match")


def _check_action(table: Table, action: Action) -> None:
    match action:
        case SetField(field=field) | Move(field=field) if field not in table.sets:
            raise _refuse(table, f"it may not set {field}")
        case Output() if not table.outputs:
            raise _refuse(table, "it may not output")
        case ToController() if not table.to_controller:
            raise _refuse(table, "it may not send to the controller")
        case PushVlan() | PopVlan() if not table.tags:
            raise _refuse(table, "it may not push or pop a VLAN tag")
        case Reclassify() if not table.reclassifies:
            raise _refuse(table, "it may not go back to the classification table")
        case Opaque(text=text):
            raise _refuse(table, f"{text} is not an action of dfmeta's flows")


def _refuse(table: Table, cause: str) -> errors.PipelineError:
    return errors.PipelineError(table=table.name, cause=cause)


@dataclass(frozen=True, slots=True)
class Seen:
    """A flow on the switch that carries dfmeta's cookie."""

    flow: Flow | None
    """None if its table, its priority or its cookie is not one of dfmeta's current flows."""
    table: int
    priority: int
    cookie: int
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """A flow of another program in the classification table."""

    cookie: int
    priority: int
    match: Mapping[str, Value]
    actions: str
    table: int = 0
    hands_on: bool = False
    """Whether it resubmits to the classification table, so that dfmeta's hook follows it."""
