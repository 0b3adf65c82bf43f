"""Comparison of the flows on the switch with the desired flows, and with those of others."""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dfmeta.apps.switch_facts import BridgeFlows, read_flows
from dfmeta.doctor import facts, find_port
from dfmeta.doctor.agent import Agent, set_owners
from dfmeta.errors import NotRunningError, SwitchError
from dfmeta.flows import meta_bridge
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.openflow import Flow, Seen, Value
from dfmeta.flows.pipeline import Layout, Purpose, cookie_of, table_of
from dfmeta.flows.reading import read_address, read_next_hop, read_service, version_of
from dfmeta.identity.key import IN_PORT, Keys, MetaKeys
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.runtime import clock

SETTLE_TRIES: Final = 4
"""Readings: the daemon may change flows in between, and only a fault in all of them is shown."""


class FlowState(enum.StrEnum):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEntry:
    """A flow with its purpose, its guest and its state."""

    state: FlowState
    table: str
    """The table's name, or its number if it is not a table of dfmeta."""
    purpose: str = "?"
    ofport: int | None = None
    """Port number on the integration bridge; in a flow of the second bridge without a key, its
    ``in_port`` there."""
    key: str = ""
    """The key that the flow translates to or from; empty if the flow is not for one address."""
    address: str = ""
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


_ByKey = Mapping[tuple[Purpose, tuple[tuple[str, Value], ...]], Flow]


def wanted_flows(ports: Iterable[facts.KnownPort], tap: Tap | MetaTap) -> tuple[Flow, ...]:
    """Return all desired flows of one bridge, of guests that do not flood.

    :param tap: the port of the integration bridge that leads to the proxy, or those of the second
        bridge.
    """
    guests = list(_guests(ports))
    if isinstance(tap, MetaTap):
        groups = [meta_bridge.guest_flows(guest, tap) for guest in guests]
        return (*meta_bridge.fixed_flows(tap), *chain.from_iterable(groups))
    groups = [guest_flows(guest, tap) for guest in guests]
    return (*fixed_flows(tap), *chain.from_iterable(groups))


def _guests(ports: Iterable[facts.KnownPort]) -> Iterator[ServedEndpoint]:
    for port in ports:
        if port.wired and port.ofport is not None:
            yield ServedEndpoint(
                port.endpoint,
                port.addresses,
                next_hops=port.next_hops or (),
                mac=port.mac if port.vid else "",
                binding=port.binding,
            )


def addresses_of(seen: Iterable[Seen], keys: Keys) -> Iterator[tuple[Endpoint, int, GuestAddress]]:
    """Return the addresses for which the integration bridge has flows: endpoint, slot, address."""
    for entry in seen:
        if entry.flow is None or entry.flow.purpose is not Purpose.ADDRESS:
            continue
        read = read_address(entry.flow, keys)
        if read.endpoint is not None and read.slot is not None and read.address is not None:
            yield read.endpoint, read.slot, read.address


def entries(
    seen: Iterable[Seen],
    wanted: Iterable[Flow] | None,
    *,
    layout: Layout,
    keys: Keys = IN_PORT,
    bridge: str = "",
) -> tuple[FlowEntry, ...]:
    """Compare the flows on the switch with the desired ones; sort them by table and port.

    :param seen: flows with dfmeta's cookie on the switch.
    :param wanted: the desired flows; None if they are not known.
    :param keys: the key scheme of the flows.
    :param bridge: name of the bridge.
    """
    seen = tuple(seen)
    by_key = None if wanted is None else {flow.match_key: flow for flow in wanted}
    rows = [_entry(entry, _judge(entry.flow, by_key), layout, keys) for entry in seen]
    present = {entry.flow.match_key for entry in seen if entry.flow is not None}
    missing = [flow for key, flow in (by_key or {}).items() if key not in present]
    for flow in missing:
        of = flow.purpose
        unseen = Seen(flow, layout.table(of), layout.priority(of), cookie_of(of))
        rows.append(_entry(unseen, FlowState.MISSING, layout, keys))
    numbers = {table_of(stage).name: layout.number(stage) for stage in layout.pipeline.tables}

    def place(row: FlowEntry) -> tuple[Any, ...]:
        address = (row.family or 0, row.key, row.purpose, row.service or row.next_hop)
        return numbers.get(row.table, 255), -row.priority, row.ofport or 0, *address

    return tuple(replace(row, bridge=bridge) for row in sorted(rows, key=place))


