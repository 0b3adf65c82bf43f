"""The check of trunks: subports, the lists that describe them, and their data plane. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding, listed, ok, warning, wrong
from dfmeta.model import PortKind
from dfmeta.ovsdb.rows import Interface, Snapshot

NAME = "trunks"
_PATCH: Final = "patch"
"""Type of an interface that leads to another bridge."""
_ACCESS: Final = "access"
"""The vlan_mode of a port that passes no tagged frames."""


def trunks(known: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Check that each entry of a list describes a subport, that each subport and each parent has a
    trunk, and that frames of the subports' MTU pass it and stay on it.

    No line if there is no trunk.

    :param known: the guests' ports.
    :param snapshot: OVSDB's configuration.
    :param bridge: name of the integration bridge.
    """
    subports = [port for port in known if port.kind is PortKind.SUBPORT]
    parents = [port for port in known if port.kind is PortKind.PARENT]
    found = [
        *_faults(known),
        *_lonely_entries(parents, subports, snapshot, bridge),
        *_loose(subports),
        *_peerless(parents, snapshot, bridge),
        *_joined(parents, snapshot, bridge),
        *_too_large(snapshot, bridge),
    ]
    yield from found
    if (subports or parents) and not found:
        own = sum(bool(port.instance) for port in subports)
        yield ok(
            NAME,
            f"{len(parents)} trunks with {len(subports)} subports, {own} of them with an instance",
        )


def _faults(known: Sequence[KnownPort]) -> Iterator[Finding]:
    faulty = [(port, fault) for port in known for fault in port.subport_faults]
    if faulty:
        name = faulty[0][0].name
        yield wrong(
            NAME,
            "entries of subports are left out: "
            f"{listed(f'{port.name} ({fault})' for port, fault in faulty)}",
            f"`dfmeta subport add {name} --vid <VID> --instance <instance's UUID>` writes an entry "
            f"anew, `dfmeta subport delete {name} --vid <VID>` removes it; `ovs-vsctl remove "
            f"Interface {name} external_ids dfmeta-subports` removes a list that cannot be read",
        )


def _lonely_entries(
    parents: Sequence[KnownPort],
    subports: Sequence[KnownPort],
    snapshot: Snapshot,
    bridge: str,
) -> Iterator[Finding]:
    """Find entries of a trunk with a bridge of its own that has no such subport."""
    wired = {(port.parent, port.segmentation_id) for port in subports}
    lonely = [
        (port.name, vid)
        for port in parents
        for vid in _listed_vids(snapshot.interface(port.name, bridge))
        if (port.name, vid) not in wired
    ]
    if lonely:
        name, vid = lonely[0]
        yield wrong(
            NAME,
            "entries without a subport on the trunk: "
            f"{listed(f'{name} (VID {vid})' for name, vid in lonely)}",
            "add the subport to the trunk (`openstack network trunk set --subport "
            f"port=<port>,segmentation-type=vlan,segmentation-id={vid} <trunk>`), or remove the "
            f"entry: `dfmeta subport delete {name} --vid {vid}`",
        )


def _listed_vids(interface: Interface | None) -> Sequence[int]:
    return interface.listed_vids if interface is not None else ()


def _loose(subports: Sequence[KnownPort]) -> Iterator[Finding]:
    """Find subports whose patch leads to no trunk."""
    loose = [port for port in subports if not (port.segmentation_id and port.parent)]
    if loose:
        yield wrong(
            NAME,
            "subports without a VLAN id or a parent: "
            f"{listed(f'{port.name} (iface-id {port.iface_id})' for port in loose)}",
            "the other end of the patch is missing or has no tag, or its bridge has no parent "
            f"port: see `ovs-vsctl get Interface {loose[0].name} options error`; restart Neutron's "
            f"agent, or remove what an earlier trunk has left: `ovs-vsctl del-port "
            f"{loose[0].name}`",
        )


def _patches(parents: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Interface]:
    """Yield the parents' patch ports: a trunk with a bridge of its own has one."""
    for port in parents:
        found = snapshot.interface(port.name, bridge)
        if found is not None and found.type == _PATCH:
            yield found


