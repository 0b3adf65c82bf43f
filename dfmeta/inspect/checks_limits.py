"""Judgements on limits of the host that all guests share: one must not reach them alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dfmeta.inspect.facts import ConntrackFacts, LimitFacts
from dfmeta.inspect.finding import Finding, ok, wrong

ONE_GUESTS_SHARE = 0.5
NEARLY_FULL = 0.9


def queue(limits: LimitFacts, *, backlog: int) -> Iterator[Finding]:
    """Whether the listener's queue has room for guests that come together.

    :param backlog: connections that the listener asks room for.
    """
    if limits.somaxconn < backlog:
        yield wrong(
            "somaxconn",
            f"net.core.somaxconn is {limits.somaxconn}: of guests that boot together those above "
            "it wait for a second or more",
            f"`sysctl -w net.core.somaxconn={backlog}`, in /etc/sysctl.d too, and restart "
            "dfmeta-agent",
        )
    else:
        yield ok("somaxconn", f"the listener's queue has room for {backlog} connections")
    if not limits.syncookies:
        yield wrong(
            "syncookies",
            "net.ipv4.tcp_syncookies is 0: with the queue full of what is half open, guests are "
            "not answered",
            "`sysctl -w net.ipv4.tcp_syncookies=1`, in /etc/sysctl.d too",
        )
    else:
        yield ok("syncookies", f"net.ipv4.tcp_syncookies is {limits.syncookies}")


def conntrack(facts: ConntrackFacts, *, rate: int) -> Finding:
    """Whether the host's connection tracking has room: a new connection needs an entry.

    A table that is small is no fault while it has not been full: the line says what guests'
    connections take of it.

    :param rate: connections a second that a port's meter lets through.
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
            f"{taken}: when it is full, new connections are dropped, guests' as well{past}",
            f"see with `conntrack -L` whose they are; {more}, in /etc/sysctl.d too",
        )
    if room >= needed:
        return ok("conntrack", taken + past)
    if past:
        return wrong(
            "conntrack",
            f"{taken}{past}",
            f"{more}, in /etc/sysctl.d too; or have the packet filter not track tap-metadata",
        )
    if facts.guests == 0:
        return ok("conntrack", taken)
    return ok(
        "conntrack",
        f"{taken}; a guest's connection that is tracked takes one until {facts.kept} s after its "
        f"end, and a guest that opens {rate} a second can fill the table: {more} gives it room",
    )


def _full_before(facts: ConntrackFacts) -> str:
    """Say how often the table was full, as the end of a sentence; empty: never."""
    if not (facts.dropped or facts.evicted):
        return ""
    return (
        f"; the table was full before: {facts.dropped} packets of new connections were dropped, "
        f"and {facts.evicted} unanswered connections gave way"
    )


def neighbours(limits: LimitFacts) -> Finding:
    """Whether the neighbour table has room: without, the host reaches nobody new, Nova neither."""
    if limits.neighbours_max is None:
        return ok(
            "neighbours", "the limit of the neighbour table is the host's, not seen from here"
        )
    there, room = limits.neighbours, limits.neighbours_max
    if there >= NEARLY_FULL * room:
        return wrong(
            "neighbours",
            f"{there} of {room} entries of the neighbour table are taken: when it is full, the "
            "host's own packets are dropped",
            f"`sysctl -w net.ipv4.neigh.default.gc_thresh3={2 * room}`, in /etc/sysctl.d too, with "
            "gc_thresh1 and gc_thresh2 below it",
        )
    return ok("neighbours", f"{there} of {room} entries of the neighbour table are taken")


def local_ports(limits: LimitFacts, *, needed: int) -> Finding:
    """Whether the daemon finds ports for its connections to the backend.

    :param needed: connections of guests that may wait for an answer at a time.
    """
    if limits.local_ports < needed:
        return wrong(
            "local-ports",
            f"net.ipv4.ip_local_port_range leaves {limits.local_ports} ports, and {needed} guests "
            "may ask the backend at a time",
            '`sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, in /etc/sysctl.d too',
        )
    return ok("local-ports", f"connections to the backend have {limits.local_ports} ports")
