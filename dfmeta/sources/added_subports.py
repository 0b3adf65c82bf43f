"""Adds the subports of trunks whose tags reach the bridge, as Neutron or OVN knows them.

Both know VLAN id, port and MAC of a subport. An entry of OVSDB for the same VLAN id comes first. A
trunk with a bridge of its own has a row for each subport, so that it needs no feed.

Nothing waits for a feed: a port from OVSDB is handed on at once. The subport of an attachment that
leaves OVSDB is no longer known until the feed names it again: it leaves Neutron next.

Trust: a tenant creates trunks of its own ports; the instance of a subport comes from the identity
sources. Everything runs on the hub.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from dfmeta import errors, model
from dfmeta.neutron.client import NeutronApi, Row
from dfmeta.ovsdb import external_ids, subport_list, trunks, vif
from dfmeta.runtime import clock, hub
from dfmeta.runtime.clock import FULL_CHECK_INTERVAL
from dfmeta.sources.neutron import Rounds

FIELDS: Final = ("id", "trunk_details")
Entries = Mapping[int, subport_list.ListEntry]
"""VLAN id → subport of a parent."""


class AddedSubports:
    """A stage between OVSDB and the identity sources, which adds the subports that a feed knows.

    :param update: called with each port, from OVSDB and added.
    :param forget: called with the id of each removed port.
    :param ring: tells the feed that other parents are there. The feed calls :meth:`learn`.
    """

    def __init__(
        self,
        update: Callable[[model.Port], None],
        forget: Callable[[model.PortId], None],
        ring: Callable[[], None],
    ) -> None:
        self._update, self._forget, self._ring = update, forget, ring
        self.parents: dict[str, model.Port] = {}
        """Row → its port, if the feed may know subports of it."""
        self._listed: dict[str, set[int]] = {}
        """Row → the VLAN ids of subports that OVSDB has."""
        self._attached: set[model.PortId] = set()
        """The listed subports of attachments."""
        self._added: dict[str, dict[int, model.Port]] = {}
        """Row → VLAN id → the subport that was added."""
        self._known: dict[str, Entries] = {}
        """iface-id → its subports."""

    def update(self, port: model.Port) -> None:
        """Hand on a port of OVSDB, with the subports that are known so far. Never waits."""
        if port.vid:
            self._listed.setdefault(port.row, set()).add(port.vid)
            self._added.get(port.row, {}).pop(port.vid, None)
            self._attached.discard(port.id)
            self._attached |= {port.id} if port.attached else set()
        self._update(self._marked(port))
        if port.vid:
            return
        self._note(port.row, port if _may_be_parent(port) else None)
        self._apply(port.row)

    def forget(self, port_id: model.PortId) -> None:
        """Hand on that a port is gone, with the subports that were added to it."""
        self._forget(port_id)
        if port_id.vid:
            listed = self._listed.get(port_id.row, set())
            listed.discard(port_id.vid)
            if not listed:
                self._listed.pop(port_id.row, None)
            if port_id in self._attached:
                self._attached.remove(port_id)
                self._end(port_id)
        else:
            self._note(port_id.row, None)
        self._apply(port_id.row)

    def learn(self, known: Mapping[str, Entries]) -> None:
        """Take the subports of some parents, by iface-id; none: it has none, or is no parent."""
        self._known = {name: each for name, each in {**self._known, **known}.items() if each}
        turns = hub.Turns()
        for row, parent in list(self.parents.items()):
            if parent.iface_id in known:
                self._apply(row, turns)
                turns.give_way()

    def _note(self, row: str, parent: model.Port | None) -> None:
        before = self.parents.pop(row, None)
        if parent is not None:
            self.parents[row] = parent
        if (before and before.iface_id) != (parent and parent.iface_id):
            self._ring()

    def _end(self, port_id: model.PortId) -> None:
        """Know that subport no longer, until the feed names it again."""
        parent = self.parents.get(port_id.row)
        if parent is not None:
            known = self._known.get(parent.iface_id, {})
            rest = {vid: entry for vid, entry in known.items() if vid != port_id.vid}
            self._known[parent.iface_id] = rest

    def _marked(self, port: model.Port) -> model.Port:
        """Return a port with its kind: that of a parent if subports were added to it."""
        is_parent = not port.vid and port.row in self._added
        return replace(port, kind=model.PortKind.PARENT) if is_parent else port

    def _apply(self, row: str, turns: hub.Turns | None = None) -> None:
        """Add the known subports of a row, and remove others that were added before.

        :param turns: lets it yield to the hub between two ports.
        """
        parent = self.parents.get(row)
        listed = self._listed.get(row, set())
        wanted = {
            vid: vif.subport_of(parent, entry)
            for vid, entry in (self._known.get(parent.iface_id, {}) if parent else {}).items()
            if parent is not None and vid not in listed
        }
        before = self._added.get(row, {})
        self._added[row] = wanted
        if not wanted:
            del self._added[row]
        if parent is not None and bool(before) != bool(wanted):
            self._update(self._marked(parent))
        for vid in before.keys() - wanted.keys():
            self._forget(model.PortId(row, vid))
        for vid, port in wanted.items():
            # Meanwhile the row may have changed, and its later subports have been handed on.
            if before.get(vid) != port == self._added.get(row, {}).get(vid):
                self._update(port)
                if turns is not None:
                    turns.give_way()


def _may_be_parent(port: model.Port) -> bool:
    """Return whether the tags of a port's trunk would reach the bridge."""
    is_own_bridge = port.kind is model.PortKind.PARENT and port.name.startswith(trunks.PARENT)
    is_candidate = port.kind is not model.PortKind.SUBPORT and not is_own_bridge
    return is_candidate and not port.fault and bool(port.iface_id)


