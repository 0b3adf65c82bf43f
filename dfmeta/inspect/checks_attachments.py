"""The check of attachments: their table, their ports, and the networks of containers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.inspect.finding import Finding, listed, ok, warning, wrong

NAME = "attachments"
NEARLY: Final = 0.9
"""Share of a VM's attachments or VLAN ids in use at which doctor warns."""
_DELETE: Final = "`dfmeta attachment delete <ID>`, with the ID of `dfmeta attachment list`"


@dataclass(frozen=True, slots=True)
class Row:
    """An attachment of this host, as the table has it."""

    id: str
    port: str
    """The port of its VM on the integration bridge."""
    vid: int
    network: str
    state: str
    boot_id: str = ""
    """The boot of the VM that made it; empty: not told. The VM chooses it."""
    created: float = 0.0
    """Seconds of Unix time."""

    @property
    def leaves(self) -> bool:
        """Whether it is being removed."""
        return self.state == "leaving"

    @property
    def stands(self) -> bool:
        """Whether it has to have a data plane."""
        return self.state == "active"


@dataclass(frozen=True, slots=True)
class End:
    """A port in OVSDB that has the id of an attachment: one end of a pair of patch ports."""

    name: str
    attachment: str
    peer: str
    """Name of the port that it leads to."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The attachments of this host."""

    before: Sequence[Row] = ()
    """The table before OVSDB was read."""
    after: Sequence[Row] = ()
    """The table after it: attachments come and go meanwhile."""
    ends: Sequence[End] | None = None
    """Ports of attachments; None: dfmeta does not make them itself, or OVSDB does not answer."""
    vids: range = range(2, 4001)
    """VLAN ids that a VM's containers can have."""
    quota: int = 256
    """Largest number of attachments of a VM."""
    foreign: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """The VM's port → VLAN ids of its trunk that ports of other programs have."""
    networks: Mapping[str, int] = field(default_factory=dict)
    """The operator's networks → MTU in bytes."""
    parents: Mapping[str, int] = field(default_factory=dict)
    """The VM's port, of each trunk of dfmeta → MTU of the VM's interface in bytes; 0: not known."""


def attachments(facts: Facts) -> Iterator[Finding]:
    """Check that each attachment has its ports and its network, and that VMs can get more.

    :param facts: of a daemon that runs and has answered.
    """
    found = [
        *_nameless(facts),
        *_lost(facts),
        *_halves(facts),
        *_orphans(facts),
        *_old_boots(facts.after),
        *_used_up(facts),
        *_too_large(facts),
    ]
    yield from found
    if not found:
        trunks = len({one.port for one in facts.after})
        yield ok(NAME, f"{len(facts.after)} attachments of {trunks} VMs{_most(facts)}")


def silent(cause: str) -> Finding:
    """Return the finding of a daemon that runs and cannot list the attachments.

    :param cause: its own words.
    """
    return wrong(
        NAME,
        f"dfmeta-agent cannot read the attachments: {cause}",
        "VMs get no attachments, and their containers keep those that they have: make the database "
        "of [attachments] connection answer; the log has the cause: `journalctl -u dfmeta-agent`",
    )


def switched_off(ends: Sequence[End]) -> Iterator[Finding]:
    """Report the ports of attachments on a host where attachments are off."""
    if ends:
        yield warning(
            NAME,
            f"attachments are off, and {len(ends)} of their ports are left: "
            f"{listed(sorted(one.name for one in ends))}: no program removes them",
            "set [attachments] enabled again and restart dfmeta-agent, or, if their containers are "
            f"gone, `ovs-vsctl del-port {min(one.name for one in ends)}` for each of them",
        )


def _most(facts: Facts) -> str:
    """Return the VM with most attachments, for the line of a host in order."""
    ports = [one.port for one in facts.after]
    if not ports:
        return ""
    port = max(sorted(set(ports)), key=ports.count)
    return f"; most has {port}: {ports.count(port)} of {min(facts.quota, len(facts.vids))}"


def _named(row: Row) -> str:
    return f"{row.port} (VID {row.vid}, network {row.network}, {row.id})"


def _nameless(facts: Facts) -> Iterator[Finding]:
    """Find attachments on networks that the operator has removed."""
    rows = [one for one in facts.after if not one.leaves and one.network not in facts.networks]
    if rows:
        gone = sorted({one.network for one in rows})
        yield wrong(
            NAME,
            f"attachments on networks that are not configured: {listed(map(_named, rows))}: their "
            "containers have no network after the next change of their ports",
            f"write [attachment_network:{gone[0]}] as it was, and `systemctl reload "
            f"dfmeta-agent`; or stop the containers, and delete what they leave: {_DELETE}",
        )


