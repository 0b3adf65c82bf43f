"""A guest's connection should get whole answers in order, and end in time, whatever comes."""

from __future__ import annotations

import gc
import re
import select
import socket
import weakref
from collections.abc import Hashable, Iterator
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import eventlet
import pytest
from eventlet.semaphore import Semaphore

from dfmeta import metrics
from dfmeta.http.connection import ServerConnection
from dfmeta.http.exchange import Abandoned, Exchange, Handler
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.http.service import HttpService
from dfmeta.http.sockets import keep_room
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Answer, GuestRequest
from dfmeta.proxy import access
from dfmeta.runtime import clock
from tests.core.unit.support import AMPLE, claim_of, let_hub_run, port, until

HOST = "Host: 169.254.169.254\r\n"
GET = f"GET /a HTTP/1.1\r\n{HOST}\r\n".encode()
PATIENT = Limits(
    header_timeout=AMPLE, body_timeout=AMPLE, keepalive_timeout=AMPLE, send_timeout=AMPLE
)


def get(path: str, *lines: str, version: str = "1.1") -> bytes:
    return "\r\n".join(
        [f"GET {path} HTTP/{version}", HOST + "\r\n".join([*lines, "", ""])]
    ).encode()


def counted(counter: Any, *labels: str) -> float:
    return float((counter.labels(*labels) if labels else counter)._value.get())


class Server(HttpService[Claim]):
    """A service without places, and an application that says what it was asked."""

    def __init__(self, limits: Limits, application: Handler[Claim] | None = None) -> None:
        super().__init__(application or self._echo, access, limits=limits, hold_timeout=5.0)
        self.limiter.idle = lambda *_which: self.noted.append("idle")  # type: ignore[method-assign]
        self.limiter.busy = lambda *_which: self.noted.append("busy")  # type: ignore[method-assign]
        self.scheduler.acquire = self._acquire  # type: ignore[method-assign]
        self.asked: list[GuestRequest] = []
        self.deadlines: list[float] = []
        self.room = True
        self.places = Semaphore(limits.requests_per_port)
        self.noted: list[str] = []
        self.given_way = 0
        self.turns: list[bool] = []

    def may_keep(self, claim: Claim, *, protected: bool) -> bool:
        return self.room

    def slots(self, claim: Claim) -> Semaphore:
        return self.places

    def _acquire(self, _sharer: Hashable) -> None:
        self.given_way += 1
        eventlet.sleep(0)

    def _echo(self, exchange: Exchange[Claim]) -> Answer:
        request = exchange.whole().request
        self.asked.append(request)
        self.deadlines.append(exchange.deadline)
        self.turns.append(exchange.acquire(exchange.deadline))
        return Answer(200, f"{request.method} {request.path} {request.body!r}".encode())


GUESTS: list[Guest] = []
"""Those of the test, which closes them."""


