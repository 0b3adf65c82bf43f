"""The paths of a guest's SYN and of the SYN-ACK through the bridge, described for trace. Pure.

Over IPv6, a guest asks for the service's MAC first (neighbour discovery, RFC 4861). Over IPv4, it
may ask for the MAC of a guest next hop.

A path is judged from the output of ``ofproto/trace`` (ovs-vswitchd(8)). It is text for people, and
only its shape is stable: a line for each table that the packet passes, its actions indented below,
and the final packet at the end. Only numbers that dfmeta itself set (cookies, ports) are judged. A
stop is a sentence that names the place and the cause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.flow_diff import purpose_name
from dfmeta.flows.family import solicited_node
from dfmeta.flows.flow import ARP_REQUEST, ND_SOLICITATION
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import (
    METADATA_PORT,
    TABLES,
    Layout,
    Purpose,
    Stage,
    is_ours,
    purpose_of,
    table_of,
)
from dfmeta.model import GuestAddress, NextHop, PortKind, PortState

_HOP: Final = re.compile(
    r"^(?P<indent>\s*)(?P<table>\d+)\. "
    r"(?:(?P<none>No match\.)|(?:(?P<match>.*), )?priority (?P<priority>\d+)"
    r"(?:, cookie (?P<cookie>0x[0-9a-f]+))?)\s*$"
)
_FINAL: Final = "Final flow: "
_FLOW: Final = "Flow: "
_UNCHANGED: Final = "unchanged"
_NOTES: Final = ("->", ">>")
_BRIDGE: Final = re.compile(r'^bridge\("(?P<name>[^"]*)"\)\s*$')
_MISS: Final = re.compile(r"reg0=0x[12]")
"""Match of the rules with which Open vSwitch itself handles a packet that no flow matches."""


@dataclass(frozen=True, slots=True)
class Hop:
    """A table on the path, and the flow that the packet matched there."""

    table: int
    matched: bool
    priority: int = 0
    cookie: int = 0
    match: str = ""
    actions: tuple[str, ...] = ()
    bridge: str = ""
    """Name of the bridge of the table."""

    @property
    def ours(self) -> bool:
        """Whether dfmeta installed the flow."""
        return self.matched and is_ours(self.cookie)

    @property
    def purpose(self) -> Purpose | None:
        """Purpose of the flow; None if it is not one of dfmeta's current flows."""
        return purpose_of(self.cookie) if self.matched else None

    def outputs_to(self, ofport: int) -> bool:
        """Return whether this flow sends the packet out at *ofport*."""
        return f"output:{ofport}" in self.actions


@dataclass(frozen=True, slots=True)
class Trace:
    """A packet's path through the bridge, and through those behind its patch ports."""

    hops: tuple[Hop, ...]
    final: dict[str, str]
    """Fields of the packet when it leaves the first bridge, in the old notation of ovs-fields(7)
    (``nw_dst``). Addresses of IPv6 have no zone, and may be written in another way than Python
    writes them."""

    def at(self, table: int) -> Hop | None:
        """Return the first hop in *table*; None if the packet does not pass the table."""
        return next((hop for hop in self.hops if hop.table == table), None)

    @property
    def first(self) -> Trace:
        """The part of the path on the bridge where it begins."""
        return self.on(self.hops[0].bridge) if self.hops else self

    def on(self, bridge: str) -> Trace:
        """Return the part of the path on *bridge*; without hops if the packet does not get there.

        It has the same final packet.
        """
        return Trace(tuple(hop for hop in self.hops if hop.bridge == bridge), self.final)


def parse(text: str) -> Trace:
    """Parse the whole output, except the part after a recirculation."""
    hops: list[Hop] = []
    actions: list[str] = []
    flow, final, bridge = "", "", ""
    for line in text.splitlines():
        match, begins = _HOP.match(line), _BRIDGE.match(line)
        if line.startswith(_FLOW):
            flow = line.removeprefix(_FLOW)
        elif line.startswith(_FINAL):
            final = line.removeprefix(_FINAL)
            break
        elif begins:
            bridge = begins["name"]
        elif match:
            _finish(hops, actions)
            hops.append(_hop(match, bridge))
        elif hops and line.startswith(" ") and not line.strip().startswith(_NOTES):
            actions.append(line.strip())
    _finish(hops, actions)
    return Trace(tuple(hops), _fields(flow if final in ("", _UNCHANGED) else final))


