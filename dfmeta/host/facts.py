"""The host's side of the packet path, as commands read it: values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
)
from typing import Final


@dataclass(frozen=True, slots=True)
class RuleFact:
    """One of dfmeta's two routing rules."""

    selector: str
    """As ip-rule(8) writes it: ``from 169.254.169.254`` or ``oif tap-metadata``."""
    priority: int
    """The present one, or that of a missing rule."""
    there: bool


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: int
    """Inode number, which identifies the socket (sock_diag(7))."""


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """Limits of the host that all guests share."""

    somaxconn: int = 4096
    """Maximum length of a listener's queue, in connections."""
    syncookies: int = 1
    """0: never; 1: when the queue is full; 2: always (Linux, ip-sysctl)."""
    neighbours: int = 0
    """Number of entries in the IPv4 neighbour table."""
    neighbours_max: int | None = None
    """gc_thresh3; None if it cannot be read in this network namespace."""
    local_ports: int = 28232
    """Number of TCP ports for the host's outgoing connections (ip_local_port_range)."""


CONNTRACK_KEEPS: Final = 120
"""Linux' default of nf_conntrack_tcp_timeout_time_wait, in seconds (nf_conntrack-sysctl)."""


@dataclass(frozen=True, slots=True)
class ConntrackFacts:
    """The kernel's table of tracked connections, in the daemon's network namespace."""

    room: int | None = None
    """nf_conntrack_max; None: the kernel tracks no connections; 0: there is no limit."""
    count: int = 0
    guests: int | None = None
    """Number of entries for connections to the proxy, with those of the daemon's own probe; None:
    the kernel does not list its entries, or the proxy's port is not known."""
    kept: int = CONNTRACK_KEEPS
    """Seconds that the kernel keeps the entry of a connection that has ended."""
    dropped: int = 0
    """Packets of new connections dropped because the table was full, since the network namespace
    was made."""
    evicted: int = 0
    """Entries of unanswered connections evicted because the table was full, since then."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The kernel's side of the packet path, for one version of IP."""

    up: bool | None
    """Whether tap-metadata's device is up; None if there is no such device."""
    carrier: bool = True
    """Whether ovs-vswitchd holds the device's other end."""
    addresses: tuple[tuple[str, IPv4Interface | IPv6Interface], ...] = ()
    """Device and address, for every address of every device."""
    rules: tuple[RuleFact, ...] = ()
    contender: str = ""
    """Rule of another program that comes before dfmeta's and may match packets to guests, as
    ``ip rule show`` has it; empty: there is none."""
    route: bool = False
    """Whether the route table has a default route by the next hop through tap-metadata."""
    neighbour: bool = False
    """Whether the neighbour table has a permanent entry with the next hop's MAC."""
    way_back: str = ""
    """Device by which the kernel sends from the proxy's address to a guest's key, or the kernel's
    error."""
    rp_filter: tuple[int, int] = (0, 0)
    """Values of ``all`` and of tap-metadata; the larger one applies (Linux, ip-sysctl)."""
    arp_ignore: int = 0
    """Value of ``all``, which applies to every network interface."""
    tx_checksum: bool | None = None
    """Whether the kernel leaves checksums to the device; None if that is not known."""
    listeners: tuple[Listener, ...] = ()
    limits: LimitFacts = field(default_factory=LimitFacts)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """The daemon's process, from proc(5)."""

    pid: int
    uid: int = 0
    """Effective user id."""
    groups: Sequence[int] = ()
    """Effective group id and supplementary group ids."""
    capabilities: int = 0
    """Effective capabilities, as a bit mask."""
    descriptors: int = 0
    """Limit of open file descriptors (RLIMIT_NOFILE, soft)."""
    open: int = 0
    """Number of open file descriptors."""
    workers: Sequence[int] = ()
    """Process ids of its live workers."""

    def can(self, capability: str) -> bool:
        """Return whether the process has the capability of that name."""
        return bool(self.capabilities >> CAPABILITIES[capability] & 1)


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A unix socket that the daemon connects to; connect(2) needs write permission."""

    path: str
    uid: int
    gid: int
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """The users that processes of one kind run as, from proc(5)."""

    users: Sequence[str]
    """Names of the users, or numbers of those without a name."""
    sharers: Sequence[str] = ()
    """Other programs that run as one of these users, with their process ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFacts:
    """The process of haproxy, from proc(5)."""

    user: str
    """Name of its user, or the user's number."""
    uid: int
    capabilities: int
    """Inheritable, permitted, effective and ambient capabilities together, as a bit mask."""
    descriptors: int
    """Limit of open file descriptors (RLIMIT_NOFILE, soft)."""
    open: int
    """Number of open file descriptors."""


SETTINGS: Final = ("ManageForeignRoutingPolicyRules", "ManageForeignRoutes")
"""Settings of networkd.conf(5), section [Network]; both are on by default."""


@dataclass(frozen=True, slots=True)
class NetworkdFacts:
    """How systemd-networkd handles routes and rules of other programs."""

    running: bool
    managed: Sequence[str] = ()
    """The settings among :data:`SETTINGS` that are on."""


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
"""The capabilities that the checks use, with their numbers in linux/capability.h."""
