"""Reads the bridge's ports out of OVSDB's rows, and says what has changed since the last reading.

The rows are the IDL's copy of the database. A reading after a change looks at the rows that changed
and at no others, so that its cost does not depend on the number of ports:

- A port of the bridge has a Port row, and that has Interface rows. Two maps are kept between them,
  since a row that is gone no longer says to which port it belonged.
- An Interface row has any number of guests' ports, which go with it.
- A change of an Interface or of a Port touches that port. The members of the bridge are compared
  only where the changes do not tell which ports came and went; to compare them takes a set of all.
- A port is noted as a whole, after all that may raise an exception. What is noted is told with
  the next reading that succeeds, so that an exception in the middle loses nothing.
- After a reconnect everything is read: the IDL does not tell which rows went meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ovs.db.data import Atom
from ovs.db.types import UuidType

from dfmeta.inspect.offload import USERSPACE
from dfmeta.model import TAP_MARK, TAP_VLAN, Port, PortId
from dfmeta.ports.vif import InterfaceRow, vifs


@dataclass(frozen=True, slots=True)
class Bridge:
    """What the rest of the daemon needs to know of the bridge."""

    datapath_id: int | None
    controllers: int
    """How many Controller rows it has: gaining the first or losing the last clears its flows."""
    userspace: bool = False
    """It has the userspace datapath (ovs-vswitchd.conf.db(5), Bridge.datapath_type)."""


@dataclass(frozen=True, slots=True)
class TapPort:
    """tap-metadata as OVSDB has it."""

    ofport: int | None
    mac: str
    ours: bool
    """It is marked as ours and configured so that nothing is flooded to it."""
    marked: bool
    """It is marked as ours."""


@dataclass(frozen=True, slots=True)
class Update:
    """The bridge as it is after a change."""

    connected: bool
    bridge: Bridge | None = None
    tap: TapPort | None = None
    changed: tuple[Port, ...] = ()
    gone: tuple[PortId, ...] = ()
    answered: int = 0
    """The latest question of :meth:`dfmeta.ports.ovsdb.OvsdbWatcher.ask` that OVSDB has answered,
    all that it said before being read."""


class BridgeReader:
    """The bridge's ports as they were last read.

    :param bridge: name of the integration bridge.
    :param tap: name of tap-metadata.
    """

    def __init__(self, bridge: str, tap: str) -> None:
        self.bridge, self.tap = bridge, tap
        self._known: dict[str, Mapping[PortId, Port]] = {}
        """Row of an interface → its guests' ports, where there are any."""
        self._changed: dict[PortId, Port] = {}
        """What the next update is to tell, kept where a reading ends with an exception."""
        self._gone: dict[PortId, None] = {}
        """Likewise, in their order."""
        self._interfaces: dict[Any, tuple[Any, ...]] = {}
        """Row of a port of the bridge → rows of its interfaces."""
        self._owners: dict[Any, Any] = {}
        """Row of an interface → row of its port."""
        self._tap: TapPort | None = None
        self._tap_row: Any = None

    def read(self, idl: Any, changes: Iterable[Any] | None = None) -> Update:
        """Read what the *changes* touch, or everything without them.

        What a change costs does not depend on how many ports there are.
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
        for uuid in touched:
            there = _has_port(bridge, uuid) if members is None else uuid in members
            if there or uuid in self._interfaces:
                port = idl.tables["Port"].rows.get(uuid) if there else None
                self._read_port(uuid, port)
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, {}
        return Update(
            connected=True,
            bridge=_read_bridge(bridge) if bridge is not None else None,
            tap=self._tap,
            changed=tuple(changed.values()),
            gone=tuple(gone),
        )

    def _members(self, bridge: Any, changes: Iterable[Any] | None) -> Collection[Any] | None:
        """The bridge's ports, if the *changes* do not tell which of them came and went."""
        if changes is not None and bridge is not None:
            ports = {row.uuid for row in changes if row._table.name == "Port"}
            came = sum(_has_port(bridge, uuid) for uuid in ports - self._interfaces.keys())
            went = sum(not _has_port(bridge, uuid) for uuid in ports & self._interfaces.keys())
            if len(self._interfaces) + came - went == len(_listed(bridge)):
                return None
        return dict.fromkeys(port.uuid for port in bridge.ports).keys() if bridge else ()

    def _read_port(self, uuid: Any, port: Any) -> None:
        """Note how the guests behind a row of Port have changed, and which are gone.

        :param port: the row; None when the bridge does not have it any more.
        """
        there = port.interfaces if port is not None else ()
        # What may raise comes first: what is noted is noted as a whole.
        tap = None
        found: dict[Any, Mapping[PortId, Port]] = {}
        for interface in there:
            if interface.name == self.tap:
                tap = _read_tap(port, interface)
                continue
            read = {one.id: one for one in vifs(_interface_row(port, interface))}
            if read:
                found[interface.uuid] = read
        if tap is not None:
            self._tap, self._tap_row = tap, uuid
        elif uuid == self._tap_row:
            self._tap = self._tap_row = None
        before, now = self._interfaces.pop(uuid, ()), tuple(one.uuid for one in there)
        if port is not None:
            self._interfaces[uuid] = now
        self._owners.update(dict.fromkeys(now, uuid))
        for interface, guests in found.items():
            self._note(str(interface), guests)
        for interface in {*before, *now} - found.keys():
            # Unless another port has it now.
            if self._owners.get(interface) != uuid:
                continue
            if interface not in now:
                del self._owners[interface]
            self._note(str(interface), {})

    def _note(self, row: str, guests: Mapping[PortId, Port]) -> None:
        """Note the guests' ports that a row of Interface has now; its other ones are gone."""
        before = self._known.pop(row, {})
        if guests:
            self._known[row] = guests
        for one in before:
            if one not in guests:
                self._changed.pop(one, None)
                self._gone[one] = None
        self._changed |= {one: port for one, port in guests.items() if before.get(one) != port}


