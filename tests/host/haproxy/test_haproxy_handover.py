"""haproxy should hand over to the daemon what it does not answer itself, with guest and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from dfmeta.guest_counts import ACCEPTED
from dfmeta.runtime import clock
from tests.core.unit.haproxy.support import value
from tests.core.unit.haproxy.test_haproxy_handover import ENDPOINT, World
from tests.core.unit.upstream import Upstream
from tests.host.haproxy.support import HERE, Loopback, server


class OnLoopback(World):
    """The guest's key is the source address on loopback."""

    def __init__(self) -> None:
        super().__init__(HERE)
        claim = self.registry.claim
        real = self.registry.keys.key_of(ENDPOINT, 0)
        self.asked: list[IPv4Address | IPv6Address] = []

        def loopback(peer: IPv4Address | IPv6Address) -> Any:
            self.asked.append(peer)
            return claim(real)

        self.registry.claim = loopback  # type: ignore[method-assign]


@pytest.fixture
def daemon() -> Iterator[OnLoopback]:
    made = OnLoopback()
    yield made
    made.server.stop(0.0)


def test_unknown_guests_and_requests_that_are_not_plain_are_handed_over(
    loopback: Callable[..., Loopback], daemon: OnLoopback, upstream: Upstream
) -> None:
    haproxy = loopback(server(upstream), handover=daemon.name)
    daemon.peers = set()
    assert haproxy.ask() == b"", "without the daemon's answer there is none"
    assert daemon.asked == []
    daemon.peers = {haproxy.process.pid}
    assert b"tap1" in haproxy.ask()
    haproxy.put(value())
    assert b"{}" in haproxy.ask()
    assert b"tap1" in haproxy.ask(b"GET /a?b HTTP/1.1\r\nHost: a\r\n\r\n")
    assert len(upstream.asked) == 1
    assert daemon.asked == [IPv4Address(HERE)] * 2
    identity = daemon.registry.identity(ENDPOINT)
    assert identity is not None
    assert ACCEPTED.of(ENDPOINT, identity.incarnation) == 1, "haproxy counts a guest that it knows"
    upstream.stop()
    begun = clock.now()
    assert b"tap1" in haproxy.ask(), "Nova refuses it"
    assert 5.0 - (clock.now() - begun) - 0.1 <= daemon.deadlines[-1] <= 5.0
