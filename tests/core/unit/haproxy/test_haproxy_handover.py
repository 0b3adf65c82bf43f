"""A request that haproxy hands over should be the guest's whose it is, and only haproxy's count."""

import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from eventlet.green import socket as green_socket

from dfmeta import metrics
from dfmeta.errors import HaproxyError, StartError
from dfmeta.http.exchange import Exchange
from dfmeta.http.limits import Limits
from dfmeta.http.server import Introduction
from dfmeta.identity.registry import Claim, Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.model import Answer, Endpoint
from dfmeta.proxy.engines.haproxy.handover import (
    SIGNATURE,
    handover_server,
    listen,
    read_header,
    rest_length,
)
from dfmeta.runtime import clock
from tests.core.unit.haproxy.support import GET
from tests.core.unit.support import address, port

FAMILIES = {4: 0x11, 6: 0x21}
LOCAL = 0x20
ENDPOINT = Endpoint(13)
ABSENT = (FileNotFoundError, NotADirectoryError)


def tlv(kind: int, text: bytes) -> bytes:
    return struct.pack("!BH", kind, len(text)) + text


def header(
    peer: str = "240.0.0.13",
    *,
    source_port: int = 4000,
    unique: bytes | None = b"1700000000.250127",
    signature: bytes = SIGNATURE,
    command: int = 0x21,
    family: int | None = None,
    before: bytes = b"",
    cut: int = 0,
) -> tuple[bytes, bytes]:
    """A header in both parts that are read."""
    source = ip_address(peer)
    rest = source.packed * 2 + struct.pack("!HH", source_port, 80) + before
    rest += tlv(0x05, unique) if unique is not None else b""
    rest = rest[: len(rest) - cut]
    kind = FAMILIES[source.version] if family is None else family
    return struct.pack("!12sBBH", signature, command, kind, len(rest)), rest


def test_header_names_the_guest_and_the_time_of_its_request() -> None:
    for peer, identified in (("240.0.0.13", True), ("fd00::1", True), ("fd00::1", False)):
        start, rest = header(peer, unique=b"1700000000.250" + b"13.0.1" * identified)
        assert rest_length(start) == len(rest)
        introduction = read_header(start, rest, now=1700000000.75)
        assert introduction == Introduction(ip_address(peer), 4000, 0.5, identified)
    start, rest = header(before=tlv(0x01, b"h1") + tlv(0x04, b""))
    assert read_header(start, rest, now=1700000001.25).waited == 1.0, "other fields are passed over"
    assert read_header(start, rest, now=1600000000.0).waited == 0.0, "the clock was set back"


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"signature": b"\r\n\r\n\x00\r\nQUIT\r"}, "does not begin with a PROXY header"),
    ({"command": LOCAL}, "does not begin with a PROXY header"),
    ({"family": 0x12}, "does not begin with a PROXY header"),
    ({"family": 0x21, "unique": None}, "too short"),
    ({"unique": None}, "has no time"),
    ({"unique": b"17.5"}, "has no time"),
    ({"unique": "\N{ARABIC-INDIC DIGIT ONE}.250".encode()}, "has no time"),
    ({"unique": b"1700000000.250", "cut": 9}, "has no time"),
    ({"unique": None, "before": b"\x05\x00"}, "has no time"),
]


def test_header_that_is_not_as_haproxy_writes_it_is_refused() -> None:
    for fault, text in FAULTS:
        with pytest.raises(HaproxyError, match=text):
            read_header(*header(**fault), now=0.0)
    start, rest = header()
    with pytest.raises(HaproxyError, match="does not begin"):
        read_header(start, rest + b"x", now=0.0)


class World:
    """A guest at port 13, and a server that answers with the port that asks."""

    def __init__(self, key: str = "") -> None:
        self.registry = Registry()
        self.registry.set_port(port(13))
        learned = self.registry.learn(ENDPOINT, address(), 0)
        assert learned is not None
        self.key = key or str(self.registry.keys.key_of(ENDPOINT, learned.slot))
        self.peers: set[int] = {os.getpid()}
        self.exchanges: list[Any] = []
        self.deadlines: list[float] = []
        entrance = listen("/dev/shm")
        self.entrance = entrance.descriptor
        self.server = handover_server(
            entrance.listener,
            self.registry,
            self._answer,
            peers=lambda: self.peers,
            hold_timeout=5.0,
            limits=Limits(),
        )
        self.server.start()

    def _answer(self, exchange: Exchange[Claim]) -> Answer:
        assert exchange.acquire(exchange.deadline)
        self.deadlines.append(exchange.deadline - clock.now())
        return Answer(200, exchange.claim.identity.port_name.encode())

    def connect(self) -> Any:
        sock = green_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(f"/proc/self/fd/{self.entrance}")
        return sock

    def header(self, **options: Any) -> bytes:
        now = f"{clock.wall():.3f}".encode()
        return b"".join(header(self.key, **{"unique": now} | options))

    def ask(self, data: bytes) -> bytes:
        sock = self.connect()
        sock.sendall(data + GET)
        return answer(sock)


