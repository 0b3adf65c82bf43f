"""The bridges of trunks: the rows on which the ports of a trunk depend. Pure.

Neutron's Open vSwitch agent gives each trunk a bridge (neutron.services.trunk.drivers.openvswitch.
agent.trunk_manager), with the VM's own interface and the ends of patches to the integration bridge.
There, ``tpi-`` is the trunk's parent and each ``spi-`` a subport. They have no instance:

- the parent has that of the interface with the same iface-id on the bridge of its peer;
- the VLAN id of a subport is the tag of its peer, and its parent is the untagged patch port there.

The ofport of an interface on the trunk's bridge is a number of that bridge, and is not read.

Trust: the host's programs write these rows. A row that is missing leaves fields unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dfmeta.model import PortKind
from dfmeta.ovsdb.subport_list import VID_MAX

PATCH: Final = "patch"
PARENT: Final = "tpi-"
_KINDS: Final = {PARENT: PortKind.PARENT, "spi-": PortKind.SUBPORT}
"""Beginning of the name of a patch port to a trunk's bridge → its kind."""
INSTANCE_KEYS: Final = ("vm-uuid", "vm-id")
"""Keys in ``external_ids`` with the instance of an interface, the first one that is set counts."""
ALLOWED: Final = "dfmeta-attachments"
"""Key in ``external_ids`` of a VM's interface: ``true`` allows the VM to make attachments."""
_KEYS: Final = (*INSTANCE_KEYS, "iface-id", "project-id", ALLOWED)


def kind_of(name: str, row_type: str, iface_id: str) -> PortKind:
    """Return the kind of a row of the integration bridge, by its own columns."""
    if row_type == PATCH and iface_id:
        return _KINDS.get(name[: len(PARENT)], PortKind.PORT)
    return PortKind.PORT


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


def side_of(
    name: str,
    bridge: str,
    row_type: str,
    *,
    options: Mapping[str, str],
    external_ids: Mapping[str, str],
    tag: Sequence[int],
) -> Side:
    """Return the relevant part of the columns of an interface."""
    return Side(
        name,
        bridge,
        row_type,
        options.get("peer", ""),
        tag[0] if len(tag) == 1 and 1 <= tag[0] <= VID_MAX else 0,
        {key: value for key in _KEYS if (value := external_ids.get(key, "").strip())},
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
        changed = [one for one in (before, side) if one is not None]
        keys = {_interface(one.name) for one in changed}
        return keys | {_trunk(one.bridge) for one in changed if one.is_vm or one.is_parent}

    def put_list(self, row: Hashable, parent: str, text: str) -> set[str]:
        """Store the list of subports in the row of a parent; empty: none."""
        before, there = self._list_of(parent), self._lists.setdefault(parent, {})
        there.pop(row, None)
        if text:
            there[row] = text
        if not there:
            del self._lists[parent]
        return {_list(parent)} if self._list_of(parent) != before else set()

    def lead(self, kind: PortKind, peer: str, iface_id: str) -> Lead:
        """Return the values of a trunk's port.

        :param peer: name of the other end of its patch.
        """
        side = self._side(peer)
        there = self._of_trunk.get(side.bridge, {}).values() if side is not None else ()
        if kind is PortKind.PARENT:
            vms = [one for one in there if one.is_vm and one.iface_id == iface_id]
            return Lead(vm=vms[0] if len(vms) == 1 else None)
        if side is None or kind is not PortKind.SUBPORT:
            return NO_LEAD
        parents = [one.peer for one in there if one.is_parent]
        parent = parents[0] if len(parents) == 1 else ""
        return Lead(side.tag, parent, subports=self._list_of(parent))

    def keys(self, kind: PortKind, peer: str, lead: Lead) -> set[str]:
        """Return the keys on which a trunk's port depends.

        :param lead: the present values of the port.
        """
        if kind is PortKind.PORT:
            return set()
        side = self._side(peer)
        found = {_interface(peer)}
        if side is not None:
            found.add(_trunk(side.bridge))
        return found | {_list(lead.parent)} if lead.parent else found

    def _side(self, name: str) -> Side | None:
        return self._sides.get(self._named.get(name))

    def _list_of(self, parent: str) -> str:
        return next(reversed(self._lists.get(parent, {}).values()), "")

    def _forget(self, row: Hashable, bridge: str) -> None:
        there = self._of_trunk.get(bridge, {})
        there.pop(row, None)
        if not there:
            self._of_trunk.pop(bridge, None)


def _interface(name: str) -> str:
    return f"interface {name}"


def _trunk(bridge: str) -> str:
    return f"trunk {bridge}"


def _list(parent: str) -> str:
    return f"list {parent}"
