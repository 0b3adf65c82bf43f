"""Detects possible changes of the kernel's side of the packet path without reading it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventlet.patcher import original

from dfmeta.flows.family import FAMILIES, IPV4, IPV6, Family

_socket = original("socket")
"""Not patched by eventlet: no call here waits."""
_GROUPS: Final = 1 << 0 | 1 << 2
"""RTMGRP_LINK and _NEIGH of linux/rtnetlink.h."""
_GROUPS_OF: Final[Mapping[Family, int]] = {
    IPV4: 1 << 4 | 1 << 6 | 1 << 7,
    IPV6: 1 << 8 | 1 << 10 | 1 << 11 | 1 << 18,
}
"""RTMGRP_IPV4_IFADDR, _IPV4_ROUTE and _IPV4_RULE; RTMGRP_IPV6_IFADDR, _IPV6_ROUTE and _IPV6_IFINFO,
and the group of RTNLGRP_IPV6_RULE. A kernel without IPv6 accepts all of them."""
_ROOM: Final = 4096
"""Size of the receive buffer in bytes. It is small, so that a host with constant changes leaves few
messages to read."""


class Changes:
    """Receives notifications of changed links, addresses, neighbours, routes and rules.

    The kernel sends them to each member of a multicast group, for the network namespace of the
    socket (rtnetlink(7)). When the buffer is full, the kernel reports lost messages; this counts as
    a change.

    :param families: address families of the addresses, routes and rules that count.
    """

    def __init__(self, families: Iterable[Family] = FAMILIES) -> None:
        self._groups = _GROUPS
        for family in families:
            self._groups |= _GROUPS_OF[family]
        self._sock: Any = None

    def close(self) -> None:
        """Close the socket; the next :meth:`take` opens another one."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def take(self) -> bool:
        """Return whether something may have changed since the last call. Never waits.

        The first call returns True.

        :raises OSError: when there is no free descriptor for the socket.
        """
        if self._sock is None:
            sock = _socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
                sock.setblocking(False)
                sock.bind((0, self._groups))
            except BaseException:
                sock.close()
                raise
            self._sock = sock
            return True
        changed = False
        while True:
            try:
                self._sock.recv(1)
            except BlockingIOError:
                return changed
            except OSError:  # ENOBUFS: messages were dropped
                pass
            changed = True