def faulty(rows: Iterable[FlowEntry]) -> tuple[FlowEntry, ...]:
    """Return the entries that are missing, different or stray."""
    right = (FlowState.OK, FlowState.FLOOD, FlowState.UNCHECKED)
    return tuple(row for row in rows if row.state not in right)


def purpose_name(purpose: Purpose) -> str:
    """Return a purpose in the form of listings, such as ``guest-http``."""
    return purpose.name.lower().replace("_", "-")


def drops_flood(flow: Flow) -> bool:
    """Return whether *flow* drops packets because its guest floods (:mod:`dfmeta.apps.floods`)."""
    return flow.purpose in _LIMITED and not flow.actions and flow.goto is None


_LIMITED: Final = (Purpose.SYN, Purpose.GUEST_SYN, Purpose.GUEST_ND_BARE)


def _judge(flow: Flow | None, by_key: _ByKey | None) -> FlowState:
    if flow is None:
        return FlowState.UNKNOWN
    if by_key is None:
        return FlowState.UNCHECKED
    wanted = by_key.get(flow.match_key)
    if wanted is None:
        return FlowState.UNKNOWN
    if drops_flood(flow):
        return FlowState.FLOOD
    return FlowState.OK if flow == wanted else FlowState.DIFFERS


def _entry(seen: Seen, state: FlowState, layout: Layout, keys: Keys) -> FlowEntry:
    stage, flow = layout.stage(seen.table), seen.flow
    entry = FlowEntry(
        state=state,
        table=table_of(stage).name if stage is not None else str(seen.table),
        priority=seen.priority,
        cookie=seen.cookie,
        packets=seen.packets,
        bytes=seen.bytes,
    )
    if flow is None:
        return entry
    read, hop = read_address(flow, keys), read_next_hop(flow)
    # A flow that belongs to no endpoint is listed under its in_port.
    ofport = read.endpoint.ofport if read.endpoint is not None else flow.field("in_port")
    return replace(
        entry,
        purpose=purpose_name(flow.purpose),
        ofport=ofport if isinstance(ofport, int) else None,
        key=read.key,
        address=str(read.ip or ""),
        vid=read.endpoint.vid if read.endpoint is not None else 0,
        family=version_of(flow),
        service=read_service(flow),
        next_hop=hop.ip if hop is not None else "",
    )


def tap_of(wanted: facts.HostSettings, snapshot: Snapshot, *, ip6: tuple[str, ...]) -> Tap | None:
    """Return tap-metadata as the flows address it; None while a part of it is unknown.

    With a second bridge, it is the patch port to that bridge.

    :param ip6: the IPv6 addresses at which guests are served; see :func:`served_ip6`.
    """
    name = wanted.tap if wanted.meta is None else wanted.meta.names.patch_int
    row = snapshot.interface(name, wanted.bridge)
    if row is None or row.ofport is None or wanted.port is None:
        return None
    mac = row.mac_in_use if wanted.meta is None else TAP_MAC
    if not mac:
        return None
    return Tap(
        ofport=row.ofport,
        mac=mac,
        port=wanted.port,
        ip=wanted.host_ip,
        guest_ip=wanted.ip,
        ip6=wanted.host_ip6 if ip6 else "",
        guest_ip6=ip6,
        keys=wanted.keys,
    )


def meta_tap_of(
    wanted: facts.HostSettings, snapshot: Snapshot, *, ip6: tuple[str, ...]
) -> MetaTap | None:
    """Return the ports of the second bridge as its flows address them.

    :param ip6: the IPv6 addresses at which guests are served; see :func:`served_ip6`.
    :return: None if there is no second bridge, and while a part of it is unknown.
    """
    meta = wanted.meta
    if meta is None or wanted.port is None or not isinstance(wanted.keys, MetaKeys):
        return None
    tap = snapshot.interface(meta.names.tap, meta.names.bridge)
    patch = snapshot.interface(meta.names.patch_meta, meta.names.bridge)
    if tap is None or patch is None or not (tap.ofport and patch.ofport and tap.mac_in_use):
        return None
    return MetaTap(
        ofport=tap.ofport,
        patch=patch.ofport,
        mac=tap.mac_in_use,
        port=wanted.port,
        vlan=meta.vlan,
        guest_ip=wanted.ip,
        keys=wanted.keys,
        guest_ip6=ip6,
    )


