"""One haproxy should serve, with a map that is right, whatever happens to the one before."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import eventlet
import pytest
from eventlet.event import Event

from dfmeta import hub, metrics
from dfmeta.exceptions import HaproxyError
from dfmeta.model import Endpoint
from dfmeta.proxy.engine import Terms
from dfmeta.proxy.haproxy import engine as engine_module
from dfmeta.proxy.haproxy import running as running_module
from dfmeta.proxy.haproxy.counts import Counts
from dfmeta.proxy.haproxy.engine import Haproxy, Setup
from dfmeta.proxy.haproxy.entries import Entries, GuestMap, News
from dfmeta.proxy.haproxy.handover import HandoverServer, listen
from dfmeta.proxy.haproxy.plan import Plan
from dfmeta.proxy.haproxy.process import Secrets
from dfmeta.proxy.haproxy.program import Program
from dfmeta.proxy.haproxy.runtime import Runtime, _Kept
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.recent import RECENT
from dfmeta.registry import Registry
from tests.core.unit.haproxy.support import GET, HERE, PROGRAM, server
from tests.core.unit.support import OTHER_INSTANCE, address, port, until
from tests.core.unit.upstream import OK, Upstream

GUEST = Endpoint(13)


class OnLoopback(Entries):
    """Entries whose key is the source address on loopback."""

    def news(self, endpoints: Iterable[Endpoint], new: bool) -> News:
        return [
            (endpoint, {HERE if endpoint == GUEST else key: said for key, said in entries.items()})
            for endpoint, entries in super().news(endpoints, new)
        ]


class World:
    """A guest, and the engine on loopback with one host of Nova."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.registry = Registry()
        self.come()
        claim = self.registry.claim
        # The daemon's engine should know the guest by the same source address.
        self.registry.claim = lambda _peer: claim(self._key())  # type: ignore[method-assign]
        self._guests = eventlet.listen((HERE, 0))
        listener, name = listen()
        self.secrets = Secrets()
        self.program = PROGRAM
        self.plain = True
        self.plan = Plan(servers=(server(upstream),), handover=name, hold_timeout=5.0)
        self.engine = Haproxy(
            [self._guests],
            self.registry,
            handover=lambda peers: HandoverServer(
                listener,
                self.registry,
                self._answer,
                port=80,
                peers=peers,
                hold_timeout=5.0,
                limits=Limits(),
            ),
            name=name,
            setup=self._setup,
        )

    def come(self, instance: str = OTHER_INSTANCE) -> None:
        """Give the port to a guest."""
        self.registry.set_port(port(13, instance=instance))
        assert self.registry.learn(GUEST, address(), 0) is not None

    def _key(self) -> Any:
        (number,) = self.registry.slots(GUEST) or [0]
        return self.registry.keys.key_of(GUEST, number)

    @staticmethod
    def _answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        exchange = environ["dfmeta.exchange"]
        assert exchange.turn(exchange.deadline)
        start_response("200 Daemon", [("Content-Length", "0")])
        return [b""]

    def _setup(self) -> Setup:
        return Setup(
            plan=lambda _name: self.plan,
            secrets=self.secrets,
            program=self.program,
            entries=OnLoopback(self.registry, lambda _one: "signed", lambda *_one: self.plain),
        )

    def start(self) -> World:
        self.engine.start()
        until(lambda: self.engine.current and len(self.engine.current.map), "haproxy")
        return self

    @property
    def pid(self) -> int:
        """The process that accepts connections."""
        one = self.engine.current
        return one.process.pid if one is not None else 0

    def next_pid(self, before: int) -> int:
        """The process after that one, when it has the guest."""

        def found() -> int:
            one = self.engine.current
            has = one is not None and one.process.pid != before and len(one.map)
            return self.pid if has else 0

        return until(found, "another process")

    def processes(self) -> int:
        return len(self.engine._running)

    def connect(self) -> Any:
        guest = eventlet.connect(self._guests.getsockname())
        guest.settimeout(30)
        return guest

    def ask(self, guest: Any = None) -> bytes:
        guest = guest or self.connect()
        guest.sendall(GET)
        try:
            return bytes(guest.recv(65536))
        except ConnectionResetError:
            return b""

    def who(self) -> list[str]:
        """Instances that Nova was asked for."""
        return [one.header("X-Instance-ID")[0] for one in self.upstream.asked]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PAUSE_MIN", 0.001)
    monkeypatch.setattr(engine_module, "PAUSE_MAX", 0.002)
    monkeypatch.setattr(running_module, "LEAVE_POLL", 0.005)


