"""Checks of the host's limits, its clock, and programs that take what dfmeta needs. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from dfmeta.doctor.facts import HostSettings
from dfmeta.doctor.finding import NEARLY_FULL, Finding, listed, ok, unknown, wrong
from dfmeta.host import host_facts, system
from dfmeta.ovsdb.rows import Snapshot

ONE_GUESTS_SHARE: Final = 0.5
SKEW_MAX: Final = 60.0
"""Seconds that the clocks of two hosts may differ: the validity of certificates and tokens starts a
little before they are issued, but not more than that."""
DROP_IN: Final = "/etc/systemd/networkd.conf.d/50-dfmeta.conf"
UNMANAGED: Final = "/etc/systemd/network/10-dfmeta.network"
KEYFILE: Final = "/etc/NetworkManager/conf.d/90-dfmeta.conf"
ANOTHER_IP: Final = "169.254.1.1"
REMOVE_OVN_DEVICES: Final = (
    "`ip -o link show type veth | grep 'link-netns ovnmeta-' | grep -o 'tap[^@ ]*' | "
    "xargs -r -n 1 ovs-vsctl del-port {}`"
)


def somaxconn(limits: host_facts.LimitFacts, *, backlog: int) -> Finding:
    """Check that the listener's queue has room for guests that boot at the same time.

    :param backlog: length of the queue that the listener requests, in connections.
    """
    if limits.somaxconn < backlog:
        return wrong(
            f"net.core.somaxconn is {limits.somaxconn}, and the listener needs {backlog}",
            f"`sysctl -w net.core.somaxconn={backlog}`, in /etc/sysctl.d too, and restart "
            "dfmeta-agent",
        )
    return ok(f"the listener's queue has room for {backlog} connections")


def syncookies(limits: host_facts.LimitFacts) -> Finding:
    """Check that guests are answered while the listener's queue is full."""
    if not limits.syncookies:
        return wrong(
            "net.ipv4.tcp_syncookies is 0: while the queue is full, guests are not answered",
            "`sysctl -w net.ipv4.tcp_syncookies=1`, in /etc/sysctl.d too",
        )
    return ok(f"net.ipv4.tcp_syncookies is {limits.syncookies}")


def conntrack(facts: system.ConntrackFacts, *, rate: int) -> Finding:
    """Check that the host's connection tracking has room: a new connection needs an entry.

    A small table is not a fault as long as it has never been full: the ``ok`` line says how many
    entries guests' connections can take.

    :param rate: connections per second that a guest may open on average.
    """
    count, room, needed = facts.count, facts.room, int(rate * facts.kept / ONE_GUESTS_SHARE)
    past = ""
    if facts.dropped or facts.evicted:
        past = (
            f"; the table was full before: {facts.dropped} packets of new connections were "
            f"dropped, and {facts.evicted} unanswered connections were evicted"
        )
    if room is None or not (count or past):
        return ok("the host does not track connections")
    if not room:
        return ok(f"{count} entries of conntrack are taken, and it has no limit")
    taken = f"{count} of {room} entries of conntrack are taken"
    if facts.guests is not None:
        taken += f", {facts.guests} of them by connections to the proxy"
    more = f"`sysctl -w net.netfilter.nf_conntrack_max={max(needed, 2 * room)}`"
    if count >= NEARLY_FULL * room:
        return wrong(
            f"{taken}: when the table is full, new connections are dropped{past}",
            f"{more}, in /etc/sysctl.d too",
        )
    if room >= needed:
        return ok(taken + past)
    if past:
        return wrong(taken + past, f"{more}, in /etc/sysctl.d too")
    if facts.guests == 0:
        return ok(taken)
    return ok(f"{taken}; one guest can fill the table: {more} makes it large enough")


def neighbours(limits: host_facts.LimitFacts) -> Finding:
    """Check that the neighbour table has room.

    If it is full, the host reaches no further neighbour, and so perhaps not Nova.
    """
    if limits.neighbours_max is None:
        return ok("the limit of the neighbour table cannot be read in this network namespace")
    count, room = limits.neighbours, limits.neighbours_max
    if count >= NEARLY_FULL * room:
        return wrong(
            f"{count} of {room} entries of the neighbour table are taken",
            f"`sysctl -w net.ipv4.neigh.default.gc_thresh3={2 * room}`, in /etc/sysctl.d too",
        )
    return ok(f"{count} of {room} entries of the neighbour table are taken")


def local_ports(limits: host_facts.LimitFacts, *, needed: int) -> Finding:
    """Check that there are enough local TCP ports for the daemon's connections to the backend.

    :param needed: guests' connections that may wait for an answer at the same time.
    """
    if limits.local_ports < needed:
        return wrong(
            f"net.ipv4.ip_local_port_range allows {limits.local_ports} ports, and guests may have "
            f"{needed} connections",
            '`sysctl -w net.ipv4.ip_local_port_range="32768 60999"`, in /etc/sysctl.d too',
        )
    return ok(f"connections to the backend can use {limits.local_ports} ports")


def skew(date: str, now: float) -> float | None:
    """Return the seconds from *now* to *date*; None if *date* is invalid.

    :param date: as in RFC 9110, 5.6.7.
    :param now: in seconds of Unix time.
    """
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.timestamp() - now


