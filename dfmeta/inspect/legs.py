"""Where a guest's SYN, and the SYN-ACK back, end: in words. Pure.

A leg is judged from ``ofproto/trace``'s account; a stop is a sentence that says where, and what is
the matter.
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
"""Where a guest may send its SYN: any next hop; nothing of ours looks at it."""
SOURCE_PORT = 49152
TTL = 64
UNSEEN = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
"""Stands for an address that is not known yet (RFC 5737)."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One way, and how far it leads."""

    steps: tuple[str, ...]
    stop: str = ""
    """Why it leads no further; empty when it leads to its end."""
    to_controller: bool = False
    """It ends at the controller, which has to put the address' flows in first."""


def syn(port: KnownPort, address: GuestAddress, *, tap: Tap, flags: str = "syn") -> str:
    """The guest's SYN, or with other *flags* what follows it, for ``ofproto/trace``."""
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
    """The proxy's answer to it."""
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
    """Judge the way of the SYN."""
    steps = tuple(_step(hop, layout) for hop in trace.hops)
    stop = _not_classified(trace, Purpose.GUEST_SYN, layout)
    if stop:
        return Leg(steps, stop)
    name = TABLES[Stage.SERVICE].name
    hop = trace.at(layout.number(Stage.SERVICE))
    if hop is None:
        return Leg(steps, f"stops before the {name} table: {_dropped(port.name)}")
    if not hop.matched:
        return Leg(steps, f"stops in the {name} table: there is no flow for it")
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
    """Why what follows the SYN, by another flow, does not come to the service table as it did."""
    stop = _not_classified(trace, Purpose.GUEST_HTTP, layout)
    return f"after the SYN: {stop}" if stop else ""


def back(
    trace: Trace, port: KnownPort, *, address: GuestAddress | None, tap: Tap, layout: Layout
) -> Leg:
    """Judge the way of the SYN-ACK.

    :param address: None when none is known yet: then it has to come as far as the reply table,
        where the controller puts the address' flow.
    """
    steps = tuple(_step(hop, layout) for hop in trace.hops)
    stop = _not_classified(trace, Purpose.FROM_TAP, layout)
    if stop:
        return Leg(steps, f"on the way back: {stop}")
    name = TABLES[Stage.REPLY].name
    hop = trace.at(layout.number(Stage.REPLY))
    if hop is None:
        why = _dropped("tap-metadata")
        return Leg(steps, f"on the way back: stops before the {name} table: {why}")
    if not hop.ours:
        return Leg(steps, f"on the way back: stops in the {name} table: there is no flow for it")
    if address is None:
        return Leg(steps)
    if hop.purpose is not Purpose.REPLY:
        return Leg(steps, f"on the way back: stops in the {name} table: no reply flow for its key")
    wanted = {"nw_dst": str(address.ip), "dl_dst": address.mac, "nw_src": tap.guest_ip}
    wrong = _differs(trace, wanted | {"tp_src": str(METADATA_PORT)})
    if not hop.outputs_to(port.ofport or 0):
        wrong = f"it does not leave at {port.name} (ofport {port.ofport})"
    return Leg(steps, f"on the way back: {wrong}" if wrong else "")


def no_instance(port: KnownPort) -> str:
    """Say why a SYN is held."""
    return (
        f"the port has no instance, external_ids:vm-uuid is missing (on {port.name}); the "
        "controller holds the SYN for hold_timeout"
    )


def _dropped(name: str) -> str:
    """Say why a packet is not handed from one table to the next one by a flow that does so."""
    return (
        f"the switch drops what comes in at {name} though a flow takes it there: "
        "`ovs-ofctl -O OpenFlow13 show` has the bits of each port (NO_RECV), and see whether the "
        "bridge's spanning tree blocks it"
    )


def _not_classified(trace: Trace, purpose: Purpose, layout: Layout) -> str:
    """Why the packet does not come through the classification table by its flow."""
    number = layout.number(Stage.CLASSIFY)
    name, hook = TABLES[Stage.CLASSIFY].name, layout.priority(purpose)
    hop = trace.at(number)
    if hop is None:
        first = trace.hops[0] if trace.hops else None
        taken = _stranger(first) if first is not None else "nothing"
        return f"never comes to the {name} table ({number}): {taken} takes it first"
    # A foreign flow that resubmits hands the packet on: our hook comes next.
    hops = [one for one in trace.hops if one.table == number]
    if any(one.purpose is purpose for one in hops):
        return ""
    what = f"the {purpose_name(purpose)} flow"
    if not hop.matched:
        return f"stops in the {name} table: {what} is missing"
    if hop.ours:
        return f"stops in the {name} table: {what} is missing, {_stranger(hop)} takes it"
    if hop.priority >= hook:
        return (
            f"stops in the {name} table: {_stranger(hop)} takes it, before our hooks (priority "
            f"{hook})"
        )
    return f"stops in the {name} table: {what} is missing, so that {_stranger(hop)} takes it"


def _misdirected(hop: Hop, trace: Trace, tap: Tap) -> str:
    if not hop.outputs_to(tap.ofport):
        return f"its flow does not lead to tap-metadata's port ({tap.ofport})"
    return _differs(trace, {"dl_dst": tap.mac, "nw_dst": tap.ip, "tp_dst": str(tap.port)})


def _differs(trace: Trace, wanted: dict[str, str]) -> str:
    wrong = [
        f"{name} is {trace.final.get(name)} and ought to be {value}"
        for name, value in wanted.items()
        if trace.final.get(name) != value
    ]
    return f"it arrives with other addresses: {'; '.join(wrong)}" if wrong else ""


def _stranger(hop: Hop) -> str:
    if not hop.matched:
        return f"table {hop.table}, which has no flow for it,"
    whose = "a flow of ours" if hop.ours else "a flow of somebody else"
    actions = ",".join(hop.actions)
    return f"{whose} (cookie {hop.cookie:#x}, priority {hop.priority}, actions={actions})"


def _step(hop: Hop, layout: Layout) -> str:
    stage = layout.stage(hop.table)
    name = TABLES[stage].name if stage is not None else f"table {hop.table}"
    if not hop.matched:
        return f"{name}: no flow"
    purpose = hop.purpose
    if purpose is not None:
        what = purpose_name(purpose)
    else:
        what = f"{'unknown' if hop.ours else 'foreign'} flow, cookie {hop.cookie:#x}"
    return f"{name}: {what}, priority {hop.priority}: {', '.join(hop.actions)}"
