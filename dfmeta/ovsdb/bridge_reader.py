"""Reads the bridge's ports from OVSDB's rows and reports the changes since the last reading.

The rows are the IDL's copy of the database. After a change only the changed rows are read, so that
the cost does not depend on the number of ports:

- A port of the bridge has a Port row, which has Interface rows. Two maps between them are kept,
  since a deleted row no longer names the port to which it belonged.
- An Interface row has any number of guests' ports, which are removed with it.
- A change of an Interface or Port row of the bridge affects one port. The members of the bridge are
  compared only if the changes do not show which ports were added and removed, because a comparison
  needs the set of all ports.
- The ports of a trunk depend on rows of the trunk's bridge (:mod:`dfmeta.ovsdb.trunks`): they are
  read again when one of these has changed.
- A port is recorded as a whole, after every step that may raise an exception. Recorded changes are
  reported by the next reading that succeeds, so that an exception in between loses nothing.
- After a reconnect everything is read: the IDL does not report rows that were deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ovs.db.data import Atom
from ovs.db.types import UuidType

from dfmeta.model import TAP_MTU, MetaNames, Port, PortId
from dfmeta.ovsdb.meta_bridge import MetaRows, has_mtu, is_marked, is_unflooded
from dfmeta.ovsdb.meta_bridge import read as read_meta
from dfmeta.ovsdb.rows import RESTORE_WAIT, Bridge, Interface, read_bridge, read_interface
from dfmeta.ovsdb.trunks import TrunkRows
from dfmeta.ovsdb.vif import DEVICE_TYPES, vifs


@dataclass(frozen=True, slots=True)
class TapPort:
    """The port tap-metadata in OVSDB."""

    ofport: int | None
    mac: str
    sound: bool
    """Whether it is marked as dfmeta's and configured as it should be."""
    marked: bool
    """Whether it is marked as dfmeta's."""
    mtu_request: int = 0
    """MTU that it requests in bytes; 0: none."""


@dataclass(frozen=True, slots=True)
class Update:
    """The state of the bridge after a change."""

    connected: bool
    bridge: Bridge | None = None
    tap: TapPort | None = None
    changed: tuple[Port, ...] = ()
    gone: tuple[PortId, ...] = ()
    meta: MetaRows | None = None
    """The second bridge; None: the identity scheme has none."""
    others: tuple[str, ...] = ()
    """Names of the bridge's interfaces that are no guest's and could have a guest."""
    restore_wait: bool = False
    """Whether ``other_config:flow-restore-wait`` is true: an ovs-vswitchd that has started since
    forwards nothing (ovs-vswitchd.conf.db(5), Open_vSwitch)."""
    answered: int = 0
    """Number of the latest query of :meth:`dfmeta.ovsdb.watcher.OvsdbWatcher.ask` that OVSDB has
    answered. All changes that OVSDB sent before that answer have been read."""


@dataclass(frozen=True, slots=True)
class _PortRow:
    """A Port row of the bridge as of its last reading."""

    interfaces: tuple[str, ...] = ()
    """Rows of its interfaces."""
    guests: Mapping[str, Mapping[PortId, Port]] = field(default_factory=dict)
    """Row of an interface → its guests' ports; interfaces without such ports are left out."""
    tap: TapPort | None = None
    patch: Interface | None = None
    """The patch port to the second bridge."""
    others: tuple[str, ...] = ()
    """Names of interfaces that are no guest's and could have a guest."""
    mtu: int = 0
    """MTU in bytes, if Open vSwitch does not choose it; 0 otherwise."""


