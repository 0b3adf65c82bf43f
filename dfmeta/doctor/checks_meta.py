"""Checks of the second bridge of ``identity_scheme = meta_ip``, and of Meta IPs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from dfmeta.apps.switch_ports import PortBits, cut_of
from dfmeta.doctor.facts import HostSettings, KnownPort, MetaSide
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.flows.flow import Foreign
from dfmeta.flows.pipeline import Purpose, Stage
from dfmeta.model import TAP_VLAN, MetaIds, MetaNames, PortState
from dfmeta.ovsdb.rows import SECURE, Interface, Snapshot

MAKES: Final = "start dfmeta-agent, which makes it: `systemctl start dfmeta-agent`"
_MAPPINGS: Final = ("bridge-mappings", "bridge_mappings")
"""Ends of the keys in Open_vSwitch's external_ids with a mapping of networks to bridges."""
_NORMAL: Final = "NORMAL"
_SYSTEM: Final = "system"
"""The datapath type that an empty column means."""
_MARK: Final = "dfmeta"
"""Key in external_ids of rows that dfmeta has created."""


def bridge(snapshot: Snapshot, wanted: HostSettings, meta: MetaSide, *, cause: str = "") -> Finding:
    """Check that the second bridge exists, answers and is configured as dfmeta does it.

    :param cause: why its flows could not be read; empty if they were, or were not asked for.
    """
    name = meta.names.bridge
    row, main = snapshot.bridge(name), snapshot.bridge(wanted.bridge)
    if row is None:
        return wrong(f"there is no bridge {name}", MAKES)
    others = _others(snapshot, meta)
    mode = row.fail_mode or "standalone"
    # dfmeta-agent does not set it on a bridge of others, who may rely on it.
    keeps = bool(others) and _MARK not in row.external_ids
    if mode != SECURE and not keeps:
        return wrong(
            f"{name} has fail_mode={mode}: without dfmeta's flows it would pass frames between its "
            "ports",
            f"`ovs-vsctl set-fail-mode {name} {SECURE}`",
        )
    kinds = [each.datapath_type or _SYSTEM for each in (row, main or row)]
    if kinds[0] != kinds[1]:
        by = (
            f"set [df_metadata] meta_bridge to another name, or remove the ports of others: "
            f"{listed(others)}"
            if others
            else f"`ovs-vsctl set Bridge {name} datapath_type={kinds[1]}`"
        )
        return wrong(
            f"{name} has datapath_type={kinds[0]} and {wanted.bridge} has {kinds[1]}: no frame "
            "passes a patch between two datapaths",
            by,
        )
    if cause:
        return wrong(
            f"{name}: {cause}",
            f"`ovs-vsctl add Bridge {name} protocols OpenFlow13`",
        )
    beside = f", and ports of others: {listed(others)}" if others else ""
    return ok(f"OVSDB has the bridge {name}, with fail_mode={mode}{beside}")


def _others(snapshot: Snapshot, meta: MetaSide) -> list[str]:
    """Return the names of the ports of others on the second bridge."""
    names = meta.names
    dfmeta_ports = {names.bridge, names.tap, names.patch_meta}
    present = (row.name for row in snapshot.interfaces if row.bridge == names.bridge)
    return [name for name in present if name not in dfmeta_ports]


def patch(
    snapshot: Snapshot,
    wanted: HostSettings,
    meta: MetaSide,
    bits: Mapping[str, Mapping[int, PortBits]] | None = None,
) -> Iterator[Finding]:
    """Check that the two bridges are connected.

    :param bits: bridge → number of a port → the switch's description of the port, as far as it is
        known.
    """
    names, bits = meta.names, bits or {}
    faults = [
        fault
        for end in _ends(wanted, meta)
        if (fault := _end(snapshot, *end, bits.get(end[1], {}))) is not None
    ]
    yield from faults
    if not faults:
        yield ok(
            f"{names.patch_int} and {names.patch_meta} connect {wanted.bridge} and {names.bridge}"
        )


def patch_vlan(snapshot: Snapshot, wanted: HostSettings, meta: MetaSide) -> Iterator[Finding]:
    """Check that no frames are flooded over the patch; no line if neither end exists."""
    ends = (snapshot.interface(name, of) for name, of, _peer in _ends(wanted, meta))
    rows = [row for row in ends if row is not None]
    faults = [fault for row in rows if (fault := flooded(row)) is not None]
    yield from faults
    if rows and not faults:
        yield ok(f"no frames are flooded to {listed(row.name for row in rows)}")


