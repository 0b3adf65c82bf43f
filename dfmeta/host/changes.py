"""Detects possible changes of the kernel's side of the packet path without reading it."""

import socket
from collections.abc import Sequence
from typing import Any, Final

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.rtmsg import RT_SCOPE_LINK

from dfmeta.host.rules import header_table
from dfmeta.runtime.socket_filter import DROP, PASS, Instruction, attach, load, when
from dfmeta.runtime.threads import original

_socket = original("socket")
"""Not patched by eventlet: no call here waits."""
_RULES: Final = rtnl.RTMGRP_IPV4_RULE | rtnl.RTMGRP_IPV6_RULE
_GROUPS: Final = (
    (rtnl.RTMGRP_LINK | rtnl.RTMGRP_NEIGH | rtnl.RTMGRP_IPV6_IFINFO | _RULES)
    | (rtnl.RTMGRP_IPV4_IFADDR | rtnl.RTMGRP_IPV6_IFADDR)
    | (rtnl.RTMGRP_IPV4_ROUTE | rtnl.RTMGRP_IPV6_ROUTE)
)
"""Multicast groups. A kernel without IPv6 accepts all of them."""
_OF_DEVICES: Final = (rtnl.RTM_NEWLINK, rtnl.RTM_DELLINK, rtnl.RTM_NEWNEIGH, rtnl.RTM_DELNEIGH)
_ADDRESSES: Final = (rtnl.RTM_NEWADDR, rtnl.RTM_DELADDR)
_ROUTES: Final = (rtnl.RTM_NEWROUTE, rtnl.RTM_DELROUTE)
_TYPE, _FAMILY, _DST_LEN, _SCOPE, _INDEX, _TABLE = 4, 16, 17, 19, 20, 20
"""Offsets in a message: struct nlmsghdr, then struct ifinfomsg, ndmsg, ifaddrmsg, rtmsg or
fib_rule_hdr."""
_ROOM: Final = 4096
"""Size of the receive buffer in bytes. It is small, so that a host with constant changes leaves few
messages to read."""


class KernelChanges:
    """Receives notifications of changed links, addresses, neighbours, routes and rules.

    The kernel sends them to each member of a multicast group, for the network namespace of the
    socket (rtnetlink(7)). When the buffer is full, the kernel reports lost messages; this counts as
    a change.

    Others' changes do not count, on a host where guests and containers come and go, or where a
    routing daemon works: other devices and their neighbours, their link-local IPv6 addresses, which
    can be no guest's key, and the routes of other tables. A filter drops these messages.

    :param table: number of the table whose routes count.
    """

    def __init__(self, table: int) -> None:
        self._table = header_table(table)
        self._index = 0
        """Index of the device in the filter; 0: none yet."""
        self._sock: Any = None

    def close(self) -> None:
        """Close the socket; the next :meth:`take` opens another one."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def take(self, index: int) -> bool:
        """Return whether something may have changed since the last call. Never waits.

        The first call returns True, and so does each call with another index.

        :param index: index of the device that counts.
        :raises OSError: when there is no free descriptor for the socket.
        """
        if self._sock is None:
            self._sock = _open(_GROUPS, _filter(index, self._table))
            self._index = index
            return True
        is_other = index != self._index
        if is_other:
            attach(self._sock, _filter(index, self._table))
            self._index = index
        return _drain(self._sock) or is_other


class NewRules:
    """Waits for new routing rules of any program that have no selector ``to``.

    Those of a VPN are of that kind. Hosts that expose an address for each container add thousands
    with that selector, which :class:`KernelChanges` reports soon enough.
    """

    def __init__(self) -> None:
        """Open the socket.

        :raises OSError: when there is no free descriptor for it.
        """
        of_kind = [load(1, _DST_LEN), *when([0], [PASS]), DROP]
        program = [load(2, _TYPE), *when([socket.htons(rtnl.RTM_NEWRULE)], of_kind), DROP]
        self._sock = _open(_RULES, program)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there is a new rule."""
        return int(self._sock.fileno())

    def take(self) -> None:
        """Read all notifications. Never waits."""
        _drain(self._sock)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def _open(groups: int, program: Sequence[Instruction]) -> Any:
    """Return a socket that is a member of *groups*, with a filter."""
    sock = _socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        sock.setblocking(False)
        attach(sock, program)
        sock.bind((0, groups))
    except BaseException:
        sock.close()
        raise
    return sock


def _drain(sock: Any) -> bool:
    """Read all notifications, and return whether there were some."""
    changed = False
    while True:
        try:
            sock.recv(1)
        except BlockingIOError:
            return changed
        except OSError:  # ENOBUFS: messages were dropped
            pass
        changed = True


def _filter(index: int, table: int) -> list[Instruction]:
    # Netlink's numbers are in the byte order of the host.
    of_device = [load(4, _INDEX), *when([socket.htonl(index)], [PASS]), DROP]
    of_table = [load(1, _TABLE), *when([table], [PASS]), DROP]
    of_link = [load(1, _SCOPE), *when([RT_SCOPE_LINK], of_device), PASS]
    return [
        load(2, _TYPE),
        *when([socket.htons(number) for number in _OF_DEVICES], of_device),
        *when([socket.htons(number) for number in _ROUTES], of_table),
        *when(
            [socket.htons(number) for number in _ADDRESSES],
            [load(1, _FAMILY), *when([socket.AF_INET6], of_link), PASS],
        ),
        PASS,
    ]