class Guest:
    def __init__(self, server: Server, *, waited: float = 0.0, accepted: float = 0.0) -> None:
        registry = Registry()
        registry.set_port(port())
        claim = claim_of(registry)
        with eventlet.listen(("127.0.0.1", 0)) as listener:
            keep_room(listener)
            self.sock = eventlet.connect(listener.getsockname())
            self._green, _address = listener.accept()
            self.other = self._green.fd
        # Each byte is to leave at once, though the one before is not acknowledged.
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = ServerConnection(
            self.other, claim, server, began=(accepted or clock.now()) - waited
        )
        self._thread = eventlet.spawn(self._run)
        GUESTS.append(self)

    def _run(self) -> None:
        try:
            self.connection.run()
        finally:
            self.other.close()

    def close(self) -> None:
        self._thread.kill()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self, end: bytes) -> bytes:
        data = b""
        while not data.endswith(end):
            piece = self.sock.recv(1)
            assert piece, f"{data!r} and no more"
            data += piece
        return data

    def rest(self) -> bytes:
        data = b""
        while piece := self.sock.recv(65536):
            data += piece
        return data

    def wait(self) -> None:
        self._thread.wait()

    def is_reset(self) -> bool:
        """Read until the end; whether that was a reset, which a green socket does not tell."""
        while True:
            try:
                if not self.sock.fd.recv(65536):
                    return False
            except BlockingIOError:
                eventlet.sleep(1)
            except ConnectionResetError:
                return True

    def status(self) -> int:
        """Read an answer's head and body; its status."""
        head = self.receive(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length, head
        for _ in range(int(length[1])):
            self.receive(b"")
            assert self.sock.recv(1)
        return int(head.split()[1])


@pytest.fixture
def server() -> Server:
    return Server(PATIENT)


@pytest.fixture
def guest(server: Server) -> Guest:
    return Guest(server)


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while GUESTS:
        GUESTS.pop().close()


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def test_answer_has_all_headers_and_its_body(guest: Guest) -> None:
    guest.send(get("/a?b", "Connection: close"))
    head, _blank, body = guest.rest().partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert (first, body) == ("HTTP/1.1 200 OK", b"GET /a b''")
    assert headers.keys() == {"Date", "Content-Type", "Content-Length", "Connection"}
    assert headers["Connection"] == "close"
    assert parsedate_to_datetime(headers["Date"]).timestamp() == int(clock.wall())


def test_requests_of_one_connection_are_answered_in_order(server: Server, guest: Guest) -> None:
    post = f"POST /b HTTP/1.1\r\n{HOST}Content-Length: 4\r\n\r\nGET ".encode()
    chunked = f"POST /c HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n2\r\nxy\r\n0\r\n\r\n"
    guest.send(get("/a") + post + chunked.encode() + get("/d", "Connection: close"))
    bodies = re.findall(rb"\r\n\r\n([^\r]+?)(?=HTTP/1.1|\Z)", guest.rest())
    assert bodies == [b"GET /a b''", b"POST /b b'GET '", b"POST /c b'xy'", b"GET /d b''"]
    assert [request.body for request in server.asked] == [b"", b"GET ", b"xy", b""]


def test_one_empty_line_before_a_request_is_skipped(server: Server, guest: Guest) -> None:
    for pieces in ((b"\r\n" + get("/a"),), (b"\r", b"\n", get("/b")), (b"\r\nG", get("/c")[1:])):
        for piece in pieces:
            guest.send(piece)
            let_hub_run()
        assert guest.status() == 200, pieces
    guest.send(get("/d") + b"\r\n" + get("/e") + b"\r\n\r\n" + get("/f"))
    assert statuses(guest.rest()) == [200, 200, 400]
    assert [request.path for request in server.asked] == ["/a", "/b", "/c", "/d", "/e"]


def test_many_requests_at_once_leave_others_their_turn(server: Server, guest: Guest) -> None:
    other = Guest(server)
    let_hub_run()
    echo = server.application

    def first(exchange: Exchange) -> Answer:
        server.application = echo
        other.send(get("/other"))
        assert select.select([other.other], [], [])[0]
        return echo(exchange)

    server.application = first
    guest.send(get("/many") * 60)
    while len(server.asked) < 61:
        eventlet.sleep(0)
    assert [request.path for request in server.asked].index("/other") < 30


def test_malformed_request_is_refused_and_ends_connection(server: Server, guest: Guest) -> None:
    before = counted(metrics.REFUSED, "malformed"), counted(metrics.REQUESTS, "4xx", "dfmeta")
    guest.send(get("/a") + b"GET  /b HTTP/1.1\r\n\r\n" + get("/c"))
    answers = guest.rest()
    assert statuses(answers) == [200, 400]
    assert answers.count(b"Connection: close") == 1
    assert [request.path for request in server.asked] == ["/a"]
    after = counted(metrics.REFUSED, "malformed"), counted(metrics.REQUESTS, "4xx", "dfmeta")
    assert after == (before[0] + 1, before[1] + 1)


def test_a_request_above_a_limit_is_refused_and_counted() -> None:
    for sent, status, limit in (
        (b"GET /" + b"a" * 3000, 414, "request_line_max"),
        (GET[:-2] + b"A: " + b"b" * 9000 + b"\r\n\r\n", 431, "header_max"),
        (GET[:-2] + b"a:\r\n" * 64 + b"\r\n", 431, "header_lines_max"),
        (GET[:-2] + b"Content-Length: 4097\r\n\r\n", 413, "body_max"),
        (GET[:-2] + b"Content-Length: 60000\r\n\r\n" + b"x" * 60000, 413, "body_max"),
        (GET[:-2], 408, "header_timeout"),
        (GET[:-2] + b"Content-Length: 2\r\n\r\nx", 408, "body_timeout"),
    ):
        guest = Guest(Server(PATIENT))
        begun, before = clock.now(), counted(metrics.LIMITS, limit)
        guest.send(sent)
        assert statuses(guest.rest()) == [status], limit
        assert counted(metrics.LIMITS, limit) == before + 1
        assert (clock.now() - begun >= AMPLE) == (status == 408)


def test_trailers_have_the_limits_of_headers() -> None:
    server = Server(replace(PATIENT, head=HeadLimits(lines=3)))
    for lines, status in ((3, 200), (4, 431)):
        guest = Guest(server)
        trailers = "".join(f"A-{n}: b\r\n" for n in range(lines))
        sent = get("/a", "Transfer-Encoding: chunked", "Connection: close")
        guest.send(sent + f"0\r\n{trailers}\r\n".encode())
        assert statuses(guest.rest()) == [status]


def test_a_silent_guest_is_closed_without_an_answer(guest: Guest) -> None:
    noted = [(metrics.LIMITS, "header_timeout"), (metrics.CLOSED, "silent")]
    no_request = [(metrics.REFUSED, "header_timeout"), (metrics.REQUESTS, "4xx", "dfmeta")]
    before = [counted(*one) for one in (*noted, *no_request)]
    assert guest.rest() == b""
    after = [counted(*one) for one in (*noted, *no_request)]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 0, 0]


