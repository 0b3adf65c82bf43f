"""The filter of a listener should drop what arrives on another device; it needs a capability."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dfmeta.cmd.tap import TapKeeper
from dfmeta.proxy.sockets import confine, confined, silence
from dfmeta.state import State
from tests.core.unit.test_keeping import group


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def test_a_filter_resets_earlier_connections_and_drops_later_ones(listener: socket.socket) -> None:
    class Green:
        fd = listener
        setsockopt = listener.setsockopt

    listener.setblocking(False)
    assert not confined(listener)
    with socket.create_connection(listener.getsockname()) as early:
        # What it is connected to may not be there to be accepted yet.
        assert select.select([listener], [], [])[0]
        assert silence(Green()) == 1
        with pytest.raises(ConnectionResetError):
            early.recv(1)
    assert confined(listener)
    with socket.socket() as late:
        late.setblocking(False)
        # Refused or established, it would be ready for writing.
        late.connect_ex(listener.getsockname())
        assert select.select([], [late], [], 0) == ([], [], [])
    confine(listener, socket.if_nametoindex("lo"))
    socket.create_connection(listener.getsockname()).close()


def test_a_port_that_is_free_a_moment_later_is_taken(listener: socket.socket) -> None:
    looks: list[int] = []

    def take() -> list[int]:
        looks.append(1)
        if len(looks) == 3:
            listener.close()
        return []

    port = listener.getsockname()[1]
    keeper: Any = SimpleNamespace(take=take, keep=lambda _fds: None)
    tap = TapKeeper(group(port=port), State(), keeper)
    tap.listeners.open()
    assert tap.listeners.sockets[4].getsockname()[1] == port
    tap.listeners.sockets[4].close()
    assert len(looks) == 3
