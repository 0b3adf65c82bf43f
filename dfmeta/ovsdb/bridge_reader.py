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

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
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
        self._interfaces: dict[Any, tuple[Any, ...]] = {}
        """Row of a port of the bridge → rows of its interfaces."""
        self._owners: dict[Any, Any] = {}
        """Row of an interface → row of its port."""
        self._tap: TapPort | None = None
        self._tap_row: Any = None
        self._mtus: dict[Any, int] = {}
        """Row of a port whose MTU Open vSwitch does not choose → its MTU in bytes."""
        self._patch: Interface | None = None
        """The patch port to the second bridge."""
        self._patch_row: Any = None
        self._trunks = TrunkRows(bridge)
        self._others: dict[Any, str] = {}
        """Row of an interface that is no guest's and could have a guest → its name."""

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
                touched[self._owners.get(row.uuid)] = None
            elif row._table.name == "Port":
                touched[row.uuid] = None
        if members is not None:
            touched |= dict.fromkeys(self._interfaces.keys() ^ members)
        if members is not None and changes is None:
            touched = dict.fromkeys((*self._interfaces, *members))
        for row in self._trunks.read(idl, changes):
            touched.setdefault(row, None)
        while touched:
            uuid = next(iter(touched))
            del touched[uuid]
            is_member = _has_port(bridge, uuid) if members is None else uuid in members
            if is_member or uuid in self._interfaces:
                port = idl.tables["Port"].rows.get(uuid) if is_member else None
                for row in self._read_port(uuid, port):
                    touched.setdefault(row, None)
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        tap = self._tap
        if tap is not None and tap.mtu_request == TAP_MTU < self.least_mtu:
            tap = replace(tap, sound=False)
        return Update(
            connected=True,
            # Other programs often write its external_ids.
            bridge=replace(read_bridge(bridge), external_ids={}) if bridge is not None else None,
            tap=tap,
            changed=tuple(changed.values()),
            gone=tuple(gone),
            meta=read_meta(idl, bridge, self._patch, self._meta) if self._meta else None,
            others=tuple(sorted(self._others.values())),
            restore_wait=any(map(_restores, idl.tables["Open_vSwitch"].rows.values())),
        )

    @property
    def least_mtu(self) -> int:
        """The smallest MTU of the bridge's other ports in bytes; 0 if there are none.

        Ports whose MTU Open vSwitch chooses, and those without one, do not count.
        """
        return min(self._mtus.values(), default=0)

    def _members(self, bridge: Any, changes: Iterable[Any] | None) -> Collection[Any] | None:
        """Return the bridge's ports; None if the *changes* show which were added and removed."""
        if changes is not None and bridge is not None:
            ports = {row.uuid for row in changes if row._table.name == "Port"}
            came = sum(_has_port(bridge, uuid) for uuid in ports - self._interfaces.keys())
            went = sum(not _has_port(bridge, uuid) for uuid in ports & self._interfaces.keys())
            if len(self._interfaces) + came - went == len(_listed(bridge)):
                return None
        return dict.fromkeys(port.uuid for port in bridge.ports).keys() if bridge else ()

    def _read_port(self, uuid: Any, port: Any) -> Collection[Any]:
        """Record changed and removed guests' ports of a Port row.

        :param port: the row; None when the bridge no longer has it.
        :return: Port rows whose ports depend on these ports, and have to be read again.
        """
        present = {
            row.uuid: read_interface(self.bridge, port, row)
            for row in (port.interfaces if port is not None else ())
        }
        # Steps that may raise come first, so that the port is recorded as a whole.
        tap = patch = None
        by_row: dict[Any, Mapping[PortId, Port]] = {}
        members: list[Interface] = []
        others: dict[Any, str] = {}
        for key, interface in present.items():
            if interface.name == self.tap:
                tap = _read_tap(interface)
                continue
            if self._meta is not None and interface.name == self._meta.patch_int:
                patch = interface
                continue
            read = {item.id: item for item in vifs(interface, self._trunks.lead(interface))}
            if read:
                by_row[key] = read
                members.append(interface)
            elif interface.type in DEVICE_TYPES and interface.name != self.bridge:
                others[key] = interface.name
        if tap is not None:
            self._tap, self._tap_row = tap, uuid
        elif uuid == self._tap_row:
            self._tap = self._tap_row = None
        if patch is not None:
            self._patch, self._patch_row = patch, uuid
        elif uuid == self._patch_row:
            self._patch = self._patch_row = None
        mtus = [
            item.mtu for item in present.values() if item.name != self.tap and _has_own_mtu(item)
        ]
        self._mtus.pop(uuid, None)
        if mtus:
            self._mtus[uuid] = min(mtus)
        before, now = self._interfaces.pop(uuid, ()), tuple(present)
        if port is not None:
            self._interfaces[uuid] = now
        for item in before:
            # The interface may belong to another port now.
            if self._owners.get(item) == uuid:
                self._others.pop(item, None)
        self._others |= others
        self._owners.update(dict.fromkeys(now, uuid))
        for key, guests in by_row.items():
            self._note(str(key), guests)
        for key in {*before, *now} - by_row.keys():
            # The interface may belong to another port now.
            if self._owners.get(key) != uuid:
                continue
            if key not in now:
                del self._owners[key]
            self._note(str(key), {})
        return self._trunks.note(uuid, members)

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