def test_idle_kept_connection_is_closed_without_an_answer(server: Server, guest: Guest) -> None:
    before = counted(metrics.LIMITS, "header_timeout")
    guest.send(GET)
    assert guest.status() == 200
    assert guest.rest() == b""
    assert counted(metrics.LIMITS, "header_timeout") == before
    assert server.noted == ["idle"]


def test_a_kept_connection_that_is_used_again_is_busy(server: Server, guest: Guest) -> None:
    for _ in range(2):
        guest.send(GET)
        assert guest.status() == 200
        while len(server.noted) % 2 == 0:
            eventlet.sleep(0)
        assert guest.connection.between
    assert server.noted == ["idle", "busy", "idle"]


def test_a_connection_is_kept_as_the_guest_asks_for() -> None:
    for request, kept in (
        (get("/a"), True),
        (get("/a", "Connection: close"), False),
        (get("/a", "Connection: keep-alive, Close"), False),
        (get("/a", "Connection: x", "connection: close"), False),
        (get("/a", version="1.0"), False),
        (get("/a", "Connection: Keep-Alive", version="1.0"), True),
    ):
        guest = Guest(Server(PATIENT))
        guest.send(request + GET)
        answers = guest.rest()
        assert statuses(answers) == [200] * (1 + kept), request
        old = b"HTTP/1.0" in request
        shown = b"Connection: keep-alive" if kept and old else b"Connection: close"
        assert (shown in answers) == (old or not kept), request


def test_connection_is_closed_when_crowded_or_draining() -> None:
    for options in ({"room": False}, {"draining": True}):
        server = Server(PATIENT)
        vars(server).update(options)
        guest = Guest(server)
        guest.send(GET)
        answers = guest.rest()
        assert statuses(answers) == [200]
        assert b"Connection: close" in answers


