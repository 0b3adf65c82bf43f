"""One haproxy should serve, with a map that is right, whatever happens to the one before.

Its processes are fakes; tests/host/haproxy and tests/host/e2e have those of haproxy itself.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import eventlet
import pytest
from eventlet.event import Event

from dfmeta import metrics
from dfmeta.http.limits import Limits
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.model import Endpoint
from dfmeta.proxy.engines.engine import EngineSettings
from dfmeta.proxy.engines.haproxy import engine as engine_module
from dfmeta.proxy.engines.haproxy.config import COUNTED, FORGET, IN_DOUBT, OF_ADDRESS, OF_PORT
from dfmeta.proxy.engines.haproxy.engine import Haproxy, Setup
from dfmeta.proxy.engines.haproxy.entries import Entries
from dfmeta.proxy.engines.haproxy.plan import HaproxyPlan, Program, Secrets
from dfmeta.proxy.recent import RECENT
from dfmeta.runtime import clock
from tests.core.unit.haproxy.support import FOUR, OTHER, SIX, FakeProcess
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, address, let_hub_run, port

GUEST = Endpoint(13)
DEVICES = {13: SwitchDevice(b"tap1")}
CHECKS = 31
"""Seconds within which the map is compared, and Nova's names are resolved."""


class World:
    def __init__(self) -> None:
        questions = itertools.count(1)
        self.registry = Registry(ask=lambda: next(questions))
        self.registry.set_devices(DEVICES, gap=False)
        self.registry.answered(1)
        self.come()
        self.plain = True
        program = Program(binary="/haproxy", user="dfmeta-haproxy", version="2.6.1")
        self.plan = HaproxyPlan(program=program, servers=(FOUR,), hold_timeout=5.0)
        self.processes: list[FakeProcess] = []
        self.attempts: list[float] = []
        """Times of all starts."""
        self.fault = ""
        """Why the next process does not start; ``errno``: it cannot be made."""
        self.stopped: list[str] = []
        self.handover: Any = SimpleNamespace(
            service=SimpleNamespace(),
            start=lambda: None,
            stop=lambda _grace: self.stopped.append("handover"),
            hold_timeout=0.0,
            limits=None,
        )
        listener = SimpleNamespace(close=lambda: self.stopped.append("listener"))
        self.engine = Haproxy(
            [listener], self.registry, handover=self._handover, entrance=8, setup=self._setup
        )

    def _handover(self, peers: Any) -> Any:
        self.peers = peers
        return self.handover

    def _setup(self) -> Setup:
        return Setup(
            plan=lambda: self.plan,
            entries=Entries(self.registry, lambda _instance: "signed", lambda *_guest: self.plain),
        )

    def make(self, *parts: Any, **options: Any) -> FakeProcess:
        self.attempts.append(clock.now())
        if self.fault == "errno":
            raise OSError(24, "Too many open files")
        self.processes.append(FakeProcess(*parts, **options, fault=self.fault))
        return self.processes[-1]

    def come(self, instance: str = OTHER_INSTANCE) -> None:
        self.registry.set_port(port(13, instance=instance))
        assert self.registry.learn(GUEST, address(), 0) is not None

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    def running(self) -> list[FakeProcess]:
        return [process for process in self.processes if process.running]

    def reload(self) -> Event:
        """Reload the configuration; the event is sent when it is in force."""
        done = Event()
        self.engine.reload(EngineSettings(7.0, Limits()), done.send)
        eventlet.sleep(0.1)
        return done

    def replaced(self) -> tuple[FakeProcess, FakeProcess]:
        """Replace the process while a guest has a connection; return it and the next one."""
        old = self.process
        old.connections(1)
        self.engine.rebind()
        eventlet.sleep(0.2)
        assert (old.leaving, old.running, self.process is old) == (True, True, False)
        return old, self.process

    def count(self, process: FakeProcess, answers: int) -> None:
        (slot,) = self.registry.slots(GUEST).items()
        claim = f"13.0.{self.identity.incarnation}.{slot[0]}.{slot[1].epoch}"
        row = {"gpc0": answers, "conn_cur": 1, "exp": FORGET * 1000}
        process.runtime.tables[OF_ADDRESS] = {claim: row}

    def answers(self) -> int:
        counted = RECENT.of(GUEST, self.identity.incarnation)
        return counted.counts[0] if counted is not None else 0

    @property
    def identity(self) -> Any:
        return self.registry.identity(GUEST)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(engine_module, "Process", made.make)
    yield made
    made.engine.stop(0.0)
    eventlet.sleep(CHECKS)


