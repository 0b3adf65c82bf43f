"""Reads the bridge's ports from OVSDB's rows and reports the changes since the last reading.

The rows are the IDL's copy of the database. After a change only the changed rows are read:

- A port of a bridge has a Port row, which has Interface rows. Maps between them are kept, since a
  deleted row no longer names the port to which it belonged, and a Port row not its bridge.
- An Interface row has any number of guests' ports, which are removed with it.
- A change of an Interface or Port row affects one port. The members of a bridge are compared only
  if its own row has changed.
- The ports of a trunk depend on rows of the trunk's bridge (:mod:`dfmeta.ovsdb.trunks`): they are
  read again when one of these has changed.
- A port is recorded as a whole, after every step that may raise an exception. Recorded changes are
  reported by the next reading that succeeds, so that an exception in between loses nothing.
- After a reconnect everything is read: the IDL does not report rows that were deleted meanwhile.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dfmeta.model import TAP_MTU, MetaNames, Port, PortId
from dfmeta.ovsdb import external_ids, meta_bridge, trunks
from dfmeta.ovsdb.meta_bridge import read as read_meta
from dfmeta.ovsdb.rows import RESTORE_WAIT, Bridge, Interface, read_bridge, read_interface
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
    meta: meta_bridge.MetaRows | None = None
    """The second bridge; None: the identity scheme has none."""
    others: tuple[str, ...] = ()
    """Names of the bridge's interfaces that are no guest's and could have a guest."""
    restore_wait: bool = False
    """Whether ``other_config:flow-restore-wait`` is true: an ovs-vswitchd that has started since
    forwards nothing (ovs-vswitchd.conf.db(5), Open_vSwitch)."""
    southbound: str = ""
    """Address of OVN's southbound database; empty: OVSDB has none."""
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