class TrunkDetails:
    """Asks Neutron for subports (``trunk_details`` of the parent's port, an extension).

    Each parent is asked about once, and again every :data:`FULL_CHECK_INTERVAL` seconds: see
    :mod:`dfmeta.sources.neutron`.

    :param timeout: seconds that an answer may take.
    """

    stage: AddedSubports

    def __init__(self, api: NeutronApi, *, timeout: float) -> None:
        self._rounds = Rounds(
            api, "the subports of trunks", self.round, longest=FULL_CHECK_INTERVAL, timeout=timeout
        )
        self.start, self.ring = self._rounds.start, self._rounds.ring
        self._until: dict[str, float] = {}
        """iface-id → when it is asked about again, monotonic seconds."""

    def round(self) -> float:
        """Ask about all parents that are due; return seconds until the next round.

        :raises SourceError: when Neutron does not answer; the answers so far count.
        """
        names = {port.iface_id for port in self.stage.parents.values()}
        self.stage.learn({name: {} for name in self._until.keys() - names})
        self._until = {name: self._until[name] for name in names & self._until.keys()}
        ids = {port_id: name for name in names if (port_id := external_ids.instance_of(name))}
        now = clock.now()
        due = sorted(key for key, name in ids.items() if self._until.get(name, -math.inf) <= now)
        for rows in self._rounds.ports(due, FIELDS):
            known = {ids[key]: subports_of(rows[key]) for key in ids.keys() & rows.keys()}
            self._until |= dict.fromkeys(known, clock.now() + FULL_CHECK_INTERVAL)
            self.stage.learn(known)
        return min(self._until.values(), default=clock.now() + FULL_CHECK_INTERVAL) - clock.now()


def subports_of(row: Row) -> dict[int, subport_list.ListEntry]:
    """Return VLAN id → subport of a port as Neutron returns it; those of other types are left out.

    See :func:`entries_of`.
    """
    details = row.get("trunk_details")
    listed = details.get("sub_ports") if isinstance(details, dict) else None
    names = {"vid": "segmentation_id", "port_id": "port_id", "mac": "mac_address"}
    return entries_of(
        {name: entry.get(of_neutron) for name, of_neutron in names.items()}
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict) and entry.get("segmentation_type", "vlan") == "vlan"
    )


def entries_of(members: Iterable[Mapping[str, Any]]) -> dict[int, subport_list.ListEntry]:
    """Return VLAN id → subport; invalid ones and doubled VLAN ids are left out.

    :param members: of a list of subports, see :mod:`dfmeta.ovsdb.subport_list`.
    """
    entries: list[subport_list.ListEntry] = []
    for member in members:
        with contextlib.suppress(errors.SubportListError):
            entries.append(subport_list.entry_of(member))
    times = Counter(entry.vid for entry in entries)
    return {entry.vid: entry for entry in entries if times[entry.vid] == 1}
