"""The check of attachments: their rows, their data plane, and how many more there can be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dfmeta.doctor.checks_trunks import mtu_behind
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.model import ATTACHMENT_KEY as KEY
from dfmeta.model import Port
from dfmeta.ovsdb.rows import Interface, Snapshot

NAME = "attachments"
LATE: Final = 60.0
"""Seconds after which an attachment that is not active needs the operator."""
NEARLY: Final = 0.9
"""Part of a VM's attachments that may be in use without a warning."""
ACTIVE: Final = "active"
LEAVING: Final = "leaving"
_PATCH: Final = "patch"
"""Type of an interface that leads to another bridge."""
_TRUNK: Final = ("dfmeta", "trunk")
"""Key and value in ``external_ids`` of the bridge of a trunk of dfmeta."""
_LOG: Final = (
    "see the log of dfmeta-agent for the cause; `dfmeta attachment gc` tries again at once"
)


@dataclass(frozen=True, slots=True)
class Row:
    """An attachment of a VM of this host."""

    id: str
    port: str
    """Name of the VM's port on the integration bridge."""
    container: str
    vid: int
    network: str
    state: str
    boot_id: str
    changed: float
    """Seconds of Unix time."""


@dataclass(frozen=True, slots=True)
class AttachmentFacts:
    """The daemon's attachments, and its configuration."""

    rows: Sequence[Row] = ()
    """As they are after OVSDB was read."""
    before: Sequence[Row] | None = None
    """As they were before it was read; None: the same. Attachments come and go meanwhile."""
    cause: str = ""
    """Why there are no rows; empty: there are."""
    most: int = 0
    """Attachments that a VM can have, by its quota and its VLAN ids."""
    networks: Mapping[str, int] | None = None
    """Name → MTU in bytes."""
    local: bool = True
    """Whether dfmeta makes the ports itself, by OVSDB."""


def attachments(
    facts: AttachmentFacts, snapshot: Snapshot | None, bridge: str, *, now: float
) -> Iterator[Finding]:
    """Check that each attachment has its data plane, and that VMs can get more of them.

    :param snapshot: OVSDB's configuration; None if OVSDB does not answer.
    :param bridge: name of the integration bridge.
    :param now: seconds of Unix time.
    """
    if facts.cause:
        yield wrong(NAME, f"the attachments cannot be read: {facts.cause}", _LOG)
        return
    found = [*_waiting(facts, now), *_full(facts), *_homeless(facts), *_dead(facts)]
    if snapshot is None:
        found.append(unknown(NAME, "their ports are not compared: OVSDB does not answer"))
    elif facts.local:
        found += [*_planes(facts, snapshot), *_large(facts, snapshot, bridge)]
    else:
        found += _entries(facts, snapshot, bridge)
    yield from found
    if not found:
        vms = len({row.port for row in facts.rows})
        yield ok(NAME, f"{len(facts.rows)} attachments of {vms} VMs")


def left(snapshot: Snapshot) -> Iterator[Finding]:
    """Report the ports of attachments on a host where attachments are off."""
    names = sorted(one.name for one in snapshot.interfaces if KEY in one.external_ids)
    if names:
        yield warning(
            NAME,
            f"attachments are off, and their ports are left: {listed(names)}: no program removes "
            "them",
            "set [attachments] enabled again and restart dfmeta-agent; or, if the containers are "
            f"gone, `ovs-vsctl del-port {names[0]}` for each of them",
        )
    entries = sorted((one.name, one.vid) for one in _tagged(snapshot.interfaces).values())
    if entries:
        name, vid = entries[0]
        yield warning(
            NAME,
            "attachments are off, and their entries in lists of subports are left: "
            f"{listed(_place(*one) for one in entries)}: no program removes them",
            "set [attachments] enabled again and restart dfmeta-agent; or, if the containers are "
            f"gone, `dfmeta subport delete {name} --vid {vid}` for each of them",
        )


def silent() -> Finding:
    """Return the finding for a daemon that does not answer."""
    return unknown(NAME, "dfmeta-agent is needed for the list")


def _waiting(facts: AttachmentFacts, now: float) -> Iterator[Finding]:
    late = [row for row in facts.rows if row.state != ACTIVE and row.changed <= now - LATE]
    if late:
        texts = (f"{_name(row)} is {row.state}" for row in late)
        yield wrong(NAME, f"attachments wait for their data plane: {listed(texts)}", _LOG)


def _full(facts: AttachmentFacts) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    for row in facts.rows:
        counts[row.port] = counts.get(row.port, 0) + 1
    full = {port: count for port, count in counts.items() if count >= NEARLY * facts.most}
    if full:
        texts = (f"{port} has {count} of {facts.most}" for port, count in full.items())
        yield warning(
            NAME,
            f"VMs can soon get no more attachments: {listed(texts)}",
            "raise quota or widen vid_range in [attachments], or delete attachments that no "
            "container uses: `dfmeta attachment list`, `dfmeta attachment delete <id>`",
        )


def _homeless(facts: AttachmentFacts) -> Iterator[Finding]:
    networks = facts.networks or {}
    gone = [row for row in facts.rows if row.network not in networks]
    if gone:
        texts = (f"{_name(row)} on {row.network}" for row in gone)
        yield warning(
            NAME,
            f"attachments are on networks that are not configured: {listed(texts)}; they are not "
            "made again after a fault",
            f"configure [attachment_network:{gone[0].network}] again, or delete the attachments: "
            "`dfmeta attachment delete <id>`",
        )


