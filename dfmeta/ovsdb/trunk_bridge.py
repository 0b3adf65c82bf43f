"""Moves the interface of a VM to a trunk bridge of its own and back, in one transaction each.

The rows look as those of Neutron's Open vSwitch agent (neutron.services.trunk.drivers.openvswitch.
agent.trunk_manager), so that :mod:`dfmeta.ovsdb.trunks` reads both alike:

- a bridge ``tbr-`` without fail_mode, which forwards as a switch does (NORMAL) as long as it has no
  controller, with the VM's interface;
- a pair of patches, ``tpi-`` on the integration bridge and ``tpt-`` on the trunk's bridge, both
  with the VM's iface-id and MAC. ``tpi-`` has the VLAN of the integration bridge that the VM's port
  had, and the keys ``dfmeta-…`` of its interface, which belong to the port on that bridge.

One column differs: ``tpt-`` carries VLAN 0 only (``trunks``), since a port without a VLAN is a
trunk of all VLANs, and would connect tagged frames of two VMs.

Bridge and patches have ``external_ids:dfmeta=trunk``. A host where Neutron or OVN wires ports is
refused: there the agent makes and removes trunks.

Trust: the host's programs write the rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.errors import UsageError
from dfmeta.model import NAME_MAX
from dfmeta.ovsdb.idl import Columns, OvsdbClient, verify
from dfmeta.ovsdb.rows import Interface, Rows
from dfmeta.ovsdb.subport_list import KEY
from dfmeta.ovsdb.trunks import INSTANCE_KEYS, PARENT

BRIDGE: Final = "tbr-"
"""Beginning of the name of a trunk's bridge."""
OUTER: Final = "tpt-"
"""Beginning of the name of the parent's patch port on the trunk's bridge."""
BRIDGE_NAME_MAX: Final = 14
"""Maximum number of characters of the name of a bridge, as in Neutron."""
MARK: Final = ("dfmeta", "trunk")
"""Key and value in ``external_ids`` of the rows that dfmeta has made."""
UNTAGGED: Final = 0
"""The VLAN id of frames without a tag, in the column ``trunks``."""
_OWN_KEYS: Final = "dfmeta-"
"""Beginning of the keys in ``external_ids`` that count on the integration bridge alone."""
_MOVABLE: Final = frozenset({"", "system", "dpdkvhostuserclient", "afxdp"})
"""Types of interfaces whose device stays when Open vSwitch removes the port. It deletes and creates
those of the other types."""
_WIRED: Final = ("iface-id", "attached-mac")
_OVN: Final = ("ovn-remote", "ovn-bridge", "ovn-encap-type")
"""Keys in ``external_ids`` of Open_vSwitch on a host of OVN."""
_AGENTS_KEY: Final = "net_uuid"
"""Key in ``other_config`` of each port that Neutron's Open vSwitch agent has wired."""
AGENTS_PATCH: Final = "patch-tun"
"""Patch port of the integration bridge of Neutron's Open vSwitch agent."""
COLUMNS: Final[Columns] = {
    "Open_vSwitch": ("bridges", "external_ids"),
    "Bridge": ("name", "ports", "datapath_type", "external_ids"),
    "Port": ("name", "interfaces", "tag", "vlan_mode", "trunks", "cvlans", "other_config"),
    "Interface": ("name", "type", "options", "external_ids"),
}
"""The columns that a move reads and writes."""


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a command."""

    changed: bool
    interface: str
    """The VM's interface."""
    bridge: str
    """Name of the trunk's bridge."""
    parent: str
    """The patch port on the integration bridge."""


def names_of(iface_id: str) -> tuple[str, str, str]:
    """Return the names of a trunk's bridge, and of the inner and outer end of its patch."""
    return (
        f"{BRIDGE}{iface_id}"[:BRIDGE_NAME_MAX],
        f"{PARENT}{iface_id}"[:NAME_MAX],
        f"{OUTER}{iface_id}"[:NAME_MAX],
    )


