"""haproxy should have what it needs and nothing else, tell what it counts, and be no loss."""

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import eventlet
import pytest
from eventlet.event import Event

from dfmeta.errors import HaproxyError
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.model import Endpoint
from dfmeta.proxy.engines.haproxy import process as process_module
from dfmeta.proxy.engines.haproxy.config import OF_ADDRESS, OF_PORT
from dfmeta.proxy.engines.haproxy.counts import Counts, load
from dfmeta.proxy.engines.haproxy.entries import Entries
from dfmeta.proxy.engines.haproxy.plan import Program, Secrets
from dfmeta.proxy.engines.haproxy.runtime import COMMANDS, REQUEST
from dfmeta.proxy.recent import RECENT
from dfmeta.runtime import clock
from dfmeta.wiring import services
from tests.core.unit.haproxy.support import FOUR, value
from tests.core.unit.haproxy.test_haproxy_handover import ENDPOINT, World
from tests.core.unit.support import address, port, until
from tests.core.unit.upstream import OK as ANSWER
from tests.core.unit.upstream import Upstream, server_context
from tests.harness import netns
from tests.harness.certificates import Authority
from tests.harness.poll import DEADLINE
from tests.host.haproxy.support import HERE, OK, Loopback, server, wait_ended

Start = Callable[..., Loopback]
GUEST = Endpoint(13)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_process_ends_and_leaves_no_descriptor(loopback: Start) -> None:
    eventlet.sleep(0)  # the hub has a descriptor
    before = descriptors()
    haproxy = loopback()
    waiting = eventlet.spawn(haproxy.process.wait)
    haproxy.process.kill()
    waiting.wait()
    assert haproxy.process.status == -signal.SIGKILL
    haproxy.connect().close()  # the listener stays
    haproxy.process.kill()
    haproxy.process.wait()
    with pytest.raises(HaproxyError, match="ended at its start with status -9"):
        haproxy.process.wait_ready()
    for ask in (haproxy.process.runtime.ask, haproxy.process.runtime.ask_at_once):
        with pytest.raises(HaproxyError, match="runtime interface failed"):
            ask("show version", timeout=DEADLINE)
    haproxy.process.leave()
    haproxy.end()
    until(lambda: descriptors() <= before, "the end of the readers")


