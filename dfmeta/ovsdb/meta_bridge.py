"""Reads and writes the rows of dfmeta's ports: tap-metadata, and the second bridge.

The second bridge is that of ``identity_scheme = meta_ip`` (specification 001). It and its ports may
exist already, such as those of Neutron's metadata_path, which have the same names. They are used,
and configured as dfmeta needs them; only rows that dfmeta has created are marked, and only marked
ones are removed.

The functions that write run within a transaction of the IDL, which calls them again if a row that
they have verified was changed meanwhile. They write only columns that differ, and keys of
``external_ids`` one at a time, so that keys of others stay.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from ovsdbapp.schema.open_vswitch import impl_idl

from dfmeta import model
from dfmeta.ovsdb.external_ids import META_KEYS
from dfmeta.ovsdb.rows import SECURE, Interface, read_bridge, read_interface

SKIP_CLEANUP: Final = ("skip_cleanup", "true")
"""Key and value in ``external_ids`` with which Neutron's agent leaves a port alone."""
_SYSTEM: Final = "system"
_KEY: Final = "dfmeta"
_VALUE: Final = "meta of "


@dataclass(frozen=True, slots=True)
class MetaRows:
    """The second bridge as OVSDB has it. A port counts only on the bridge where it belongs."""

    datapath_id: int | None = None
    controllers: int = 0
    """Number of Controller rows, see :class:`~dfmeta.ovsdb.rows.Bridge`."""
    tap: int | None = None
    """Number of tap-meta; None while it has none."""
    tap_mac: str = ""
    """MAC of tap-meta in use; empty while the device does not exist."""
    patch_int: int | None = None
    """Number of the patch port on the integration bridge."""
    patch_meta: int | None = None
    """Number of the patch port on the second bridge."""
    sound: bool = False
    """Whether all rows exist and are configured as :func:`ensure` does it.
    Numbers and the MAC in use, which Open vSwitch gives, do not count."""


def is_unflooded(interface: Interface) -> bool:
    """Return whether NORMAL floods nothing to its port, see :data:`~dfmeta.model.TAP_VLAN`."""
    return (interface.tag, interface.vlan_mode, interface.cvlans) == model.TAP_VLAN


def mark_of(integration: str) -> tuple[str, str]:
    """Return key and value in ``external_ids`` of rows that dfmeta has created for the second
    bridge.

    :param integration: the integration bridge, of which each daemon of a host has another one.
    """
    return _KEY, f"{_VALUE}{integration}"


def owner_of(row: Any) -> str | None:
    """Return the integration bridge of the mark of a row; None: dfmeta has not created the row."""
    value = str(row.external_ids.get(_KEY, ""))
    return value.removeprefix(_VALUE) if value.startswith(_VALUE) else None


def owner_of_port(port: Any) -> str | None:
    """Return :func:`owner_of` the interfaces of a Port row."""
    return next((owner for row in port.interfaces if (owner := owner_of(row)) is not None), None)


def datapath_of(bridge: Any) -> str:
    """Return the datapath type of a Bridge row; an empty column means ``system``."""
    return str(bridge.datapath_type or _SYSTEM)


def others_on(bridge: Any, names: model.MetaNames) -> list[str]:
    """Return the names of the ports of others on the second bridge."""
    expected = {names.bridge, names.tap, names.patch_meta}
    return [port.name for port in bridge.ports if port.name not in expected]


def keeps_fail_mode(bridge: Any, names: model.MetaNames) -> bool:
    """Return whether the fail mode of the second bridge is not dfmeta's to set.

    With another one, ports of others might lose their flows at the next start of Open vSwitch.
    """
    return owner_of(bridge) is None and bool(others_on(bridge, names))


def read(idl: Any, integration: Any, patch: Interface | None, names: model.MetaNames) -> MetaRows:
    """Read the second bridge.

    :param integration: the Bridge row of the integration bridge; None: there is none.
    :param patch: the patch port on it; None: there is none.
    """
    rows = idl.tables["Bridge"].rows.values()
    bridge = next((row for row in rows if row.name == names.bridge), None)
    near = patch.ofport if patch is not None else None
    if bridge is None:
        return MetaRows(patch_int=near)
    tap, far = _member(bridge, names.tap), _member(bridge, names.patch_meta)
    value = read_bridge(bridge)
    return MetaRows(
        datapath_id=value.datapath_id,
        controllers=len(value.controllers),
        tap=tap.ofport if tap is not None else None,
        tap_mac=tap.mac_in_use if tap is not None else "",
        patch_int=near,
        patch_meta=far.ofport if far is not None else None,
        sound=integration is not None
        and datapath_of(bridge) == datapath_of(integration)
        and (value.fail_mode == SECURE or keeps_fail_mode(bridge, names))
        and _are_configured(tap, patch, far, names),
    )