def agent_of(rows: Rows, bridge: str) -> str:
    """Return the sign that Neutron or OVN wires the ports of a bridge; empty: there is none."""
    for key in _OVN:
        if key in rows.root.external_ids:
            return f"external_ids:{key} of Open_vSwitch, of OVN"
    for port in rows.on(bridge):
        if _AGENTS_KEY in port.other_config:
            return f"other_config:{_AGENTS_KEY} of the port {port.name}, of Neutron's agent"
        if port.name == AGENTS_PATCH:
            return f"the port {port.name}, of Neutron's agent"
    return ""


def is_ours(rows: Rows, bridge: str) -> bool:
    """Return whether dfmeta has made a trunk's bridge."""
    row = rows.bridges.get(bridge)
    return row is not None and row.external_ids.get(MARK[0]) == MARK[1]


def enable(remote: str, integration: str, name: str) -> Change:
    """Move the interface of a VM to a trunk's bridge. A second call changes nothing.

    :param remote: OVSDB's address, such as ``unix:PATH`` or ``tcp:HOST:PORT``.
    :param integration: name of the integration bridge.
    :param name: the VM's port on that bridge: its own interface, or ``tpi-…``.
    :raises OvsdbError: when OVSDB does not answer or refuses the change.
    :raises UsageError: when the port cannot have a trunk of dfmeta; nothing was changed.
    """

    def act(idl: Any, txn: Any) -> Change:
        rows = Rows(idl)
        port = _port(rows, integration, name)
        if port.peer:
            vm, outer = _trunk(rows, port)
            return Change(False, vm.name, outer.bridge, port.name)
        _refuse(rows, port, integration)
        bridge, inner, _outer = names_of(port.external_ids["iface-id"])
        if _left(rows, port):
            _enter(rows, txn, port, inner)
        else:
            _enable(rows, txn, port)
        rows.root.increment("next_cfg")
        return Change(True, port.name, bridge, inner)

    return OvsdbClient(remote, COLUMNS).run(act)


def disable(remote: str, integration: str, name: str) -> Change:
    """Move the interface of a VM back to the integration bridge. A second call changes nothing.

    :param name: as for :func:`enable`.
    :raises OvsdbError: when OVSDB does not answer or refuses the change.
    :raises UsageError: when the trunk is another program's, or still has subports; nothing was
        changed.
    """

    def act(idl: Any, txn: Any) -> Change:
        rows = Rows(idl)
        port = _port(rows, integration, name)
        if port.peer:
            vm, outer = _trunk(rows, port)
        elif left := _left(rows, port):
            vm, (port, outer) = port, left
        else:
            return Change(False, port.name, "", "")
        _refuse_subports(rows, vm, port, outer)
        _disable(rows, txn, vm, port, outer.bridge)
        rows.root.increment("next_cfg")
        return Change(True, vm.name, outer.bridge, port.name)

    return OvsdbClient(remote, COLUMNS).run(act)


def _refuse_subports(rows: Rows, vm: Interface, port: Interface, outer: Interface) -> None:
    """Raise UsageError if a trunk still has subports."""
    bridge = outer.bridge
    names = sorted({port.name for port in rows.on(bridge)} - {bridge, vm.name, outer.name})
    if names:
        more = ", …" if len(names) > 3 else ""
        raise UsageError(
            cause=f"the trunk of {vm.name} has subports on {bridge}: {', '.join(names[:3])}{more}",
            remedy="Remove the containers' attachments first",
        )
    if KEY in port.external_ids:
        raise UsageError(
            cause=f"{port.name} has a list of subports (external_ids:{KEY})",
            remedy=f"`dfmeta subport list {port.name}` shows it; delete its entries first",
        )


def _port(rows: Rows, integration: str, name: str) -> Interface:
    port = rows.get(name)
    if port is None:
        raise UsageError(cause=f"there is no port {name}", remedy="`dfmeta ports` lists the ports")
    if port.bridge == integration:
        return port
    # A VM's interface on its trunk's bridge, by its own name: another command has just moved it.
    iface_id = port.external_ids.get("iface-id", "")
    inner = [
        row
        for row in rows.on(integration)
        if row.name.startswith(PARENT) and iface_id and _same_trunk(rows, row, port)
    ]
    if len(inner) != 1:
        raise UsageError(
            cause=f"{name} is on {port.bridge}, and no port {PARENT}… connects it to {integration}",
            remedy="`dfmeta ports` lists the ports",
        )
    return inner[0]