def flooded(row: Interface) -> Finding | None:
    """Return the fault if frames of other ports are flooded to a port of dfmeta; None: none is."""
    if (row.tag, row.vlan_mode, row.cvlans) == TAP_VLAN:
        return None
    tag, mode, inner = TAP_VLAN
    return wrong(
        f"{row.name} has tag={row.tag} vlan_mode={row.vlan_mode or '[]'} "
        f"cvlans={list(row.cvlans)}: frames of other ports of {row.bridge} are flooded to it",
        f"`ovs-vsctl set Port {row.name} tag={tag} vlan_mode={mode} cvlans={inner[0]}`",
    )


def absent(name: str, bridge: str, snapshot: Snapshot) -> Finding:
    """Return the fault of a port that is not on its bridge."""
    for row in snapshot.interfaces:
        if row.name == name:
            return wrong(
                f"{name} is a port of {row.bridge}, not of {bridge}",
                f"`ovs-vsctl del-port {row.bridge} {name}`; dfmeta-agent makes it again",
            )
    return wrong(f"{name} is not a port of {bridge}", MAKES)


def _ends(wanted: HostSettings, meta: MetaSide) -> tuple[tuple[str, str, str], ...]:
    """Return name, bridge and peer of both ends of the patch."""
    names = meta.names
    return (
        (names.patch_int, wanted.bridge, names.patch_meta),
        (names.patch_meta, names.bridge, names.patch_int),
    )


def _end(
    snapshot: Snapshot, name: str, of: str, peer: str, bits: Mapping[int, PortBits], /
) -> Finding | None:
    """Return the fault of one end of the patch; None: it has none."""
    row = snapshot.interface(name, of)
    if row is None:
        return absent(name, of, snapshot)
    if row.type != "patch" or row.options.get("peer") != peer:
        return wrong(
            f"{name} is not a patch port with the peer {peer}: type={row.type or '[]'}, "
            f"peer={row.options.get('peer', '[]')}",
            f"`ovs-vsctl set Interface {name} type=patch options:peer={peer}`",
        )
    if row.ofport is None:
        return wrong(
            f"Open vSwitch has given {name} no port number: {row.error or 'it may not run'}",
            f"`ovs-vsctl del-port {of} {name}`; dfmeta-agent makes it again",
        )
    port_bits = bits.get(row.ofport)
    cut = cut_of(port_bits.of_switch() if port_bits is not None else None, name, bridge=of)
    if cut is not None:
        return wrong(f"{name} is cut off, so no guest is served: {cut.cause}", cut.remedy)
    return None


def tap_fault(row: Interface, names: MetaNames) -> Finding | None:
    """Return the fault of tap-meta that tap-metadata cannot have; None: it has none."""
    if row.type != "internal":
        return wrong(
            f"{row.name} is not internal: another program made or changed it",
            f"`ovs-vsctl set Interface {row.name} type=internal`",
        )
    if row.mac_in_use and row.mac_in_use != names.mac:
        return wrong(
            f"{row.name} has the MAC {row.mac_in_use}, not {names.mac}, the gateway's Meta MAC",
            f"`ovs-vsctl set Interface {row.name} mac='\"{names.mac}\"'`",
        )
    return None


def mappings(
    snapshot: Snapshot, flows: Iterable[Foreign] | None, meta: MetaSide
) -> Iterator[Finding]:
    """Check that no other program configures the second bridge or has flows that matter there.

    Neutron's agent does so for each bridge of its bridge_mappings, which metadata_path needs: it
    adds the action NORMAL and drops, and sets fail_mode.

    :param flows: flows of other programs on the second bridge; None if they are not known.
    """
    name = meta.names.bridge
    remedy = f"remove meta:{name} from [ovs] bridge_mappings of Neutron's Open vSwitch agent"
    faults = [_mapped(snapshot, name, remedy)]
    if flows is not None:
        flows, names = tuple(flows), (meta.names.tap, meta.names.patch_meta)
        ports = (snapshot.interface(port, name) for port in names)
        ofports = tuple(row.ofport for row in ports if row is not None)
        faults += [_before(flows, meta, remedy, ofports), _normal(flows, meta, remedy)]
    findings = [fault for fault in faults if fault is not None]
    yield from findings
    if not findings and flows is None:
        yield unknown(f"the flows of {name} cannot be read")
    elif not findings:
        yield ok(f"there is no sign that another program configures {name}")


def _mapped(snapshot: Snapshot, name: str, remedy: str) -> Finding | None:
    """Return a warning if OVSDB itself has a mapping to the second bridge."""
    for key, value in sorted(snapshot.external_ids.items()):
        pairs = [pair.strip().partition(":")[::2] for pair in value.split(",")]
        physical = [network for network, to in pairs if to == name]
        if key.endswith(_MAPPINGS) and physical:
            return warning(
                f"external_ids:{key} of Open_vSwitch maps the network {physical[0]} to {name}, "
                "which another program then configures as well",
                remedy,
            )
    return None


