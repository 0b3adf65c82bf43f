"""The paths of a guest's SYN and of the SYN-ACK through the bridge, described for trace. Pure.

A path is judged from the output of ``ofproto/trace``. A stop is a sentence that names the place and
the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

from dfmeta.flows.pipeline import METADATA_PORT, TABLES, Layout, Purpose, Stage
from dfmeta.flows.service import Tap
from dfmeta.inspect.facts import KnownPort
from dfmeta.inspect.ledger import purpose_name
from dfmeta.inspect.tracing import Hop, Trace, packet
from dfmeta.model import GuestAddress, PortState

ROUTER_MAC = "02:00:00:00:00:01"
"""Destination MAC of the guest's SYN: any MAC will do, since no flow of dfmeta matches on it."""
SOURCE_PORT = 49152
TTL = 64
UNSEEN = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
"""Stands for an address that is not known yet (the IP address: RFC 5737)."""


@dataclass(frozen=True, slots=True)
class Leg:
    """The path of one packet through the bridge."""

    steps: tuple[str, ...]
    """The tables and flows on the path, for the operator."""
    stop: str = ""
    """Where and why the path stops; empty if the packet arrives."""
    to_controller: bool = False
    """Whether it leads to the controller, which has to install the address' flows first."""


def syn(port: KnownPort, address: GuestAddress, *, tap: Tap, flags: str = "syn") -> str:
    """Return the guest's SYN, or with other *flags* a later packet, for ``ofproto/trace``."""
    return packet(
        in_port=port.ofport,
        dl_src=address.mac,
        dl_dst=ROUTER_MAC,
        nw_src=address.ip,
        nw_dst=tap.guest_ip,
        nw_ttl=TTL,
        tcp_src=SOURCE_PORT,
        tcp_dst=METADATA_PORT,
        tcp_flags=flags,
    )


def syn_ack(port: KnownPort, address: GuestAddress, *, slot: int, tap: Tap) -> str:
    """Return the proxy's SYN-ACK to :func:`syn`, for ``ofproto/trace``."""
    return packet(
        in_port=tap.ofport,
        dl_src=tap.mac,
        dl_dst=address.mac,
        nw_src=tap.ip,
        nw_dst=tap.keys.key_of(port.endpoint, slot),
        nw_ttl=TTL,
        tcp_src=tap.port,
        tcp_dst=SOURCE_PORT,
        tcp_flags="syn|ack",
    )


def there(trace: Trace, port: KnownPort, *, tap: Tap, layout: Layout) -> Leg:
    """Judge the path of the SYN to tap-metadata."""
    steps = tuple(_step(hop, layout) for hop in trace.hops)
    stop = _not_classified(trace, Purpose.GUEST_SYN, layout)
    if stop:
        return Leg(steps, stop)
    name = TABLES[Stage.SERVICE].name
    hop = trace.at(layout.number(Stage.SERVICE))
    if hop is None:
        return Leg(steps, f"stops before the {name} table: {_dropped(port.name)}")
    if not hop.matched:
        return Leg(steps, f"stops in the {name} table: no flow matches it")
    if hop.purpose is Purpose.ADDRESS:
        return Leg(steps, _misdirected(hop, trace, tap))
    if hop.purpose is Purpose.SYN:
        if port.state is PortState.NO_INSTANCE:
            return Leg(steps, f"stops in the {name} table: {no_instance(port)}", to_controller=True)
        return Leg(steps, to_controller=True)
    if hop.purpose is Purpose.SERVICE_DROP:
        return Leg(steps, f"stops in the {name} table: the port's first-SYN flow is missing")
    return Leg(steps, f"stops in the {name} table: {_stranger(hop)} takes it")


def on(trace: Trace, layout: Layout) -> str:
    """Return why packets after the SYN, which take another flow, miss the service table."""
    stop = _not_classified(trace, Purpose.GUEST_HTTP, layout)
    return f"after the SYN: {stop}" if stop else ""


