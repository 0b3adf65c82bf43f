"""The bridges of trunks: the rows on which the ports of a trunk depend.

Neutron's Open vSwitch agent gives each trunk a bridge (neutron.services.trunk.drivers.openvswitch.
agent.trunk_manager), with the VM's own interface and the ends of patches to the integration bridge.
There, ``tpi-`` is the trunk's parent and each ``spi-`` a subport. They have no instance:

- the parent has that of the interface with the same iface-id on the bridge of its peer;
- the VLAN id of a subport is the tag of its peer, and its parent is the untagged patch port there.

The ofport of an interface on the trunk's bridge is a number of that bridge, and is not read.

All bridges but the integration bridge are read: the peer of a patch port shows which of them is a
trunk's.

Trust: the host's programs write these rows. A row that is missing leaves fields unknown.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dfmeta.model import VID_MAX, PortKind
from dfmeta.ovsdb.rows import PATCH, Interface
from dfmeta.ovsdb.subport_list import KEY

PARENT: Final = "tpi-"
_KINDS: Final = {PARENT: PortKind.PARENT, "spi-": PortKind.SUBPORT}
"""Beginning of the name of a patch port to a trunk's bridge → its kind."""
INSTANCE_KEYS: Final = ("vm-uuid", "vm-id")
"""Keys in ``external_ids`` with the instance of an interface, the first one that is set counts."""
ALLOWED: Final = "dfmeta-attachments"
"""Key in ``external_ids`` of a VM's interface: ``true`` allows the VM to make attachments."""
_KEYS: Final = (*INSTANCE_KEYS, "iface-id", "project-id", ALLOWED)


def kind_of(row: Interface) -> PortKind:
    """Return the kind of a row of the integration bridge, by its own columns."""
    if row.type == PATCH and row.iface_id:
        return _KINDS.get(row.name[: len(PARENT)], PortKind.PORT)
    return PortKind.PORT


def list_of(row: Interface) -> str:
    """Return the list of subports in a row; empty: none. A subport has none."""
    return "" if kind_of(row) is PortKind.SUBPORT else row.external_ids.get(KEY, "")


@dataclass(frozen=True, slots=True)
class Side:
    """The relevant columns of an interface of another bridge, and of its port."""

    name: str
    bridge: str
    type: str = ""
    peer: str = ""
    tag: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    """Its instance, iface-id and project, as ``external_ids``."""

    @property
    def iface_id(self) -> str:
        """Return its iface-id; empty: none."""
        return self.ids.get("iface-id", "")

    @property
    def is_vm(self) -> bool:
        """Return whether it is the interface of an instance."""
        return self.type != PATCH and any(map(self.ids.get, INSTANCE_KEYS))

    @property
    def is_parent(self) -> bool:
        """Return whether it is the other end of a trunk's parent."""
        return self.type == PATCH and not self.tag and self.peer.startswith(PARENT)


def side_of(row: Interface) -> Side:
    """Return the relevant part of the columns of an interface."""
    return Side(
        row.name,
        row.bridge,
        row.type,
        row.peer,
        row.tag if row.tag is not None and 1 <= row.tag <= VID_MAX else 0,
        {key: value for key in _KEYS if (value := row.external_ids.get(key, "").strip())},
    )


class Lead(NamedTuple):
    """The values of a trunk's port that are in other rows."""

    vid: int = 0
    """VLAN id of a subport; 0: not known."""
    parent: str = ""
    """Name of a subport's parent on the integration bridge; empty: not known."""
    vm: Side | None = None
    """The VM's interface of a parent; None: not known."""
    subports: str = ""
    """The list of subports of a subport's parent; see :mod:`dfmeta.ovsdb.subport_list`."""


NO_LEAD: Final = Lead()