def test_failed_start_says_why(loopback: Start, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(HaproxyError, match="it ended at its start with status 1"):
        loopback(FOUR, tls=True, secrets=Secrets(ca=b"no certificate"))
    until(lambda: "haproxy: config : " in caplog.text, "haproxy's own lines")
    with pytest.raises(HaproxyError, match="it ended at its start with status 1"):
        loopback(program=Program(binary="/bin/false", user=""))


def test_process_that_does_not_answer_is_killed_where_it_should_leave(
    loopback: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limits are met by the process alone that is stopped."""
    process = loopback().process
    os.kill(process.pid, signal.SIGSTOP)
    for ask in (process.runtime.ask, process.runtime.ask_at_once):
        with pytest.raises(HaproxyError, match="runtime interface failed"):
            ask("show version", timeout=0.05)
    monkeypatch.setattr(process_module, "START_TIMEOUT", 0.02)
    with pytest.raises(HaproxyError, match=r"did not answer within 0\.02 s"):
        process.wait_ready()
    process.leave()
    assert wait_ended(process) == -signal.SIGKILL
    assert "it is killed" in caplog.text


@pytest.fixture
def tls(
    loopback: Start, upstreams: Callable[..., Upstream], authority: Authority
) -> Callable[..., tuple[bytes, Upstream]]:
    """Asks once over TLS, with a certificate that Nova requires."""
    client = authority.issue("client")
    cert = client.certificate.read_bytes() + b"\n" + client.key.read_bytes()

    def ask(name: str, *, ca: Authority | None, insecure: bool = False) -> tuple[bytes, Upstream]:
        context = server_context(authority.issue(name), authority.certificate)
        upstream = upstreams(lambda _request: ANSWER, context=context)
        nova = replace(server(upstream), host="nova.example")
        secrets = Secrets(ca=ca.certificate.read_bytes() if ca else b"", cert=cert)
        haproxy = loopback(nova, secrets=secrets, tls=True, insecure=insecure)
        haproxy.put(value())
        return haproxy.ask(), upstream

    return ask


def test_nova_is_asked_over_tls_with_a_certificate_from_memory_and_an_impostor_is_not(
    tls: Callable[..., tuple[bytes, Upstream]], authority: Authority, tmp_path: Path
) -> None:
    answer, upstream = tls("nova.example", ca=authority)
    assert answer.startswith(OK)
    assert upstream.asked[0].header("X-Instance-ID") == ["instance"]
    for name, ca in (
        ("other.example", authority),
        ("nova.example", Authority(tmp_path, "stranger")),
    ):
        answer, upstream = tls(name, ca=ca)
        assert not answer.startswith(OK)
        assert upstream.asked == []
    answer, _upstream = tls("other.example", ca=None, insecure=True)
    assert answer.startswith(OK), "where the operator says so"


def many(count: int) -> dict[str, str]:
    return {f"240.0.{number >> 8}.{number & 255}": value() for number in range(count)}


def test_entries_are_added_set_deleted_and_replaced(loopback: Start) -> None:
    haproxy = loopback()
    runtime, name = haproxy.runtime, haproxy.map
    haproxy.put("a|b")
    haproxy.put("c|d", "fd00::1")
    assert runtime.entries(name) == {HERE: "a|b", "fd00::1": "c|d"}
    haproxy.put("e")
    assert runtime.entries(name) == {HERE: "e", "fd00::1": "c|d"}
    haproxy.put(None)
    assert runtime.entries(name) == {"fd00::1": "c|d"}
    runtime.set_at_once(name, ["fd00::1", HERE], "?", timeout=DEADLINE)
    assert runtime.entries(name) == {"fd00::1": "?"}, "an address without an entry gets none"
    entries = many(500)
    assert sum(map(len, entries.values())) > 2 * REQUEST
    runtime.replace(name, entries)
    assert runtime.entries(name) == entries
    runtime.replace(name, {})
    with pytest.raises(HaproxyError, match="did not change its map: 'entry not found"):
        runtime.change(name, {HERE: "a"}, {HERE: "b"})
    with pytest.raises(HaproxyError, match="map"):
        runtime.entries("/none")
    with pytest.raises(HaproxyError, match="table"):
        runtime.table("none")


def test_all_entries_fit_into_the_buffers_of_the_smallest_limits(loopback: Start) -> None:
    haproxy = loopback(limits=Limits(head=HeadLimits(request_line=256, header=512)))
    entries = dict.fromkeys(many(2 * COMMANDS + 1), value(instance="a" * 120))
    haproxy.runtime.replace(haproxy.map, entries)
    assert haproxy.runtime.entries(haproxy.map) == entries
    others = dict.fromkeys(entries, value(instance="b" * 120))
    haproxy.runtime.change(haproxy.map, entries, dict(others))
    assert haproxy.runtime.entries(haproxy.map) == others
    haproxy.runtime.change(haproxy.map, others, dict.fromkeys(others))
    assert haproxy.runtime.entries(haproxy.map) == {}


def test_leaving_process_keeps_map_and_counts(loopback: Start, upstream: Upstream) -> None:
    gate = Event()
    haproxy = loopback(server(upstream))
    haproxy.put(value())
    assert haproxy.ask().startswith(OK)
    upstream.script = lambda _request: gate.wait() or ANSWER
    answer = eventlet.spawn(haproxy.ask)
    until(lambda: len(upstream.asked) == 2, "the request")
    haproxy.process.leave()
    states = {row["svname"]: row["status"] for row in haproxy.runtime.statistics()}
    assert states["FRONTEND"] == "STOP", "it accepts no connection"
    assert haproxy.runtime.table(OF_ADDRESS)["13.0.1.0.1"]["gpc0"] == 1
    haproxy.put(value(incarnation=2))
    haproxy.put("a|b", "fd00::1")
    assert haproxy.runtime.entries(haproxy.map) == {HERE: value(incarnation=2), "fd00::1": "a|b"}
    gate.send()
    assert answer.wait() == b"", "the answer was for the guest before"
    assert wait_ended(haproxy.process) == -signal.SIGKILL


def test_counters_and_lines_are_those_of_the_guest(
    loopback: Start, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dfmeta.proxy.access")
    registry = Registry()
    counts = Counts(registry)
    registry.set_port(port(13))
    registry.learn(GUEST, address(), 0)
    entries = Entries(registry, lambda _instance: "signed", lambda *_guest: True)
    ((_endpoint, news),) = entries.batch_of([GUEST])
    (entry,) = news.values()
    (slot,) = registry.slots(GUEST).values()
    identity = registry.identity(GUEST)
    haproxy = loopback(server(upstream))
    haproxy.put(entry)
    guest = haproxy.connect()
    assert haproxy.ask(guest=guest).startswith(OK)
    runtime = haproxy.runtime
    counts.look(runtime, GUEST)
    assert slot.connections == 1
    counts.read(runtime)
    answers = RECENT.of(GUEST, identity.incarnation)
    assert (slot.connections, answers.counts[0]) == (1, 1)
    assert ACCEPTED.of(GUEST, identity.incarnation) == 1
    assert runtime.table(OF_PORT, "data.conn_cnt gt 1") == {}
    assert load(runtime) == (1, 0)
    assert haproxy.lines == []
    upstream.script = lambda _request: b"HTTP/1.1 404 A\r\nContent-Length: 0\r\n\r\n"
    assert haproxy.ask(guest=guest).startswith(b"HTTP/1.1 404")
    counts.note(haproxy.line())
    assert answers.counts == [1, 0, 1, 0, 0]
    guest.close()
    until(lambda: load(runtime) == (0, 0), "the end of the connection")
    counts.look(runtime, GUEST)
    assert slot.connections == 0
    debug = loopback(server(upstream), debug=True)
    debug.put(entry)
    assert debug.ask().startswith(b"HTTP/1.1 404")
    counts.note(debug.line())
    assert " GET /latest/meta-data: 404, " in caplog.text


def test_program_that_cannot_run_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = netns.temporary_folder("haproxy")
    folder.chmod(0o755)
    path = folder / "stand-in"
    program = Program(binary=str(path), user="")
    # The limit itself is met by the program that sleeps.
    monkeypatch.setattr(services, "ANSWER_TIMEOUT", 0.5)
    version = "echo 'HAProxy version 3.0.1 2024/06/10'"
    for text, mode, has_version in (
        (version, 0o755, True),
        (version, 0o700, False),
        (f"{version}\nexit 1", 0o755, False),
        ("exec sleep 60", 0o755, False),
    ):
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(mode)
        haproxy_version = services.haproxy_version(program)
        assert (haproxy_version is not None) is has_version, text
        assert haproxy_version is None or (haproxy_version.text, haproxy_version.lua) == (
            "3.0.1",
            False,
        )
    shutil.rmtree(folder)


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
    haproxy = loopback(server(upstream), handover=daemon.entrance)
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