def _dead(facts: AttachmentFacts) -> Iterator[Finding]:
    """Find attachments from before the last boot of their VM."""
    boots: dict[str, dict[str, float]] = {}
    for row in facts.rows:
        if row.boot_id and row.state != LEAVING:
            its = boots.setdefault(row.port, {})
            its[row.boot_id] = max(its.get(row.boot_id, 0.0), row.changed)
    last = {port: max(its, key=lambda boot: its[boot]) for port, its in boots.items()}
    old = [
        row
        for row in facts.rows
        if row.boot_id and row.state != LEAVING and row.boot_id != last[row.port]
    ]
    if old:
        yield warning(
            NAME,
            "attachments are from before the last boot of their VM: "
            f"{listed(_name(row) for row in old)}",
            f"they leave at the VM's next attachment; or `dfmeta attachment delete {old[0].id}`",
        )


def _planes(facts: AttachmentFacts, snapshot: Snapshot) -> Iterator[Finding]:
    """Compare rows and ports."""
    ends: dict[str, list[Interface]] = {}
    for one in snapshot.interfaces:
        if KEY in one.external_ids:
            ends.setdefault(one.external_ids[KEY], []).append(one)
    bare = [row for row in _steady(facts) if not _is_pair(ends.get(row.id, ()))]
    if bare:
        yield wrong(
            NAME,
            f"attachments without their patch ports: {listed(map(_name, bare))}: frames of these "
            "containers do not pass",
            "`dfmeta attachment gc` makes them again; see the log of dfmeta-agent if it does not",
        )
    stray = ends.keys() - _known(facts)
    if stray:
        yield warning(
            NAME,
            f"ports of attachments that do not exist: {listed(sorted(stray))}",
            "`dfmeta attachment gc` removes them",
        )


def _entries(facts: AttachmentFacts, snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Compare rows and the lists of subports of the VMs whose tags reach the bridge."""
    here = [one for one in snapshot.interfaces if one.bridge == bridge and one.type != _PATCH]
    listed_vids = {(one.name, vid) for one in here for vid in one.listed_vids}
    names, entries = {one.name for one in here}, _tagged(here)
    lost = [row for row in _steady(facts) if row.port in names and row.id not in entries]
    bare = [row for row in lost if (row.port, row.vid) not in listed_vids]
    if bare:
        yield wrong(
            NAME,
            f"attachments without an entry in the list of subports: {listed(map(_name, bare))}: "
            "these containers get no metadata",
            "`dfmeta attachment gc` writes them again; see the log of dfmeta-agent if it does not",
        )
    others = [row for row in lost if (row.port, row.vid) in listed_vids]
    if others:
        yield warning(
            NAME,
            f"entries of other programs have the VLAN ids of attachments: "
            f"{listed(map(_name, others))}: these containers get the instance of that entry",
            f"`dfmeta subport delete {others[0].port} --vid {others[0].vid}` removes the entry, "
            "and `dfmeta attachment gc` writes that of the attachment",
        )
    stray = [entries[one] for one in sorted(entries.keys() - _known(facts))]
    if stray:
        places = (_place(one.name, one.vid) for one in stray)
        yield warning(
            NAME,
            f"entries of attachments that do not exist: {listed(places)}",
            "`dfmeta attachment gc` removes them",
        )


def _tagged(interfaces: Iterable[Interface]) -> dict[str, Port]:
    """Return attachment → its subport, of those whose tags reach the bridge."""
    ports = (port for one in interfaces for port in one.ports)
    return {one.attached: one for one in ports if one.vid and one.attached}


def _steady(facts: AttachmentFacts) -> list[Row]:
    """Return the attachments that were active before and after OVSDB was read."""
    before = facts.rows if facts.before is None else facts.before
    stood = {row.id for row in before if row.state == ACTIVE}
    return [row for row in facts.rows if row.state == ACTIVE and row.id in stood]


def _known(facts: AttachmentFacts) -> set[str]:
    return {row.id for row in (*(facts.before or ()), *facts.rows)}


def _is_pair(ends: Sequence[Interface]) -> bool:
    """Return whether the ports of an attachment are two that lead to each other."""
    names = {one.name for one in ends}
    return len(names) == 2 and {one.options.get("peer") for one in ends} == names


def _large(facts: AttachmentFacts, snapshot: Snapshot, bridge: str) -> Iterator[Finding]:
    """Find networks whose frames do not pass the interface of a VM with a trunk of dfmeta.

    Also those without an attachment: dfmeta-cni refuses them.
    """
    networks = facts.networks or {}
    key, value = _TRUNK
    trunks = {one.name for one in snapshot.bridges if one.external_ids.get(key) == value}
    outer = {one.name for one in snapshot.interfaces if one.bridge in trunks}
    limits = {
        one.name: mtu_behind(one, snapshot)
        for one in snapshot.interfaces
        if one.bridge == bridge and one.options.get("peer") in outer and KEY not in one.external_ids
    }
    large = {
        (network, port): limit
        for network, mtu in sorted(networks.items())
        for port, limit in sorted(limits.items())
        if mtu > limit > 0
    }
    if large:
        texts = (
            f"{network} ({networks[network]}, {port}: {limit})"
            for (network, port), limit in large.items()
        )
        yield warning(
            NAME,
            f"the MTU of networks is larger than that of a VM's interface: {listed(texts)}: "
            "dfmeta-cni attaches no container, and other clients lose larger frames",
            f"set mtu in [attachment_network:{next(iter(large))[0]}] to {min(large.values())} or "
            "less, or give the VM's interface a larger MTU",
        )


def _name(row: Row) -> str:
    return f"{row.container} of {_place(row.port, row.vid)}"


def _place(port: str, vid: int) -> str:
    return f"{port} (VID {vid})"