@pytest.fixture
def idle(upstream: Upstream) -> Iterator[World]:
    """An engine that has not been started."""
    one = World(upstream)
    yield one
    one.engine.stop(0.0)
    until(lambda: not one.processes(), "the end of haproxy")


@pytest.fixture
def world(idle: World) -> World:
    return idle.start()


def test_a_guest_is_answered_by_haproxy_as_the_registry_says(world: World) -> None:
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert world.who() == [OTHER_INSTANCE]


def test_a_guest_goes_on_only_when_the_map_has_it(world: World) -> None:
    world.ask()
    world.come("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01")
    world.engine.inform()
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert world.who() == [OTHER_INSTANCE, "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"]


def test_changes_reach_the_map_without_a_wait_as_well(world: World) -> None:
    world.registry.remove_port(port(13).id)
    current = world.engine.current
    assert current is not None
    until(lambda: len(current.map) == 0, "the change")
    assert world.ask() == b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_haproxy_that_ends_is_started_again_and_a_guest_meanwhile_waits(
    world: World, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    before = world.pid
    os.kill(before, number)
    until(lambda: not world.engine.serving, "its end")
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert world.next_pid(before)
    assert "haproxy ended with status" in caplog.text


def test_a_haproxy_that_hangs_is_killed_and_started_again(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "BEAT", 0.02)
    before = world.pid
    os.kill(before, signal.SIGSTOP)
    assert world.next_pid(before)
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert "haproxy hangs; it is killed and started again" in caplog.text
    assert "haproxy ended with status" not in caplog.text


def test_a_check_that_is_late_itself_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "ANSWER", 0.001)
    monkeypatch.setattr(engine_module, "LATE", -1.0)
    asked: list[str] = []

    def fail(_self: Runtime, command: str, *, timeout: float = 0.0) -> str:
        asked.append(command)
        raise HaproxyError(cause="no answer in time")

    monkeypatch.setattr(Runtime, "ask", fail)
    before = world.pid
    until(lambda: asked.count("show version") > 5, "checks")
    monkeypatch.undo()
    assert world.pid == before


def test_a_haproxy_that_does_not_change_its_map_is_replaced(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.pid

    def refuse(*_args: object) -> None:
        raise HaproxyError(cause="it did not")

    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "change", refuse)
        world.come("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01")
        until(lambda: not world.engine.serving, "its end")
    world.next_pid(before)
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert world.who() == ["6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"]
    assert "has not changed its map: haproxy failed: it did not" in caplog.text


