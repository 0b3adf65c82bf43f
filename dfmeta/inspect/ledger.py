"""Our flows as they are on the switch, beside those that ought to be there. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address

from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow, SetField, Value
from dfmeta.flows.key import parse_key
from dfmeta.flows.pipeline import TABLES, Layout, Purpose, cookie_of
from dfmeta.flows.service import Tap
from dfmeta.inspect.facts import KnownPort, Seen
from dfmeta.model import Endpoint


class State(enum.StrEnum):
    """How a flow compares with what ought to be."""

    OK = "ok"
    MISSING = "missing"
    """It ought to be there and is not."""
    DIFFERS = "differs"
    """It is there, and does something else."""
    UNKNOWN = "unknown"
    """It has our cookie, and nothing like it ought to be there."""
    UNCHECKED = "unchecked"
    """What ought to be there is not known."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One flow: what it is for, whom it serves, and how it stands."""

    state: State
    table: str
    """The table's name, or its number where it is none of ours."""
    purpose: str
    ofport: int | None
    key: str
    """The key that it leads to or answers for; empty for flows that are not of one address."""
    address: str
    """The address that the guest gave itself, where the flow has one."""
    priority: int
    cookie: int
    packets: int
    bytes: int
    meter: int | None = None
    """Id of the meter that it goes through, where it has one."""


_Places = Mapping[tuple[Purpose, tuple[tuple[str, Value], ...]], Flow]


def wanted_flows(ports: Iterable[KnownPort], tap: Tap) -> tuple[Flow, ...]:
    """All flows that ought to be on the switch, free of meters."""
    flows = list(fixed_flows(tap))
    for port in ports:
        if port.wired and port.ofport is not None:
            guest = Guest(Endpoint(port.ofport), None, port.addresses)
            flows.extend(guest_flows(guest, tap))
    return tuple(flows)


def entries(
    seen: Iterable[Seen], wanted: Iterable[Flow] | None, *, layout: Layout
) -> tuple[Entry, ...]:
    """Compare what is there with what ought to be, in the order of tables and ports.

    Meters are left out of it: their ids are the switch's to give, and it is the daemon that knows.

    :param wanted: None when it is not known.
    """
    seen = tuple(seen)
    places = None if wanted is None else {flow.place: flow for flow in wanted}
    found = [_entry(one, _judge(one.flow, places), layout) for one in seen]
    there = {one.flow.place for one in seen if one.flow is not None}
    missing = [flow for place, flow in (places or {}).items() if place not in there]
    found += [_entry(_as_seen(flow, layout), State.MISSING, layout) for flow in missing]
    return tuple(sorted(found, key=_order(layout)))


def faulty(rows: Iterable[Entry]) -> tuple[Entry, ...]:
    """Those that are not as they ought to be."""
    return tuple(row for row in rows if row.state not in (State.OK, State.UNCHECKED))


def purpose_name(purpose: Purpose) -> str:
    """A purpose as people read it: ``guest-http``."""
    return purpose.name.lower().replace("_", "-")


def endpoint_of(flow: Flow) -> tuple[int | None, str]:
    """The ofport that *flow* serves, and the key of its address if it is of one."""
    for field in ("ipv4_dst", "arp_tpa"):
        value = flow.field(field)
        if flow.purpose in (Purpose.REPLY, Purpose.KEY_ARP) and isinstance(value, str):
            return _ofport_of_key(value), value
    ofport = flow.field("in_port")
    if flow.purpose is Purpose.ADDRESS:
        sets = [one for one in flow.actions if isinstance(one, SetField)]
        keys = [one.value for one in sets if one.field == "ipv4_src"]
        return (ofport if isinstance(ofport, int) else None), str(keys[0]) if keys else ""
    return (ofport if isinstance(ofport, int) else None), ""


def _guest_address(flow: Flow) -> str:
    if flow.purpose is Purpose.ADDRESS:
        return str(flow.field("ipv4_src"))
    set_to = [
        action.value
        for action in flow.actions
        if isinstance(action, SetField) and action.field == "ipv4_dst"
    ]
    return str(set_to[0]) if flow.purpose is Purpose.REPLY and set_to else ""


def slot_of(flow: Flow) -> int | None:
    """The slot that an address' flow stands for; None for another flow."""
    key = endpoint_of(flow)[1]
    try:
        return parse_key(IPv4Address(key))[1] if key else None
    except (KeyRangeError, ValueError):
        return None


def _judge(flow: Flow | None, places: _Places | None) -> State:
    if flow is None:
        return State.UNKNOWN
    if places is None:
        return State.UNCHECKED
    wanted = places.get(flow.place)
    if wanted is None:
        return State.UNKNOWN
    return State.OK if replace(flow, meter=None) == replace(wanted, meter=None) else State.DIFFERS


def _entry(seen: Seen, state: State, layout: Layout) -> Entry:
    stage = layout.stage(seen.table)
    ofport, key = endpoint_of(seen.flow) if seen.flow is not None else (None, "")
    return Entry(
        state,
        TABLES[stage].name if stage is not None else str(seen.table),
        purpose_name(seen.flow.purpose) if seen.flow is not None else "?",
        ofport,
        key,
        _guest_address(seen.flow) if seen.flow is not None else "",
        seen.priority,
        seen.cookie,
        seen.packets,
        seen.bytes,
        seen.flow.meter if seen.flow is not None else None,
    )


def _as_seen(flow: Flow, layout: Layout) -> Seen:
    return Seen(
        flow,
        layout.number(flow.stage),
        layout.priority(flow.purpose),
        cookie_of(flow.purpose),
    )


def _order(layout: Layout) -> Callable[[Entry], tuple[int, int, int, str, str]]:
    names = {TABLES[stage].name: layout.number(stage) for stage in TABLES}

    def key(entry: Entry) -> tuple[int, int, int, str, str]:
        table = names.get(entry.table, 255)
        return table, -entry.priority, entry.ofport or 0, entry.key, entry.purpose

    return key


def _ofport_of_key(key: str) -> int | None:
    try:
        return parse_key(IPv4Address(key))[0].ofport
    except (KeyRangeError, ValueError):
        return None
