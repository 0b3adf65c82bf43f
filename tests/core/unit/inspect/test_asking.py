"""Questions of doctor to Nova, and the ports of Nova's that it asks about."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import eventlet
import pytest
from eventlet.event import Event
from eventlet.green import socket as green_socket
from eventlet.green import ssl as green_ssl

from dfmeta.cli.doctor_services import _of_nova, real_guests
from dfmeta.inspect.checks_nova import NovaFact
from dfmeta.inspect.facts import GuestFailure, KnownPort
from dfmeta.model import HttpHost, PortState
from dfmeta.proxy.nova import ask as ask_module
from dfmeta.proxy.nova.ask import Question, ask_nova
from dfmeta.proxy.nova.request import NovaSettings, signed
from dfmeta.runtime import clock
from tests.core.unit.inspect.values import INSTANCE, PORT

QUESTION = Question(INSTANCE, "project")
SECRET = b"secret"
Ask = Callable[..., tuple[NovaFact, list[bytes]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks a server that gives each connection in turn one of the answers; None: it says nothing,
    and the connection stays open."""
    monkeypatch.setattr(ask_module, "socket", green_socket)
    monkeypatch.setattr(ask_module, "ssl", green_ssl)
    threads: list[Any] = []

    def run(*answers: bytes | None, seconds: float = 30.0) -> tuple[NovaFact, list[bytes]]:
        listener = eventlet.listen(("127.0.0.1", 0))
        asked: list[bytes] = []

        def serve() -> None:
            with listener:
                for answer in answers:
                    connection = listener.accept()[0]
                    with connection:
                        asked.append(connection.recv(65536))
                        if answer is None:
                            Event().wait()
                        else:
                            connection.sendall(answer)

        threads.append(eventlet.spawn(serve))
        host = HttpHost("127.0.0.1", listener.getsockname()[1])
        return ask_nova(host, QUESTION, NovaSettings([host], SECRET), seconds=seconds), asked

    yield run
    for thread in threads:
        thread.kill()


def reply(status: int) -> bytes:
    date = "Date: Thu, 01 Jan 1970 00:00:00 GMT"
    return f"HTTP/1.1 {status} Said\r\n{date}\r\nContent-Length: 0\r\n\r\n".encode()


def test_nova_is_asked_as_the_daemon_asks_it_and_again_without_its_headers(ask: Ask) -> None:
    fact, (asked,) = ask(reply(403))
    assert (fact.status, fact.unsigned, fact.cause) == (403, 0, "")
    assert fact.date == "Thu, 01 Jan 1970 00:00:00 GMT"
    assert asked.startswith(b"GET /latest/meta-data/instance-id HTTP/1.1\r\nHost: 127.0.0.1:")
    assert signed(SECRET, INSTANCE, "project").encode() in asked
    fact, both = ask(reply(404), reply(400))
    assert (fact.status, fact.unsigned) == (404, 400)
    assert b"X-Instance-ID" in both[0]
    assert b"X-" not in both[1]


def test_nova_that_is_silent_costs_no_more_than_it_may(ask: Ask) -> None:
    for answers in ([None], [reply(404), None]):
        before = clock.now()
        fact, _ = ask(*answers, seconds=7)
        assert clock.now() - before == pytest.approx(7, abs=0.1)
        assert fact.cause == "it has not answered within 7 s"


# eventlet's own TLS socket is not closed where its handshake fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nova_that_closes_without_a_word_is_tried_for_tls(ask: Ask) -> None:
    alert = bytes.fromhex("15030300020228")  # handshake_failure, fatal (RFC 8446, 6)
    fact, asked = ask(b"", alert)
    assert fact.cause == "it speaks TLS"
    assert asked[1][0] == 0x16  # a ClientHello
    fact, _ = ask(b"", b"HTTP/1.1 400 Bad\r\n\r\n")
    assert fact.cause == "it closed the connection without an answer"
    gc.collect()


def test_id_that_cannot_stand_in_a_header_is_not_sent() -> None:
    host = HttpHost("127.0.0.1", 1)
    fact = ask_nova(host, Question("a\r\nb", "p"), NovaSettings([host], SECRET), seconds=1)
    assert "not a valid header value" in fact.cause


def test_nova_is_asked_about_guests_with_a_project_and_first_about_those_that_fail() -> None:
    ports = [PORT, KnownPort("tap2", 2, PortState.NO_INSTANCE, project="p")]
    assert real_guests(ports) == []
    served = KnownPort("tap3", 3, PortState.SERVED, instance=INSTANCE, project="p")
    failure = GuestFailure(404, "no", "r", datetime(2026, 11, 22, tzinfo=UTC), 1)
    failing = replace(served, name="tap4", failure=failure)
    cut_off = replace(served, name="tap5", state=PortState.CUT_OFF)
    broken = replace(served, name="tap6", state=PortState.BROKEN)
    found = real_guests([*ports, served, failing, cut_off, broken])
    assert [port.name for port in found] == ["tap4", "tap3", "tap5"]


def test_ports_of_nova_have_names_of_their_ids() -> None:
    port_id = "0b7c1f5e-3a44-4a55-9d0e-7a1f0c9b1d01"
    rows = [
        ("tap0b7c1f5e-3a", port_id),
        ("tap1", "1b7c1f5e-3a44-4a55-9d0e-7a1f0c9b1d01"),
        ("vnet7", port_id),
        ("vhu2B7C1F5E-3a", port_id.replace("0b", "2b", 1)),
        ("tap", ""),
    ]
    ports = [
        KnownPort(name, number, PortState.SERVED, iface_id=iface_id)
        for number, (name, iface_id) in enumerate(rows)
    ]
    assert list(_of_nova(ports).values()) == ["tap0b7c1f5e-3a", "vhu2B7C1F5E-3a"]
