"""Asks the kernel for the listening TCP sockets of this network namespace (sock_diag(7)).

proc(5) has them as well, among all connections: the kernel goes through a table for these that has
hundreds of thousands of places on a large host, for milliseconds each time.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Final

_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY."""
_REQUEST, _DUMP, _ERROR, _DONE = 0x1, 0x300, 2, 3
"""netlink(7)."""
_LISTEN: Final = 1 << 10
"""TCP_LISTEN (Linux, include/net/tcp_states.h) in a set of states."""
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBBI48x")
"""struct inet_diag_req_v2: family, protocol, extensions, states; any socket."""
_FOUND: Final = struct.Struct("!BBBB HH 16s16s4s8s 4s4s4s4s4s")
"""struct inet_diag_msg; its ports and addresses are in the order of the network."""
_CODE: Final = struct.Struct("=i")
_NUMBER: Final = struct.Struct("=I")
_ROOM: Final = 1 << 16

Found = tuple[IPv4Address | IPv6Address, int, int, int]
"""Address, port, user id of the process that created the socket, and inode."""


def listening(family: int) -> Iterator[Found]:
    """Yield the listening sockets of a family.

    :raises OSError: the kernel has no such list, or no such family.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as sock:
        asked = _ASKED.pack(family, socket.IPPROTO_TCP, 0, 0, _LISTEN)
        length = _HEADER.size + len(asked)
        sock.send(_HEADER.pack(length, _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + asked)
        while True:
            answer = sock.recv(_ROOM)
            begin = 0
            while begin < len(answer):
                length, kind, *_rest = _HEADER.unpack_from(answer, begin)
                part = answer[begin + _HEADER.size : begin + length]
                if kind in (_ERROR, _DONE):
                    _raise(-_CODE.unpack_from(part)[0])
                    return
                yield _read(part)
                begin += (length + 3) & ~3


def _raise(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))


def _read(part: bytes) -> Found:
    family, _state, _timer, _retrans, port, _far, source, *rest = _FOUND.unpack_from(part)
    uid, inode = (_NUMBER.unpack(one)[0] for one in rest[-2:])
    address = IPv4Address(source[:4]) if family == socket.AF_INET else IPv6Address(source)
    return address, port, uid, inode