def _same_trunk(rows: Rows, inner: Interface, vm: Interface) -> bool:
    outer = rows.get(inner.peer)
    same = inner.external_ids.get("iface-id") == vm.external_ids.get("iface-id")
    return outer is not None and outer.bridge == vm.bridge and same


def _trunk(rows: Rows, inner: Interface) -> tuple[Interface, Interface]:
    """Return the VM's interface and the outer patch port of a trunk of dfmeta.

    :raises UsageError: when it is another program's, or not complete.
    """
    outer = rows.get(inner.peer)
    if outer is None or not inner.name.startswith(PARENT):
        raise UsageError(
            cause=f"{inner.name} is a patch port without a trunk's bridge behind it",
            remedy="Name a VM's port; `dfmeta ports` lists them",
        )
    if not is_ours(rows, outer.bridge):
        raise UsageError(
            cause=f"the trunk of {inner.name} on {outer.bridge} was made by another program, such "
            "as Neutron's agent",
            remedy="That program adds and removes its subports",
        )
    iface_id = inner.external_ids.get("iface-id", "")
    vms = [
        port
        for port in rows.on(outer.bridge)
        if port.external_ids.get("iface-id") == iface_id and not port.peer and _instance(port)
    ]
    if len(vms) != 1:
        raise UsageError(
            cause=f"{outer.bridge} has {len(vms)} interfaces of the VM of {inner.name}, not one",
            remedy=f"Add the VM's interface to {outer.bridge}, or delete {outer.bridge} and "
            f"{inner.name} with ovs-vsctl if the VM is gone",
        )
    return vms[0], outer


def _left(rows: Rows, vm: Interface) -> tuple[Interface, Interface] | None:
    """Return the patch ports of a trunk of dfmeta that the interface of its VM has left.

    A program that plugs the VM anew removes its interface from the bridge of the trunk, and puts it
    on the integration bridge, where *vm* is.
    """
    iface_id = vm.external_ids.get("iface-id", "")
    bridge, *ends = names_of(iface_id)
    inner, outer = (rows.get(name) for name in ends)
    if not (iface_id and inner and outer and is_ours(rows, bridge)):
        return None
    if (inner.bridge, inner.peer, outer.bridge) != (vm.bridge, outer.name, bridge):
        return None
    same = {end.external_ids.get("iface-id") for end in (inner, outer)} == {iface_id}
    return (inner, outer) if same and not any(map(_instance, rows.on(bridge))) else None


def _instance(port: Interface) -> str:
    return next((text for key in INSTANCE_KEYS if (text := port.external_ids.get(key, ""))), "")


def _refuse(rows: Rows, port: Interface, integration: str) -> None:
    """Raise UsageError if a port of the integration bridge can have no trunk of dfmeta."""
    sign = agent_of(rows, integration)
    ids = port.external_ids
    set_it = f"ovs-vsctl set Interface {port.name} external_ids:"
    cause = remedy = ""
    if sign:
        cause = f"this host has {sign}, which wires the ports of {integration}"
        remedy = "Create the trunk in Neutron; dfmeta serves its subports"
    elif not _instance(port):
        cause = f"{port.name} is no VM's port: it has no instance (external_ids:vm-uuid)"
        remedy = f"If a VM is behind it, `{set_it}vm-uuid=<instance's UUID>`"
    elif not ids.get("iface-id", "").strip():
        cause = f"{port.name} has no external_ids:iface-id, by which its trunk is named"
        remedy = f"`{set_it}iface-id=<a UUID>`"
    elif port.type not in _MOVABLE:
        cause = f"{port.name} has the type {port.type}: Open vSwitch would delete its device"
        remedy = "Give the VM a tap device that another program makes"
    elif port.trunks or port.cvlans or port.vlan_mode not in ("", "access"):
        cause = f"{port.name} carries VLANs of {integration} (vlan_mode, trunks or cvlans)"
        remedy = "The VLANs of a trunk are its containers'; give the VM another port for them"
    elif KEY in ids:
        cause = f"{port.name} has subports whose tags reach {integration} (external_ids:{KEY})"
        remedy = f"`dfmeta subport list {port.name}` shows them; delete them first"
    else:
        bridge, inner, outer = names_of(ids["iface-id"])
        names = (bridge, inner, outer)
        taken = [name for name in names if name in rows.places or name in rows.bridges]
        if taken and not _left(rows, port):
            cause = f"{taken[0]} exists already, and is not the trunk of {port.name}"
            remedy = f"Delete it with ovs-vsctl if no VM uses it, then repeat for {port.name}"
    if cause:
        raise UsageError(cause=cause, remedy=remedy)