def test_a_haproxy_with_another_map_is_replaced(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before, one = world.pid, world.engine.current
    assert one is not None
    world.engine._check(one)
    assert world.pid == before, "it is the same map"
    one.process.runtime.ask(f"set map {one.process.map} {HERE} another|guest")
    world.engine._check(one)
    world.next_pid(before)
    assert "has 2 entries in its map that differ from the daemon's" in caplog.text
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert world.who() == [OTHER_INSTANCE]


def test_a_map_that_cannot_be_read_is_compared_the_next_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.engine.current
    assert one is not None

    def refuse(*_args: object) -> None:
        raise HaproxyError(cause="it does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "entries", refuse)
        world.engine._check(one)
    assert world.ask().startswith(b"HTTP/1.1 200")


def test_a_haproxy_whose_map_is_late_is_replaced_before_a_guest_goes_on(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfmeta.proxy.feed.SETTLE_TIMEOUT", 0.02)
    before = world.pid
    os.kill(before, signal.SIGSTOP)
    world.come("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01")
    world.engine.inform()
    world.next_pid(before)
    assert "has not changed its map within 1 s" in caplog.text


def test_a_reload_without_a_change_keeps_the_process_and_reads_the_rules_anew(
    world: World,
) -> None:
    before, done = world.pid, Event()
    world.plain = False
    world.engine.reload(Terms(5.0, Limits()), done.send)
    done.wait()
    assert world.pid == before
    current = world.engine.current
    assert current is not None
    until(lambda: len(current.map) == 0, "the change")
    assert world.ask().startswith(b"HTTP/1.1 200 Daemon")


def test_a_reload_with_a_change_replaces_it_after_its_running_requests(world: World) -> None:
    gate = Event()
    world.upstream.script = lambda _asked: gate.wait() or OK
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    before, done = world.pid, Event()
    world.plan = replace(world.plan, threads=2)
    world.engine.reload(Terms(5.0, Limits()), done.send)
    done.wait()
    assert world.pid != before
    assert world.processes() == 2
    world.upstream.script = lambda _asked: OK
    assert world.ask().startswith(b"HTTP/1.1 200")
    gate.send()
    assert slow.wait().startswith(b"HTTP/1.1 200 OK")
    until(lambda: world.processes() == 1, "the end of the old one")


def replaced(world: World) -> tuple[int, Callable[[], Any]]:
    """Replace haproxy while it has a request.

    Returns its process id, and a call that lets Nova answer, and gives the answer that the guest
    gets.
    """
    gate = Event()
    world.upstream.script = lambda _asked: gate.wait() or OK
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    before = world.pid
    world.engine.rebind()
    world.next_pid(before)
    world.upstream.script = lambda _asked: OK

    def answer() -> Any:
        gate.send()
        return slow.wait()

    return before, answer


def test_an_answer_of_a_replaced_process_is_not_for_the_next_guest(world: World) -> None:
    _before, answer = replaced(world)
    world.come("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01")
    world.engine.inform()
    assert answer() == b""


def test_a_replaced_process_that_does_not_end_is_killed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "DRAIN", 0.05)
    world.upstream.script = lambda _asked: Event().wait()
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    before = world.pid
    world.engine.rebind()
    world.next_pid(before)
    assert slow.wait() == b""
    until(lambda: world.processes() == 1, "the end of the old one")


def test_a_stop_lets_a_replaced_process_finish_as_well(world: World) -> None:
    gate = Event()
    world.upstream.script = lambda _asked: gate.wait() or OK
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    before = world.pid
    world.engine.rebind()
    world.next_pid(before)
    until(lambda: any(one.leaving for one in world.engine._running), "the old one to leave")
    stopping = eventlet.spawn(world.engine.stop, 5.0)
    until(lambda: all(one.leaving for one in world.engine._running), "both to leave")
    gate.send()
    assert slow.wait().startswith(b"HTTP/1.1 200 OK")
    stopping.wait()
    assert world.processes() == 0


def test_a_configuration_that_does_not_start_leaves_the_present_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before, done = world.pid, Event()
    world.secrets = Secrets(ca=b"no certificate")
    world.plan = replace(world.plan, tls=True)
    world.engine.reload(Terms(5.0, Limits()), done.send)
    until(lambda: "continues with its former configuration" in caplog.text, "the line")
    assert world.pid == before
    assert not done.ready(), "it is not in force"
    found = world.engine.report(thorough=False)
    assert found["fault"] == ""
    assert found["failed_replacement"] == "it ended at its start with status 1"
    alerts = [one for one in caplog.records if one.levelname == "ERROR"]
    assert any("haproxy: config : " in one.getMessage() for one in alerts), "haproxy's own"
    assert world.ask().startswith(b"HTTP/1.1 200")


def test_a_reload_that_has_failed_is_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.pid

    def fail(*_args: object, **_options: object) -> Any:
        raise OSError(24, "Too many open files")

    world.plan = replace(world.plan, maxconn=64)
    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "Process", fail)
        world.engine.reload(Terms(5.0, Limits()), lambda: None)
        until(lambda: "continues with its former configuration" in caplog.text, "the line")
    monkeypatch.setattr(engine_module, "RESOLVE", 0.01)
    hub.VITAL.spawn("names, sooner", world.engine._resolve, may_return=True)
    world.next_pid(before)
    until(lambda: not world.engine.report(thorough=False)["failed_replacement"], "its start")
    assert world.engine.report(thorough=False)["maxconn"] == 64


@pytest.mark.parametrize(
    ("change", "same"),
    [({}, True), ({"version": "2.6.99"}, False), ({"user": "daemon"}, False)],
    ids=["nothing", "another version", "another user"],
)
def test_a_reload_replaces_it_where_its_program_is_another(
    world: World, change: dict[str, str], same: bool
) -> None:
    before, done = world.pid, Event()
    world.program = replace(world.program, **change)
    world.engine.reload(Terms(5.0, Limits()), done.send)
    done.wait()
    assert (world.pid == before) == same
    until(lambda: world.processes() == 1, "the end of the other one")
    assert world.ask().startswith(b"HTTP/1.1 200")


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of guests' requests, as the readings of the counters add them."""
    read: list[int] = []
    answers = Counts._answers

    def note(self: Counts, pid: int, runtime: Runtime) -> Any:
        for claim, more in answers(self, pid, runtime):
            read.append(more)
            yield claim, more

    monkeypatch.setattr(Counts, "_answers", note)
    return read


def test_requests_until_the_end_of_a_replaced_process_are_counted(
    world: World, answered: list[int]
) -> None:
    _before, answer = replaced(world)
    assert world.ask().startswith(b"HTTP/1.1 200")
    assert answer().startswith(b"HTTP/1.1 200")
    until(lambda: world.processes() == 1, "the end of the old one")

    def counted() -> int:
        # On a busy machine a reading may be late; the next one adds the rest.
        world.engine.gather()
        return sum(answered)

    until(lambda: counted() >= 2, "both requests to be counted")
    assert counted() == 2


def test_counts_of_a_replaced_process_stay_until_they_are_read(
    world: World, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """haproxy empties the stick-tables of its proxies every second while it ends."""
    asked: list[str] = []
    statistics = Runtime.statistics

    def note(self: Runtime) -> Any:
        asked.append("statistics")
        return statistics(self)

    _before, answer = replaced(world)
    monkeypatch.setattr(Runtime, "statistics", note)
    until(lambda: asked, "a question while the request runs")
    monkeypatch.setattr(running_module, "LEAVE_POLL", 1.2)
    until(lambda: len(asked) > 1, "another one")
    assert answer().startswith(b"HTTP/1.1 200")
    until(lambda: world.processes() == 1, "the end of the old one")
    assert sum(answered) == 1


def test_late_answers_of_a_replaced_process_lose_no_count(
    world: World, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[int] = []
    late: list[HaproxyError] = []
    connections = running_module.connections

    def note(runtime: Runtime) -> int:
        try:
            there.append(connections(runtime))
        except HaproxyError as error:
            late.append(error)
            raise
        return there[-1]

    monkeypatch.setattr(running_module, "connections", note)
    before, answer = replaced(world)
    until(lambda: there, "an answer in time")
    with monkeypatch.context() as patience:
        patience.setitem(Runtime.ask.__kwdefaults__, "timeout", 0.02)
        os.kill(before, signal.SIGSTOP)
        until(lambda: len(late) > 2, "answers that come too late")
        os.kill(before, signal.SIGCONT)
    assert answer().startswith(b"HTTP/1.1 200")
    until(lambda: world.processes() == 1, "the end of the old one")
    assert sum(answered) == 1


def test_a_process_that_leaves_is_not_checked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that came too late would close the connection that counts its last requests."""
    commands: list[str] = []
    ask = _Kept.ask

    def note(self: _Kept, command: str) -> str:
        commands.append(command)
        return ask(self, command)

    monkeypatch.setattr(_Kept, "ask", note)
    monkeypatch.setattr(engine_module, "BEAT", 0.001)
    _before, answer = replaced(world)
    until(lambda: len(commands) > 5, "further commands")
    answer()
    until(lambda: world.processes() == 1, "the end of the old one")
    assert "show version" not in commands


def test_two_replacements_at_once_leave_one_process(world: World) -> None:
    before = world.pid
    world.engine.rebind()
    world.engine.rebind()
    world.next_pid(before)
    until(lambda: world.processes() == 1, "one process")
    assert world.ask().startswith(b"HTTP/1.1 200")


# Facts for an operator


def test_the_report_names_the_process_and_its_faults(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.pid
    found = world.engine.report(thorough=True)
    assert found["pid"] == before
    assert (found["connections"], found["maxconn"]) == (0, world.plan.maxconn)
    assert (found["restarts"], found["last_restart"], found["fault"]) == (0, None, "")
    assert found["map"] == {"entries": 1, "missing": 0, "superfluous": 0, "different": 0}
    lost = metrics.HAPROXY_LOST.labels("ended")._value.get()
    os.kill(before, signal.SIGKILL)
    world.next_pid(before)
    found = world.engine.report(thorough=False)
    assert (found["restarts"], found["last_fault"]) == (1, "ended with status -9")
    assert metrics.HAPROXY_LOST.labels("ended")._value.get() - lost == 1
    assert "map" not in found


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (f"set map {{}} {HERE} another|guest", "different"),
        (f"del map {{}} {HERE}", "missing"),
        ("add map {} 10.0.0.9 another|guest", "superfluous"),
    ],
)
def test_the_report_counts_differences_of_the_map(
    world: World, command: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfmeta.proxy.haproxy.report.PAUSE", 0.001)
    one = world.engine.current
    assert one is not None
    one.process.runtime.ask(command.format(one.process.map))
    found = world.engine.report(thorough=True)["map"]
    assert {name: count for name, count in found.items() if count and name != "entries"} == {
        kind: 1
    }


def test_a_difference_that_passes_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.engine.current
    assert one is not None
    there, looks = one.process.runtime.entries(one.process.map), []

    def entries(_self: Runtime, _name: str) -> dict[str, str]:
        looks.append(1)
        return {} if len(looks) == 1 else there

    monkeypatch.setattr(Runtime, "entries", entries)
    found = world.engine.report(thorough=True)["map"]
    assert (len(looks), found["missing"]) == (2, 0)


def test_a_program_that_ends_at_once_is_tried_again_and_the_report_says_so(
    idle: World, caplog: pytest.LogCaptureFixture
) -> None:
    idle.engine._setup = replace(
        idle.engine._setup, program=Program(binary="/bin/false", user="nobody")
    )
    idle.engine.start()
    until(lambda: caplog.text.count("ended at its start with status 1") > 1, "lines")
    assert not idle.engine.serving
    found = idle.engine.report(thorough=True)
    assert found["fault"] == "it ended at its start with status 1"
    assert (found["pid"], found["connections"], found["map"]) == (None, None, None)
    idle.engine._setup = replace(idle.engine._setup, program=PROGRAM)
    until(lambda: idle.engine.serving, "haproxy")


def test_a_haproxy_that_hangs_has_no_map_to_compare(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfmeta.proxy.haproxy.runtime.TIMEOUT", 0.02)

    def refuse(*_args: object) -> None:
        raise HaproxyError(cause="it does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "entries", refuse)
        patched.setattr(Runtime, "statistics", refuse)
        found = world.engine.report(thorough=True)
    assert (found["fault"], found["map"]) == ("it does not answer", None)
    assert found["pid"] == world.pid


def test_a_haproxy_that_cannot_be_started_is_tried_again(
    idle: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> Any:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "Process", fail)
        idle.engine.start()
        until(lambda: caplog.text.count("haproxy cannot be started: Too many open") > 1, "lines")
        assert not idle.engine.serving
        idle.engine.gather()
    until(lambda: idle.engine.serving, "haproxy")


def test_a_map_that_is_not_complete_in_time_serves_no_guest(
    idle: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "SETTLE_TIMEOUT", 0.02)
        patched.setattr(GuestMap, "run", lambda _self: None)
        idle.engine.start()
        until(lambda: "its map was not complete within 0.02 s" in caplog.text, "the line")
    until(lambda: idle.engine.current and len(idle.engine.current.map), "haproxy")


def test_other_addresses_of_nova_replace_it_and_another_order_does_not(
    world: World, upstreams: Callable[..., Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = upstreams()
    looked: list[int] = []
    monkeypatch.setattr(engine_module, "RESOLVE", 0.005)
    present = world.plan

    def plan(_name: str) -> Plan:
        looked.append(1)
        return present

    world.engine._setup = replace(world.engine._setup, plan=plan)
    resolving = eventlet.spawn(world.engine._resolve)
    first = world.pid
    present = replace(world.plan, servers=(server(world.upstream), server(other)))
    second = world.next_pid(first)
    for servers in ((server(other), server(world.upstream)), ()):
        present = replace(world.plan, servers=servers)
        looked.clear()
        until(lambda: len(looked) > 3, "more looks")
        assert world.pid == second
    resolving.kill()


def test_counts_come_from_haproxy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = world.registry.identity(GUEST)
    assert identity is not None
    guest = world.connect()
    world.ask(guest)
    world.engine.gather()
    asked = RECENT.of(GUEST, identity.incarnation)
    assert asked is not None
    assert asked.counts[0] == 1
    names = {family.name for family in world.engine.collect()}
    assert "dfmeta_requests" in names
    world.engine.look(GUEST)
    assert [slot.connections for slot in world.registry.slots(GUEST).values()] == [1]
    guest.close()
    monkeypatch.setattr(engine_module, "COUNT", 0.005)
    counting = eventlet.spawn(world.engine._count)
    until(
        lambda: [slot.connections for slot in world.registry.slots(GUEST).values()] == [0],
        "the end of the connection",
    )
    counting.kill()


def test_a_stop_answers_running_requests_and_ends_haproxy(world: World) -> None:
    gate = Event()
    world.upstream.script = lambda _asked: gate.wait() or OK
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    stopping = eventlet.spawn(world.engine.stop, 5.0)
    current = world.engine.current
    assert current is not None
    until(lambda: current.leaving, "haproxy to leave")
    gate.send()
    assert slow.wait().startswith(b"HTTP/1.1 200 OK")
    stopping.wait()
    assert world.processes() == 0


def test_a_stop_kills_haproxy_after_its_grace(world: World) -> None:
    world.upstream.script = lambda _asked: Event().wait()
    slow = eventlet.spawn(world.ask)
    until(lambda: world.upstream.asked, "the request")
    world.engine.stop(0.35)
    assert slow.wait() == b""
    until(lambda: world.processes() == 0, "its end")


def test_a_haproxy_that_dies_while_it_leaves_is_let_go(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world.upstream.script = lambda _asked: Event().wait()
    eventlet.spawn_n(world.ask)
    until(lambda: world.upstream.asked, "the request")
    before = world.engine.current
    assert before is not None
    world.engine.rebind()
    until(lambda: before.leaving, "the old one to leave")
    before.process.kill()
    until(lambda: before.map.ended, "the end of its map")
    assert "haproxy ended with status" not in caplog.text
