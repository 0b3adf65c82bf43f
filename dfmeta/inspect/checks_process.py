"""Judgements on the daemon's process: its rights, its workers, its descriptors, what it runs on.

Pure. What a process may do: capabilities(7); what it may open: getrlimit(2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from dfmeta.inspect.facts import Settings
from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong

CAPABILITIES: Final = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_NICE": 23,
}
"""Numbers of linux/capability.h, of those that matter here."""
ALWAYS: Final = ("CAP_NET_ADMIN", "CAP_NET_RAW")
"""Addresses, rules and routes; SO_BINDTODEVICE."""
WITH_WORKERS: Final = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL")
"""A worker becomes another user, and the daemon has to be able to end it."""
OLDEST_OVS: Final = (2, 10)
"""Meters in the kernel's datapath; ``dot1q-tunnel`` with ``cvlans`` is older (2.9)."""
_EDIT: Final = "`systemctl edit dfmeta-agent`"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The daemon's process, of proc(5)."""

    pid: int
    uid: int = 0
    """Effective user."""
    groups: Sequence[int] = ()
    """Effective group, and all others."""
    capabilities: int = 0
    """Effective, a bit for each."""
    descriptors: int = 0
    """How many it may have open (RLIMIT_NOFILE, soft)."""
    open: int = 0
    """How many it has."""
    workers: Sequence[int] = ()
    """Pids of its workers that live."""

    def can(self, capability: str) -> bool:
        """Whether it has *capability*, by its name."""
        return bool(self.capabilities >> CAPABILITIES[capability] & 1)


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A unix socket that the daemon connects to; connect(2) wants the right to write."""

    path: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What runs, and what is installed."""

    installed: str
    running: str = ""
    """The daemon's; empty: it does not say."""
    ovs: str = ""
    """ovs-vswitchd's own words; empty: it does not answer."""
    python: str = ""
    packages: Sequence[tuple[str, str, str]] = field(default_factory=tuple)
    """Those outside of what dfmeta asks for: name, version (empty: not there), what is wanted."""


def permissions(
    process: ProcessFacts | None, sockets: Iterable[SocketFacts], *, workers: int
) -> Iterator[Finding]:
    """Whether the daemon may do what it has to.

    :param workers: proxy_workers.
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
            f"dfmeta-agent (pid {process.pid}) lacks {', '.join(lacking)}: it cannot look after "
            "addresses, rules and routes, or its workers",
            f"run it as root, or give it them in its unit: {_EDIT}, [Service] "
            f"CapabilityBoundingSet={' '.join(needed)} and AmbientCapabilities= the same",
        )
    else:
        yield ok("permissions", f"dfmeta-agent (pid {process.pid}) has {', '.join(needed)}")
    closed = [one.path for one in sockets if not _may_write(process, one)]
    if closed:
        yield wrong(
            "sockets",
            f"dfmeta-agent (user {process.uid}) may not connect to {listed(closed)}",
            "run it as root, give it CAP_DAC_OVERRIDE, or put its user into the socket's group: "
            f"`ls -l {' '.join(closed)}`",
        )
    else:
        yield ok("sockets", "dfmeta-agent may connect to Open vSwitch's sockets")


def workers(process: ProcessFacts | None, count: int) -> Finding:
    """Whether as many workers live as are wanted.

    :param count: proxy_workers, not 0.
    """
    if process is None:
        return unknown("workers", "no process of dfmeta-agent can be seen")
    alive = len(process.workers)
    if alive < count:
        return wrong(
            "workers",
            f"{alive} of {count} workers live; guests share those that are left",
            "dfmeta-agent starts another within 5 seconds; its log says why they end: "
            "`journalctl -u dfmeta-agent | grep Worker`",
        )
    if alive > count:
        return ok("workers", f"{count} workers live, and {alive - count} that end")
    return ok("workers", f"all {count} workers live")


def open_files(process: ProcessFacts | None, needed: int) -> Finding:
    """Whether the daemon may have as many descriptors as [guest_limits] promises.

    :param needed: for connections of guests, theirs to the backend, and its own.
    """
    if process is None:
        return unknown("open-files", "no process of dfmeta-agent can be seen")
    if process.descriptors < needed:
        return wrong(
            "open-files",
            f"dfmeta-agent may open {process.descriptors} files, and [guest_limits] connections "
            f"takes {needed}: with that many guests new ones are not answered",
            f"{_EDIT}, [Service] LimitNOFILE={needed}, and restart it; or lower [guest_limits] "
            "connections",
        )
    return ok("open-files", f"{process.open} of {process.descriptors} files are open")


def versions(facts: VersionFacts) -> Iterator[Finding]:
    """Whether what runs is what is installed, and what it needs is recent enough."""
    if facts.running and facts.running != facts.installed:
        yield wrong(
            "version",
            f"dfmeta {facts.installed} is installed and dfmeta-agent {facts.running} runs",
            "restart it after the upgrade, no guest notices: `systemctl restart dfmeta-agent`",
        )
    else:
        yield ok("version", f"dfmeta {facts.installed}, Python {facts.python}")
    yield _ovs_version(facts.ovs)
    if facts.packages:
        shown = [
            f"{name} {installed or '(none)'} (wanted: {wanted or 'any'})"
            for name, installed, wanted in facts.packages
        ]
        yield wrong(
            "packages",
            f"outside of what dfmeta was tried with: {listed(shown)}",
            "`pip install --upgrade dfmeta` brings them along, in an environment of its own",
        )
    else:
        yield ok("packages", "all packages are of versions that dfmeta was tried with")


def ovs_version(text: str) -> tuple[int, ...]:
    """Read ``ovs-vswitchd (Open vSwitch) 3.1.0``; nothing when it says none."""
    last = text.split()[-1] if text.split() else ""
    numbers = last.split("-")[0].split(".")[:3]
    return tuple(int(one) for one in numbers if one.isdecimal())


def _ovs_version(text: str) -> Finding:
    found = ovs_version(text.splitlines()[0] if text else "")
    if not found:
        return unknown("ovs-version", "ovs-vswitchd does not say which version it is")
    shown = ".".join(map(str, found))
    if found < OLDEST_OVS:
        oldest = ".".join(map(str, OLDEST_OVS))
        return wrong(
            "ovs-version",
            f"Open vSwitch {shown} is older than {oldest}: it has no meters in the kernel's "
            "datapath, and may refuse flows",
            "upgrade it: `ovs-vswitchd --version` says what is installed, and a restart runs it",
        )
    return ok("ovs-version", f"Open vSwitch {shown}")


def wanted_sockets(wanted: Settings) -> tuple[str, ...]:
    """Paths of the sockets that the daemon connects to."""
    kind, _, path = wanted.ovsdb.partition(":")
    return (*((path,) if kind == "unix" else ()), wanted.socket)


def _may_write(process: ProcessFacts, sock: SocketFacts) -> bool:
    if process.can("CAP_DAC_OVERRIDE"):
        return True
    if process.uid == sock.uid:
        return bool(sock.mode & 0o200)
    if sock.gid in process.groups:
        return bool(sock.mode & 0o020)
    return bool(sock.mode & 0o002)
