"""Finds the TCP sockets of this host: listeners, and the user of a client."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from dfmeta.model import HttpHost

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"
_ESTABLISHED: Final = "01"
"""TCP_LISTEN and TCP_ESTABLISHED (Linux, include/net/tcp_states.h)."""
_SOCKET: Final = "socket:["

Place = tuple[IPv4Address | IPv6Address, int]
"""An address and a TCP port."""


@dataclass(frozen=True, slots=True)
class TcpListener:
    """A listening socket."""

    address: IPv4Address | IPv6Address
    port: int
    inode: int
    """Inode number, which identifies the socket."""
    uid: int = -1
    """User id of the process that created the socket; -1: it is not known."""

    @property
    def address_and_port(self) -> str:
        """Return HOST:PORT."""
        return HttpHost(str(self.address), self.port).authority


def listener_at(place: str, *, proc: Path = PROC) -> TcpListener | None:
    """Return the listener that accepts connections to *place*; None when this host has none.

    :param place: HOST:PORT.
    """
    host, _, port = place.rpartition(":")
    name = host.strip("[]")
    listeners = [listener for listener in tcp_listeners(proc=proc) if listener.port == int(port)]
    for address in _addresses(name):
        # The kernel prefers a listener on this address to a listener on all addresses.
        matches = [listener for listener in listeners if _takes(listener, address)]
        matches.sort(key=lambda listener: listener.address.is_unspecified)
        if matches:
            return matches[0]
    return None


def listeners_of(pid: int, *, proc: Path = PROC) -> list[TcpListener]:
    """Return the listeners that a process has open; empty when the process cannot be read."""
    inodes = set(_inodes(proc / str(pid)))
    return [listener for listener in tcp_listeners(proc=proc) if listener.inode in inodes]


def tcp_listeners(*, proc: Path = PROC) -> Iterator[TcpListener]:
    """Read all TCP listeners of this network namespace."""
    for local, _remote, uid, inode in _sockets(_LISTEN, proc):
        yield TcpListener(*_place(local), inode, uid)


def client_user(client: Place, server: Place, *, proc: Path = PROC) -> int | None:
    """Return the user id of the process that created the client's socket of a connection.

    None when this network namespace has no such client, or its socket is closed. The kernel calls
    root the owner of a closed socket (Linux, net/core/sock.c, sock_i_uid), and a socket may be
    closed while it is read: both of two readings have to find it open.

    :param client: the client's address and port.
    :param server: the address and port that it is connected to.
    """
    first, second = (_open_client(client, server, proc) for _reading in range(2))
    return first[0] if first is not None and first == second else None


def _open_client(client: Place, server: Place, proc: Path) -> tuple[int, int] | None:
    """Return user id and inode of a client's socket; None unless it is connected and open."""
    # A host may have thousands of connections: most of them differ in their ports already.
    near, far = (f":{port:04X}" for _ip, port in (client, server))
    for local, remote, uid, inode in _sockets(_ESTABLISHED, proc):
        if not (inode and local.endswith(near) and remote.endswith(far)):
            continue
        if (_plain(_place(local)), _plain(_place(remote))) == (client, server):
            return uid, inode
    return None


def _plain(place: Place) -> Place:
    """Return a place with the IPv4 address of an IPv4-mapped one."""
    address, port = place
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, port


def _sockets(state: str, proc: Path) -> Iterator[tuple[str, str, int, int]]:
    """Return local and remote place, user id and inode of each TCP socket in a state."""
    for file in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a host without IPv6
            for line in (proc / file).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == state:
                    yield columns[1], columns[2], int(columns[7]), int(columns[9])


def _place(text: str) -> Place:
    address, _, port = text.partition(":")
    return _address(address), int(port, 16)


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse 32-bit words, each in the machine's byte order (Linux, net/ipv4/tcp_ipv4.c)."""
    words = struct.iter_unpack(">I", bytes.fromhex(text))
    return ip_address(b"".join(struct.pack("=I", *word) for word in words))


def _addresses(name: str) -> Iterator[IPv4Address | IPv6Address]:
    with contextlib.suppress(OSError, ValueError):
        for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
            yield ip_address(str(info[4][0]).partition("%")[0])


def _takes(listener: TcpListener, address: IPv4Address | IPv6Address) -> bool:
    if listener.address == address:
        return True
    # A listener on all IPv6 addresses usually accepts IPv4 as well (ipv6(7), IPV6_V6ONLY).
    return listener.address.is_unspecified and listener.address.version >= address.version


def _inodes(folder: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for path in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(path)
                if target.startswith(_SOCKET):
                    yield int(target.removeprefix(_SOCKET).rstrip("]"))