def back(
    trace: Trace, port: KnownPort, *, address: GuestAddress | None, tap: Tap, layout: Layout
) -> Leg:
    """Judge the path of the SYN-ACK back to the guest.

    :param address: None if no address is known yet: then the SYN-ACK only has to reach the reply
        table, where the controller installs the address' flow.
    """
    steps = tuple(_step(hop, layout) for hop in trace.hops)
    stop = _not_classified(trace, Purpose.FROM_TAP, layout)
    if stop:
        return Leg(steps, f"on the return path: {stop}")
    name = TABLES[Stage.REPLY].name
    hop = trace.at(layout.number(Stage.REPLY))
    if hop is None:
        why = _dropped("tap-metadata")
        return Leg(steps, f"on the return path: stops before the {name} table: {why}")
    if not hop.ours:
        return Leg(steps, f"on the return path: stops in the {name} table: no flow matches it")
    if address is None:
        return Leg(steps)
    if hop.purpose is not Purpose.REPLY:
        cause = "there is no reply flow for its key"
        return Leg(steps, f"on the return path: stops in the {name} table: {cause}")
    wanted = {"nw_dst": str(address.ip), "dl_dst": address.mac, "nw_src": tap.guest_ip}
    wrong = _differs(trace, wanted | {"tp_src": str(METADATA_PORT)})
    if not hop.outputs_to(port.ofport or 0):
        wrong = f"it does not leave at {port.name} (ofport {port.ofport})"
    return Leg(steps, f"on the return path: {wrong}" if wrong else "")


def no_instance(port: KnownPort) -> str:
    """Return why the controller holds the SYN of a port without an instance."""
    return (
        f"the port {port.name} has no instance (external_ids:vm-uuid is missing); the controller "
        "holds the SYN for hold_timeout"
    )


def _dropped(name: str) -> str:
    """Return why a packet does not reach the next table though a flow resubmits it there."""
    return (
        f"the switch drops packets from {name} though a flow sends them there: `ovs-ofctl -O "
        "OpenFlow13 show` shows the bits of each port (NO_RECV); also check whether the bridge's "
        "spanning tree blocks the port"
    )


def _not_classified(trace: Trace, purpose: Purpose, layout: Layout) -> str:
    """Return why the packet does not take its flow in the classification table; empty: it does."""
    number = layout.number(Stage.CLASSIFY)
    name, hook = TABLES[Stage.CLASSIFY].name, layout.priority(purpose)
    hop = trace.at(number)
    if hop is None:
        first = trace.hops[0] if trace.hops else None
        taken = f"{_stranger(first)} takes it first" if first is not None else "no flow matches it"
        return f"does not reach the {name} table ({number}): {taken}"
    # A foreign flow that resubmits passes the packet on: our hook comes next.
    hops = [one for one in trace.hops if one.table == number]
    if any(one.purpose is purpose for one in hops):
        return ""
    expected = f"the {purpose_name(purpose)} flow"
    if not hop.matched:
        return f"stops in the {name} table: {expected} is missing"
    if hop.ours:
        return f"stops in the {name} table: {expected} is missing, {_stranger(hop)} takes it"
    if hop.priority >= hook:
        return (
            f"stops in the {name} table: {_stranger(hop)} takes it, before dfmeta's hooks "
            f"(priority {hook})"
        )
    return f"stops in the {name} table: {expected} is missing, so {_stranger(hop)} takes it"


def _misdirected(hop: Hop, trace: Trace, tap: Tap) -> str:
    if not hop.outputs_to(tap.ofport):
        return f"its flow does not lead to tap-metadata's port ({tap.ofport})"
    return _differs(trace, {"dl_dst": tap.mac, "nw_dst": tap.ip, "tp_dst": str(tap.port)})


def _differs(trace: Trace, wanted: dict[str, str]) -> str:
    wrong = [
        f"{name} is {trace.final.get(name)} and should be {value}"
        for name, value in wanted.items()
        if trace.final.get(name) != value
    ]
    return f"it arrives with other addresses: {'; '.join(wrong)}" if wrong else ""


def _stranger(hop: Hop) -> str:
    if not hop.matched:
        return f"table {hop.table}, which has no flow for it,"
    kind = "a flow of dfmeta" if hop.ours else "another program's flow"
    actions = ",".join(hop.actions)
    return f"{kind} (cookie {hop.cookie:#x}, priority {hop.priority}, actions={actions})"


def _step(hop: Hop, layout: Layout) -> str:
    stage = layout.stage(hop.table)
    name = TABLES[stage].name if stage is not None else f"table {hop.table}"
    if not hop.matched:
        return f"{name}: no flow"
    purpose = hop.purpose
    if purpose is not None:
        kind = purpose_name(purpose)
    else:
        kind = f"{'unknown' if hop.ours else 'foreign'} flow, cookie {hop.cookie:#x}"
    return f"{name}: {kind}, priority {hop.priority}: {', '.join(hop.actions)}"