def _peerless(parents: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find parents whose patch leads to no trunk."""
    there = {one.name for one in snapshot.interfaces}
    lost = [
        one for one in _patches(parents, snapshot, bridge) if one.options.get("peer") not in there
    ]
    if lost:
        texts = (f"{one.name} (peer {one.options.get('peer') or 'not set'})" for one in lost)
        yield wrong(
            NAME,
            f"patches of trunk parents lead nowhere: {listed(texts)}",
            "restart Neutron's Open vSwitch agent, which makes both ends anew, or remove what an "
            f"earlier trunk has left: `ovs-vsctl del-port {lost[0].name}`",
        )


def _joined(parents: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find parents that the action NORMAL joins with other trunks: they have no local VLAN."""
    joined = [
        one
        for one in _patches(parents, snapshot, bridge)
        if one.tag is None and one.vlan_mode != _ACCESS
    ]
    if joined:
        yield warning(
            NAME,
            f"trunk parents without a local VLAN: {listed(one.name for one in joined)}: where "
            f"{bridge} forwards with the action NORMAL, tagged frames of their trunks reach other "
            "ports, such as other trunks with the same VLAN ids",
            "restart Neutron's Open vSwitch agent, which gives each port a local VLAN; without it, "
            f"`ovs-vsctl set Port {joined[0].name} tag=<local VLAN>`",
        )


def _too_large(snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find subports whose frames do not pass the interface of their VM."""
    here = [one for one in snapshot.interfaces if one.bridge == bridge]
    most = {one.name: mtu_behind(one, snapshot) for one in here}
    large = [
        (port, most[port.parent])
        for one in here
        for port in one.ports
        if port.kind is PortKind.SUBPORT and port.mtu > most.get(port.parent, 0) > 0
    ]
    if large:
        port, mtu = large[0]
        texts = (
            f"{one.parent} (VID {one.segmentation_id}: {one.mtu}, parent: {limit})"
            for one, limit in large
        )
        yield warning(
            NAME,
            f"the MTU of subports is larger than that of their parent: {listed(texts)}: larger "
            "frames of their containers are lost",
            f"give the network of the subport an MTU of at most {mtu}, set it in the container, "
            f"and write its entry again: `dfmeta subport add {port.parent} --vid "
            f"{port.segmentation_id} --mtu {mtu}` with its other options; or give the parent's "
            "network a larger MTU, and stop and start the VM",
        )


def mtu_behind(parent: Interface, snapshot: Snapshot) -> int:
    """Return the MTU of the VM's interface behind a parent; 0: not known."""
    if parent.type != _PATCH:
        return parent.mtu
    peer, iface_id = parent.options.get("peer"), parent.external_ids.get("iface-id")
    trunks = {one.bridge for one in snapshot.interfaces if one.name == peer}
    found = [
        one.mtu
        for one in snapshot.interfaces
        if one.bridge in trunks
        and one.type != _PATCH
        and one.external_ids.get("iface-id") == iface_id
    ]
    return found[0] if len(found) == 1 else 0


def leads_to_trunk(port: KnownPort, snapshot: Snapshot | None, bridge: str) -> bool:
    """Return whether *port* is a trunk's parent whose VM is on the trunk's bridge."""
    interface = snapshot.interface(port.name, bridge) if snapshot is not None else None
    return interface is not None and interface.type == _PATCH


def without_vm(parents: Sequence[KnownPort]) -> Iterator[Finding]:
    """Report the trunk parents whose VM has no interface on the trunk's bridge."""
    if parents:
        yield wrong(
            "ports",
            "no instance is known for trunk parents: "
            f"{listed(f'{port.name} (iface-id {port.iface_id})' for port in parents)}: the bridge "
            "of their peer has no interface with that iface-id and vm-uuid",
            "start the VM if it is off; if it runs, look for its interface with `ovs-vsctl find "
            f"Interface external_ids:iface-id={parents[0].iface_id}`",
        )
