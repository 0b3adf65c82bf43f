"""The check of trunks: subports, the lists that describe them, and their data plane. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dfmeta.inspect.facts import Interface, KnownPort, Snapshot
from dfmeta.inspect.finding import Finding, listed, ok, wrong
from dfmeta.model import PortKind

NAME = "trunks"


def trunks(known: Sequence[KnownPort], snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Check that each entry of a list describes a subport, and that each subport has a trunk.

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


def leads_to_trunk(port: KnownPort, snapshot: Snapshot | None, bridge: str) -> bool:
    """Return whether *port* is a trunk's parent whose VM is on the trunk's bridge."""
    interface = snapshot.interface(port.name, bridge) if snapshot is not None else None
    return interface is not None and interface.type == "patch"


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
