"""The admin listener's server should survive its applications' defects, read no body unasked, and
keep no more in memory than it may."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import eventlet
import pytest
from webob import Request, Response

from dfmeta import metrics
from dfmeta.admin import server as admin_server
from dfmeta.admin.server import LIMITS, AdminHandler, AdminServer
from dfmeta.http.limits import Limits
from dfmeta.http.sockets import keep_room
from tests.core.unit.support import AMPLE, Listener, until

PEER, OTHER = "192.0.2.1", "2001:db8::1"
LIMIT = 1000
"""Bytes of a body that the application takes."""
LARGE = b"x" * (16 << 20)
"""More than the kernel keeps of an answer."""


class World:
    """A server, and an application that reads a body or does not, by the path."""

    def __init__(self, limits: Limits = LIMITS, application: AdminHandler | None = None) -> None:
        self.listener = Listener()
        keep_room(self.listener._sock)
        self.seen: list[bytes] = []
        self.server = AdminServer(self.listener, application or self._answer, limits=limits)
        self.server.start()

    def _answer(self, request: Request) -> Response:
        body, status = request.remote_addr.encode(), 200
        match request.path_info:
            case "/read":
                body = request.body_file_raw.read(LIMIT)
                self.seen.append(body)
            case "/large":
                body = LARGE
            case "/refuse":
                status = 401
            case "/defect":
                raise RuntimeError("a defect")
        return Response(body, status=status)

    def connect(self, peer: str = PEER) -> Any:
        return self.listener.connect(peer)

    def holds(self, count: int) -> None:
        """Wait until so many bytes of bodies and answers are in memory."""
        until(lambda: self.server.memory.held == count, f"{count} bytes in memory")

    def ask(self, raw: bytes, peer: str = PEER) -> bytes:
        """All that comes until the server closes."""
        with self.connect(peer) as sock:
            sock.sendall(raw)
            return rest(sock)


@pytest.fixture
def world() -> Iterator[World]:
    server_world = World()
    yield server_world
    server_world.server.stop(0.0)


def request(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def rest(sock: Any) -> bytes:
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def one_answer(sock: Any) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(1)
        assert piece, f"{data!r} and no more"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += sock.recv(length - len(body))
    return int(head.split(b" ")[1]), body


def counted(reason: str) -> float:
    return float(metrics.ADMIN_REFUSED.labels(reason)._value.get())


CHUNKED = "Transfer-Encoding: chunked"


def test_defect_is_500_and_a_traceback(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = counted("defect")
    with world.connect() as sock:
        for _ in range(3):
            sock.sendall(request("/defect"))
            status, body = one_answer(sock)
            assert (status, json.loads(body)) == (500, {"message": "internal server error"})
        sock.sendall(request("/"))
        assert one_answer(sock) == (200, PEER.encode())
    assert counted("defect") == before + 3
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "GET '/defect' of the admin listener failed" in record.getMessage()
    assert "Traceback" in record.getMessage()


def test_a_malformed_request_is_refused_in_json(world: World) -> None:
    before = counted("malformed")
    answer = world.ask(b"GET /\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert "request line" in json.loads(answer.rpartition(b"\r\n\r\n")[2])["message"]
    assert counted("malformed") == before + 1


def test_body_is_read_on_demand(world: World) -> None:
    with world.connect() as sock:
        sock.sendall(request("/read", "Content-Length: 3", method="POST") + b"abc")
        assert one_answer(sock) == (200, b"abc")
        chunks = b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: x\r\n\r\n"
        sock.sendall(request("/read", CHUNKED, method="POST") + chunks + request("/"))
        assert [one_answer(sock) for _ in "ab"] == [(200, b"abc"), (200, PEER.encode())]
    assert world.seen == [b"abc"] * 2


def test_a_malformed_body_is_refused_and_the_connection_closed(world: World) -> None:
    for body, status in (
        (b"%x\r\n" % (LIMIT + 1), 413),
        (b"x\r\n", 400),
        (b"1\r\nab\r\n", 400),
        (b"0\r\nX: " + b"a" * LIMITS.head.header, 431),
    ):
        answer = world.ask(request("/read", CHUNKED, method="POST") + body)
        assert answer.startswith(b"HTTP/1.1 %d " % status), body
        assert b"Connection: close\r\n" in answer


def test_a_body_that_stops_coming_is_408(world: World) -> None:
    answer = world.ask(request("/read", "Content-Length: 3", method="POST") + b"a")
    assert answer.startswith(b"HTTP/1.1 408 ")


# Memory


def test_oldest_body_is_closed_for_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "HELD", 1000)
    before = counted("memory")
    socks = [world.connect(peer) for peer in (PEER, OTHER, PEER)]
    for number, sock in enumerate(socks):
        world.holds(400 * number)
        sock.sendall(request("/read", "Content-Length: 500", method="POST") + b"x" * 400)
    assert socks[0].recv(1) == b"", "it has waited longest"
    assert counted("memory") == before + 1
    for sock in socks[1:]:
        sock.sendall(b"x" * 100)
        assert one_answer(sock) == (200, b"x" * 500)
    world.holds(0)


def test_unread_answers_close_for_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "HELD", 3 * len(LARGE))
    before = counted("memory")
    unread = [world.connect() for _ in range(6)]
    for number, sock in enumerate(unread, 1):
        sock.sendall(request("/large"))
        ended = before + max(0, number - 3)
        until(lambda ended=ended: counted("memory") >= ended, "another to give way")
        world.holds(min(number, 3) * len(LARGE))
    assert counted("memory") == before + 3
    assert one_answer(unread[-1]) == (200, LARGE)
    for sock in unread:
        sock.close()


def test_waiting_bodies_do_not_deadlock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_server, "HELD", 1000)
    socks = [world.connect() for _ in range(2)]
    for sock in socks:
        sock.sendall(request("/read", "Content-Length: 900", method="POST") + b"x" * 450)
    world.holds(2 * 450)
    for sock in socks:
        sock.sendall(b"x" * 450)
    answers = [sock.makefile("rb").read(16) for sock in socks]
    # Either may have waited for longer.
    assert sorted(answers) == [b"", b"HTTP/1.1 200 OK\r"]


# Connections


def test_a_connection_that_waits_for_its_client_makes_room_within_a_moment() -> None:
    world = World(replace(LIMITS, connections_per_port=2, waiting_per_port=8))
    posting = request("/read", "Content-Length: 3", method="POST")
    socks = [world.connect() for _ in range(6)]
    for sock in socks:
        sock.sendall(posting)
    with world.connect() as sock:
        sock.sendall(request("/"))
        assert one_answer(sock) == (200, PEER.encode())
    world.server.stop(0.0)


def test_admin_connections_are_no_guests_connections(world: World) -> None:
    def figure(name: str) -> float | None:
        return metrics.REGISTRY.get_sample_value(name)

    guests = figure("dfmeta_open_connections")
    closed = [sample.value for sample in metrics.CLOSED.collect()[0].samples]
    kept = [world.connect() for _ in range(3)]
    world.ask(b"nonsense\r\n\r\n")
    until(lambda: figure("dfmeta_admin_open_connections") == 3, "one to be closed")
    assert figure("dfmeta_open_connections") == guests
    assert [sample.value for sample in metrics.CLOSED.collect()[0].samples] == closed
    for sock in kept:
        sock.close()


def test_at_the_end_silent_connections_are_closed_and_requests_answered() -> None:
    gate = eventlet.event.Event()

    requests: list[Request] = []

    def application(request: Request) -> Response:
        requests.append(request)
        gate.wait()
        return Response(b"x")

    world = World(application=application)
    silent, running = world.connect(), world.connect()
    running.sendall(request("/"))
    until(lambda: requests, "the request")
    stopping = eventlet.spawn(world.server.stop, AMPLE)
    assert silent.recv(1) == b""
    gate.send()
    assert rest(running).endswith(b"x")
    stopping.wait()


def test_request_has_the_clients_values() -> None:
    seen: dict[str, Any] = {}

    def application(request: Request) -> Response:
        seen.update(request.environ)
        assert request.body_file_raw.read(3) == b"abc"
        return Response()

    world = World(application=application)
    lines = ("Content-Length: 3", "Content-Type: x/y", "X-One: 1", "X_One: 2", "Connection: close")
    answer = world.ask(request("/a%20b?c=%20", *lines) + b"abc")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    wanted = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/a b",
        "QUERY_STRING": "c=%20",
        "HTTP_HOST": "localhost",
        "CONTENT_TYPE": "x/y",
        "CONTENT_LENGTH": "3",
        "HTTP_X_ONE": "1",
    }
    assert {key: seen.get(key) for key in wanted} == wanted
    world.server.stop(0.0)