class Trunks:
    """The interfaces of other bridges, and the lists of subports of the parents.

    The methods that change them return the keys whose value has changed. A port depends on the
    keys that :meth:`keys` returns for it.
    """

    def __init__(self) -> None:
        self._sides: dict[Hashable, Side] = {}
        self._named: dict[str, Hashable] = {}
        """Name of an interface → its row."""
        self._of_trunk: dict[str, dict[Hashable, Side]] = {}
        """Bridge → its interfaces of VMs, and ends of parents."""
        self._lists: dict[str, dict[Hashable, str]] = {}
        """Parent on the integration bridge → row → list of subports. While a row is replaced, two
        have the name; the later one counts."""

    def put(self, row: Hashable, side: Side | None) -> set[str]:
        """Store the interface of a row; None: the row is gone."""
        before = self._sides.pop(row, None)
        if before is not None:
            if self._named.get(before.name) == row:
                del self._named[before.name]
            self._forget(row, before.bridge)
        if side is not None:
            self._sides[row], self._named[side.name] = side, row
            if side.is_vm or side.is_parent:
                self._of_trunk.setdefault(side.bridge, {})[row] = side
        if before == side:
            return set()
        states = [state for state in (before, side) if state is not None]
        trunks = {_trunk(state.bridge) for state in states if state.is_vm or state.is_parent}
        return trunks | {_interface(state.name) for state in states}

    def put_list(self, row: Hashable, parent: str, text: str) -> set[str]:
        """Store the list of subports in the row of a parent; empty: none."""
        before, texts = self._list_of(parent), self._lists.setdefault(parent, {})
        texts.pop(row, None)
        if text:
            texts[row] = text
        if not texts:
            del self._lists[parent]
        return {_list(parent)} if self._list_of(parent) != before else set()

    def lead(self, row: Interface) -> Lead:
        """Return the values of an interface of the integration bridge that are in other rows."""
        kind, side = kind_of(row), self._side(row.peer)
        sides = self._of_trunk.get(side.bridge, {}).values() if side is not None else ()
        if kind is PortKind.PARENT:
            vms = [end for end in sides if end.is_vm and end.iface_id == row.iface_id]
            return Lead(vm=vms[0] if len(vms) == 1 else None)
        if side is None or kind is not PortKind.SUBPORT:
            return NO_LEAD
        parents = [end.peer for end in sides if end.is_parent]
        parent = parents[0] if len(parents) == 1 else ""
        return Lead(side.tag, parent, subports=self._list_of(parent))

    def keys(self, row: Interface, lead: Lead) -> set[str]:
        """Return the keys on which a trunk's port depends.

        :param lead: the present values of the port.
        """
        if kind_of(row) is PortKind.PORT:
            return set()
        side = self._side(row.peer)
        keys = {_interface(row.peer)}
        if side is not None:
            keys.add(_trunk(side.bridge))
        return keys | {_list(lead.parent)} if lead.parent else keys

    def _side(self, name: str) -> Side | None:
        return self._sides.get(self._named.get(name))

    def _list_of(self, parent: str) -> str:
        return next(reversed(self._lists.get(parent, {}).values()), "")

    def _forget(self, row: Hashable, bridge: str) -> None:
        sides = self._of_trunk.get(bridge, {})
        sides.pop(row, None)
        if not sides:
            self._of_trunk.pop(bridge, None)


def _interface(name: str) -> str:
    return f"interface {name}"


def _trunk(bridge: str) -> str:
    return f"trunk {bridge}"


def _list(parent: str) -> str:
    return f"list {parent}"


class TrunkRows:
    """The rows on which the ports of trunks depend, as of the last reading."""

    def __init__(self) -> None:
        self._trunks = Trunks()
        self._interfaces: dict[Any, set[str]] = {}
        """Row of a port of another bridge → rows of its interfaces."""
        self._keys: dict[Any, set[str]] = {}
        """Row of a port of the integration bridge → the keys on which it depends."""
        self._followers: dict[str, dict[Any, None]] = {}
        """Key → the rows of ports that depend on it."""
        self._parents: dict[Any, tuple[str, ...]] = {}
        """Row of a port of the integration bridge → its interfaces that have a list of subports."""

    def lead(self, row: Interface) -> Lead:
        """Return the values of an interface of the integration bridge that are in other rows."""
        return self._trunks.lead(row)

    def read(
        self, uuid: Any, interfaces: Iterable[Interface], owners: Mapping[str, Any]
    ) -> list[Any]:
        """Read a port of another bridge.

        :param interfaces: its interfaces; empty when no other bridge has it.
        :param owners: row of an interface → row of the port that has it now.
        :return: rows of ports of the integration bridge that have to be read again.
        """
        sides = {row.uuid: side_of(row) for row in interfaces}
        keys: set[str] = set()
        for key in self._interfaces.pop(uuid, set()) | sides.keys():
            if key in sides or owners.get(key) in (None, uuid):
                keys |= self._trunks.put(key, sides.get(key))
        if sides:
            self._interfaces[uuid] = set(sides)
        return self._following(keys)

    def note(self, uuid: Any, members: Sequence[Interface]) -> list[Any]:
        """Note the guests' interfaces of a port of the integration bridge; empty: none.

        :return: rows of ports that have to be read again because they depend on this one.
        """
        keys: set[str] = set()
        for row in members:
            keys |= self._trunks.keys(row, self.lead(row))
        for key in self._keys.pop(uuid, ()):
            followers = self._followers[key]
            del followers[uuid]
            if not followers:
                del self._followers[key]
        if keys:
            self._keys[uuid] = keys
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
        rows: dict[Any, None] = {}
        for key in keys:
            rows |= self._followers.get(key, {})
        return list(rows)