def clock(
    synchronised: bool | None, skews: Sequence[tuple[str, float]], needs: Sequence[str]
) -> Iterator[Finding]:
    """Check that this host's clock is right.

    :param synchronised: whether NTP sets it (adjtimex(2), STA_UNSYNC); None: not reported.
    :param skews: name of another host → seconds that the Date of its answer is ahead.
    :param needs: names of things on this host that depend on the clock; may be empty.
    """
    away = [(host, seconds) for host, seconds in skews if abs(seconds) > SKEW_MAX]
    for host, seconds in away:
        yield wrong(
            f"this host's clock and that of {host} are {abs(seconds):.0f} s apart (this host's is "
            f"{'behind' if seconds > 0 else 'ahead'})",
            "correct the clock that is wrong: `timedatectl set-ntp true`",
        )
    if away:
        return
    agreed = listed(dict.fromkeys(host for host, _ in skews))
    if synchronised:
        same = f", and agrees with {agreed}" if agreed else ""
        yield ok(f"the clock is synchronised by NTP{same}")
    elif synchronised is None:
        yield unknown("the kernel does not report whether the clock is synchronised")
    elif agreed:
        yield ok(f"the clock is not synchronised (adjtimex), but agrees with {agreed}")
    elif needs:
        yield wrong(
            f"the clock is not synchronised (adjtimex: STA_UNSYNC), and {listed(needs)} depends "
            "on it",
            "`timedatectl set-ntp true`",
        )
    else:
        yield ok("the clock is not synchronised (adjtimex), and nothing here depends on it")


def networkd(facts: system.NetworkdFacts, tap: str) -> Finding:
    """Check that systemd-networkd does not remove dfmeta's addresses, rules and route."""
    if not facts.running:
        return ok("systemd-networkd does not run")
    if facts.network:
        return wrong(
            f"systemd-networkd configures {tap} by {facts.network}, and removes its addresses",
            f"`printf '[Match]\\nName={tap}\\n[Link]\\nUnmanaged=yes\\n' > {UNMANAGED}`, and "
            "`networkctl reload`",
        )
    if facts.managed:
        lines = "".join(f"\\n{setting}=no" for setting in facts.managed)
        return wrong(
            "systemd-networkd removes rules and routes of other programs at its restart "
            f"({', '.join(facts.managed)})",
            f"`mkdir -p {DROP_IN.rpartition('/')[0]} && printf '[Network]{lines}\\n' > {DROP_IN}`, "
            "and `systemctl restart systemd-networkd`",
        )
    return ok("systemd-networkd does not remove rules and routes of other programs")


def network_manager(managed: bool | None, tap: str) -> Finding:
    """Check that NetworkManager leaves tap-metadata alone; None: it does not run."""
    if managed is None:
        return ok("NetworkManager does not run")
    if managed:
        return wrong(
            f"NetworkManager manages {tap}: `nmcli networking off` and `nmcli device connect` "
            "remove its addresses",
            f"`printf '[keyfile]\\nunmanaged-devices+=interface-name:{tap}\\n' > {KEYFILE}`, and "
            "`nmcli general reload`",
        )
    return ok(f"NetworkManager leaves {tap} alone")


def ovn_metadata(
    facts: system.OvnMetadataFacts, snapshot: Snapshot, wanted: HostSettings
) -> Finding | None:
    """Check that OVN does not lead requests to a metadata agent that is gone; None: it had none.

    ovn-controller deletes dfmeta's flows at its start, and its own then lead to these devices.
    """
    rows = (snapshot.interface(name, wanted.bridge) for name in facts.devices)
    names = [row.name for row in rows if row is not None]
    if not names:
        return None
    devices = f"devices of OVN's metadata agent are on {wanted.bridge} ({len(names)}): "
    devices += f"{listed(names)}; a few requests reach them at each start of ovn-controller"
    if facts.running:
        return ok(f"{devices}, and the agent runs")
    return wrong(
        f"{devices}, and fail: the agent does not run", REMOVE_OVN_DEVICES.format(wanted.bridge)
    )


def cloud(route: str, wanted: HostSettings) -> Finding:
    """Check that the host does not need the address of tap-metadata for its own metadata.

    :param route: see :func:`cloud_signs`.
    """
    if wanted.host_ip != wanted.ip:
        return ok(f"the host can still reach {wanted.ip} itself: host_ip is another address")
    signs = cloud_signs(wanted.ip, route, service=wanted.host_service)
    if signs:
        return wrong(
            f"this host is a cloud's guest itself and needs {wanted.ip}, which it cannot reach "
            f"while {wanted.tap} has that address: {'; '.join(signs)}",
            f"set [df_metadata] host_ip to another address, such as {ANOTHER_IP}, and `systemctl "
            "restart dfmeta-agent`",
        )
    return ok(f"the host does not get its own metadata from {wanted.ip}")


def cloud_signs(ip: str, route: str, *, service: bool) -> list[str]:
    """Return why this host seems to need *ip* for metadata of its own; empty: it does not.

    :param route: device of the host's own route to exactly this address; empty: there is none.
    :param service: whether a server answered at this address before the first start.
    """
    signs = (
        (route, f"a route to {ip} leads through {route}"),
        (service, f"a server answered this host at {ip} before dfmeta's first start"),
    )
    return [text for sign, text in signs if sign]
