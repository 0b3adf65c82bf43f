"""Asks the kernel for the listening TCP sockets of this network namespace (sock_diag(7)).

proc(5) has them as well, among all connections: the kernel goes through a table for these that has
hundreds of thousands of places on a large host, for milliseconds each time.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from pyroute2.netlink.diag import inet_diag_msg, inet_diag_req

from dfmeta.host.netlink_socket import DUMP, NetlinkSocket
from dfmeta.model import HttpHost

_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY."""
_LISTEN: Final = 1 << 10
"""TCP_LISTEN (Linux, include/net/tcp_states.h) in a set of states."""


@dataclass(frozen=True, slots=True)
class TcpListener:
    """A listening socket."""

    address: IPv4Address | IPv6Address
    port: int
    uid: int
    """User id of the process that created the socket."""
    inode: int

    @property
    def address_and_port(self) -> str:
        """Return HOST:PORT."""
        return HttpHost(str(self.address), self.port).authority


def listening(family: int) -> Iterator[TcpListener]:
    """Yield the listening sockets of a family.

    :raises pyroute2.netlink.exceptions.NetlinkError: the kernel lacks the list or the family.
    :raises OSError: the kernel has no such protocol of netlink.
    """
    wanted = inet_diag_req()
    wanted["sdiag_family"], wanted["sdiag_protocol"] = family, socket.IPPROTO_TCP
    wanted["idiag_states"] = _LISTEN
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as kernel:
        for one in kernel.ask(_BY_FAMILY, DUMP, wanted, inet_diag_msg):
            yield TcpListener(
                ip_address(one["idiag_src"]),
                one["idiag_sport"],
                one["idiag_uid"],
                one["idiag_inode"],
            )