@pytest.fixture
def world(idle: World) -> World:
    idle.engine.start()
    eventlet.sleep(0.1)
    assert idle.engine.serving
    return idle


def test_guest_goes_on_only_when_the_map_has_it(world: World) -> None:
    assert world.process.instances() == [OTHER_INSTANCE]
    gate = world.process.runtime.gate = Event()
    world.come(INSTANCE)
    informed = eventlet.spawn(world.engine.inform)
    let_hub_run()
    assert not informed.dead
    gate.send()
    informed.wait()
    assert world.process.instances() == [INSTANCE]


def test_guest_in_doubt_is_withdrawn_at_once_and_no_other(world: World) -> None:
    done = world.process.runtime.done
    assert [kind for kind, _entries in done] == ["change"]
    world.registry.set_devices(DEVICES, gap=True)
    for _ in range(2):
        assert set(world.process.runtime.map.values()) == {IN_DOUBT}, "before other greenthreads"
        let_hub_run()
    assert done[1][0] == "at once"
    world.registry.answered(2)
    let_hub_run()
    assert world.process.instances() == [OTHER_INSTANCE]


def test_process_with_wrong_map_is_replaced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = world.process
    gate = first.runtime.gate = Event()
    world.come(INSTANCE)
    world.engine.inform()
    assert not first.running
    first.runtime.fails = True
    gate.send()
    assert "haproxy has not changed its map within 1 s; it is killed" in caplog.text
    eventlet.sleep(1)
    second = world.process
    assert second.instances() == [INSTANCE]
    second.runtime.refuses = {"change"}
    world.come(OTHER_INSTANCE)
    eventlet.sleep(1)
    assert not second.running
    assert "has not changed its map: haproxy failed: it is away" in caplog.text
    third = world.process
    third.runtime.map = dict.fromkeys(third.runtime.map, "another|guest")
    third.runtime.refuses = {"entries"}
    eventlet.sleep(CHECKS)
    assert third.running, "a map that cannot be read is compared the next time"
    third.runtime.refuses = set()
    eventlet.sleep(CHECKS)
    assert not third.running
    assert "has 1 entries in its map that differ from the daemon's" in caplog.text
    assert world.process.instances() == [OTHER_INSTANCE]
    assert len(world.running()) == 1


