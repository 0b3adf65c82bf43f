"""Comparison of the flows on the switch with the desired flows, and with those of others."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from dfmeta.apps.switch_facts import BridgeFlows, read_flows
from dfmeta.doctor.agent import Agent, own
from dfmeta.doctor.facts import HostSettings, KnownPort
from dfmeta.doctor.find_port import ovsdb_ports
from dfmeta.errors import NotRunningError, SwitchError
from dfmeta.flows import meta_bridge
from dfmeta.flows.family import family_of, solicited_node
from dfmeta.flows.flow import (
    ARP_REQUEST,
    ETH_ARP,
    ETH_IPV6,
    ND_SOLICITATION,
    PROTO_ICMPV6,
    PROTO_TCP,
    TAGGED,
    UNTAGGED,
    Flow,
    Seen,
    Value,
)
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import METADATA_PORT, Layout, Purpose, cookie_of, table_of
from dfmeta.flows.reading import (
    NONE,
    read_address,
    read_next_hop,
    read_service,
    version_of,
)
from dfmeta.identity.key import IN_PORT, Keys, MetaKeys
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from dfmeta.ovsdb.rows import Snapshot
from dfmeta.runtime import clock

SETTLE_TRIES: Final = 4
SETTLE_PAUSE: Final = 0.4
"""Seconds between two readings: the daemon may change flows in between, so that only a fault in
all readings is shown."""


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


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """A flow with its purpose, its guest and its state."""

    state: FlowState
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


_ByKey = Mapping[tuple[Purpose, tuple[tuple[str, Value], ...]], Flow]


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


def _guests(ports: Iterable[KnownPort]) -> Iterator[ServedEndpoint]:
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
    rows += [_entry(_as_seen(flow, layout), FlowState.MISSING, layout, keys) for flow in missing]
    return tuple(replace(row, bridge=bridge) for row in sorted(rows, key=_order(layout)))


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
    stage = layout.stage(seen.table)
    read = read_address(seen.flow, keys) if seen.flow is not None else NONE
    # A flow that belongs to no endpoint is listed under its in_port.
    at = seen.flow.field("in_port") if seen.flow is not None else None
    ofport = read.endpoint.ofport if read.endpoint is not None else at
    return FlowEntry(
        state,
        table_of(stage).name if stage is not None else str(seen.table),
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


def _order(layout: Layout) -> Callable[[FlowEntry], tuple[int, int, int, int, str, str, str]]:
    names = {table_of(stage).name: layout.number(stage) for stage in layout.pipeline.tables}

    def key(entry: FlowEntry) -> tuple[int, int, int, int, str, str, str]:
        table, family = names.get(entry.table, 255), entry.family or 0
        place = (entry.key, entry.purpose, entry.service or entry.next_hop)
        return table, -entry.priority, entry.ofport or 0, family, *place

    return key


_ZERO = ("reg", "xreg", "xxreg", "metadata", "tun", "ct_", "conj_id")
"""Prefixes of the fields that are zero in a packet that has just entered at a guest's port."""
_OTHER_PROTOCOLS = ("icmp", "nd_", "ipv6_nd_", "udp", "sctp", "pbb", "mpls")
"""Prefixes of the fields that none of these packets has; it has those that it needs by name."""
_OTHER_VERSIONS = {4: ("ipv6",), 6: ("ipv4", "arp")}
_ARP: Mapping[str, int | str] = {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST}
_SOLICITATION: Mapping[str, int | str] = {
    "eth_type": ETH_IPV6,
    "ip_proto": PROTO_ICMPV6,
    "icmpv6_type": ND_SOLICITATION,
    "icmpv6_code": 0,
}


def takes(match: Mapping[str, Value], endpoints: Collection[Endpoint], *, ip: str) -> bool:
    """Return whether *match* takes a guest's TCP to port 80 of *ip*, or its request for the MAC.

    :param endpoints: endpoints of guests.
    :param ip: address of the service; its version decides whether the MAC is requested with ARP or
        with neighbour discovery.
    """
    ofports: dict[int, set[int]] = {}
    for endpoint in endpoints:
        ofports.setdefault(endpoint.vid, set()).add(endpoint.ofport)
    return any(_takes_of(match, vid, numbers, ip) for vid, numbers in ofports.items())


def _takes_of(match: Mapping[str, Value], vid: int, ofports: Collection[int], ip: str) -> bool:
    """Return :func:`takes` for the endpoints with the VLAN id *vid*."""
    version = ip_address(ip).version
    family = family_of(version)
    tci = TAGGED | vid if vid else UNTAGGED
    tag: Mapping[str, int | str] = {"vlan_vid": tci, "vlan_tci": tci}
    http = {
        **tag,
        "eth_type": family.eth_type,
        "ip_proto": PROTO_TCP,
        family.destination: ip,
        "tcp_dst": METADATA_PORT,
    }
    others = (*_OTHER_PROTOCOLS, *_OTHER_VERSIONS[version])
    requests = [{**tag, **request, family.target: ip} for request in _requests(ip)]
    return any(_fits(match, packet, ofports, others) for packet in (http, *requests))