def test_a_guest_that_expects_100_continue_gets_it(server: Server, guest: Guest) -> None:
    guest.send(get("/a", "Content-Length: 2", "Expect: 100-continue", "Connection: close"))
    assert guest.receive(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    guest.send(b"xy")
    assert statuses(guest.rest()) == [200]
    assert server.asked[0].body == b"xy"


def test_a_body_that_the_application_does_not_read_is_not_waited_for() -> None:
    def refuse(_exchange: Exchange) -> Answer:
        return Answer(405)

    for line in ("Content-Length: 2", "Transfer-Encoding: chunked"):
        guest = Guest(Server(PATIENT, refuse))
        guest.send(get("/a", line, "Expect: 100-continue"))
        answer = guest.receive(b"\r\n\r\n")
        assert statuses(answer) == [405]
        assert b"Connection: close" in answer
        # It may be on its way.
        guest.send(b"xy" + GET)
        assert guest.rest() == b""


def test_others_have_their_turn_after_each_piece_of_a_body(server: Server, guest: Guest) -> None:
    guest.send(get("/a", "Content-Length: 4096", "Connection: close"))
    until(lambda: not guest.connection._body_read, "the head to be read")
    let_hub_run()
    before = server.given_way
    for number in range(4):
        guest.send(b"x" * 1024)
        turns = before + number + 1
        until(lambda turns=turns: server.given_way >= turns, "the piece to be read")
        let_hub_run()
    assert statuses(guest.rest()) == [200]
    assert server.given_way == before + 4


def test_a_body_of_many_chunks_is_refused_and_counted(guest: Guest) -> None:
    before = counted(metrics.REFUSED, "chunks"), counted(metrics.LIMITS, "body_max")
    guest.send(get("/a", "Transfer-Encoding: chunked") + b"1\r\nx\r\n" * 4096 + b"0\r\n\r\n")
    assert statuses(guest.rest()) == [413]
    after = counted(metrics.REFUSED, "chunks"), counted(metrics.LIMITS, "body_max")
    assert after == (before[0] + 1, before[1] + 1)


def test_a_body_that_is_too_long_gets_no_100_continue(guest: Guest) -> None:
    guest.send(get("/a", "Content-Length: 5000", "Expect: 100-continue"))
    assert statuses(guest.rest()) == [413]


def test_a_guest_that_does_not_read_is_reset_and_costs_no_more_than_its_answer() -> None:
    body = b"x" * 8_000_000

    server = Server(PATIENT, lambda _exchange: Answer(200, body))
    guest = Guest(server)
    before = counted(metrics.LIMITS, "send_timeout")
    guest.send(GET)
    while counted(metrics.LIMITS, "send_timeout") == before:
        eventlet.sleep(1)
    assert guest.is_reset()
    assert server.places.counter == PATIENT.requests_per_port, "its place is free again"


def test_an_answer_that_is_not_read_is_given_up_without_the_collectors_help() -> None:
    class Kept(str):
        """A part of the answer that can be watched."""

    watched: list[weakref.ref[Kept]] = []

    def large(_exchange: Exchange) -> Answer:
        kept = Kept("kept")
        watched.append(weakref.ref(kept))
        return Answer(200, b"x" * 8_000_000, kept)

    guest = Guest(Server(PATIENT, large))
    gc.disable()
    try:
        guest.send(GET)
        guest.wait()
        assert [one() for one in watched] == [None]
    finally:
        gc.enable()


def test_request_above_the_ports_limit_waits_for_a_slot() -> None:
    server = Server(replace(PATIENT, requests_per_port=1))
    server.places.acquire()
    guest = Guest(server)
    guest.send(GET)
    let_hub_run()
    assert server.turns == []
    server.places.release()
    assert guest.status() == 200
    assert server.turns == [True]
    assert server.places.counter == 1


def test_request_without_a_slot_releases_none() -> None:
    server = Server(replace(PATIENT, requests_per_port=1))
    server.places.acquire()
    guest = Guest(server)
    guest.send(GET)
    assert guest.status() == 200
    assert server.turns == [False]
    assert server.places.counter == 0


def test_the_wait_of_the_syn_and_of_the_queue_count_once() -> None:
    server = Server(PATIENT)
    accepted = clock.now() - 1.0
    guest = Guest(server, waited=2.0, accepted=accepted)
    guest.send(GET + GET)
    assert [guest.status(), guest.status()] == [200, 200]
    first, second = server.deadlines
    assert first == pytest.approx(accepted - 2.0 + 5.0)
    assert second == pytest.approx(clock.now() + 5.0)


def test_abandoned_connection_gets_no_byte() -> None:
    def abandon(_exchange: Exchange) -> Answer:
        raise Abandoned("timeout")

    before = counted(metrics.CLOSED, "timeout")
    guest = Guest(Server(PATIENT, abandon))
    guest.send(GET + GET)
    assert guest.rest() == b""
    assert counted(metrics.CLOSED, "timeout") == before + 1


def test_an_aborted_connection_is_not_counted_again() -> None:
    def abandon(_exchange: Exchange) -> Answer:
        guest.connection.abort()
        raise Abandoned("changed")

    before = counted(metrics.CLOSED, "changed")
    guest = Guest(Server(PATIENT, abandon))
    guest.send(GET)
    assert guest.is_reset()
    assert counted(metrics.CLOSED, "changed") == before


def test_a_guest_that_leaves_amid_a_request_is_forgotten(server: Server, guest: Guest) -> None:
    guest.send(GET[:-4])
    guest.sock.shutdown(socket.SHUT_WR)
    assert guest.rest() == b""
    assert server.asked == []