def test_process_whose_map_is_not_complete_in_time_serves_no_guest(
    idle: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(engine_module.GuestMap, "run", lambda _self: None)
        idle.engine.start()
        eventlet.sleep(0.9)
        assert idle.process.running
        eventlet.sleep(0.15)
    assert "its map was not complete within 1 s" in caplog.text
    assert not idle.processes[0].running
    eventlet.sleep(2)
    assert idle.process.instances() == [OTHER_INSTANCE]


def test_process_that_ends_is_started_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    lost = metrics.HAPROXY_LOST.labels("ended")._value.get()
    before = world.process
    assert world.peers() == {before.pid}
    before.end(-15)
    let_hub_run()
    assert not world.engine.serving
    assert world.peers() == set()
    eventlet.sleep(0.2)
    assert world.engine.serving
    assert world.process.instances() == [OTHER_INSTANCE]
    assert "haproxy ended with status -15; it is started again" in caplog.text
    assert metrics.HAPROXY_LOST.labels("ended")._value.get() - lost == 1
    facts = world.engine.report(thorough=False)
    assert (facts["restarts"], facts["last_fault"]) == (1, "ended with status -15")


def test_process_that_hangs_is_killed(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.process
    before.runtime.hangs = 0.0
    eventlet.sleep(0.5)
    assert before.running
    eventlet.sleep(0.5)
    assert before.status == -9
    assert world.engine.serving
    assert "haproxy hangs; it is killed and started again" in caplog.text
    assert "haproxy ended with status" not in caplog.text


def test_check_that_is_late_itself_does_not_count(world: World) -> None:
    before = world.process
    before.runtime.hangs = engine_module.BEAT
    eventlet.sleep(10)
    assert before.running
    assert before.runtime.asked.count("show version") > 20


@pytest.mark.parametrize(
    ("fault", "report"),
    [("errno", "it cannot be started: Too many open files"), ("it ended", "it ended")],
)
def test_start_that_fails_is_tried_again_after_longer_and_longer_pauses(
    idle: World, caplog: pytest.LogCaptureFixture, fault: str, report: str
) -> None:
    idle.fault = fault
    idle.engine.start()
    eventlet.sleep(20)
    times = idle.attempts
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:8] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0])
    assert caplog.text.count(report.removeprefix("it ")) == len(times)
    assert not idle.engine.serving
    idle.engine.gather()
    facts = idle.engine.report(thorough=True)
    assert facts["fault"] == report
    assert (facts["pid"], facts["connections"], facts["map"]) == (None, None, None)
    idle.fault = ""
    eventlet.sleep(5)
    assert idle.engine.serving
    idle.count(idle.process, 1)
    eventlet.sleep(CHECKS)
    assert idle.answers() == 1, "they are counted again"
    before = len(idle.attempts)
    idle.process.end(1)
    eventlet.sleep(0.11)
    assert len(idle.attempts) == before + 1, "no pause after a process that has lived"


def test_replaced_process_ends_after_its_requests_and_counts_them(world: World) -> None:
    old, new = world.replaced()
    assert world.peers() == {old.pid, new.pid}
    assert new.instances() == [OTHER_INSTANCE]
    world.come(INSTANCE)
    world.engine.inform()
    assert old.instances() == new.instances() == [INSTANCE], "its answers are the guest's alone"
    old.runtime.fails = True
    eventlet.sleep(1)
    assert old.running, "its counts would be lost"
    old.runtime.fails = False
    before = list(old.runtime.asked)
    world.count(old, 2)
    old.connections(0)
    eventlet.sleep(0.2)
    assert not old.running
    assert world.answers() == 2
    assert "show version" not in old.runtime.asked[len(before) :], "it is not checked"
    assert world.running() == [new]


def test_replaced_process_gives_a_connection_time_to_begin_a_request(world: World) -> None:
    old, _new = world.replaced()
    for requests in (0, 1, 0):
        old.connections(1, requests)
        eventlet.sleep(0.4)
        assert old.running
    eventlet.sleep(0.4)
    assert not old.running


def test_replaced_process_that_does_not_end_is_killed_with_its_counts_read(world: World) -> None:
    old, new = world.replaced()
    world.count(old, 3)
    eventlet.sleep(9.5)
    assert old.running
    eventlet.sleep(0.5)
    assert old.status == -9
    assert world.answers() == 3
    assert world.running() == [new]


def test_reload_replaces_the_process_only_where_its_configuration_differs(world: World) -> None:
    before = world.process
    world.plain = False
    assert world.reload().ready()
    assert world.process is before
    separators = [entry.count("|") for entry in before.runtime.map.values()]
    assert separators == [len(COUNTED) - 1], "the rules are read anew"
    assert world.handover.service.hold_timeout == 7.0
    world.plain = True
    for change in (
        {"program": replace(world.plan.program, version="2.6.99")},
        {"program": replace(world.plan.program, user="daemon")},
        {"threads": 2},
        {"secrets": Secrets(ca=b"other")},
    ):
        before = world.process
        world.plan = replace(world.plan, **change)
        assert world.reload().ready(), change
        assert world.process is not before, change
        assert world.process.instances() == [OTHER_INSTANCE], change
        eventlet.sleep(1)
        assert world.running() == [world.process], change