def _listed(bridge: Any) -> Any:
    """The bridge's ports as the IDL keeps them: ``Row.ports`` would look up each of them."""
    return bridge._data["ports"].values


def _has_port(bridge: Any, uuid: Any) -> bool:
    return Atom(UuidType, uuid) in _listed(bridge)


def _read_bridge(row: Any) -> Bridge:
    number = row.datapath_id[0] if row.datapath_id else ""
    return Bridge(
        int(number, 16) if number else None,
        controllers=len(row.controller),
        userspace=row.datapath_type == USERSPACE,
    )


def is_marked(interface: Any) -> bool:
    """Whether an Interface row is marked as ours."""
    key, value = TAP_MARK
    return bool(interface.external_ids.get(key) == value)


def _read_tap(port: Any, interface: Any) -> TapPort:
    marked = is_marked(interface)
    ours = (
        marked
        and interface.type == "internal"
        and list(port.tag) == [TAP_VLAN.tag]
        and list(port.vlan_mode) == [TAP_VLAN.vlan_mode]
        and tuple(port.cvlans) == TAP_VLAN.cvlans
    )
    number = interface.ofport[0] if len(interface.ofport) == 1 else 0
    mac = interface.mac_in_use[0] if interface.mac_in_use else ""
    return TapPort(number if number > 0 else None, mac=mac, ours=ours, marked=marked)


def _interface_row(port: Any, interface: Any) -> InterfaceRow:
    return InterfaceRow(
        uuid=str(interface.uuid),
        name=interface.name,
        type=interface.type,
        ofport=tuple(interface.ofport),
        external_ids=dict(interface.external_ids),
        tag=tuple(port.tag),
        vlan_mode=tuple(port.vlan_mode),
        mac_in_use=tuple(interface.mac_in_use),
    )