def _before(
    flows: tuple[Foreign, ...], meta: MetaSide, remedy: str, ofports: tuple[int | None, ...]
) -> Finding | None:
    """Return a fault if a flow of another program may take frames before dfmeta's flows.

    :param ofports: dfmeta's ports on the bridge.
    """
    layout = meta.layout
    least = {
        layout.number(stage): layout.priority(purpose)
        for stage, purpose in (
            (Stage.META_CLASSIFY, Purpose.META_FROM_PATCH),
            (Stage.META_SOURCE, Purpose.META_SOURCE),
            (Stage.META_PROXY, Purpose.META_TO_PROXY),
            (Stage.META_NEIGHBOURS, Purpose.META_KEY_ARP),
            (Stage.META_REPLY, Purpose.META_REPLY),
        )
    }
    taking = [
        flow
        for flow in flows
        if flow.priority >= least.get(flow.table, flow.priority + 1)
        and flow.match.get("in_port") in (None, *ofports)
    ]
    if not taking:
        return None
    flow = taking[0]
    return wrong(
        f"{len(taking)} flows of another program on {meta.names.bridge} may take guests' packets "
        f"before dfmeta's flows, the first in table {flow.table}: cookie {flow.cookie:#x}, "
        f"priority {flow.priority}, actions={flow.actions}",
        f"{remedy}; then {_removal(meta, flow)}",
    )


def _normal(flows: tuple[Foreign, ...], meta: MetaSide, remedy: str) -> Finding | None:
    """Return a warning if another program forwards frames on the second bridge."""
    normal = [flow for flow in flows if _NORMAL in flow.actions]
    least = meta.layout.priority(Purpose.META_OTHER_DROP)
    if not normal or any(flow.priority >= least for flow in normal):
        return None
    flow = normal[0]
    return warning(
        f"another program has a flow with the action NORMAL on {meta.names.bridge} (cookie "
        f"{flow.cookie:#x}, priority {flow.priority}), as Neutron's agent has on each bridge of "
        "its bridge_mappings; guests are served, and other ports of that bridge can reach each "
        "other",
        f"{remedy}; then {_removal(meta, flow)}",
    )


def _removal(meta: MetaSide, flow: Foreign) -> str:
    where = f"cookie={flow.cookie:#x}/-1,table={flow.table}"
    return f'`ovs-ofctl del-flows {meta.names.bridge} "{where}"`'


def room(ports: Sequence[KnownPort], wanted: HostSettings) -> Finding:
    """Check that each port has a Meta IP.

    :param ports: the guests' ports, from the running daemon.
    """
    without = [
        f"{port.name} (VID {port.vid})" if port.vid else port.name
        for port in ports
        if port.state is PortState.NO_META_IP
    ]
    network = wanted.keys.network(4)
    size = len(wanted.keys.slots(4))
    if without:
        return wrong(
            f"all {size} Meta IPs of {network} are taken, so {len(without)} ports have none and "
            f"their guests are not served: {listed(without)}",
            "set [METADATA] provider_cidr to a larger network, such as 240.0.0.0/16, and "
            "`systemctl restart dfmeta-agent`",
        )
    used = sum(len(port.addresses) for port in ports)
    return ok(
        f"each port has its Meta IP: {len(ports)} ports, {used} addresses in use, {size} Meta IPs "
        f"in {network}"
    )


def ids(ports: Iterable[KnownPort], stored: Mapping[str, MetaIds]) -> Finding:
    """Check that OVSDB has the Meta IP of each port, which the next daemon reads there.

    :param ports: the guests' ports, from the running daemon.
    :param stored: name of a port → its Meta addresses in OVSDB.
    """
    differing = [
        f"{port.name} ({stored_id or 'none'}, in use: {used})"
        for port in ports
        if port.name in stored
        for stored_id, used in _differences(stored[port.name], port)
    ]
    if differing:
        return wrong(
            f"OVSDB has other Meta IPs than dfmeta-agent uses for {listed(differing)}: after a "
            "restart, these guests would get others",
            "find the program that changes external_ids:dfmeta-meta-ip, dfmeta-meta-mac or "
            "dfmeta-meta-ip6: `ovsdb-client monitor Interface external_ids`",
        )
    return ok("OVSDB has the Meta IPs that dfmeta-agent uses")


def _differences(stored: MetaIds, port: KnownPort) -> Iterator[tuple[str, str]]:
    """Return those Meta addresses of OVSDB, each with the one in use, that differ from it."""
    for stored_id, used in zip(stored, MetaIds(port.key, port.label, port.key6), strict=True):
        if used and stored_id != used:
            yield stored_id, used