def packet(protocol: str, /, **fields: object) -> str:
    """Return a packet in ovs-ofctl(8)'s notation: ``packet("tcp", in_port=1)``.

    :param protocol: such as ``tcp``, ``tcp6`` or ``icmp6``; it has to precede its fields.
    """
    return ",".join((protocol, *(f"{name}={value}" for name, value in fields.items())))


def _finish(hops: list[Hop], actions: list[str]) -> None:
    """Add the collected actions to the last hop."""
    if hops:
        hops.append(replace(hops.pop(), actions=tuple(actions)))
    actions.clear()


def _hop(match: re.Match[str], bridge: str) -> Hop:
    if match["none"] or _MISS.fullmatch(match["match"] or ""):
        return Hop(int(match["table"]), matched=False, bridge=bridge)
    return Hop(
        int(match["table"]),
        matched=True,
        priority=int(match["priority"]),
        cookie=int(match["cookie"] or "0", 16),
        match=match["match"] or "",
        bridge=bridge,
    )


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}


ROUTER_MAC = "02:00:00:00:00:01"
"""Destination MAC of the guest's SYN: any MAC will do, since no flow of dfmeta matches on it."""
SOURCE_PORT = 49152
TTL = 64
HOP_LIMIT_OF_ND = 255
"""Other hop limits are not accepted in neighbour discovery (RFC 4861, 7.1.1)."""
UNSEEN = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
"""Stands for an address that is not known yet (the IP address: RFC 5737)."""
UNSEEN6: Final = IPv6Address("2001:db8::1")
"""As :data:`UNSEEN` (RFC 3849)."""
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
_NO_MAC: Final = "00:00:00:00:00:00"
_BACK: Final = "IN_PORT"
"""The action that outputs to the ingress port, as ovs-ofctl(8) prints it."""


@dataclass(frozen=True, slots=True)
class Notation:
    """Names of one version of IP in the old notation of ovs-fields(7)."""

    tcp: str
    source: str
    destination: str


NOTATIONS: Final[Mapping[int, Notation]] = {
    4: Notation("tcp", "nw_src", "nw_dst"),
    6: Notation("tcp6", "ipv6_src", "ipv6_dst"),
}


@dataclass(frozen=True, slots=True)
class Leg:
    """The path of one packet through the bridge."""

    steps: tuple[str, ...]
    """The tables and flows on the path, for the operator."""
    stop: str = ""
    """Where and why the path stops; empty if the packet arrives."""
    to_controller: bool = False
    """Whether it leads to the controller, which has to install the address' flows first."""


def unseen(mac: str, service: str = "") -> GuestAddress:
    """Return an address that stands for one that is not known yet.

    :param mac: the guest's MAC; empty if it is not known.
    :param service: IPv6 address of the service that the guest uses; empty: it uses IPv4.
    """
    mac = mac or UNSEEN.mac
    if not service:
        return GuestAddress(mac, UNSEEN.ip)
    return GuestAddress(mac, UNSEEN6, IPv6Address(service))


def asked(address: GuestAddress, tap: Tap) -> str:
    """Return the address of the service that packets of *address* are sent to."""
    return str(address.service or tap.guest_ip)


def syn(port: KnownPort, address: GuestAddress, *, tap: Tap, flags: str = "syn") -> str:
    """Return the guest's SYN, or with other *flags* a later packet, for ``ofproto/trace``."""
    of = NOTATIONS[address.ip.version]
    return packet(
        of.tcp,
        **_ingress(port),
        dl_src=address.mac,
        dl_dst=ROUTER_MAC,
        **{of.source: address.ip, of.destination: asked(address, tap)},
        nw_ttl=TTL,
        tcp_src=SOURCE_PORT,
        tcp_dst=METADATA_PORT,
        tcp_flags=flags,
    )


def syn_ack(port: KnownPort, address: GuestAddress, *, slot: int, tap: Tap) -> str:
    """Return the proxy's SYN-ACK to :func:`syn`, for ``ofproto/trace``."""
    of, key = NOTATIONS[address.ip.version], tap.keys.key_of(port.endpoint, slot)
    return packet(
        of.tcp,
        in_port=tap.ofport,
        dl_src=tap.mac,
        dl_dst=address.mac,
        **{of.source: tap.service(key.version).ip, of.destination: key},
        nw_ttl=TTL,
        tcp_src=tap.port,
        tcp_dst=SOURCE_PORT,
        tcp_flags="syn|ack",
    )


