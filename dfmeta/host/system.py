"""Reads the host: clock, conntrack, other programs, and its own way to the metadata address.

*root* is the root directory of the host's files: ``/``, or a mount point in a container.
"""

import contextlib
import ctypes
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from dfmeta.flows.pipeline import METADATA_PORT
from dfmeta.host.device import held_addresses
from dfmeta.host.process import named_sockets, of_each

_STA_UNSYNC: Final = 0x0040
"""linux/timex.h."""
_TIMEX_SIZE: Final = 512
"""Bytes; larger than ``struct timex`` of any architecture."""
_COMM: Final = b"systemd-networkd"[:15]
"""The kernel keeps 15 characters of a process' name (proc(5), comm)."""
_NETWORKD: Final = (
    "etc/systemd",
    "run/systemd",
    "usr/local/lib/systemd",
    "usr/lib/systemd",
    "lib/systemd",
)
"""Directories in order of precedence, highest first (systemd.syntax(7), networkd.conf(5))."""
_OVN_NAMESPACE: Final = "ovnmeta-"
"""Before the UUID of a network."""
_OVN_SOCKET: Final = "/metadata_proxy"
"""End of the option metadata_proxy_socket by default."""
_SECTION: Final = re.compile(r"\[([^\]]*)\]")
_FALSE: Final = frozenset({"0", "no", "n", "false", "f", "off"})
_TRUE: Final = frozenset({"1", "yes", "y", "true", "t", "on"})
_CONNTRACK = Path("/proc/sys/net/netfilter")
_CONNTRACK_TABLE = Path("/proc/thread-self/net/nf_conntrack")
"""One line for each entry; exists in kernels with CONFIG_NF_CONNTRACK_PROCFS."""
_CONNTRACK_COUNTERS = Path("/proc/thread-self/net/stat/nf_conntrack")
"""A line of names, then a line of hexadecimal numbers for each CPU."""
_SNMP = Path("/proc/thread-self/net/snmp")
"""Counters of the network namespace (proc(5)): for each protocol a line of names, then a line of
numbers."""
CONNTRACK_KEEPS: Final = 120
"""Linux' default of nf_conntrack_tcp_timeout_time_wait, in seconds (nf_conntrack-sysctl)."""
SETTINGS: Final = ("ManageForeignRoutingPolicyRules", "ManageForeignRoutes")
"""Settings of networkd.conf(5), section [Network]; both are on by default."""


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
class NetworkdFacts:
    """How systemd-networkd handles routes and rules of other programs."""

    running: bool
    managed: Sequence[str] = ()
    """The settings among :data:`SETTINGS` that are on."""
    network: str = ""
    """The .network file by which it configures tap-metadata; empty: it leaves the device alone."""


@dataclass(frozen=True, slots=True)
class OvnMetadataFacts:
    """OVN's metadata agent, by the names that Neutron gives (neutron/agent/ovn/metadata/agent.py).

    Trust: any user of the host may have made such a socket.
    """

    devices: Sequence[str] = ()
    """The devices that lead to its namespaces, by the names of these."""
    running: bool = False
    """Whether a process listens at a socket with the name of that behind its haproxies."""


class EarlierService:
    """Whether a server answers this host itself at the metadata address, before dfmeta takes it.

    A connection begins at the start and is looked at when the start is complete. The start waits
    for no answer. One that comes after the host has got the address itself is dropped by the
    kernel.

    Trust: that something answers is a sign for the operator; nothing is sent to it or read from it.

    :param address: IPv4 address of the service.
    """

    def __init__(self, address: str) -> None:
        self._sock: socket.socket | None = None
        with contextlib.suppress(OSError):
            if address in map(str, held_addresses()):
                return
            self._sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._sock.setblocking(False)
            self._sock.connect_ex((address, METADATA_PORT))

    def take(self) -> bool:
        """Return whether a server has answered, and end the connection."""
        sock, self._sock = self._sock, None
        if sock is None:
            return False
        with sock, contextlib.suppress(OSError):
            sock.getpeername()  # fails unless the connection is there
            return True
        return False


def read_clock() -> bool | None:
    """Return whether the clock is synchronised (adjtimex(2)); None when the call fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Zeroed: modes 0 changes nothing.
    timex = (ctypes.c_long * (_TIMEX_SIZE // ctypes.sizeof(ctypes.c_long)))()
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        return None
    # modes, offset, freq, maxerror, esterror, status: an int, and longs, with padding between.
    status = ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long))
    return not status.value & _STA_UNSYNC


def read_networkd(root: Path, device: str) -> NetworkdFacts:
    """Read whether systemd-networkd runs, and how it treats others' rules and routes.

    :param device: name of tap-metadata.
    """
    values = dict.fromkeys(SETTINGS, True)
    for file in _networkd_files(root):
        values.update(_network_section(file))
    managed = tuple(name for name in SETTINGS if values[name])
    return NetworkdFacts(_networkd_runs(root), managed, _network_file(root, device))


def runs(program: str, root: Path) -> bool:
    """Return whether a process has the name *program*, of at most 15 characters."""
    with contextlib.suppress(FileNotFoundError):
        names = of_each("comm", proc=root / "proc")
        return program.encode() in {name.strip() for _pid, name in names}
    return False


def read_ovn_metadata(root: Path) -> OvnMetadataFacts:
    """Read what OVN's metadata agent has on this host."""
    with contextlib.suppress(OSError):
        networks = sorted(
            path.name.removeprefix(_OVN_NAMESPACE)
            for path in (root / "run/netns").iterdir()
            if path.name.startswith(_OVN_NAMESPACE)
        )
        running = any(sock.listens and sock.name.endswith(_OVN_SOCKET) for sock in named_sockets())
        return OvnMetadataFacts([f"tap{network[:10]}0" for network in networks], running)
    return OvnMetadataFacts()


