"""Asks Neutron for the subports of trunks whose tags reach the bridge (``trunk_details``).

Neutron's API gives them with the parent's port: VLAN id, port and MAC (trunk-details extension). An
entry of OVSDB for the same VLAN id comes first. A trunk with a bridge of its own has a row for each
subport, so that Neutron is not asked about it.

Nothing waits for the answers: a port from OVSDB is handed on at once. Each parent is asked about
once, and again every :data:`FRESH` seconds: see :mod:`dfmeta.sources.neutron`. The subport of an
attachment that leaves OVSDB is no longer known: it leaves Neutron next.

Trust: a tenant creates trunks of its own ports; the instance of a subport comes from the identity
sources. Everything runs on the hub.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dfmeta.errors import SubportListError
from dfmeta.model import Port, PortId, PortKind
from dfmeta.neutron.client import NeutronApi, Row
from dfmeta.ovsdb.external_ids import instance_of
from dfmeta.ovsdb.subport_list import ListEntry, entry_of
from dfmeta.ovsdb.trunks import PARENT
from dfmeta.ovsdb.vif import subport_of
from dfmeta.runtime import clock, hub
from dfmeta.sources.neutron import Rounds

FRESH: Final = 30.0
"""Seconds after which a port is asked about again: a subport is served that much later."""
FIELDS: Final = ("id", "trunk_details")


@dataclass(frozen=True, slots=True)
class _Subports:
    """The subports of a parent."""

    entries: Mapping[int, ListEntry]
    until: float
    """When it is asked about again, monotonic seconds."""


class TrunkDetails:
    """A stage between OVSDB and the identity sources, which adds the subports that Neutron knows.

    :param api: Neutron.
    :param update: called with each port, from OVSDB and added.
    :param forget: called with the id of each removed port.
    :param timeout: seconds that an answer may take.
    """

    def __init__(
        self,
        api: NeutronApi,
        update: Callable[[Port], None],
        forget: Callable[[PortId], None],
        *,
        timeout: float,
    ) -> None:
        self._update, self._forget = update, forget
        self._rounds = Rounds(
            api, "the subports of trunks", self.round, longest=FRESH, timeout=timeout
        )
        self._parents: dict[str, Port] = {}
        """Row → its port, if Neutron is asked about it."""
        self._listed: dict[str, set[int]] = {}
        """Row → the VLAN ids of subports that OVSDB has."""
        self._attached: set[PortId] = set()
        """The listed subports of attachments."""
        self._added: dict[str, dict[int, Port]] = {}
        """Row → VLAN id → the subport that Neutron has added."""
        self._known: dict[str, _Subports] = {}
        """Neutron's id of a port → its subports."""

    def start(self) -> None:
        """Begin to ask Neutron."""
        self._rounds.start()

    def update(self, port: Port) -> None:
        """Hand on a port of OVSDB, with the subports that are known so far. Never waits."""
        if port.vid:
            self._listed.setdefault(port.row, set()).add(port.vid)
            self._added.get(port.row, {}).pop(port.vid, None)
            self._attached.discard(port.id)
            self._attached |= {port.id} if port.attached else set()
        self._update(self._marked(port))
        if port.vid:
            return
        if _is_asked(port):
            before = self._parents.get(port.row)
            self._parents[port.row] = port
            if before is None or before.iface_id != port.iface_id:
                self._rounds.ring()
        else:
            self._parents.pop(port.row, None)
        self._apply(port.row)

    def forget(self, port_id: PortId) -> None:
        """Hand on that a port is gone, with the subports that Neutron has added to it."""
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
            self._parents.pop(port_id.row, None)
        self._apply(port_id.row)

    def round(self) -> float:
        """Ask about all parents that are due; return seconds until the next round.

        :raises SourceError: when Neutron does not answer; the answers so far count.
        """
        ids = {instance_of(port.iface_id) for port in self._parents.values()}
        self._known = {name: subports for name, subports in self._known.items() if name in ids}
        due = sorted(port_id for port_id in ids if self._is_due(port_id))
        for rows in self._rounds.ports(due, FIELDS):
            until = clock.now() + FRESH
            for port_id in ids & rows.keys():
                self._known[port_id] = _Subports(subports_of(rows[port_id]), until)
        turns = hub.Turns()
        for row in list(self._parents):
            self._apply(row)
            turns.give_way()
        now = clock.now()
        return min((subports.until - now for subports in self._known.values()), default=FRESH)

    def _end(self, port_id: PortId) -> None:
        """Know that subport no longer, until Neutron names it again."""
        parent = self._parents.get(port_id.row)
        name = instance_of(parent.iface_id) if parent is not None else ""
        if name in self._known:
            subports = self._known[name]
            rest = {vid: entry for vid, entry in subports.entries.items() if vid != port_id.vid}
            self._known[name] = replace(subports, entries=rest)

    def _is_due(self, port_id: str) -> bool:
        subports = self._known.get(port_id)
        return subports is None or subports.until <= clock.now()

    def _marked(self, port: Port) -> Port:
        """Return a port with its kind: that of a parent if Neutron has added subports to it."""
        is_parent = not port.vid and port.row in self._added
        return replace(port, kind=PortKind.PARENT) if is_parent else port

    def _apply(self, row: str) -> None:
        """Add the subports of a row that Neutron knows, and remove those that it added before."""
        parent = self._parents.get(row)
        subports = self._known.get(instance_of(parent.iface_id)) if parent is not None else None
        listed = self._listed.get(row, set())
        entries = subports.entries.values() if subports is not None else ()
        wanted = {
            entry.vid: subport_of(parent, entry)
            for entry in entries
            if parent is not None and entry.vid not in listed
        }
        before = self._added.get(row, {})
        self._added[row] = wanted
        if not wanted:
            del self._added[row]
        if parent is not None and bool(before) != bool(wanted):
            self._update(self._marked(parent))
        for vid in before.keys() - wanted.keys():
            self._forget(PortId(row, vid))
        for vid, port in wanted.items():
            if before.get(vid) != port:
                self._update(port)


def subports_of(row: Row) -> dict[int, ListEntry]:
    """Return VLAN id → subport of a port as Neutron returns it.

    Invalid ones, those of another type than VLAN and doubled VLAN ids are left out.
    """
    details = row.get("trunk_details")
    listed = details.get("sub_ports") if isinstance(details, dict) else None
    entries: list[ListEntry] = []
    for entry in listed if isinstance(listed, list) else ():
        if not isinstance(entry, dict) or entry.get("segmentation_type", "vlan") != "vlan":
            continue
        try:
            members = {"vid": entry.get("segmentation_id"), "port_id": entry.get("port_id")}
            entries.append(entry_of({**members, "mac": entry.get("mac_address")}))
        except SubportListError:
            continue
    times = Counter(entry.vid for entry in entries)
    return {entry.vid: entry for entry in entries if times[entry.vid] == 1}


def _is_asked(port: Port) -> bool:
    """Return whether the tags of a port's trunk would reach the bridge."""
    is_own_bridge = port.kind is PortKind.PARENT and port.name.startswith(PARENT)
    is_candidate = port.kind is not PortKind.SUBPORT and not is_own_bridge
    return is_candidate and not port.fault and bool(instance_of(port.iface_id))
