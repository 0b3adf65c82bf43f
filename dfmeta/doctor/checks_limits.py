"""Checks of limits of the host that all guests share: one guest must not exhaust them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dfmeta.doctor.finding import Finding, ok, wrong
from dfmeta.host.facts import ConntrackFacts, LimitFacts

ONE_GUESTS_SHARE = 0.5
NEARLY_FULL = 0.9


def queue(limits: LimitFacts, *, backlog: int) -> Iterator[Finding]:
    """Check that the listener's queue has room for guests that boot at the same time.

    :param backlog: length of the queue that the listener requests, in connections.
    """
    if limits.somaxconn < backlog:
        yield wrong(
            "somaxconn",
            f"net.core.somaxconn is {limits.somaxconn}: if more guests than that connect at the "
            "same time, the others wait for a second or more",
            f"`sysctl -w net.core.somaxconn={backlog}`, in /etc/sysctl.d too, and restart "
            "dfmeta-agent",
        )
    else:
        yield ok("somaxconn", f"the listener's queue has room for {backlog} connections")
    if not limits.syncookies:
        yield wrong(
            "syncookies",
            "net.ipv4.tcp_syncookies is 0: while the queue is full of half-open connections, "
            "guests are not answered",
            "`sysctl -w net.ipv4.tcp_syncookies=1`, in /etc/sysctl.d too",
        )
    else:
        yield ok("syncookies", f"net.ipv4.tcp_syncookies is {limits.syncookies}")


def conntrack(facts: ConntrackFacts, *, rate: int) -> Finding:
    """Check that the host's connection tracking has room: a new connection needs an entry.

    A small table is not a fault as long as it has never been full: the ``ok`` line says how many
    entries guests' connections can take.

    :param rate: connections per second that a guest may open on average.
    """
    there, room, needed = facts.count, facts.room, int(rate * facts.kept / ONE_GUESTS_SHARE)
    past = _full_before(facts)
    if room is None or not (there or past):
        return ok("conntrack", "the host does not track connections")
    if not room:
        return ok("conntrack", f"{there} entries of conntrack are taken, and it has no limit")
    taken = f"{there} of {room} entries of conntrack are taken"
    if facts.guests is not None:
        taken += f", {facts.guests} of them by connections to the proxy"
    more = f"`sysctl -w net.netfilter.nf_conntrack_max={max(needed, 2 * room)}`"
    if there >= NEARLY_FULL * room:
        return wrong(
            "conntrack",
            f"{taken}: when the table is full, new connections are dropped, also those of "
            f"guests{past}",
            f"`conntrack -L` shows the connections; {more}, in /etc/sysctl.d too",
        )
    if room >= needed:
        return ok("conntrack", taken + past)
    if past:
        return wrong(
            "conntrack",
            f"{taken}{past}",
            f"{more}, in /etc/sysctl.d too; or add a rule that does not track tap-metadata",
        )
    if facts.guests == 0:
        return ok("conntrack", taken)
    return ok(
        "conntrack",
        f"{taken}; a guest's tracked connection keeps its entry until {facts.kept} s after its "
        f"end, and a guest that opens {rate} connections a second can fill the table: {more} "
        "makes it large enough",
    )


def _full_before(facts: ConntrackFacts) -> str:
    """Return how often the table was full, as the end of a sentence; empty: never."""
    if not (facts.dropped or facts.evicted):
        return ""
    return (
        f"; the table was full before: {facts.dropped} packets of new connections were dropped, "
        f"and {facts.evicted} unanswered connections were evicted"
    )


def neighbours(limits: LimitFacts) -> Finding:
    """Check that the neighbour table has room.

    If it is full, the host reaches no further neighbour, and so perhaps not Nova.
    """
    if limits.neighbours_max is None:
        return ok(
            "neighbours",
            "the limit of the neighbour table cannot be read in this network namespace",
        )
    there, room = limits.neighbours, limits.neighbours_max
    if there >= NEARLY_FULL * room:
        return wrong(
            "neighbours",
            f"{there} of {room} entries of the neighbour table are taken: when it is full, the "
            "host's own packets to new neighbours are dropped",
            f"`sysctl -w net.ipv4.neigh.default.gc_thresh3={2 * room}`, in /etc/sysctl.d too, with "
            "gc_thresh1 and gc_thresh2 below it",
        )
    return ok("neighbours", f"{there} of {room} entries of the neighbour table are taken")


def local_ports(limits: LimitFacts, *, needed: int) -> Finding:
    """Check that there are enough local TCP ports for the daemon's connections to the backend.

    :param needed: guests' connections that may wait for an answer at the same time.
    """
    if limits.local_ports < needed:
        return wrong(
            "local-ports",
            f"net.ipv4.ip_local_port_range allows {limits.local_ports} ports, and up to {needed} "
            "connections of guests may wait for the backend at the same time",
            '`sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, in /etc/sysctl.d too',
        )
    return ok("local-ports", f"connections to the backend can use {limits.local_ports} ports")