def solicitation(port: KnownPort, address: GuestAddress, *, tap: Tap) -> str:
    """Return the guest's neighbour solicitation for the service, for ``ofproto/trace``.

    It is sent to the solicited-node multicast address (RFC 4861, 7.2.2), with the guest's MAC.
    """
    target = IPv6Address(asked(address, tap))
    group = solicited_node(target)
    return packet(
        "icmp6",
        **_ingress(port),
        dl_src=address.mac,
        dl_dst=f"33:33:{group.packed[-4:].hex(':')}",
        ipv6_src=address.ip,
        ipv6_dst=group,
        nw_ttl=HOP_LIMIT_OF_ND,
        icmpv6_type=ND_SOLICITATION,
        icmpv6_code=0,
        nd_target=target,
        nd_sll=address.mac,
    )


def arp_request(port: KnownPort, mac: str, *, hop: NextHop) -> str:
    """Return a guest's ARP request for a guest next hop, for ``ofproto/trace``.

    Its sender is on the network of the next hop. A guest with addresses of several networks has
    next hops of each of them.
    """
    return packet(
        "arp",
        **_ingress(port),
        dl_src=mac,
        dl_dst=_BROADCAST,
        arp_op=ARP_REQUEST,
        arp_spa=IPv4Address(int(IPv4Address(hop.ip)) ^ 1),
        arp_tpa=hop.ip,
        arp_sha=mac,
        arp_tha=_NO_MAC,
    )


def _ingress(port: KnownPort) -> Mapping[str, object]:
    """Return the fields of frames that come in at *port*: its number, and the VLAN tag if any."""
    return {"in_port": port.ofport, **_tag(port)}


def _tag(port: KnownPort) -> Mapping[str, str]:
    return {"dl_vlan": str(port.vid)} if port.vid else {}


def next_hop(trace: Trace, port: KnownPort, *, hop: NextHop, tap: Tap, layout: Layout) -> Leg:
    """Judge the path of :func:`arp_request`, and of the answer back to the guest.

    A guest without a route through that next hop does not need the answer.
    """
    steps = tuple(step(hop, layout) for hop in trace.hops)
    stop = not_classified(trace, Purpose.GUEST_NEXT_HOP, layout)
    actions_of = (hop.actions for hop in trace.hops if hop.purpose is Purpose.GUEST_NEXT_HOP)
    if not stop and _BACK not in next(actions_of, ()):
        stop = f"the answer does not leave at {port.name}"
    if not stop:
        wanted = {"arp_spa": hop.ip, "arp_sha": hop.mac or tap.mac, **_tag(port)}
        stop = differs(trace, wanted)
    return Leg(steps, f"guest next hop {hop.ip}: {stop}" if stop else "")


def neighbour(
    trace: Trace, port: KnownPort, address: GuestAddress, *, tap: Tap, layout: Layout
) -> Leg:
    """Judge the path of the solicitation, and of the advertisement back to the guest."""
    steps = tuple(step(hop, layout) for hop in trace.hops)
    stop = _not_advertised(trace, port, asked(address, tap), layout)
    if not stop:
        wanted = {"dl_dst": address.mac, "ipv6_src": asked(address, tap), "nd_tll": tap.mac}
        stop = differs(trace, {**wanted, **_tag(port)})
    return Leg(steps, f"neighbour discovery: {stop}" if stop else "")


def _not_advertised(trace: Trace, port: KnownPort, target: str, layout: Layout) -> str:
    """Return why no advertisement leaves at the port of its solicitation; empty if one does."""
    stop = not_classified(trace, Purpose.GUEST_ND, layout)
    if stop:
        return stop
    for stage, purpose in (
        (Stage.SERVICE, Purpose.GUEST_ND_ANSWER),
        (Stage.ND, Purpose.SERVICE_ND),
    ):
        name, hop = TABLES[stage].name, trace.at(layout.number(stage))
        if hop is None:
            return f"stops before the {name} table: {dropped(port.name)}"
        if hop.purpose is not purpose:
            missing = f"the {purpose_name(purpose)} flow for {target} is missing"
            return f"stops in the {name} table: {missing}, {stranger(hop)} takes it"
        actions = hop.actions
    return "" if _BACK in actions else f"the answer does not leave at {port.name}"