def has_mtu(request: int, least: int = 0) -> bool:
    """Return whether the MTU that an interface requests is large enough for guests' requests.

    :param least: the smallest MTU of the bridge's other ports in bytes, 0 if there are none. A
        request of dfmeta's own must not be smaller.
    """
    return request >= model.TAP_MTU_MIN and (request >= least or request != model.TAP_MTU)


def is_marked(interface: Any) -> bool:
    """Return whether an interface, a row or a value, is marked as dfmeta's."""
    key, value = model.TAP_MARK
    return bool(interface.external_ids.get(key) == value)


class TapElsewhereError(Exception):
    """A port of another bridge has the name of tap-metadata, or one of
    :class:`~dfmeta.model.MetaNames`.

    :param owner: the integration bridge of the dfmeta that created the port; None: another program
        created it.
    """

    def __init__(self, tap: str, bridge: str, *, owner: str | None) -> None:
        super().__init__(f"{tap} is a port of {bridge}")
        self.tap, self.bridge, self.owner = tap, bridge, owner


class MetaDatapathError(Exception):
    """The second bridge has ports of others, and another datapath than the integration bridge.

    Patch ports connect bridges of one datapath only, and a change of the datapath would make the
    ports of others anew.

    :param bridge: name of the second bridge.
    :param found: its datapath_type.
    :param wanted: the integration bridge's.
    :param others: names of the ports of others.
    """

    def __init__(self, bridge: str, *, present: str, wanted: str, others: Sequence[str]) -> None:
        super().__init__(
            f"{bridge} has datapath_type {present}, the integration bridge has {wanted}, and "
            f"{bridge} has ports of others: {', '.join(others)}. Set another [df_metadata] "
            f"meta_bridge, or remove these ports"
        )
        self.bridge, self.found, self.wanted, self.others = bridge, present, wanted, others


def ensure_tap(idl: Any, txn: Any, integration: str, name: str, *, least_mtu: int) -> None:
    """Make tap-metadata a port of the integration bridge, without flooding to it.

    An untagged port would be a trunk of all VLANs, and NORMAL would flood every tenant's broadcasts
    to it; see :data:`~dfmeta.model.TAP_VLAN`. A port of that name on this dfmeta's second bridge,
    from a run with another identity scheme, is removed.

    :param least_mtu: the smallest MTU of the bridge's other ports in bytes.
    :raises TapElsewhereError: when a port of another bridge has the name.
    """
    for row in idl.tables["Bridge"].rows.values():
        for port in row.ports if row.name != integration else ():
            owner = row.name if _is_tap(port) else owner_of_port(port)
            if port.name == name and owner != integration:
                raise TapElsewhereError(name, row.name, owner=owner)
    _make_way(idl, integration, name)
    tap = _ensure_port(idl, txn, _bridge(idl, integration), name, model.TAP_MARK)
    _put(tap, "type", "internal")
    _put(tap, "mac", [model.TAP_MAC])
    _put_keys(tap, "external_ids", dict([SKIP_CLEANUP, model.TAP_MARK]))
    if not has_mtu(_request(tap), least_mtu):
        tap.mtu_request = [max(model.TAP_MTU, least_mtu)]


def remove_taps(idl: Any, integration: str, only: str) -> list[str]:
    """Remove the ports of the integration bridge that dfmeta has created as tap-metadata.

    :param only: name of the port; empty: all.
    :return: names of the removed ports.
    """
    bridge = _bridge(idl, integration)
    ports = [] if bridge is None else [port for port in bridge.ports if _is_tap(port)]
    leaving = [port for port in ports if only in ("", port.name)]
    names = [port.name for port in leaving]
    _delete(bridge, leaving)
    return names