def test_configuration_that_does_not_start_leaves_the_present_one_and_is_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.process
    world.fault = "it ended at its start with status 1"
    world.plan = replace(world.plan, maxconn=64)
    assert not world.reload().ready(), "it is not in force"
    assert "continues with its former configuration" in caplog.text
    assert world.running() == [before]
    facts = world.engine.report(thorough=False)
    assert (facts["fault"], facts["failed_replacement"]) == ("", world.fault)
    world.fault = ""
    eventlet.sleep(CHECKS)
    facts = world.engine.report(thorough=False)
    assert (facts["maxconn"], facts["failed_replacement"]) == (64, "")
    assert not before.running


def test_other_addresses_of_nova_replace_it_and_another_order_does_not(world: World) -> None:
    before = world.process
    world.plan = replace(world.plan, servers=(FOUR, SIX))
    eventlet.sleep(CHECKS)
    assert world.process is not before
    before = world.process
    for servers in ((SIX, FOUR), ()):
        world.plan = replace(world.plan, servers=servers)
        eventlet.sleep(CHECKS)
        assert world.process is before
    world.plan = replace(world.plan, servers=(OTHER,))
    eventlet.sleep(CHECKS)
    assert world.process.plan.servers == (OTHER,)


def test_counts_are_read_in_time(world: World) -> None:
    process, identity = world.process, world.identity
    world.count(process, 1)
    process.runtime.tables[OF_PORT] = {f"13.0.{identity.incarnation}": {"conn_cnt": 2}}
    eventlet.sleep(1)
    assert (ACCEPTED.of(GUEST, identity.incarnation), world.answers()) == (2, 0)
    world.engine.look(GUEST)
    assert [slot.connections for slot in world.registry.slots(GUEST).values()] == [1]
    eventlet.sleep(CHECKS)
    assert world.answers() == 1
    for read in (world.engine.gather, world.engine.collect):
        world.count(process, world.answers() + 1)
        before = world.answers()
        read()
        assert world.answers() == before + 1
    assert "dfmeta_requests" in {family.name for family in world.engine.collect()}
    process.runtime.tables = {}
    eventlet.sleep(CHECKS)
    assert [slot.connections for slot in world.registry.slots(GUEST).values()] == [0]


def test_report_names_the_process_and_compares_the_map(world: World) -> None:
    process = world.process
    facts = world.engine.report(thorough=True)
    assert (facts["pid"], facts["version"]) == (process.pid, "2.6.12")
    assert (facts["connections"], facts["maxconn"]) == (0, world.plan.maxconn)
    assert (facts["restarts"], facts["last_restart"], facts["fault"]) == (0, None, "")
    assert "map" not in world.engine.report(thorough=False)
    right = process.runtime.map
    for others, counts in (
        (right, [1, 0, 0, 0]),
        (dict.fromkeys(right, "another|guest"), [1, 0, 0, 1]),
        ({}, [0, 1, 0, 0]),
        (right | {"10.0.0.9": "another|guest"}, [2, 0, 1, 0]),
    ):
        process.runtime.map = others
        assert [*world.engine.report(thorough=True)["map"].values()] == counts, others
    process.runtime.map = {}
    eventlet.spawn_after(0.1, setattr, process.runtime, "map", right)
    assert world.engine.report(thorough=True)["map"]["missing"] == 0, "a difference that passes"
    process.runtime.refuses = {"entries", "statistics"}
    facts = world.engine.report(thorough=True)
    assert (facts["fault"], facts["map"], facts["pid"]) == ("it is away", None, process.pid)


def test_stop_answers_running_requests_of_all_processes(world: World) -> None:
    old, new = world.replaced()
    new.connections(1)
    stopping = eventlet.spawn(world.engine.stop, 5.0)
    eventlet.sleep(1)
    assert (old.running, new.running, new.leaving) == (True, True, True)
    for process in (old, new):
        process.connections(0)
    stopping.wait()
    assert world.running() == []
    assert world.stopped == ["handover", "listener"]


def test_stop_kills_processes_after_its_grace(world: World) -> None:
    old, new = world.replaced()
    new.connections(1)
    before = clock.now()
    world.engine.stop(3.0)
    assert clock.now() - before == pytest.approx(2.7, abs=0.02)
    assert (old.status, new.status) == (-9, -9)
    eventlet.sleep(6)
    assert world.running() == []