def there(
    trace: Trace,
    port: KnownPort,
    *,
    version: int = 4,
    tap: Tap,
    layout: Layout,
    label: str | None = None,
) -> Leg:
    """Judge the path of the SYN to tap-metadata, or to the patch port of a second bridge.

    :param version: the SYN's version of IP.
    :param label: Meta MAC of its address; None: there is no second bridge.
    """
    steps = tuple(step(hop, layout) for hop in trace.hops)
    stop = not_classified(trace, Purpose.GUEST_SYN, layout)
    if stop:
        return Leg(steps, stop)
    name = TABLES[Stage.SERVICE].name
    hop = trace.at(layout.number(Stage.SERVICE))
    if hop is None:
        return Leg(steps, f"stops before the {name} table: {dropped(port.name)}")
    if not hop.matched:
        return Leg(steps, f"stops in the {name} table: no flow matches it")
    wrong = _not_untagged(trace, hop, layout) if port.vid else ""
    if wrong:
        return Leg(steps, wrong)
    if hop.purpose is Purpose.ADDRESS:
        last = trace.at(layout.number(Stage.SUBPORT)) if port.vid else hop
        return Leg(steps, _misdirected(last or hop, trace, tap, version, label))
    if hop.purpose is Purpose.SYN:
        if port.state is PortState.NO_INSTANCE:
            return Leg(steps, f"stops in the {name} table: {no_instance(port)}", to_controller=True)
        return Leg(steps, to_controller=True)
    if hop.purpose is Purpose.SERVICE_DROP:
        return Leg(steps, f"stops in the {name} table: the port's first-SYN flow is missing")
    return Leg(steps, f"stops in the {name} table: {stranger(hop)} takes it")


def _not_untagged(trace: Trace, hop: Hop, layout: Layout) -> str:
    """Return why a frame of a tagged subport does not pass the subport table; empty if it does.

    :param hop: its flow in the service table.
    """
    wanted = {Purpose.ADDRESS: Purpose.SUBPORT_PROXY, Purpose.SYN: Purpose.SUBPORT_SYN}
    expected = wanted.get(hop.purpose) if isinstance(hop.purpose, Purpose) else None
    if expected is None:
        return ""
    name, last = TABLES[Stage.SUBPORT].name, trace.at(layout.number(Stage.SUBPORT))
    if last is None:
        return f"stops before the {name} table: {stranger(hop)} does not lead there"
    if last.purpose is not expected:
        missing = f"the {purpose_name(expected)} flow is missing"
        return f"stops in the {name} table: {missing}, {stranger(last)} takes it"
    return ""


def on(trace: Trace, layout: Layout) -> str:
    """Return why packets after the SYN, which take another flow, miss the service table."""
    stop = not_classified(trace, Purpose.GUEST_HTTP, layout)
    return f"after the SYN: {stop}" if stop else ""


def back(
    trace: Trace, port: KnownPort, *, address: GuestAddress | None, tap: Tap, layout: Layout
) -> Leg:
    """Judge the path of the SYN-ACK back to the guest.

    :param address: None if no address is known yet: then the SYN-ACK only has to reach the reply
        table, where the controller installs the address' flow.
    """
    steps = tuple(step(hop, layout) for hop in trace.hops)
    stop = not_classified(trace, Purpose.FROM_TAP, layout)
    if stop:
        return Leg(steps, f"on the return path: {stop}")
    name = TABLES[Stage.REPLY].name
    hop = trace.at(layout.number(Stage.REPLY))
    if hop is None:
        why = dropped("tap-metadata")
        return Leg(steps, f"on the return path: stops before the {name} table: {why}")
    if not hop.ours:
        return Leg(steps, f"on the return path: stops in the {name} table: no flow matches it")
    if address is None:
        return Leg(steps)
    if hop.purpose is not Purpose.REPLY:
        cause = "there is no reply flow for its key"
        return Leg(steps, f"on the return path: stops in the {name} table: {cause}")
    of = NOTATIONS[address.ip.version]
    wanted = {
        of.destination: str(address.ip),
        "dl_dst": address.mac,
        of.source: asked(address, tap),
    }
    wrong = differs(trace, wanted | {"tp_src": str(METADATA_PORT), **_tag(port)})
    if not hop.outputs_to(port.ofport or 0):
        wrong = f"it does not leave at {port.name} (ofport {port.ofport})"
    return Leg(steps, f"on the return path: {wrong}" if wrong else "")