def _enable(rows: Rows, txn: Any, vm: Interface) -> None:
    home, port, interface = rows.places[vm.name]
    name, inner, outer = names_of(vm.external_ids["iface-id"])
    wired = {key: text for key in _WIRED if (text := vm.external_ids.get(key))}
    ids, moved = wired | dict([MARK]), _moved(vm)
    verify_as_read(rows, txn, vm)
    near = new_port(
        rows, txn, inner, type="patch", options={"peer": outer}, external_ids=ids | moved
    )
    far = new_port(rows, txn, outer, type="patch", options={"peer": inner}, external_ids=ids)
    _move_vlan(port, near)
    far.trunks = [UNTAGGED]
    bridge = txn.insert(rows.idl.tables["Bridge"])
    bridge.name, bridge.datapath_type = name, home.datapath_type
    bridge.external_ids = dict([MARK])
    bridge.ports = [new_port(rows, txn, name, type="internal"), far, port]
    rows.root.addvalue("bridges", bridge)
    home.delvalue("ports", port)
    home.addvalue("ports", near)
    _delete_keys(interface, moved)


def _enter(rows: Rows, txn: Any, vm: Interface, name: str) -> None:
    """Move a VM's interface to the trunk that it has left.

    :param name: the trunk's patch port on the integration bridge.
    """
    home, port, interface = rows.places[vm.name]
    _home, near, inner = rows.places[name]
    trunk, moved = rows.places[inner.options["peer"]].bridge, _moved(vm)
    verify_as_read(rows, txn, vm)
    verify(txn, trunk, "ports")
    trunk.addvalue("ports", port)
    home.delvalue("ports", port)
    _move_vlan(port, near)
    _set_keys(inner, moved)
    _delete_keys(interface, moved)


def _disable(rows: Rows, txn: Any, vm: Interface, inner: Interface, name: str) -> None:
    home, near, _interface = rows.places[inner.name]
    _home, port, interface = rows.places[vm.name]
    trunk = rows.bridges[name]
    verify_as_read(rows, txn, vm)
    verify_as_read(rows, txn, inner)
    verify(txn, trunk, "ports")  # no subport has come meanwhile
    if vm.bridge == name:  # an interface that has left the trunk has its own columns
        _move_vlan(near, port)
        _set_keys(interface, _moved(inner))
    rows.root.delvalue("bridges", trunk)
    home.delvalue("ports", near)
    home.addvalue("ports", port)


def new_port(rows: Rows, txn: Any, name: str, **columns: Any) -> Any:
    """Insert a port with its interface, and return the port.

    :param columns: columns of the interface.
    """
    port, interface = (txn.insert(rows.idl.tables[table]) for table in ("Port", "Interface"))
    port.name = interface.name = name
    port.interfaces = [interface]
    for column, value in columns.items():
        setattr(interface, column, value)
    return port


def verify_as_read(rows: Rows, txn: Any, interface: Interface) -> None:
    """Let the transaction fail if the columns of an interface have changed meanwhile."""
    place = rows.places[interface.name]
    verify(txn, place.interface, "external_ids")
    verify(txn, place.port, "tag", "vlan_mode")


def _moved(port: Interface) -> dict[str, str]:
    """Return the keys of a port that count on the integration bridge alone."""
    return {key: text for key, text in port.external_ids.items() if key.startswith(_OWN_KEYS)}


def _move_vlan(before: Any, after: Any) -> None:
    """Move the VLAN of a Port row to another one."""
    for column in ("tag", "vlan_mode"):
        setattr(after, column, getattr(before, column))
        setattr(before, column, [])


def _set_keys(interface: Any, keys: Mapping[str, str]) -> None:
    for key, text in keys.items():
        interface.setkey("external_ids", key, text)


def _delete_keys(interface: Any, keys: Iterable[str]) -> None:
    for key in keys:
        interface.delkey("external_ids", key)
