"""Whether the kernel's side of the packet path may have changed, without reading it."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eventlet.patcher import original

from dfmeta.flows.family import IPV4, Family

_socket = original("socket")
"""Unpatched: nothing here waits."""
_GROUPS: Final = 1 << 0 | 1 << 2
"""RTMGRP_LINK and _NEIGH of linux/rtnetlink.h."""
_GROUPS_OF: Final[Mapping[Family, int]] = {IPV4: 1 << 4 | 1 << 6 | 1 << 7}
"""RTMGRP_IPV4_IFADDR, _IPV4_ROUTE and _IPV4_RULE."""
_ROOM: Final = 4096
"""Bytes of messages that are kept: a host that changes all the time has no more to read."""


class Changes:
    """Hears of changes of links, addresses, neighbours, routes and rules (rtnetlink(7)).

    The kernel tells each reader of its groups, in the reader's network namespace. Where it has no
    room left for a message, it says so, which counts as a change.

    :param families: whose addresses, routes and rules count.
    """

    def __init__(self, families: Iterable[Family] = (IPV4,)) -> None:
        self._groups = _GROUPS
        for family in families:
            self._groups |= _GROUPS_OF[family]
        self._sock: Any = None

    def close(self) -> None:
        """Give the descriptor back; the next :meth:`take` opens another."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def take(self) -> bool:
        """Whether there may have been a change since the last call; True at the first. Never waits.

        :raises OSError: when there is no descriptor for the socket.
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
