"""Checks of the daemon's process: capabilities, sockets, workers, open files and versions. Pure.

Sources: capabilities(7) and getrlimit(2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dfmeta.doctor.facts import Settings
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.host.facts import AccountFacts, ProcessFacts, SocketFacts

ALWAYS: Final = ("CAP_NET_ADMIN", "CAP_NET_RAW")
"""For addresses, rules and routes, and for SO_BINDTODEVICE."""
WITH_WORKERS: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
"""A worker becomes another user, and the daemon has to be able to end it."""
OLDEST_OVS: Final = (2, 9)
"""First with ``dot1q-tunnel`` and ``cvlans``, which tap-metadata's port has."""
_EDIT: Final = "`systemctl edit dfmeta-agent`"


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Versions of the running and installed programs."""

    installed: str
    running: str = ""
    """Version of the running daemon; empty: it is not known."""
    ovs: str = ""
    """Answer of ovs-vswitchd to the query of its version; empty: it does not answer."""
    python: str = ""


def permissions(
    process: ProcessFacts | None, sockets: Iterable[SocketFacts], *, workers: int
) -> Iterator[Finding]:
    """Check that the daemon has the capabilities and the access to sockets that it needs.

    :param workers: the option proxy_workers.
    """
    if process is None:
        yield unknown("permissions", "no process of dfmeta-agent can be seen")
        yield unknown("sockets", "no process of dfmeta-agent can be seen")
        return
    needed = (*ALWAYS, *(WITH_WORKERS if workers and process.uid == 0 else ()))
    lacking = [one for one in needed if not process.can(one)]
    if lacking:
        yield wrong(
            "permissions",
            f"dfmeta-agent (pid {process.pid}) lacks {', '.join(lacking)}: it cannot manage "
            "addresses, rules and routes, or its workers",
            f"run it as root, or add them to its unit: {_EDIT}, [Service] "
            f"CapabilityBoundingSet={' '.join(needed)} and the same in AmbientCapabilities=",
        )
    else:
        yield ok("permissions", f"dfmeta-agent (pid {process.pid}) has {', '.join(needed)}")
    closed = [one.path for one in sockets if not _may_write(process, one)]
    if closed:
        yield wrong(
            "sockets",
            f"dfmeta-agent (user {process.uid}) may not connect to {listed(closed)}",
            "run it as root, give it CAP_DAC_OVERRIDE, or add its user to the socket's group: "
            f"`ls -l {' '.join(closed)}`",
        )
    else:
        yield ok("sockets", "dfmeta-agent may connect to Open vSwitch's sockets")


def workers(process: ProcessFacts | None, count: int) -> Finding:
    """Check that proxy_workers workers are alive.

    :param count: the option proxy_workers, not 0.
    """
    if process is None:
        return unknown("workers", "no process of dfmeta-agent can be seen")
    alive = len(process.workers)
    if alive < count:
        return wrong(
            "workers",
            f"{alive} of {count} workers are alive; guests share the remaining ones",
            "dfmeta-agent starts another within 5 seconds; its log says why workers end: "
            "`journalctl -u dfmeta-agent | grep Worker`",
        )
    if alive > count:
        return ok("workers", f"{count} workers are alive, and {alive - count} more are ending")
    return ok("workers", f"all {count} workers are alive")


def account(facts: AccountFacts | None, *, which: str, option: str) -> Finding:
    """Check that no other program runs as the user of haproxy or of the workers.

    :param facts: None: the processes cannot be seen.
    :param which: ``haproxy`` or ``workers``.
    :param option: the option that names the user.
    """
    if facts is None:
        return unknown("account", f"the users of {which} cannot be seen")
    users = f"{which} run as" if which == "workers" else f"{which} runs as"
    users += f" user {listed(facts.users)}"
    if not facts.sharers:
        return ok("account", f"{users}, and no other program does")
    return wrong(
        "account",
        f"{users}, and so does {listed(facts.sharers)}, which can read secrets of guests",
        f"leave {option} empty and `systemctl reload dfmeta-agent`; if it is, have the other "
        "program run as another user",
    )


def open_files(process: ProcessFacts | None, needed: int) -> Finding:
    """Check that the daemon's limit of open files is enough for [guest_limits] connections.

    :param needed: descriptors for guests' connections, for their connections to the backend, and
        for the daemon itself.
    """
    if process is None:
        return unknown("open-files", "no process of dfmeta-agent can be seen")
    if process.descriptors < needed:
        return wrong(
            "open-files",
            f"dfmeta-agent may open {process.descriptors} files, and [guest_limits] connections "
            f"needs {needed}: when the limit is reached, new connections are not answered",
            f"{_EDIT}, [Service] LimitNOFILE={needed}, and restart dfmeta-agent; or lower "
            "[guest_limits] connections",
        )
    return ok("open-files", f"{process.open} of {process.descriptors} files are open")


def versions(facts: VersionFacts) -> Iterator[Finding]:
    """Check that the installed dfmeta runs, and that Open vSwitch is recent enough."""
    if facts.running and facts.running != facts.installed:
        yield wrong(
            "version",
            f"dfmeta {facts.installed} is installed, but dfmeta-agent {facts.running} runs",
            "restart it after the upgrade, guests do not notice: `systemctl restart dfmeta-agent`",
        )
    else:
        yield ok("version", f"dfmeta {facts.installed}, Python {facts.python}")
    yield _ovs_version(facts.ovs)


def ovs_version(text: str) -> tuple[int, ...]:
    """Parse ``ovs-vswitchd (Open vSwitch) 3.1.0``; return an empty tuple if there is no version."""
    last = text.split()[-1] if text.split() else ""
    numbers = last.split("-")[0].split(".")[:3]
    return tuple(int(one) for one in numbers if one.isdecimal())


def _ovs_version(text: str) -> Finding:
    found = ovs_version(text.splitlines()[0] if text else "")
    if not found:
        return unknown("ovs-version", "ovs-vswitchd does not report its version")
    shown = ".".join(map(str, found))
    if found < OLDEST_OVS:
        oldest = ".".join(map(str, OLDEST_OVS))
        return wrong(
            "ovs-version",
            f"Open vSwitch {shown} is older than {oldest}: it floods the frames of all networks "
            "to tap-metadata, and may refuse flows",
            "upgrade it: `ovs-vswitchd --version` shows the installed version, and a restart "
            "runs it",
        )
    return ok("ovs-version", f"Open vSwitch {shown}")


def wanted_sockets(wanted: Settings) -> tuple[str, ...]:
    """Return the paths of the sockets that the daemon connects to."""
    kind, _, path = wanted.ovsdb.partition(":")
    bridges = (socket for socket, _layout in wanted.sides.values())
    return (*((path,) if kind == "unix" else ()), *bridges)


def _may_write(process: ProcessFacts, sock: SocketFacts) -> bool:
    if process.can("CAP_DAC_OVERRIDE"):
        return True
    if process.uid == sock.uid:
        return bool(sock.mode & 0o200)
    if sock.gid in process.groups:
        return bool(sock.mode & 0o020)
    return bool(sock.mode & 0o002)
