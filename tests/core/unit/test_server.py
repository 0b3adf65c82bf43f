"""The server should claim, place and end connections, and no guest's should be another's loss."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import eventlet
import eventlet.green.socket
import pytest
from eventlet.event import Event

from dfmeta import metrics
from dfmeta.http import connection
from dfmeta.http.exchange import Exchange
from dfmeta.http.limits import Limits
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Answer, Endpoint
from dfmeta.proxy.application import guest_server
from tests.core.unit.support import (
    AMPLE,
    INSTANCE,
    OTHER_INSTANCE,
    Listener,
    address,
    let_hub_run,
    port,
    until,
)

GET = b"GET /a HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"
FEW = Limits(connections_per_port=2, waiting_per_port=1, requests_per_port=2)


class World:
    """Ports, a server, and an application that answers with the instance that asks."""

    def __init__(self, limits: Limits = FEW, ports: int = 2) -> None:
        self.registry = Registry()
        for ofport in range(1, ports + 1):
            self.registry.set_port(port(ofport, name=f"tap{ofport}"))
            self.registry.learn(Endpoint(ofport), address(), 0)
        self.listener = Listener()
        self.gate: Event | None = None
        self.running = 0
        self.most = 0
        self.server = guest_server(
            [self.listener],
            self.registry,
            self._answer,
            device="lo",
            limits=limits,
            hold_timeout=5.0,
        )
        self.server.start()

    def _answer(self, exchange: Exchange[Claim]) -> Answer:
        assert exchange.acquire(exchange.deadline)
        if exchange.request.path == "/token":
            exchange.limit_hops(1)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.gate is not None:
            self.gate.wait()
        self.running -= 1
        return Answer(200, exchange.claim.identity.port_name.encode())

    def wait(self, connections: int) -> None:
        until(lambda: len(self.server.descriptors()) == connections, f"{connections} connections")

    def connect(self, ofport: int = 1, *, slot: int = 0) -> Any:
        return self.listener.connect(str(IN_PORT.key_of(Endpoint(ofport), slot)))


@pytest.fixture
def world() -> Iterator[World]:
    served = World()
    yield served
    served.server.stop(0.0)


def closed(reason: str) -> float:
    return float(metrics.CLOSED.labels(reason)._value.get())


def hit(limit: str) -> float:
    return float(metrics.LIMITS.labels(limit)._value.get())


def ask(sock: Any) -> bytes:
    sock.sendall(GET)
    return answer(sock)


def answer(sock: Any) -> bytes:
    data = b""
    while b"\r\n\r\ntap" not in data:
        piece = sock.recv(65536)
        if not piece:
            return data
        data += piece
    return data.partition(b"\r\n\r\n")[2]


def is_closed(sock: Any) -> bool:
    return bool(sock.recv(1) == b"")


def stays_open(sock: Any) -> bool:
    """Whether the server neither closes it nor says anything, for a while."""
    with eventlet.Timeout(1.0, False):
        sock.recv(1)
        return False
    return True


def test_guest_has_the_identity_of_its_port(world: World) -> None:
    assert [ask(world.connect(ofport)) for ofport in (1, 2)] == [b"tap1", b"tap2"]


def test_unknown_peer_gets_no_answer(world: World) -> None:
    before = closed("unknown_peer")
    for peer in (
        "10.0.0.1",
        str(IN_PORT.key_of(Endpoint(3), 0)),
        str(IN_PORT.key_of(Endpoint(1), 1)),
    ):
        assert is_closed(world.listener.connect(peer))
    assert closed("unknown_peer") == before + 3


def test_excess_connection_of_a_port_waits_and_a_further_one_is_reset(world: World) -> None:
    before = closed("too_many"), hit("connections_per_port"), hit("waiting_per_port")
    silent = [world.connect() for _ in range(2)]
    third, fourth = world.connect(), world.connect()
    third.sendall(GET)
    assert is_closed(fourth)
    assert stays_open(third)
    after = closed("too_many"), hit("connections_per_port"), hit("waiting_per_port")
    assert after == (before[0] + 1, before[1] + 1, before[2] + 1)
    assert ask(world.connect(2)) == b"tap2", "another guest does not notice"
    silent[0].close()
    assert answer(third) == b"tap1"


def test_an_idle_connection_gives_way_to_a_new_one_of_its_port(world: World) -> None:
    kept = [world.connect() for _ in range(2)]
    assert [ask(sock) for sock in kept] == [b"tap1", b"tap1"]
    let_hub_run()
    assert ask(world.connect()) == b"tap1"
    assert is_closed(kept[0])
    assert ask(kept[1]) == b"tap1"


def test_connection_with_a_token_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PROTECTED", 1000.0)
    with_token = [world.connect() for _ in range(2)]
    for guest in with_token:
        guest.sendall(GET.replace(b"/a", b"/token"))
        assert answer(guest) == b"tap1"
    (waiting := world.connect()).sendall(GET)
    world.wait(3)
    with_token[0].sendall(GET)
    assert b"\r\nConnection: close\r\n" in with_token[0].recv(65536)
    assert answer(waiting) == b"tap1"


def test_full_server_takes_a_place_from_the_greediest_port() -> None:
    world = World(replace(FEW, connections=16))
    before = closed("too_many"), hit("connections")
    first = [world.connect() for _ in range(3)]
    world.wait(3)
    world.server.service.limits = replace(FEW, connections=3)
    assert ask(world.connect(2)) == b"tap2"
    assert is_closed(first[2])
    assert (closed("too_many"), hit("connections")) == (before[0] + 1, before[1] + 1)
    world.server.stop(0.0)


def test_concurrent_requests_of_a_port_are_limited() -> None:
    world = World(replace(FEW, connections_per_port=6, requests_per_port=2))
    world.gate = Event()
    before = hit("requests_per_port")
    guests = [world.connect() for _ in range(5)]
    for guest in guests:
        guest.sendall(GET)
    other = world.connect(2)
    other.sendall(GET)
    # Three wait for their turn. Two of the one port and the other's have it.
    until(lambda: hit("requests_per_port") == before + 3, "all requests")
    until(lambda: world.running == 3, "the requests that may run")
    world.gate.send()
    assert [answer(guest) for guest in [*guests, other]] == [b"tap1"] * 5 + [b"tap2"]
    assert world.most == 3
    assert hit("requests_per_port") == before + 3
    world.server.stop(0.0)


def test_a_port_that_is_refused_too_often_waits_for_its_next_connections() -> None:
    world = World(Limits(connections_per_port=1))
    refused = world.connect()
    pauses = iter([1000.0, 0.0])
    world.server.service._throttle.pause = lambda _endpoint: next(pauses)  # type: ignore[union-attr, method-assign]  # no clock of its own
    refused.sendall(b"nonsense\r\n\r\n")
    assert refused.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
    refused.close()
    following = world.connect()
    following.sendall(GET)
    assert ask(world.connect(2)) == b"tap2"
    assert stays_open(following)
    world.server.stop(0.0)


def test_refusals_count_to_the_share_of_a_virtual_machine() -> None:
    world = World(ports=3)
    for ofport in (1, 2):
        child = replace(port(ofport, name=f"tap{ofport}"), parent="tpi-1")
        world.registry.set_port(child)
        world.registry.learn(Endpoint(ofport), address(), 0)
    sharers: list[object] = []

    def pause(guest: object) -> float:
        sharers.append(guest)
        return 0.0

    world.server.service._throttle.pause = pause  # type: ignore[union-attr, method-assign]  # no clock of its own
    for ofport in (1, 2, 3):
        sock = world.connect(ofport)
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 400 ")
        sock.close()
        world.wait(0)
    assert sharers == ["tpi-1", "tpi-1", "tap3"]
    world.server.stop(0.0)


def test_connections_of_a_changed_port_end_and_no_others(world: World) -> None:
    before = closed("changed")
    changed = [world.connect() for _ in range(3)]
    other = world.connect(2)
    world.wait(4)
    world.registry.set_port(port(1, name="tap1", instance=OTHER_INSTANCE))
    assert all(is_closed(sock) for sock in changed)
    assert closed("changed") == before + 3
    assert ask(other) == b"tap2"
    world.wait(1)


def test_an_error_of_accept_is_survived(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.listener.error = OSError(24, "Too many open files")
    assert ask(world.connect()) == b"tap1"
    assert "Cannot accept a connection" in caplog.text


def test_a_defect_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    def broken(_exchange: Exchange[Claim]) -> Answer:
        raise RuntimeError("a defect")

    before = closed("defect")
    world.server.service.application = broken
    sock = world.connect()
    sock.sendall(GET)
    assert answer(sock) == b""
    assert closed("defect") == before + 1
    assert "tap1 failed" in caplog.text
    world.server.service.application = world._answer
    kept = world.connect()
    assert ask(kept) == b"tap1"
    let_hub_run()
    assert world.registry.slots(Endpoint(1))[0].connections == 1
    world.server.stop(0.0)


def test_at_the_end_idle_connections_are_closed_and_running_requests_answered() -> None:
    world = World()
    idle, running = world.connect(1), world.connect(2)
    assert ask(idle) == b"tap1"
    let_hub_run()
    world.gate = Event()
    running.sendall(GET)
    until(lambda: world.running, "the request")
    stopping = eventlet.spawn(world.server.stop, AMPLE)
    assert is_closed(idle)
    world.gate.send()
    assert answer(running) == b"tap2"
    stopping.wait()
    assert is_closed(running)


def test_stop_closes_held_requests_after_its_grace() -> None:
    world = World()
    world.gate = Event()
    held = world.connect()
    held.sendall(GET)
    until(lambda: world.running, "the request")
    world.server.stop(0.05)
    assert is_closed(held)


def test_connections_go_on_over_a_device_that_was_made_anew(world: World) -> None:
    sock = world.connect()
    world.wait(1)
    world.server.rebind()
    (connection,) = world.server.service.limiter
    bound = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
    assert bound.rstrip(b"\0") == b"lo"
    assert ask(sock) == b"tap1"
    identity = world.registry.identity(Endpoint(1))
    assert identity is not None
    assert identity.instance_id == INSTANCE