@dataclass(frozen=True, slots=True)
class FlowComparison:
    """The flows of all bridges, compared with the daemon's desired flows."""

    ports: tuple[facts.KnownPort, ...]
    rows: tuple[FlowEntry, ...]
    problems: Mapping[str, str]
    """Bridge → why its flows could not be compared."""
    unread: Mapping[str, SwitchError]
    """Bridge → why its flows could not be read; never the integration bridge."""

    def of(self, bridge: str) -> tuple[FlowEntry, ...]:
        """Return the flows of one bridge."""
        return tuple(row for row in self.rows if row.bridge == bridge)


def compare(agent: Agent, wanted: facts.HostSettings, snapshot: Snapshot) -> FlowComparison:
    """Read the switch and compare its flows with the daemon's desired flows.

    :raises SwitchError: when the integration bridge does not answer.
    """
    for _ in range(SETTLE_TRIES):
        ports, desired, problems = _desired(agent, wanted, snapshot)
        readings, unread = _read(wanted)
        if not any(port.addresses for port in ports):
            seen = readings[wanted.bridge].dumped
            set_owners(wanted.keys, ((at, slot) for at, slot, _ in addresses_of(seen, wanted.keys)))
        rows = tuple(
            row
            for bridge, reading in readings.items()
            for row in entries(
                reading.dumped,
                desired.get(bridge),
                layout=wanted.sides[bridge][1],
                keys=wanted.keys,
                bridge=bridge,
            )
        )
        compared = FlowComparison(ports, rows, problems, unread)
        if problems or unread or not faulty(rows):
            break
        clock.sleep(clock.CHECK_INTERVAL)
    return compared


def _read(wanted: facts.HostSettings) -> tuple[dict[str, BridgeFlows], dict[str, SwitchError]]:
    """Read the flows of each bridge; see :class:`FlowComparison`."""
    readings: dict[str, BridgeFlows] = {}
    unread: dict[str, SwitchError] = {}
    for bridge, (path, layout) in wanted.sides.items():
        try:
            readings[bridge] = read_flows(Path(path), layout)
        except SwitchError as error:
            if bridge == wanted.bridge:
                raise
            unread[bridge] = error
    return readings, unread


def _desired(
    agent: Agent, wanted: facts.HostSettings, snapshot: Snapshot
) -> tuple[tuple[facts.KnownPort, ...], dict[str, tuple[Flow, ...]], dict[str, str]]:
    """Return the ports, bridge → its desired flows, and bridge → why these are not known."""
    try:
        ports, ip6 = agent.ports(wanted.keys), agent.served_ip6()
    except NotRunningError as error:
        problem = f"dfmeta-agent does not answer at {wanted.admin}: {error.fields['cause']}"
        ports = find_port.ovsdb_ports(snapshot, wanted.bridge)
        return ports, {}, dict.fromkeys(wanted.sides, problem)
    taps: dict[str, tuple[Tap | MetaTap | None, str]] = {
        wanted.bridge: (tap_of(wanted, snapshot, ip6=ip6), wanted.tap)
    }
    if wanted.meta is not None:
        names = wanted.meta.names
        taps = {
            wanted.bridge: (tap_of(wanted, snapshot, ip6=ip6), names.patch_int),
            wanted.home: (
                meta_tap_of(wanted, snapshot, ip6=ip6),
                f"{names.tap} or {names.patch_meta}",
            ),
        }
    desired = {of: wanted_flows(ports, tap) for of, (tap, _) in taps.items() if tap is not None}
    problems = {
        of: f"{names} is not on {of}, or its port is not known"
        for of, (tap, names) in taps.items()
        if tap is None
    }
    return ports, desired, problems