def answer(sock: Any) -> bytes:
    data = b""
    while b"\r\n\r\ntap" not in data:
        try:
            piece = sock.recv(65536)
        except ConnectionError:
            piece = b""
        if not piece:
            return data
        data += piece
    return data.partition(b"\r\n\r\n")[2]


def closed(reason: str) -> float:
    return float(metrics.CLOSED.labels(reason)._value.get())


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.stop(0.0)
    os.close(made.entrance)


def test_request_is_the_guests_whom_haproxy_names(world: World) -> None:
    metrics.CONNECTIONS.set(7)
    assert world.ask(world.header()) == b"tap1"
    sock = world.connect()
    for byte in world.header():
        sock.sendall(bytes([byte]))
    sock.sendall(GET)
    assert answer(sock) == b"tap1", "the header may come in pieces"
    assert metrics.CONNECTIONS._value.get() == 7, "haproxy counts them"
    metrics.CONNECTIONS.set(0)


def test_another_process_is_not_answered(world: World) -> None:
    world.peers = {os.getpid() + 1}
    sock = world.connect()
    assert sock.recv(1) == b""


def test_listener_has_no_name_that_another_process_could_connect_to(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    for folders, used in (((deep,), deep), ((tmp_path / "absent", tmp_path), tmp_path)):
        before = sorted(used.iterdir())
        entrance = listen(*folders)
        assert sorted(used.iterdir()) == before
        name = entrance.listener.getsockname()
        with socket.socket(socket.AF_UNIX) as other, pytest.raises(ABSENT):
            other.connect(name)
        with socket.socket(socket.AF_UNIX) as heir:
            heir.connect(f"/proc/self/fd/{entrance.descriptor}")
        entrance.listener.close()
        os.close(entrance.descriptor)
    with pytest.raises(StartError, match=r"absent: No such file or directory.*state_path"):
        listen(tmp_path / "absent")


def test_unknown_guest_is_closed_on(world: World) -> None:
    before = closed("unknown_peer")
    world.key = "240.0.9.9"
    assert world.ask(world.header()) == b""
    assert closed("unknown_peer") - before == 1


def test_time_at_haproxy_counts_towards_the_hold_timeout(world: World) -> None:
    for seconds, left in ((3.0, 2.0), (0.0, 5.0), (-60.0, 5.0)):
        unique = f"{clock.wall() - seconds:.3f}".encode()
        assert world.ask(world.header(unique=unique)) == b"tap1"
        assert world.deadlines[-1] == pytest.approx(left, abs=0.01)
    world.registry.note_wait(ENDPOINT, 4000, 2.0)
    assert world.ask(world.header()) == b"tap1"
    assert world.deadlines[-1] == pytest.approx(3.0, abs=0.01), "since the first SYN"


def test_connection_counts_unless_haproxy_knew_the_guest(world: World) -> None:
    identity = world.registry.identity(ENDPOINT)
    assert identity is not None
    for identified, count in ((b"", 1), (b"13.0.1", 1)):
        now = f"{clock.wall():.3f}".encode()
        assert world.ask(world.header(unique=now + identified)) == b"tap1"
        assert ACCEPTED.of(ENDPOINT, identity.incarnation) == count


def test_wrong_header_is_closed_and_noted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = closed("defect")
    assert world.ask(world.header(command=LOCAL)) == b""
    assert closed("defect") - before == 1
    assert "PROXY header" in caplog.text
    assert world.ask(world.header()) == b"tap1"


def test_header_that_ends_early_or_late_costs_that_connection_only(world: World) -> None:
    with world.connect() as early:
        early.sendall(world.header()[:20])
    late, begun = world.connect(), clock.now()
    late.sendall(world.header()[:20])
    assert late.recv(1) == b""
    assert clock.now() - begun == pytest.approx(clock.ANSWER_TIMEOUT, abs=0.1)
    assert world.ask(world.header()) == b"tap1"