def own_route(address: str, *, but: str) -> str:
    """Return the device of the host's own route to exactly *address*; empty when there is none.

    :param address: IPv4 address.
    :param but: a device that does not count.
    """
    # In the host's byte order (proc(5), net/route), from the main table. A route to 169.254.0.0/16
    # exists on many hosts (RFC 3927) and does not indicate a cloud.
    wanted = [f"{int.from_bytes(IPv4Address(address).packed, sys.byteorder):08X}", "FFFFFFFF"]
    for line in _text(Path("/proc/net/route")).splitlines()[1:]:
        columns = line.split()
        if [columns[1], columns[7]] == wanted and columns[0] != but:
            return columns[0]
    return ""


def read_conntrack(address: str, port: int | None) -> ConntrackFacts:
    """Read the conntrack table of the network namespace, its limit, and how often it was full.

    :param address: address of the proxy's listener.
    :param port: TCP port of the listener; None when it is not known.
    """
    counters = _conntrack_counters()
    return ConntrackFacts(
        room=_conntrack_value("nf_conntrack_max"),
        count=_conntrack_value("nf_conntrack_count") or 0,
        guests=_tracked_connections(address, port),
        kept=_conntrack_value("nf_conntrack_tcp_timeout_time_wait") or CONNTRACK_KEEPS,
        # A packet that loses a race for its entry increments both counters; a packet that finds the
        # table full increments only the first.
        dropped=max(counters.get("drop", 0) - counters.get("insert_failed", 0), 0),
        evicted=counters.get("early_drop", 0),
    )


def checksum_errors() -> int:
    """Return the number of TCP segments that this host dropped because of a wrong checksum.

    It is TcpInCsumErrors; 0 when the counter cannot be read.
    """
    try:
        lines = [line.split() for line in _SNMP.read_text().splitlines()]
    except OSError:
        return 0
    names, *numbers = (line for line in lines if line[:1] == ["Tcp:"])
    for line in numbers:
        return int(dict(zip(names, line, strict=False)).get("InCsumErrors", "0"))
    return 0


def _networkd_runs(root: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        # The runtime directory outlives the process (RuntimeDirectoryPreserve); the process counts.
        if names := {name.strip() for _pid, name in of_each("comm", proc=root / "proc")}:
            return _COMM in names
    return (root / "run/systemd/netif/state").exists()


def _network_file(root: Path, device: str) -> str:
    """Return the .network file of a device that systemd-networkd manages (sd-network.c)."""
    with contextlib.suppress(OSError):
        state = root / f"run/systemd/netif/links/{socket.if_nametoindex(device)}"
        values = dict(line.partition("=")[::2] for line in _text(state).splitlines())
        if values.get("ADMIN_STATE", "unmanaged") != "unmanaged":
            return values.get("NETWORK_FILE", "")
    return ""


def _networkd_files(root: Path) -> Iterator[Path]:
    """Yield the files in the order in which they are read: later files override earlier ones."""
    for folder in _NETWORKD:
        main = root / folder / "networkd.conf"
        if main.exists():
            yield main
            break
    by_name: dict[str, Path] = {}
    for folder in reversed(_NETWORKD):
        for file in (root / folder / "networkd.conf.d").glob("*.conf"):
            by_name[file.name] = file
    yield from (by_name[name] for name in sorted(by_name))


def _network_section(file: Path) -> dict[str, bool]:
    values: dict[str, bool] = {}
    section = ""
    for line in _text(file).splitlines():
        if heading := _SECTION.fullmatch(line.strip()):
            section = heading[1]
        name, sign, value = (part.strip() for part in line.partition("="))
        if section != "Network" or not sign or name not in SETTINGS:
            continue
        # systemd-networkd ignores any other value, with a warning in the journal.
        if value.lower() in _FALSE | _TRUE:
            values[name] = value.lower() in _TRUE
    return values


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(errors="replace")
    return ""


def _conntrack_value(name: str) -> int | None:
    """Return a value of nf_conntrack-sysctl; None when the kernel does not have it."""
    with contextlib.suppress(FileNotFoundError):
        return int((_CONNTRACK / name).read_text())
    return None


def _tracked_connections(address: str, port: int | None) -> int | None:
    """Count the entries of TCP connections to the proxy; None when the table cannot be read."""
    if port is None:
        return None
    # The reply direction of an entry has these values as src= and sport=.
    to, at = f" dst={address} ".encode(), f" dport={port} ".encode()
    with contextlib.suppress(OSError), _CONNTRACK_TABLE.open("rb") as table:
        return sum(to in line and at in line and b" tcp " in line for line in table)
    return None


def _conntrack_counters() -> dict[str, int]:
    """Return the sum of each counter over all CPUs; empty when the counters cannot be read."""
    with contextlib.suppress(OSError):
        names, *lines = (line.split() for line in _CONNTRACK_COUNTERS.read_text().splitlines())
        columns = zip(*lines, strict=True)
        return {
            name: sum(int(number, 16) for number in column)
            for name, column in zip(names, columns, strict=False)
        }
    return {}