def no_instance(port: KnownPort) -> str:
    """Return why the controller holds the SYN of a port without an instance."""
    missing = "external_ids:vm-uuid is missing"
    if port.kind is PortKind.PARENT:
        missing = "it or its VM's interface on the trunk's bridge has no external_ids:vm-uuid"
    return (
        f"the port {port.name} has no instance ({missing}); the controller holds the SYN for "
        "hold_timeout"
    )


def dropped(name: str) -> str:
    """Return why a packet does not reach the next table though a flow resubmits it there."""
    return (
        f"the switch drops packets from {name} though a flow sends them there: `ovs-ofctl -O "
        "OpenFlow13 show` shows the bits of each port (NO_RECV); also check whether the bridge's "
        "spanning tree blocks the port"
    )


def not_classified(trace: Trace, purpose: Purpose, layout: Layout) -> str:
    """Return why the packet does not take its flow in the classification table; empty: it does.

    :param purpose: purpose of that flow.
    """
    stage = purpose.stage
    number, name, hook = layout.number(stage), table_of(stage).name, layout.priority(purpose)
    hop = trace.at(number)
    if hop is None:
        first = trace.hops[0] if trace.hops else None
        taken = f"{stranger(first)} takes it first" if first is not None else "no flow matches it"
        return f"does not reach the {name} table ({number}): {taken}"
    # A foreign flow that resubmits passes the packet on: our hook comes next.
    hops = [hop for hop in trace.hops if hop.table == number]
    if any(hop.purpose is purpose for hop in hops):
        return ""
    expected = f"the {purpose_name(purpose)} flow"
    if not hop.matched:
        return f"stops in the {name} table: {expected} is missing"
    if hop.ours:
        return f"stops in the {name} table: {expected} is missing, {stranger(hop)} takes it"
    if hop.priority >= hook:
        return (
            f"stops in the {name} table: {stranger(hop)} takes it, before dfmeta's hooks "
            f"(priority {hook})"
        )
    return f"stops in the {name} table: {expected} is missing, so {stranger(hop)} takes it"


def _misdirected(hop: Hop, trace: Trace, tap: Tap, version: int, label: str | None) -> str:
    if not hop.outputs_to(tap.ofport):
        where = "tap-metadata's" if label is None else "the patch"
        return f"its flow does not lead to {where} port ({tap.ofport})"
    if label is not None:
        return differs(trace, {"dl_src": label})
    wanted = {"dl_dst": tap.mac, NOTATIONS[version].destination: tap.service(version).ip}
    return differs(trace, wanted | {"tp_dst": str(tap.port)})


def differs(trace: Trace, wanted: Mapping[str, str]) -> str:
    """Return in which fields the final packet differs from *wanted*; empty: in none."""
    wrong = [
        f"{name} is {trace.final.get(name)} and should be {value}"
        for name, value in wanted.items()
        if _canonical(trace.final.get(name)) != _canonical(value)
    ]
    return f"it arrives with other addresses: {'; '.join(wrong)}" if wrong else ""


def _canonical(value: str | None) -> str | None:
    """Return *value*; an IP address in the spelling that Python gives it."""
    try:
        return str(ip_address(value)) if value is not None else None
    except ValueError:
        return value


def stranger(hop: Hop) -> str:
    """Return a clause about the flow of a hop that is not the expected one."""
    if not hop.matched:
        return f"table {hop.table}, which has no flow for it,"
    kind = "a flow of dfmeta" if hop.ours else "another program's flow"
    actions = ",".join(hop.actions)
    return f"{kind} (cookie {hop.cookie:#x}, priority {hop.priority}, actions={actions})"


def step(hop: Hop, layout: Layout) -> str:
    """Return the line about a hop."""
    stage = layout.stage(hop.table)
    name = table_of(stage).name if stage is not None else f"table {hop.table}"
    if not hop.matched:
        return f"{name}: no flow"
    purpose = hop.purpose
    if purpose is not None:
        kind = purpose_name(purpose)
    else:
        kind = f"{'unknown' if hop.ours else 'foreign'} flow, cookie {hop.cookie:#x}"
    return f"{name}: {kind}, priority {hop.priority}: {', '.join(hop.actions)}"
