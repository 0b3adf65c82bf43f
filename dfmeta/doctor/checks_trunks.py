"""Checks of trunks, of their subports, and of attachments. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import NEARLY_FULL, Finding, listed, ok, warning, wrong
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.model import Port, PortKind
from dfmeta.ovsdb.rows import Interface, Snapshot

_PATCH: Final = "patch"
"""Type of an interface that leads to another bridge."""
_ACCESS: Final = "access"
"""The vlan_mode of a port that passes no tagged frames."""
LATE: Final = 60.0
"""Seconds after which an attachment that is not active needs the operator."""
ACTIVE: Final = "active"
LEAVING: Final = "leaving"
_TRUNK: Final = ("dfmeta", "trunk")
"""Key and value in ``external_ids`` of the bridge of a trunk of dfmeta."""
_LOG: Final = "read the log of dfmeta-agent; `dfmeta attachment gc` tries again at once"


def trunks(ports: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Check that each entry of a list describes a subport, that each subport and each parent has a
    trunk, and that frames of the subports' MTU pass it and stay on it.

    No line if there is no trunk.

    :param ports: the guests' ports.
    :param snapshot: OVSDB's configuration.
    :param bridge: name of the integration bridge.
    """
    subports = [port for port in ports if port.kind is PortKind.SUBPORT]
    parents = [port for port in ports if port.kind is PortKind.PARENT]
    rows = [row for port in parents if (row := snapshot.interface(port.name, bridge)) is not None]
    patches = [row for row in rows if row.type == _PATCH]
    findings = [
        *_faults(ports),
        *_lonely_entries(rows, subports),
        *_loose(subports),
        *_peerless(patches, snapshot),
        *_joined(patches, bridge),
        *_too_large(snapshot, bridge),
    ]
    yield from findings
    if (subports or parents) and not findings:
        with_instance = sum(bool(port.instance) for port in subports)
        yield ok(
            f"{len(parents)} trunks with {len(subports)} subports, {with_instance} of them with an "
            "instance"
        )


def _faults(ports: Sequence[KnownPort]) -> Iterator[Finding]:
    faulty = [(port, fault) for port in ports for fault in port.subport_faults]
    if faulty:
        name = faulty[0][0].name
        yield wrong(
            "entries of subports are left out: "
            f"{listed(f'{port.name} ({fault})' for port, fault in faulty)}",
            f"`dfmeta subport add {name} --vid <VID> --instance <instance's UUID>`",
        )


def _lonely_entries(
    parents: Sequence[Interface], subports: Sequence[KnownPort]
) -> Iterator[Finding]:
    """Find entries of a trunk with a bridge of its own that has no such subport."""
    wired = {(port.parent, port.segmentation_id) for port in subports}
    entries = [(row.name, vid) for row in parents for vid in row.listed_vids]
    lonely = [entry for entry in entries if entry not in wired]
    if lonely:
        name, vid = lonely[0]
        yield wrong(
            f"entries without a subport on the trunk: {listed(_place(*entry) for entry in lonely)}",
            f"`dfmeta subport delete {name} --vid {vid}`, or `openstack network trunk set "
            f"--subport port=<port>,segmentation-type=vlan,segmentation-id={vid} <trunk>`",
        )


def _loose(subports: Sequence[KnownPort]) -> Iterator[Finding]:
    """Find subports whose patch leads to no trunk."""
    loose = [port for port in subports if not (port.segmentation_id and port.parent)]
    if loose:
        yield wrong(
            "subports without a VLAN id or a parent: "
            f"{listed(f'{port.name} (iface-id {port.iface_id})' for port in loose)}",
            f"restart Neutron's agent, or remove a rest: `ovs-vsctl del-port {loose[0].name}`",
        )


def _peerless(patches: Sequence[Interface], snapshot: Snapshot) -> Iterator[Finding]:
    """Find parents whose patch leads to no trunk.

    :param patches: the parents' patch ports: a trunk with a bridge of its own has one.
    """
    names = {row.name for row in snapshot.interfaces}
    lost = [row for row in patches if row.options.get("peer") not in names]
    if lost:
        texts = (f"{row.name} (peer {row.options.get('peer') or 'not set'})" for row in lost)
        yield wrong(
            f"patches of trunk parents lead nowhere: {listed(texts)}",
            f"restart Neutron's agent, or remove a rest: `ovs-vsctl del-port {lost[0].name}`",
        )