def ensure(idl: Any, txn: Any, integration: str, names: model.MetaNames) -> None:
    """Create the second bridge and its three ports, and correct those that exist.

    NORMAL floods nothing to the three ports: not even on a bridge of others, where frames of others
    would get to guests or to the host. Rows that dfmeta has created under former names are removed,
    and tap-metadata of ``identity_scheme = in_port`` if it has the name of tap-meta.

    :param integration: name of the integration bridge, which exists.
    :raises TapElsewhereError: when a port of another bridge has one of the names.
    :raises MetaDatapathError: when the bridge has another datapath, and ports of others.
    """
    mark = mark_of(integration)
    home = _bridge(idl, integration)
    places = {
        names.patch_int: integration,
        **dict.fromkeys((names.bridge, names.patch_meta, names.tap), names.bridge),
    }
    _remove(idl, integration, keep=places)
    _delete(home, [port for port in home.ports if port.name == names.tap and _is_tap(port)])
    _refuse_elsewhere(idl.tables["Bridge"].rows.values(), places)
    bridge = _bridge(idl, names.bridge)
    if bridge is None:
        bridge = _new_bridge(idl, txn, names.bridge, home.datapath_type)
        bridge.external_ids = dict([mark])
        bridge.fail_mode = [SECURE]
    else:
        _correct_bridge(bridge, home, names)
    for row, name, peer in (
        (home, names.patch_int, names.patch_meta),
        (bridge, names.patch_meta, names.patch_int),
    ):
        patch = _ensure_port(idl, txn, row, name, mark)
        _put(patch, "type", "patch")
        _put_keys(patch, "options", {"peer": peer})
    tap = _ensure_port(idl, txn, bridge, names.tap, mark)
    _put(tap, "type", "internal")
    _put(tap, "mac", [names.mac])
    if not has_mtu(_request(tap)):
        tap.mtu_request = [model.TAP_MTU]


def remove(idl: Any, integration: str) -> list[str]:
    """Remove the ports that dfmeta has created, and its second bridge if it has no other ports.

    All names count, since the options may have changed.

    :param integration: name of the integration bridge; rows of other daemons stay.
    :return: names of the removed ports, and of removed bridges after them.
    """
    return _remove(idl, integration, keep={})


def write_ids(idl: Any, rows: Mapping[str, model.MetaIds]) -> None:
    """Write the Meta addresses of ports.

    :param rows: UUID of an Interface row → its Meta addresses; an empty one removes the key. Rows
        that do not exist any more are skipped.
    """
    interfaces = idl.tables["Interface"].rows
    for uuid, ids in rows.items():
        row = interfaces.get(UUID(uuid))
        if row is not None:
            _put_keys(row, "external_ids", dict(zip(META_KEYS, ids, strict=True)))


def remove_keys(idl: Any, integration: str, keys: Iterable[str]) -> None:
    """Remove keys in ``external_ids`` from all interfaces of the integration bridge."""
    for row in idl.tables["Bridge"].rows.values():
        for port in row.ports if row.name == integration else ():
            for interface in port.interfaces:
                _put_keys(interface, "external_ids", dict.fromkeys(keys, ""))


def _make_way(idl: Any, integration: str, name: str) -> None:
    """Remove a port of dfmeta's second bridge whose name tap-metadata is to have.

    :param integration: name of the integration bridge; ports of other daemons stay.
    """
    for row in idl.tables["Bridge"].rows.values():
        ports = [
            port for port in row.ports if port.name == name and owner_of_port(port) == integration
        ]
        _delete(row, ports)


def _bridge(idl: Any, name: str) -> Any:
    """Return the row of a bridge; None: there is none."""
    rows = idl.tables["Bridge"].rows.values()
    return next((row for row in rows if row.name == name), None)


def _request(interface: Any) -> int:
    """Return the MTU that an Interface row requests; one that was just inserted has no value."""
    return max(getattr(interface, "mtu_request", ()), default=0)


def _remove(idl: Any, integration: str, *, keep: Mapping[str, str]) -> list[str]:
    """Remove rows of dfmeta.

    :param keep: name of a port or bridge → the bridge on which it stays.
    """
    (root,) = idl.tables["Open_vSwitch"].rows.values()
    ports, bridges = list[str](), list[str]()
    for row in list(idl.tables["Bridge"].rows.values()):
        name, present = row.name, list(row.ports)
        leaving = [
            port
            for port in present
            if keep.get(port.name) != name and owner_of_port(port) == integration
        ]
        names = [port.name for port in leaving]
        ports += names
        staying = {port.name for port in present} - {name, *names}
        if owner_of(row) == integration and name not in keep and not staying:
            # A port that is added meanwhile keeps the bridge.
            row.verify("ports")
            root.delvalue("bridges", row)
            row.delete()
            bridges.append(name)
            _delete_rows(present)
        else:
            _delete(row, leaving)
    return [*sorted(ports), *sorted(bridges)]


def _delete(bridge: Any, ports: Sequence[Any]) -> None:
    """Remove ports from their bridge."""
    for port in ports:
        bridge.delvalue("ports", port)
    _delete_rows(ports)


def _delete_rows(ports: Iterable[Any]) -> None:
    for port in ports:
        for interface in port.interfaces:
            interface.delete()
        port.delete()


def _is_tap(port: Any) -> bool:
    """Return whether dfmeta has created a port as tap-metadata."""
    return any(map(is_marked, port.interfaces))


