"""Changes of the device, of its table and of the host's addresses count, and no others."""

import errno
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dfmeta.host import changes
from dfmeta.host.changes import KernelChanges

TAP, OTHER = 5, 6
V4, V6 = socket.AF_INET, socket.AF_INET6
GLOBAL, LINK = 0, 253


class Socket:
    """A routing socket: it has a filter of the kernel's, and receives what ``kernel`` sends."""

    def __init__(self, *_kind: int) -> None:
        self._sock, self.kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.setblocking, self.setsockopt = self._sock.setblocking, self._sock.setsockopt
        self.groups = 0
        self.lost = self.closed = False

    def bind(self, address: tuple[int, int]) -> None:
        self.groups = address[1]

    def recv(self, size: int) -> bytes:
        if self.lost:
            self.lost = False
            raise OSError(errno.ENOBUFS, "no buffer space available")
        return self._sock.recv(size)

    def close(self) -> None:
        self.closed = True
        self._sock.close()
        self.kernel.close()


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Socket]]:
    made: list[Socket] = []

    def make(*kind: int) -> Socket:
        assert kind == (socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        made.append(Socket())
        return made[-1]

    monkeypatch.setattr(changes, "_socket", SimpleNamespace(socket=make))
    yield made
    for sock in made:
        sock.close()


def message(kind: int, content: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(content), kind, 0, 0, 0) + content


def device(index: int, kind: int = 16) -> bytes:
    return message(kind, struct.pack("=BBHiII", 0, 0, 1, index, 0, 0))


def neighbour(index: int, kind: int = 28) -> bytes:
    return message(kind, struct.pack("=BBHiHBB", V4, 0, 0, index, 2, 0, 1))


def address(family: int, scope: int, index: int, kind: int = 20) -> bytes:
    return message(kind, struct.pack("=BBBBI", family, 64, 0, scope, index))


def route(table: int, kind: int = 24) -> bytes:
    return message(kind, struct.pack("=BBBBBBBBI", V4, 0, 0, 0, table, 4, 0, 1, 0))


RULE = message(32, bytes(12))
COUNTED: list[bytes] = [
    *(device(TAP, kind) for kind in (16, 17)),
    *(neighbour(TAP, kind) for kind in (28, 29)),
    *(address(V4, scope, index) for scope in (GLOBAL, LINK) for index in (TAP, OTHER)),
    *(address(V6, GLOBAL, OTHER, kind) for kind in (20, 21)),
    address(V6, LINK, TAP),
    *(route(2, kind) for kind in (24, 25)),
    RULE,
]
DROPPED: list[bytes] = [
    *(device(OTHER, kind) for kind in (16, 17)),
    *(neighbour(OTHER, kind) for kind in (28, 29)),
    *(address(V6, LINK, OTHER, kind) for kind in (20, 21)),
    *(route(254, kind) for kind in (24, 25)),
]


def test_changes_of_the_device_and_of_its_table_count(sockets: list[Socket]) -> None:
    seen = KernelChanges(2)
    assert seen.take(TAP), "nothing is known yet"
    assert not seen.take(TAP)
    for part in COUNTED:
        sockets[0].kernel.send(part)
        assert seen.take(TAP), part
        assert not seen.take(TAP)
    for part in DROPPED:
        sockets[0].kernel.send(part)
        assert not seen.take(TAP), part
    assert len(sockets) == 1


def test_another_index_is_a_change_and_counts_from_then_on(sockets: list[Socket]) -> None:
    seen = KernelChanges(2)
    seen.take(TAP)
    assert seen.take(OTHER)
    assert not seen.take(OTHER)
    sockets[0].kernel.send(device(TAP))
    assert not seen.take(OTHER)
    sockets[0].kernel.send(device(OTHER))
    assert seen.take(OTHER)


def test_a_table_above_255_counts_with_all_of_them(sockets: list[Socket]) -> None:
    for number, byte in ((255, 255), (256, 252), (300, 252)):
        seen = KernelChanges(number)
        seen.take(TAP)
        sockets[-1].kernel.send(route(byte))
        assert seen.take(TAP)
        sockets[-1].kernel.send(route(254))
        assert not seen.take(TAP)


def test_lost_messages_are_a_change(sockets: list[Socket]) -> None:
    seen = KernelChanges(2)
    seen.take(TAP)
    sockets[0].lost = True
    assert seen.take(TAP)
    assert not seen.take(TAP)


def test_closed_socket_joins_again(sockets: list[Socket], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = KernelChanges(2)
    seen.close()
    seen.take(TAP)
    # linux/rtnetlink.h: RTMGRP_... of links, neighbours, and both families' addresses and routes;
    # the rules of version 4 and 6, and IPV6_IFINFO.
    assert sockets[0].groups == 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x800 | 0x40000
    seen.close()
    assert sockets[0].closed
    assert seen.take(TAP)
    assert len(sockets) == 2
    seen.close()
    monkeypatch.setattr(Socket, "bind", refuse)
    with pytest.raises(OSError, match="refused"):
        seen.take(TAP)
    assert sockets[2].closed


def refuse(*_arguments: object) -> None:
    raise OSError("refused")
