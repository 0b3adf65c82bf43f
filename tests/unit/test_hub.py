"""The hub's stalls should be seen, and loops over many ports should give way."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import eventlet
import pytest

from dfmeta import hub, metrics


class Clock:
    """A clock that goes on by what is slept, and by what a test adds."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []
        self.late: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Sleep, and wake as late as a test wants."""
        self.slept.append(seconds)
        if seconds and not self.late:
            raise StopIteration
        self.now += seconds + (self.late.pop(0) if seconds else 0.0)


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_loop_gives_way_once_its_time_is_over() -> None:
    clock = Clock()
    turns = hub.Turns(0.005, clock=clock, sleep=clock.sleep)
    gave = []
    for _ in range(10):
        clock.now += 0.002
        gave.append(turns.give_way())
    assert gave == [False, False, True] * 3 + [False]
    assert clock.slept == [0, 0, 0]


def test_who_comes_late_is_noted_with_the_longest() -> None:
    clock = Clock()
    clock.late = [0.0, 0.04, 0.3, 0.04]
    name = "dfmeta_hub_stall_seconds_bucket"
    edges = ("0.01", "0.05", "0.25", "0.5")
    before = {edge: sample(name, le=edge) for edge in edges}
    with pytest.raises(StopIteration):
        hub.watch(clock=clock, sleep=clock.sleep)
    seen = {edge: sample(name, le=edge) - before[edge] for edge in edges}
    assert seen == {"0.01": 1, "0.05": 3, "0.25": 3, "0.5": 4}
    assert sample("dfmeta_hub_longest_stall_seconds") == pytest.approx(0.3)


def test_a_clock_that_is_early_is_no_stall() -> None:
    clock = Clock()
    clock.late = [-0.001]
    before = sample("dfmeta_hub_stall_seconds_sum")
    with pytest.raises(StopIteration):
        hub.watch(clock=clock, sleep=clock.sleep)
    assert sample("dfmeta_hub_stall_seconds_sum") == before


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's collector and its threads' interval as they were, afterwards."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.enable()
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("collector")
def test_the_collector_rests_during_the_start_and_passes_over_what_it_has_made() -> None:
    hub.prepare()
    assert not gc.isenabled()
    hub.settle()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


class Gate:
    """A step that blocks its OS thread until it is opened or aborted."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self.aborted = False

    def __call__(self) -> str:
        self.entered.set()
        if not self._open.wait(20):
            raise AssertionError("nobody has opened it")
        return "aborted" if self.aborted else "passed"

    def open(self) -> None:
        self._open.set()

    def abort(self) -> None:
        self.aborted = True
        self._open.set()


def call(threads: hub.Threads, gate: Gate, *, seconds: float = 10, write: bool = False) -> Any:
    return eventlet.spawn(threads, gate, seconds=seconds, abort=gate.abort, write=write)


def turn_until(condition: Callable[[], bool]) -> None:
    """Let the hub go on until something holds."""
    with eventlet.Timeout(10):
        while not condition():
            eventlet.sleep(0.001)


def test_what_blocks_keeps_its_own_thread_alone() -> None:
    threads, gate = hub.Threads(readers=2, writers=1), Gate()
    waiting = call(threads, gate)
    turn_until(gate.entered.is_set)
    assert threads(lambda: 5, seconds=10, abort=gate.abort, write=False) == 5
    gate.open()
    assert waiting.wait() == "passed"


def test_what_a_step_raises_comes_out() -> None:
    threads, gate = hub.Threads(readers=1, writers=1), Gate()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            threads(lambda: 1 // 0, seconds=10, abort=gate.abort, write=False)
    assert not gate.aborted


def test_writers_wait_for_their_turn_and_not_for_ever() -> None:
    threads, first, second = hub.Threads(readers=1, writers=1), Gate(), Gate()
    running = call(threads, first, write=True)
    turn_until(first.entered.is_set)
    with pytest.raises(TimeoutError):
        threads(second, seconds=0.01, abort=second.abort, write=True)
    waiting = call(threads, second, write=True)
    assert not second.entered.is_set()
    first.open()
    second.open()
    assert (running.wait(), waiting.wait()) == ("passed", "passed")


def test_a_step_that_takes_too_long_is_aborted() -> None:
    threads, gate = hub.Threads(readers=1, writers=1), Gate()
    assert call(threads, gate, seconds=0.01).wait() == "aborted"


def test_a_step_that_nobody_waits_for_is_aborted() -> None:
    threads, gate = hub.Threads(readers=1, writers=1), Gate()
    waiting = call(threads, gate)
    turn_until(gate.entered.is_set)
    waiting.kill()
    turn_until(lambda: gate.aborted)