class BridgeReader:
    """The bridge's ports as of the last reading.

    :param bridge: name of the integration bridge.
    :param tap: name of tap-metadata.
    :param meta: names of the second bridge and its ports; None: there is none.
    """

    def __init__(self, bridge: str, tap: str, meta: MetaNames | None = None) -> None:
        self.bridge, self.tap, self._meta = bridge, tap, meta
        self._known: dict[str, Mapping[PortId, Port]] = {}
        """Row of an interface → its guests' ports; interfaces without such ports are left out."""
        self._changed: dict[PortId, Port] = {}
        """Changed ports for the next update, kept when a reading ends with an exception."""
        self._gone: dict[PortId, None] = {}
        """Removed ports for the next update, in their order."""
        self._ports: dict[Any, _PortRow] = {}
        """Row of a port of the bridge → the port."""
        self._owners: dict[str, Any] = {}
        """Row of an interface → row of its port."""
        self._trunks = TrunkRows(bridge)

    def read(self, idl: Any, changes: Collection[Any] | None = None) -> Update:
        """Read the ports that the *changes* affect, or all ports when *changes* is None.

        The cost of a change does not depend on the number of ports.
        """
        rows = list(idl.tables["Bridge"].rows.values())
        bridge = next((row for row in rows if row.name == self.bridge), None)
        members = self._members(bridge, changes)
        touched: dict[Any, None] = {}  # a set that keeps its order
        for row in changes or ():
            if row._table.name == "Interface":
                touched[self._owners.get(str(row.uuid))] = None
            elif row._table.name == "Port":
                touched[row.uuid] = None
        if members is not None:
            touched |= dict.fromkeys(self._ports.keys() ^ members)
        if members is not None and changes is None:
            touched = dict.fromkeys((*self._ports, *members))
        for row in self._trunks.read(idl, changes):
            touched.setdefault(row, None)
        while touched:
            uuid = next(iter(touched))
            del touched[uuid]
            is_member = _has_port(bridge, uuid) if members is None else uuid in members
            if is_member or uuid in self._ports:
                port = idl.tables["Port"].rows.get(uuid) if is_member else None
                for row in self._read_port(uuid, port):
                    touched.setdefault(row, None)
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        ports = self._ports.values()
        tap = next((port.tap for port in ports if port.tap is not None), None)
        patch = next((port.patch for port in ports if port.patch is not None), None)
        if tap is not None and tap.mtu_request == TAP_MTU < self.least_mtu:
            tap = replace(tap, sound=False)
        return Update(
            connected=True,
            # Other programs often write its external_ids.
            bridge=replace(read_bridge(bridge), external_ids={}) if bridge is not None else None,
            tap=tap,
            changed=tuple(changed.values()),
            gone=tuple(gone),
            meta=read_meta(idl, bridge, patch, self._meta) if self._meta else None,
            others=tuple(sorted(name for port in ports for name in port.others)),
            restore_wait=any(map(_restores, idl.tables["Open_vSwitch"].rows.values())),
        )

    @property
    def least_mtu(self) -> int:
        """The smallest MTU of the bridge's other ports in bytes; 0 if there are none.

        Ports whose MTU Open vSwitch chooses, and those without one, do not count.
        """
        return min((port.mtu for port in self._ports.values() if port.mtu), default=0)

    def _members(self, bridge: Any, changes: Iterable[Any] | None) -> Collection[Any] | None:
        """Return the bridge's ports; None if the *changes* show which were added and removed."""
        if changes is not None and bridge is not None:
            ports = {row.uuid for row in changes if row._table.name == "Port"}
            came = sum(_has_port(bridge, uuid) for uuid in ports - self._ports.keys())
            went = sum(not _has_port(bridge, uuid) for uuid in ports & self._ports.keys())
            if len(self._ports) + came - went == len(_listed(bridge)):
                return None
        return dict.fromkeys(port.uuid for port in bridge.ports).keys() if bridge else ()

    def _read_port(self, uuid: Any, row: Any) -> Collection[Any]:
        """Record changed and removed guests' ports of a Port row.

        :param row: the row; None when the bridge no longer has it.
        :return: Port rows whose ports depend on these ports, and have to be read again.
        """
        # It may raise, so that the port is recorded as a whole after it.
        rows = row.interfaces if row is not None else ()
        interfaces = [read_interface(self.bridge, row, each) for each in rows]
        port = self._parsed(interfaces)
        before = self._ports.pop(uuid, _PortRow())
        if row is not None:
            self._ports[uuid] = port
        self._owners.update(dict.fromkeys(port.interfaces, uuid))
        for key in {*before.interfaces, *port.interfaces}:
            # The interface may belong to another port now.
            if self._owners.get(key) != uuid:
                continue
            if key not in port.interfaces:
                del self._owners[key]
            self._note(key, port.guests.get(key, {}))
        members = [interface for interface in interfaces if interface.uuid in port.guests]
        return self._trunks.note(uuid, members)

    def _parsed(self, interfaces: Sequence[Interface]) -> _PortRow:
        tap = patch = None
        guests: dict[str, Mapping[PortId, Port]] = {}
        others: list[str] = []
        for interface in interfaces:
            if interface.name == self.tap:
                tap = _read_tap(interface)
            elif self._meta is not None and interface.name == self._meta.patch_int:
                patch = interface
            elif ports := vifs(interface, self._trunks.lead(interface)):
                guests[interface.uuid] = {port.id: port for port in ports}
            elif interface.type in DEVICE_TYPES and interface.name != self.bridge:
                others.append(interface.name)
        mtus = [each.mtu for each in interfaces if each.name != self.tap and _has_own_mtu(each)]
        return _PortRow(
            interfaces=tuple(interface.uuid for interface in interfaces),
            guests=guests,
            tap=tap,
            patch=patch,
            others=tuple(others),
            mtu=min(mtus, default=0),
        )

    def _note(self, row: str, guests: Mapping[PortId, Port]) -> None:
        """Record the current guests' ports of an Interface row; its other ports are removed."""
        before = self._known.pop(row, {})
        if guests:
            self._known[row] = guests
        for port_id in before:
            if port_id not in guests:
                self._changed.pop(port_id, None)
                self._gone[port_id] = None
        self._changed |= {
            port_id: port for port_id, port in guests.items() if before.get(port_id) != port
        }


def _listed(bridge: Any) -> Any:
    """Return the bridge's ports as the IDL stores them; ``Row.ports`` would look up each one."""
    return bridge._data["ports"].values


def _has_port(bridge: Any, uuid: Any) -> bool:
    return Atom(UuidType, uuid) in _listed(bridge)


def _restores(root: Any) -> bool:
    return bool(root.other_config.get(RESTORE_WAIT) == "true")


def _has_own_mtu(interface: Interface) -> bool:
    """Return whether Open vSwitch does not choose the MTU of an interface (ofproto, min_mtu)."""
    chosen = interface.type in ("internal", "patch") and not interface.mtu_request
    return bool(interface.mtu) and not chosen


def _read_tap(interface: Interface) -> TapPort:
    marked = is_marked(interface)
    is_sound = (
        marked
        and interface.type == "internal"
        and is_unflooded(interface)
        and has_mtu(interface.mtu_request)
    )
    return TapPort(
        interface.ofport,
        mac=interface.mac_in_use,
        sound=is_sound,
        marked=marked,
        mtu_request=interface.mtu_request,
    )