def _lost(facts: Facts) -> Iterator[Finding]:
    """Find attachments without any port, before and after OVSDB was read."""
    if facts.ends is None:
        return
    there = {one.attachment for one in facts.ends}
    stood = {one.id for one in facts.before if one.stands}
    rows = [one for one in facts.after if one.stands and one.id in stood - there]
    if rows:
        yield wrong(
            NAME,
            f"attachments without ports in OVSDB: {listed(map(_named, rows))}: their containers "
            "have no network",
            "`dfmeta attachment gc` makes the ports at once; if they do not come, the log has the "
            "cause: `journalctl -u dfmeta-agent`",
        )


def _halves(facts: Facts) -> Iterator[Finding]:
    """Find patch ports of attachments that do not lead to each other."""
    names = {one.name: one for one in facts.ends or ()}
    halves = [
        one
        for one in names.values()
        if one.peer not in names
        or (names[one.peer].peer, names[one.peer].attachment) != (one.name, one.attachment)
    ]
    if halves:
        texts = (f"{one.name} (peer {one.peer or 'not set'})" for one in halves)
        yield wrong(
            NAME,
            f"patch ports of attachments without their peer: {listed(texts)}",
            "`dfmeta attachment gc` makes the missing port at once, or removes the one that is "
            f"left; if it stays, `ovs-vsctl del-port {halves[0].name}`",
        )


def _orphans(facts: Facts) -> Iterator[Finding]:
    """Find ports of attachments that the table had neither before nor after OVSDB was read."""
    known = {one.id for one in (*facts.before, *facts.after)}
    orphans = [one for one in facts.ends or () if one.attachment not in known]
    if orphans:
        yield wrong(
            NAME,
            "ports of attachments that the table does not have: "
            f"{listed(f'{one.name} ({one.attachment})' for one in orphans)}",
            "`dfmeta attachment gc` removes them at once; if [attachments] connection has been "
            "changed, set it back first, since they belong to the former database",
        )


def _old_boots(rows: Sequence[Row]) -> Iterator[Finding]:
    """Find attachments that an earlier boot of their VM has made."""
    newest: dict[str, Row] = {}
    for one in sorted(rows, key=lambda row: row.created):
        if one.boot_id:
            newest[one.port] = one
    old = [
        one
        for one in rows
        if one.boot_id and not one.leaves and one.boot_id != newest[one.port].boot_id
    ]
    if old:
        yield warning(
            NAME,
            f"attachments of earlier boots of their VMs: {listed(map(_named, old))}: their "
            "containers are gone, and their VLAN ids are not free",
            f"they leave when the VM asks for its next attachment; or at once: {_DELETE}",
        )


def _used_up(facts: Facts) -> Iterator[Finding]:
    """Find VMs that have nearly all attachments of their quota, or nearly all VLAN ids."""
    trunks: dict[str, set[int]] = {}
    for one in facts.after:
        trunks.setdefault(one.port, set()).add(one.vid)
    full = []
    for port, vids in sorted(trunks.items()):
        taken = {vid for vid in vids | facts.foreign.get(port, frozenset()) if vid in facts.vids}
        if len(vids) >= NEARLY * facts.quota:
            full.append(f"{port} ({len(vids)} of {facts.quota} attachments)")
        elif len(taken) >= NEARLY * len(facts.vids):
            full.append(f"{port} ({len(taken)} of {len(facts.vids)} VLAN ids)")
    if full:
        yield warning(
            NAME,
            f"VMs with nearly all attachments that they can have: {listed(full)}: requests for "
            "more are answered with 429 or 507",
            "look with `dfmeta attachment list` for attachments whose containers are gone, and "
            f"delete them: {_DELETE}; else raise [attachments] quota (`systemctl reload "
            "dfmeta-agent`) or widen vid_range (restart it)",
        )


def _too_large(facts: Facts) -> Iterator[Finding]:
    """Find networks whose frames do not pass the interface of a VM."""
    large = [
        (network, mtu, port, most)
        for network, mtu in sorted(facts.networks.items())
        for port, most in sorted(facts.parents.items())
        if mtu > most > 0
    ]
    if large:
        network, _mtu, port, most = large[0]
        texts = (f"{name} ({mtu}; {port}: {most})" for name, mtu, port, most in large)
        yield warning(
            NAME,
            f"the MTU of networks is larger than that of VMs' interfaces: {listed(texts)}: "
            "dfmeta-cni refuses such an attachment, and other clients lose larger frames",
            f"set mtu = {most} in [attachment_network:{network}] and `systemctl reload "
            f"dfmeta-agent`; or give the interface of the VM behind {port} a larger MTU, and stop "
            "and start the VM",
        )