def _requests(ip: str) -> Iterator[Mapping[str, int | str]]:
    address = ip_address(ip)
    if address.version == 4:
        yield _ARP
    else:
        # A solicitation is sent to the target itself or to its group (RFC 4861, 4.3).
        yield from (
            {**_SOLICITATION, "ipv6_dst": str(target)}
            for target in (address, solicited_node(address))
        )


def _fits(
    match: Mapping[str, Value],
    packet: Mapping[str, int | str],
    ofports: Collection[int],
    others: tuple[str, ...],
) -> bool:
    return all(_fits_field(*field, packet, ofports, others) for field in match.items())


def _fits_field(
    field: str,
    value: Value,
    packet: Mapping[str, int | str],
    ofports: Collection[int],
    others: tuple[str, ...],
) -> bool:
    """Return whether the packet may have that value.

    :param others: prefixes of the fields that the packet does not have, except those in *packet*.
    """
    name = field.removesuffix("_nxm")
    if name == "in_port":
        return _number(value[0] if isinstance(value, tuple) else value) in ofports
    if name in packet:
        return _matches(value, packet[name])
    if name.startswith(_ZERO):
        return _matches(value, 0)
    return not name.startswith(others)


def _matches(value: Value, actual: int | str) -> bool:
    wanted, mask = value if isinstance(value, tuple) else (value, None)
    if mask is None:
        return _number(wanted) == _number(actual)
    bits = _number(mask)
    return _number(wanted) & bits == _number(actual) & bits


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else int(ip_address(value))


def tap_of(wanted: HostSettings, snapshot: Snapshot, *, ip6: tuple[str, ...]) -> Tap | None:
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
    wanted: HostSettings, snapshot: Snapshot, *, ip6: tuple[str, ...]
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
class Compared:
    """The flows of all bridges, compared with the daemon's desired flows."""

    ports: tuple[KnownPort, ...]
    rows: tuple[FlowEntry, ...]
    problems: Mapping[str, str]
    """Bridge → why its flows could not be compared."""
    unread: Mapping[str, SwitchError]
    """Bridge → why its flows could not be read; never the integration bridge."""

    def of(self, bridge: str) -> tuple[FlowEntry, ...]:
        """Return the flows of one bridge."""
        return tuple(row for row in self.rows if row.bridge == bridge)


def compare(agent: Agent, wanted: HostSettings, snapshot: Snapshot) -> Compared:
    """Read the switch and compare its flows with the daemon's desired flows.

    :raises SwitchError: when the integration bridge does not answer.
    """
    for _ in range(SETTLE_TRIES):
        ports, desired, problems = _desired(agent, wanted, snapshot)
        readings, unread = _read(wanted)
        if not any(port.addresses for port in ports):
            seen = readings[wanted.bridge].dumped
            own(wanted.keys, ((at, slot) for at, slot, _ in addresses_of(seen, wanted.keys)))
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
        compared = Compared(ports, rows, problems, unread)
        if problems or unread or not faulty(rows):
            break
        clock.sleep(SETTLE_PAUSE)
    return compared


def _read(wanted: HostSettings) -> tuple[dict[str, BridgeFlows], dict[str, SwitchError]]:
    """Read the flows of each bridge; see :class:`Compared`."""
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
    agent: Agent, wanted: HostSettings, snapshot: Snapshot
) -> tuple[tuple[KnownPort, ...], dict[str, tuple[Flow, ...]], dict[str, str]]:
    """Return the ports, bridge → its desired flows, and bridge → why these are not known."""
    try:
        ports, ip6 = agent.ports(wanted.keys), agent.served_ip6()
    except NotRunningError as error:
        problem = f"dfmeta-agent does not answer at {wanted.admin}: {error.fields['cause']}"
        ports = ovsdb_ports(snapshot, wanted.bridge)
        return ports, {}, dict.fromkeys(wanted.sides, problem)
    desired: dict[str, tuple[Flow, ...]] = {}
    problems = {}
    tap = tap_of(wanted, snapshot, ip6=ip6)
    beyond = meta_tap_of(wanted, snapshot, ip6=ip6)
    if tap is not None:
        desired[wanted.bridge] = wanted_flows(ports, tap)
    else:
        names = wanted.meta.names if wanted.meta is not None else None
        name = names.patch_int if names is not None else wanted.tap
        problems[wanted.bridge] = f"{name} is not on {wanted.bridge}, or its port is not known"
    if beyond is not None:
        desired[wanted.home] = wanted_meta_flows(ports, beyond)
    elif wanted.meta is not None:
        names = wanted.meta.names
        problems[names.bridge] = (
            f"{names.tap} or {names.patch_meta} is not on {names.bridge}, or its port is not known"
        )
    return ports, desired, problems
