"""Reads the bridges of trunks from OVSDB's rows, and finds the ports that depend on a change.

All bridges but the integration bridge are read: the peer of a patch port shows which of them is a
trunk's. After a change only the changed ports of these bridges are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from dfmeta.ovsdb.trunks import Lead, Trunks, side_of
from dfmeta.ovsdb.vif import InterfaceRow, list_of

_NONE: Final = frozenset[Any]()


class TrunkRows:
    """The other bridges as of the last reading.

    :param bridge: name of the integration bridge.
    """

    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._clear()

    def _clear(self) -> None:
        self._trunks = Trunks()
        self._ports: dict[Any, frozenset[Any]] = {}
        """Row of another bridge → rows of its ports."""
        self._homes: dict[Any, str] = {}
        """Row of a port of another bridge → name of the bridge."""
        self._interfaces: dict[Any, tuple[Any, ...]] = {}
        """Row of a port of another bridge → rows of its interfaces."""
        self._owners: dict[Any, Any] = {}
        """Row of an interface of another bridge → row of its port."""
        self._keys: dict[Any, frozenset[str]] = {}
        """Row of a port of the integration bridge → the keys on which it depends."""
        self._followers: dict[str, dict[Any, None]] = {}
        """Key → the rows of ports that depend on it."""
        self._parents: dict[Any, tuple[str, ...]] = {}
        """Row of a port of the integration bridge → its interfaces that have a list of subports."""

    def read(self, idl: Any, changes: Collection[Any] | None) -> list[Any]:
        """Read the ports that the *changes* affect, or all ports when *changes* is None.

        :return: rows of ports of the integration bridge that have to be read again. All of them
            have to be when *changes* is None.
        """
        bridges = idl.tables["Bridge"].rows
        touched: dict[Any, None] = {}  # a set that keeps its order
        if changes is None:
            self._clear()
            for uuid, row in bridges.items():
                touched |= self._members(uuid, row)
        for row in changes or ():
            match row._table.name:
                case "Interface" if row.uuid in self._owners:
                    touched[self._owners[row.uuid]] = None
                case "Port" if row.uuid in self._homes:
                    touched[row.uuid] = None
                case "Bridge":
                    touched |= self._members(row.uuid, bridges.get(row.uuid))
        keys: set[str] = set()
        for uuid in touched:
            port = idl.tables["Port"].rows.get(uuid) if uuid in self._homes else None
            keys |= self._read_port(uuid, port)
        return self._following(keys)

    def lead(self, row: InterfaceRow) -> Lead:
        """Return the values of an interface of the integration bridge that are in other rows."""
        return self._trunks.lead(row.kind, row.peer, row.external_ids.get("iface-id", "").strip())

    def note(self, uuid: Any, members: Sequence[InterfaceRow]) -> list[Any]:
        """Note the guests' interfaces of a port of the integration bridge; empty: none.

        :return: rows of ports that have to be read again because they depend on this one.
        """
        keys: set[str] = set()
        for row in members:
            keys |= self._trunks.keys(row.kind, row.peer, self.lead(row))
        for key in self._keys.pop(uuid, _NONE):
            followers = self._followers[key]
            del followers[uuid]
            if not followers:
                del self._followers[key]
        if keys:
            self._keys[uuid] = frozenset(keys)
            for key in keys:
                self._followers.setdefault(key, {})[uuid] = None
        lists = {row.name: list_of(row) for row in members if list_of(row)}
        changed: set[str] = set()
        for parent in {*self._parents.pop(uuid, ()), *lists}:
            changed |= self._trunks.put_list(uuid, parent, lists.get(parent, ""))
        if lists:
            self._parents[uuid] = tuple(lists)
        return self._following(changed)

    def _following(self, keys: Iterable[str]) -> list[Any]:
        found: dict[Any, None] = {}
        for key in keys:
            found |= self._followers.get(key, {})
        return list(found)

    def _members(self, uuid: Any, row: Any) -> dict[Any, None]:
        """Return the ports that have been added to a bridge and removed from it.

        :param row: None when the bridge is gone.
        """
        other = row is not None and row.name != self._bridge
        there = {port.uuid: row.name for port in row.ports} if other else {}
        before = self._ports.pop(uuid, _NONE)
        if other:
            self._ports[uuid] = frozenset(there)
        for port in before - there.keys():
            # Another bridge may have the port now.
            if not any(port in ports for ports in self._ports.values()):
                self._homes.pop(port, None)
        self._homes |= there
        return dict.fromkeys(there.keys() ^ before)

    def _read_port(self, uuid: Any, port: Any) -> set[str]:
        """Read a port of another bridge; return the keys that have changed.

        :param port: the row; None when no other bridge has it.
        """
        there = {one.uuid: one for one in port.interfaces} if port is not None else {}
        keys: set[str] = set()
        for interface in {*self._interfaces.pop(uuid, ()), *there}:
            row = there.get(interface)
            if row is not None:
                self._owners[interface] = uuid
            elif self._owners.get(interface) == uuid:
                del self._owners[interface]
            else:
                continue  # another port has it now
            side = (
                None
                if row is None
                else side_of(
                    row.name,
                    self._homes[uuid],
                    row.type,
                    options=row.options,
                    external_ids=row.external_ids,
                    tag=port.tag,
                )
            )
            keys |= self._trunks.put(interface, side)
        if there:
            self._interfaces[uuid] = tuple(there)
        return keys