def _joined(patches: Sequence[Interface], bridge: str) -> Iterator[Finding]:
    """Find parents that the action NORMAL joins with other trunks: they have no local VLAN."""
    joined = [row for row in patches if row.tag is None and row.vlan_mode != _ACCESS]
    if joined:
        yield warning(
            f"trunk parents without a local VLAN: {listed(row.name for row in joined)}: where "
            f"{bridge} forwards with the action NORMAL, their tagged frames reach other ports",
            f"restart Neutron's agent, or `ovs-vsctl set Port {joined[0].name} tag=<local VLAN>`",
        )


def _too_large(snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find subports whose frames do not pass the interface of their VM."""
    here = [row for row in snapshot.interfaces if row.bridge == bridge]
    most = {row.name: mtu_behind(row, snapshot) for row in here}
    large = [
        (port, most[port.parent])
        for row in here
        for port in row.ports
        if port.kind is PortKind.SUBPORT and port.mtu > most.get(port.parent, 0) > 0
    ]
    if large:
        port, mtu = large[0]
        texts = (
            f"{port.parent} (VID {port.segmentation_id}: {port.mtu}, parent: {limit})"
            for port, limit in large
        )
        yield warning(
            f"the MTU of subports is larger than that of their parent: {listed(texts)}: larger "
            "frames are lost",
            f"write the entry again, with its other options: `dfmeta subport add {port.parent} "
            f"--vid {port.segmentation_id} --mtu {mtu}`",
        )


def mtu_behind(parent: Interface, snapshot: Snapshot) -> int:
    """Return the MTU of the VM's interface behind a parent; 0: not known."""
    if parent.type != _PATCH:
        return parent.mtu
    peer, iface_id = parent.options.get("peer"), parent.external_ids.get("iface-id")
    trunks = {row.bridge for row in snapshot.interfaces if row.name == peer}
    mtus = [
        row.mtu
        for row in snapshot.interfaces
        if row.bridge in trunks
        and row.type != _PATCH
        and row.external_ids.get("iface-id") == iface_id
    ]
    return mtus[0] if len(mtus) == 1 else 0


def leads_to_trunk(port: KnownPort, snapshot: Snapshot | None, bridge: str) -> bool:
    """Return whether *port* is a trunk's parent whose VM is on the trunk's bridge."""
    interface = snapshot.interface(port.name, bridge) if snapshot is not None else None
    return interface is not None and interface.type == _PATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentOptions:
    """Group [attachments] of the configuration."""

    host: str = ""
    """Name of this host in the attachments' table."""
    most: int = 0
    """Attachments that a VM can have, by its quota and its VLAN ids."""
    networks: Mapping[str, int] = field(default_factory=dict)
    """Name → MTU in bytes."""
    local: bool = True
    """Whether dfmeta makes the ports itself, by OVSDB."""


@dataclass(frozen=True, slots=True)
class AttachmentRow:
    """An attachment of a VM of this host."""

    id: str
    port: str
    """Name of the VM's port on the integration bridge."""
    container: str
    vid: int
    network: str
    state: str
    boot_id: str
    changed: float
    """Seconds of Unix time."""


@dataclass(frozen=True, slots=True)
class AttachmentFacts:
    """The daemon's attachments, and its configuration."""

    rows: Sequence[AttachmentRow] = ()
    """As they are after OVSDB was read."""
    before: Sequence[AttachmentRow] | None = None
    """As they were before it was read; None: the same. Attachments come and go meanwhile."""
    cause: str = ""
    """Why there are no rows; empty: there are."""
    options: AttachmentOptions = field(default_factory=AttachmentOptions)


def attached(row: Mapping[str, Any]) -> AttachmentRow:
    """Return an attachment from its row of ``GET /attachments``.

    :raises KeyError, TypeError: for a row of another form.
    """
    return AttachmentRow(**{each.name: row[each.name] for each in fields(AttachmentRow)})


def attachments(
    facts: AttachmentFacts, snapshot: Snapshot, bridge: str, *, now: float
) -> Iterator[Finding]:
    """Check that each attachment has its data plane, and that VMs can get more of them.

    :param snapshot: OVSDB's configuration.
    :param bridge: name of the integration bridge.
    :param now: seconds of Unix time.
    """
    if facts.cause:
        yield wrong(f"the attachments cannot be read: {facts.cause}", _LOG)
        return
    findings = [*_waiting(facts, now), *_full(facts), *_homeless(facts), *_dead(facts)]
    if facts.options.local:
        findings += [*_planes(facts, snapshot), *_large(facts, snapshot, bridge)]
    else:
        findings += _entries(facts, snapshot, bridge)
    yield from findings
    if not findings:
        vms = len({row.port for row in facts.rows})
        yield ok(f"{len(facts.rows)} attachments of {vms} VMs")


def left(snapshot: Snapshot) -> Iterator[Finding]:
    """Report the ports of attachments on a host where attachments are off."""
    names = sorted(row.name for row in snapshot.interfaces if KEY in row.external_ids)
    if names:
        yield warning(
            f"attachments are off, and their ports are left: {listed(names)}: no program removes "
            "them",
            f"if the containers are gone, `ovs-vsctl del-port {names[0]}` for each of them",
        )
    entries = sorted((port.name, port.vid) for port in _tagged(snapshot.interfaces).values())
    if entries:
        name, vid = entries[0]
        yield warning(
            "attachments are off, and their entries in lists of subports are left: "
            f"{listed(_place(*entry) for entry in entries)}: no program removes them",
            f"if the containers are gone, `dfmeta subport delete {name} --vid {vid}` for each",
        )


def _waiting(facts: AttachmentFacts, now: float) -> Iterator[Finding]:
    late = [row for row in facts.rows if row.state != ACTIVE and row.changed <= now - LATE]
    if late:
        texts = (f"{_name(row)} is {row.state}" for row in late)
        yield wrong(f"attachments wait for their data plane: {listed(texts)}", _LOG)


def _full(facts: AttachmentFacts) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    for row in facts.rows:
        counts[row.port] = counts.get(row.port, 0) + 1
    full = {
        port: count for port, count in counts.items() if count >= NEARLY_FULL * facts.options.most
    }
    if full:
        texts = (f"{port} has {count} of {facts.options.most}" for port, count in full.items())
        yield warning(
            f"VMs can soon get no more attachments: {listed(texts)}",
            "raise quota or widen vid_range in [attachments], or `dfmeta attachment delete <id>`",
        )


def _homeless(facts: AttachmentFacts) -> Iterator[Finding]:
    gone = [row for row in facts.rows if row.network not in facts.options.networks]
    if gone:
        texts = (f"{_name(row)} on {row.network}" for row in gone)
        yield warning(
            f"attachments are on networks that are not configured: {listed(texts)}",
            f"configure [attachment_network:{gone[0].network}] again, or `dfmeta attachment delete "
            f"{gone[0].id}`",
        )


def _dead(facts: AttachmentFacts) -> Iterator[Finding]:
    """Find attachments from before the last boot of their VM."""
    boots: dict[str, dict[str, float]] = {}
    for row in facts.rows:
        if row.boot_id and row.state != LEAVING:
            changes = boots.setdefault(row.port, {})
            changes[row.boot_id] = max(changes.get(row.boot_id, 0.0), row.changed)
    last = {port: max(changes, key=lambda boot: changes[boot]) for port, changes in boots.items()}
    old = [
        row
        for row in facts.rows
        if row.boot_id and row.state != LEAVING and row.boot_id != last[row.port]
    ]
    if old:
        yield warning(
            "attachments are from before the last boot of their VM: "
            f"{listed(_name(row) for row in old)}",
            f"`dfmeta attachment delete {old[0].id}`",
        )


def _planes(facts: AttachmentFacts, snapshot: Snapshot) -> Iterator[Finding]:
    """Compare rows and ports."""
    ends: dict[str, list[Interface]] = {}
    for row in snapshot.interfaces:
        if KEY in row.external_ids:
            ends.setdefault(row.external_ids[KEY], []).append(row)
    bare = [row for row in _steady(facts) if not _is_pair(ends.get(row.id, ()))]
    if bare:
        yield wrong(
            f"attachments without their patch ports: {listed(map(_name, bare))}",
            "`dfmeta attachment gc` makes them again",
        )
    stray = ends.keys() - _known(facts)
    if stray:
        yield warning(
            f"ports of attachments that do not exist: {listed(sorted(stray))}",
            "`dfmeta attachment gc` removes them",
        )


def _entries(facts: AttachmentFacts, snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Compare rows and the lists of subports of the VMs whose tags reach the bridge."""
    here = [row for row in snapshot.interfaces if row.bridge == bridge and row.type != _PATCH]
    listed_vids = {(row.name, vid) for row in here for vid in row.listed_vids}
    names, entries = {row.name for row in here}, _tagged(here)
    lost = [row for row in _steady(facts) if row.port in names and row.id not in entries]
    bare = [row for row in lost if (row.port, row.vid) not in listed_vids]
    if bare:
        yield wrong(
            f"attachments without an entry in the list of subports: {listed(map(_name, bare))}",
            "`dfmeta attachment gc` writes them again",
        )
    others = [row for row in lost if (row.port, row.vid) in listed_vids]
    if others:
        yield warning(
            f"entries of other programs have the VLAN ids of attachments: "
            f"{listed(map(_name, others))}",
            f"`dfmeta subport delete {others[0].port} --vid {others[0].vid}`, then `dfmeta "
            "attachment gc`",
        )
    stray = [entries[attachment] for attachment in sorted(entries.keys() - _known(facts))]
    if stray:
        places = (_place(port.name, port.vid) for port in stray)
        yield warning(
            f"entries of attachments that do not exist: {listed(places)}",
            "`dfmeta attachment gc` removes them",
        )


def _tagged(interfaces: Iterable[Interface]) -> dict[str, Port]:
    """Return attachment → its subport, of those whose tags reach the bridge."""
    ports = (port for row in interfaces for port in row.ports)
    return {port.attached: port for port in ports if port.vid and port.attached}


def _steady(facts: AttachmentFacts) -> list[AttachmentRow]:
    """Return the attachments that were active before and after OVSDB was read."""
    before = facts.rows if facts.before is None else facts.before
    stood = {row.id for row in before if row.state == ACTIVE}
    return [row for row in facts.rows if row.state == ACTIVE and row.id in stood]


def _known(facts: AttachmentFacts) -> set[str]:
    return {row.id for row in (*(facts.before or ()), *facts.rows)}


def _is_pair(ends: Sequence[Interface]) -> bool:
    """Return whether the ports of an attachment are two that lead to each other."""
    names = {row.name for row in ends}
    return len(names) == 2 and {row.options.get("peer") for row in ends} == names


def _large(facts: AttachmentFacts, snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find networks whose frames do not pass the interface of a VM with a trunk of dfmeta.

    Also those without an attachment: dfmeta-cni refuses them.
    """
    networks = facts.options.networks
    key, value = _TRUNK
    trunks = {row.name for row in snapshot.bridges if row.external_ids.get(key) == value}
    outer = {row.name for row in snapshot.interfaces if row.bridge in trunks}
    limits = {
        row.name: mtu_behind(row, snapshot)
        for row in snapshot.interfaces
        if row.bridge == bridge and row.options.get("peer") in outer and KEY not in row.external_ids
    }
    large = {
        (network, port): limit
        for network, mtu in sorted(networks.items())
        for port, limit in sorted(limits.items())
        if mtu > limit > 0
    }
    if large:
        texts = (
            f"{network} ({networks[network]}, {port}: {limit})"
            for (network, port), limit in large.items()
        )
        yield warning(
            f"the MTU of networks is larger than that of a VM's interface: {listed(texts)}",
            f"set mtu in [attachment_network:{next(iter(large))[0]}] to {min(large.values())}",
        )


def _name(row: AttachmentRow) -> str:
    return f"{row.container} of {_place(row.port, row.vid)}"


def _place(port: str, vid: int) -> str:
    return f"{port} (VID {vid})"
