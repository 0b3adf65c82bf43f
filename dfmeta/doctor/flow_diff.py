"""Comparison of dfmeta's flows on the switch with the desired flows. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dfmeta.doctor.facts import KnownPort
from dfmeta.flows import meta_bridge
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.dump import Seen
from dfmeta.flows.flow import Flow, Value
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import AnyPurpose, Layout, Purpose, cookie_of, table_name
from dfmeta.flows.reading import (
    NONE,
    read_address,
    read_next_hop,
    read_service,
    version_of,
)
from dfmeta.flows.service import Tap
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint, GuestAddress


class State(enum.StrEnum):
    """How a flow on the switch compares with the desired flows."""

    OK = "ok"
    MISSING = "missing"
    """The flow is desired and not on the switch."""
    FLOOD = "flood"
    """The guest sends too many packets: the flow drops them until it stops."""
    DIFFERS = "differs"
    """The flow is desired, but the one on the switch has other instructions."""
    UNKNOWN = "unknown"
    """A stray flow: it has dfmeta's cookie and is not desired."""
    UNCHECKED = "unchecked"
    """The desired flows are not known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A flow with its purpose, its guest and its state."""

    state: State
    table: str
    """The table's name, or its number if it is not a table of dfmeta."""
    purpose: str
    ofport: int | None
    """Port number on the integration bridge; in a flow of the second bridge without a key, its
    ``in_port`` there."""
    key: str
    """The key that the flow translates to or from; empty if the flow is not for one address."""
    address: str
    """The guest's own address, if the flow has one."""
    priority: int
    cookie: int
    packets: int
    bytes: int
    vid: int = 0
    """VLAN id of the guest's frames at ``ofport``; 0: they are untagged."""
    family: int | None = None
    """Version of IP that the flow belongs to, 4 or 6; None if it belongs to no version."""
    service: str = ""
    """Address of the service that the flow matches or restores; empty if it has none."""
    bridge: str = ""
    next_hop: str = ""
    """The guest next hop for which the flow answers ARP; empty: for none."""


_ByKey = Mapping[tuple[AnyPurpose, tuple[tuple[str, Value], ...]], Flow]


def wanted_flows(ports: Iterable[KnownPort], tap: Tap) -> tuple[Flow, ...]:
    """Return all desired flows of guests that do not flood."""
    flows = list(fixed_flows(tap))
    for guest in _guests(ports):
        flows.extend(guest_flows(guest, tap))
    return tuple(flows)


def wanted_meta_flows(ports: Iterable[KnownPort], tap: MetaTap) -> tuple[Flow, ...]:
    """Return all desired flows of the second bridge."""
    flows = list(meta_bridge.fixed_flows(tap))
    for guest in _guests(ports):
        flows.extend(meta_bridge.guest_flows(guest, tap))
    return tuple(flows)


def _guests(ports: Iterable[KnownPort]) -> Iterator[Guest]:
    for port in ports:
        if port.wired and port.ofport is not None:
            yield Guest(
                port.endpoint,
                port.addresses,
                next_hops=port.next_hops or (),
                mac=port.mac if port.vid else "",
                binding=port.binding,
            )


def addresses_of(seen: Iterable[Seen], keys: Keys) -> Iterator[tuple[Endpoint, int, GuestAddress]]:
    """Return the addresses for which the integration bridge has flows: endpoint, slot, address."""
    for one in seen:
        if one.flow is None or one.flow.purpose is not Purpose.ADDRESS:
            continue
        read = read_address(one.flow, keys)
        if read.endpoint is not None and read.slot is not None and read.address is not None:
            yield read.endpoint, read.slot, read.address


def entries(
    seen: Iterable[Seen],
    wanted: Iterable[Flow] | None,
    *,
    layout: Layout,
    keys: Keys = IN_PORT,
    bridge: str = "",
) -> tuple[Entry, ...]:
    """Compare the flows on the switch with the desired ones; sort them by table and port.

    :param seen: flows with dfmeta's cookie on the switch.
    :param wanted: the desired flows; None if they are not known.
    :param keys: the key scheme of the flows.
    :param bridge: name of the bridge.
    """
    seen = tuple(seen)
    by_key = None if wanted is None else {flow.match_key: flow for flow in wanted}
    found = [_entry(one, _judge(one.flow, by_key), layout, keys) for one in seen]
    there = {one.flow.match_key for one in seen if one.flow is not None}
    missing = [flow for key, flow in (by_key or {}).items() if key not in there]
    found += [_entry(_as_seen(flow, layout), State.MISSING, layout, keys) for flow in missing]
    return tuple(replace(one, bridge=bridge) for one in sorted(found, key=_order(layout)))


def faulty(rows: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries that are missing, different or stray."""
    right = (State.OK, State.FLOOD, State.UNCHECKED)
    return tuple(row for row in rows if row.state not in right)


def purpose_name(purpose: AnyPurpose) -> str:
    """Return a purpose in the form of listings, such as ``guest-http``."""
    return purpose.name.lower().replace("_", "-")


def drops_flood(flow: Flow) -> bool:
    """Return whether *flow* drops packets because its guest floods (:mod:`dfmeta.apps.floods`)."""
    return flow.purpose in _LIMITED and not flow.actions and flow.goto is None


_LIMITED: Final = (Purpose.SYN, Purpose.GUEST_SYN, Purpose.GUEST_ND_BARE)


def _judge(flow: Flow | None, by_key: _ByKey | None) -> State:
    if flow is None:
        return State.UNKNOWN
    if by_key is None:
        return State.UNCHECKED
    wanted = by_key.get(flow.match_key)
    if wanted is None:
        return State.UNKNOWN
    if drops_flood(flow):
        return State.FLOOD
    return State.OK if flow == wanted else State.DIFFERS


def _entry(seen: Seen, state: State, layout: Layout, keys: Keys) -> Entry:
    stage = layout.stage(seen.table)
    read = read_address(seen.flow, keys) if seen.flow is not None else NONE
    # A flow that belongs to no endpoint is listed under its in_port.
    at = seen.flow.field("in_port") if seen.flow is not None else None
    ofport = read.endpoint.ofport if read.endpoint is not None else at
    return Entry(
        state,
        table_name(stage) if stage is not None else str(seen.table),
        purpose_name(seen.flow.purpose) if seen.flow is not None else "?",
        ofport if isinstance(ofport, int) else None,
        read.key,
        str(read.ip) if read.ip is not None else "",
        seen.priority,
        seen.cookie,
        seen.packets,
        seen.bytes,
        read.endpoint.vid if read.endpoint is not None else 0,
        version_of(seen.flow) if seen.flow is not None else None,
        read_service(seen.flow) if seen.flow is not None else "",
        next_hop=_next_hop(seen.flow),
    )


def _next_hop(flow: Flow | None) -> str:
    hop = read_next_hop(flow) if flow is not None else None
    return hop.ip if hop is not None else ""


def _as_seen(flow: Flow, layout: Layout) -> Seen:
    return Seen(
        flow,
        layout.table(flow.purpose),
        layout.priority(flow.purpose),
        cookie_of(flow.purpose),
    )


def _order(layout: Layout) -> Callable[[Entry], tuple[int, int, int, int, str, str, str]]:
    names = {table_name(stage): layout.number(stage) for stage in layout.pipeline.tables}

    def key(entry: Entry) -> tuple[int, int, int, int, str, str, str]:
        table, family = names.get(entry.table, 255), entry.family or 0
        place = (entry.key, entry.purpose, entry.service or entry.next_hop)
        return table, -entry.priority, entry.ofport or 0, family, *place

    return key