class _Members:
    """The ports of all bridges, and their interfaces."""

    def __init__(self) -> None:
        self.homes: dict[Any, str] = {}
        """Row of a port → name of its bridge."""
        self.owners: dict[str, Any] = {}
        """Row of an interface → row of its port."""
        self._ports: dict[Any, set[Any]] = {}
        """Row of a bridge → rows of its ports."""
        self._interfaces: dict[Any, set[str]] = {}
        """Row of a port → rows of its interfaces."""

    def update(self, idl: Any, changes: Collection[Any] | None) -> dict[Any, None]:
        """Note the changed rows, or all rows when *changes* is None.

        :return: the rows of ports that they affect, in their order.
        """
        bridges, ports = idl.tables["Bridge"].rows, idl.tables["Port"].rows
        touched: dict[Any, None] = {}
        if changes is None:
            touched = dict.fromkeys((*self.homes, *ports))
            changed = {*self._ports, *bridges}
        else:
            changed = {row.uuid for row in changes if row._table.name == "Bridge"}
        for row in changes or ():
            if row._table.name == "Interface":
                touched[self.owners.get(str(row.uuid))] = None
            elif row._table.name == "Port":
                touched[row.uuid] = None
        for uuid in changed:
            touched |= self._compare(uuid, bridges.get(uuid))
        for uuid in touched:
            port = ports.get(uuid) if uuid in self.homes else None
            self._own(
                uuid, {str(row.uuid) for row in port.interfaces} if port is not None else set()
            )
        return touched

    def _compare(self, uuid: Any, bridge: Any) -> dict[Any, None]:
        """Note the ports of a bridge; return those that have come and gone."""
        # As the IDL stores them: ``Row.ports`` would look up each one.
        present = (
            {atom.value for atom in bridge._data["ports"].values} if bridge is not None else set()
        )
        before = self._ports.pop(uuid, set())
        if bridge is not None:
            self._ports[uuid] = present
            self.homes.update(dict.fromkeys(present, bridge.name))
        for port in before - present:
            # Another bridge may have the port now.
            if not any(port in ports for ports in self._ports.values()):
                self.homes.pop(port, None)
        return dict.fromkeys(present ^ before)

    def _own(self, uuid: Any, present: set[str]) -> None:
        """Note the interfaces of a port."""
        for key in self._interfaces.pop(uuid, set()) - present:
            # Another port may have the interface now.
            if self.owners.get(key) == uuid:
                del self.owners[key]
        if present:
            self._interfaces[uuid] = present
            self.owners.update(dict.fromkeys(present, uuid))


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
        self._members = _Members()
        self._trunks = trunks.TrunkRows()

    def read(self, idl: Any, changes: Collection[Any] | None = None) -> Update:
        """Read the ports that the *changes* affect, or all ports when *changes* is None."""
        bridges = idl.tables["Bridge"].rows.values()
        bridge = next((row for row in bridges if row.name == self.bridge), None)
        if changes is None:
            self._trunks = trunks.TrunkRows()
        touched: dict[Any, None] = {}  # a set that keeps its order
        for uuid in self._members.update(idl, changes):
            if self._members.homes.get(uuid) == self.bridge or uuid in self._ports:
                touched[uuid] = None
            others = self._interfaces_of(idl, uuid, other=True)
            touched |= dict.fromkeys(self._trunks.read(uuid, others, self._members.owners))
        while touched:
            uuid = next(iter(touched))
            del touched[uuid]
            touched |= dict.fromkeys(self._read_port(idl, uuid))
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        ports = self._ports.values()
        tap = next((port.tap for port in ports if port.tap is not None), None)
        patch = next((port.patch for port in ports if port.patch is not None), None)
        if tap is not None and tap.mtu_request == TAP_MTU < self.least_mtu:
            tap = replace(tap, sound=False)
        roots = idl.tables["Open_vSwitch"].rows.values()
        return Update(
            connected=True,
            # Other programs often write its external_ids.
            bridge=replace(read_bridge(bridge), external_ids={}) if bridge is not None else None,
            tap=tap,
            changed=tuple(changed.values()),
            gone=tuple(gone),
            meta=read_meta(idl, bridge, patch, self._meta) if self._meta else None,
            others=tuple(sorted(name for port in ports for name in port.others)),
            restore_wait=any(root.other_config.get(RESTORE_WAIT) == "true" for root in roots),
            southbound="".join(external_ids.southbound_of(root.external_ids) for root in roots),
        )

    @property
    def least_mtu(self) -> int:
        """The smallest MTU of the bridge's other ports in bytes; 0 if there are none.

        Ports whose MTU Open vSwitch chooses, and those without one, do not count.
        """
        return min((port.mtu for port in self._ports.values() if port.mtu), default=0)

    def _interfaces_of(self, idl: Any, uuid: Any, *, other: bool) -> list[Interface]:
        """Return the interfaces of a port of the bridge.

        :param other: of a port of any other bridge instead.
        """
        home, row = self._members.homes.get(uuid), idl.tables["Port"].rows.get(uuid)
        if home is None or row is None or (home != self.bridge) != other:
            return []
        return [read_interface(home, row, each) for each in row.interfaces]

    def _read_port(self, idl: Any, uuid: Any) -> Collection[Any]:
        """Record changed and removed guests' ports of a Port row.

        :return: Port rows whose ports depend on these ports, and have to be read again.
        """
        # It may raise, so that the port is recorded as a whole after it.
        interfaces = self._interfaces_of(idl, uuid, other=False)
        port = self._parsed(interfaces)
        before = self._ports.pop(uuid, _PortRow())
        if self._members.homes.get(uuid) == self.bridge:
            self._ports[uuid] = port
        for key in {*before.interfaces, *port.interfaces}:
            # The interface may belong to another port now.
            if self._members.owners.get(key) in (None, uuid):
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


def _has_own_mtu(interface: Interface) -> bool:
    """Return whether Open vSwitch does not choose the MTU of an interface (ofproto, min_mtu)."""
    chosen = interface.type in ("internal", "patch") and not interface.mtu_request
    return bool(interface.mtu) and not chosen


def _read_tap(interface: Interface) -> TapPort:
    marked = meta_bridge.is_marked(interface)
    is_sound = (
        marked
        and interface.type == "internal"
        and meta_bridge.is_unflooded(interface)
        and meta_bridge.has_mtu(interface.mtu_request)
    )
    return TapPort(
        interface.ofport,
        mac=interface.mac_in_use,
        sound=is_sound,
        marked=marked,
        mtu_request=interface.mtu_request,
    )