def _refuse_elsewhere(bridges: Iterable[Any], places: Mapping[str, str]) -> None:
    for row in bridges:
        for port in row.ports:
            if places.get(port.name, row.name) != row.name:
                raise TapElsewhereError(port.name, row.name, owner=owner_of_port(port))


def _new_bridge(idl: Any, txn: Any, name: str, datapath_type: str) -> Any:
    # With the internal port of its own name that every bridge has.
    commands = _Commands(idl, txn)
    added = commands.add_br(name, may_exist=False, datapath_type=datapath_type)
    return commands.insert("Bridge", added)


def _correct_bridge(row: Any, home: Any, names: model.MetaNames) -> None:
    kind, wanted = datapath_of(row), datapath_of(home)
    if kind != wanted:
        others = others_on(row, names)
        if others:
            raise MetaDatapathError(row.name, present=kind, wanted=wanted, others=others)
        row.datapath_type = home.datapath_type
    if not keeps_fail_mode(row, names):
        _put(row, "fail_mode", [SECURE])


def _ensure_port(idl: Any, txn: Any, bridge: Any, name: str, mark: tuple[str, str]) -> Any:
    """Return the interface of a port to which nothing is flooded; a new port is marked."""
    port = next((port for port in getattr(bridge, "ports", ()) if port.name == name), None)
    is_new = port is None
    if is_new:
        commands = _Commands(idl, txn)
        port = commands.insert("Port", commands.add_port(bridge.name, name, may_exist=False))
    interface = _only_interface(idl, txn, port)
    if is_new:
        interface.external_ids = dict([mark, SKIP_CLEANUP])
    _put(port, "tag", [model.TAP_VLAN.tag])
    _put(port, "vlan_mode", [model.TAP_VLAN.vlan_mode])
    _put(port, "cvlans", list(model.TAP_VLAN.cvlans))
    return interface


def _only_interface(idl: Any, txn: Any, port: Any) -> Any:
    """Return the interface of the port's name, after the removal of others, such as a bond's."""
    present = getattr(port, "interfaces", [])
    interface = next((row for row in present if row.name == port.name), None)
    if interface is None:
        interface = txn.insert(idl.tables["Interface"])
        interface.name = port.name
    _put(port, "interfaces", [interface])
    return interface


def _put(row: Any, column: str, value: Any) -> None:
    if getattr(row, column, None) != value:
        setattr(row, column, value)


def _put_keys(row: Any, column: str, values: Mapping[str, str]) -> None:
    """Set keys of a map column; an empty value removes the key."""
    present = getattr(row, column, {})
    for key, value in values.items():
        if value and present.get(key) != value:
            row.setkey(column, key, value)
        elif not value and key in present:
            row.delkey(column, key)


def _are_configured(
    tap: Interface | None, near: Interface | None, far: Interface | None, names: model.MetaNames
) -> bool:
    if tap is None or near is None or far is None:
        return False
    return (
        all(map(is_unflooded, (tap, near, far)))
        and (near.peer, far.peer) == (names.patch_meta, names.patch_int)
        and (tap.type, tap.mac) == ("internal", names.mac)
        and has_mtu(tap.mtu_request)
    )


def _member(bridge: Any, name: str) -> Interface | None:
    """Return the port of that name; None also for one with other interfaces, such as a bond."""
    port = next((port for port in bridge.ports if port.name == name), None)
    rows: list[Any] = port.interfaces if port is not None else []
    return (
        read_interface(bridge.name, port, rows[0]) if [row.name for row in rows] == [name] else None
    )


class _Commands(impl_idl.OvsdbIdl):  # type: ignore[misc]  # ovsdbapp has no types
    """The commands of ``ovsdbapp.schema.open_vswitch.api.API``; each runs by :meth:`insert`.

    ovsdbapp has a connection, a thread and transactions of its own. Here the caller runs the IDL
    and commits, so that a command only changes rows.

    :param idl: an IDL with the rows that the commands look for.
    :param txn: its transaction.
    """

    def __init__(self, idl: Any, txn: Any) -> None:
        self._txn = txn
        self._connection = SimpleNamespace(idl=idl, is_running=True, lock=nullcontext())
        # Commands that add ports note their interfaces here, for whoever waits for ovs-vswitchd.
        txn.expected_ifaces = set()
        super().__init__(self._connection, start=False)

    @property
    def ovsdb_connection(self) -> Any:
        """Return the connection of this object; the base class keeps one for the whole process."""
        return self._connection

    @ovsdb_connection.setter
    def ovsdb_connection(self, connection: Any) -> None:
        """Ignore the value: the base class sets the connection that it was just given."""

    def insert(self, table: str, command: Any) -> Any:
        """Run a command that adds a row to *table*, and return the row."""
        command.run_idl(self._txn)
        return self.idl.tables[table].rows[command.result]
