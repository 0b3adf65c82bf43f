"""The hub's stalls should be seen, and loops over many ports should give way."""

import gc
import socket
import sys
from collections.abc import Callable, Iterator

import eventlet
import pytest
from eventlet import hubs
from eventlet.event import Event
from eventlet.hubs import get_hub

from dfmeta import metrics
from dfmeta.runtime import hub
from tests.core.unit.support import Clock
from tests.harness.tier import CLOCK


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_loop_gives_way_once_its_time_is_over() -> None:
    clock, slept = Clock(), list[float]()
    turns = hub.Turns(0.005, clock=clock, sleep=slept.append)
    gave = []
    for _ in range(10):
        clock.now += 0.002
        gave.append(turns.give_way())
    assert gave == [False, False, True] * 3 + [False]
    assert slept == [0, 0, 0]


EDGES = ("0.01", "0.05", "0.25", "0.5")


def stalls() -> dict[str, float]:
    return {edge: sample("dfmeta_hub_stall_seconds_bucket", le=edge) for edge in EDGES}


def seen_since(before: dict[str, float]) -> dict[str, float]:
    return {edge: count - before[edge] for edge, count in stalls().items()}


def test_a_stretch_of_work_is_a_stall_for_what_comes_due_in_it() -> None:
    clock = Clock()
    looks, before = hub.Looks(clock=clock), stalls()
    for work in (0.04, 0.09, 0.35, 0.09):  # one that is over in time, and three that are not
        clock.now += work
        looks.rest()
        looks.wake(clock.now)
    assert seen_since(before) == {"0.01": 0, "0.05": 1, "0.25": 2, "0.5": 3}
    assert sample("dfmeta_hub_longest_stall_seconds") == pytest.approx(0.3)


def test_a_rest_is_no_stall_however_long_it_is() -> None:
    clock = Clock()
    looks, before = hub.Looks(clock=clock), stalls()
    total = sample("dfmeta_hub_stall_seconds_sum")
    for rest in (0.02, 0.5, 10.0):
        latest = looks.rest() + 10.0
        clock.now += rest
        looks.wake(latest)
    assert seen_since(before) == dict.fromkeys(EDGES, 210), "20 times a second"
    assert sample("dfmeta_hub_stall_seconds_sum") == total


def test_a_rest_that_ends_too_late_is_a_stall() -> None:
    clock = Clock()
    looks, before = hub.Looks(clock=clock), stalls()
    latest = looks.rest() + 0.02
    clock.now += 0.25  # another process has had the core
    looks.wake(latest)
    looks.rest()
    assert seen_since(before) == {"0.01": 0, "0.05": 0, "0.25": 1, "0.5": 1}


def test_the_delay_of_the_hub_itself_is_measured() -> None:
    loop, bell = get_hub(), hub.Bell()
    poll, before = loop.do_poll, sample("dfmeta_hub_stall_seconds_sum")
    hub.watch()
    try:
        bell.wait(10 * hub.TICK)
        assert sample("dfmeta_hub_stall_seconds_sum") == pytest.approx(before)
        CLOCK.advance(2.0)
        bell.wait(0.0)
    finally:
        loop.do_poll = poll
    late = sample("dfmeta_hub_stall_seconds_sum") - before
    assert 2.0 - hub.TICK <= late <= 2.0


# A bell


def test_a_ring_ends_the_next_wait_alone() -> None:
    bell = hub.Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(5.0)
    assert not bell.wait(0.0)


def test_a_bell_wakes_its_greenthread() -> None:
    bell = hub.Bell()
    assert not bell.wait(5.0)
    eventlet.spawn_n(bell.ring)
    assert bell.wait(5.0)


def test_a_ring_in_the_midst_of_a_clear_does_not_mute_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bell, read = hub.Bell(), hub._os.read

    def ring_and_read(descriptor: int, size: int) -> bytes:
        bell.ring()
        return read(descriptor, size)

    bell.ring()
    with monkeypatch.context() as another_thread:
        another_thread.setattr(hub._os, "read", ring_and_read)
        bell.clear()
    bell.ring()
    assert read(bell.fileno(), 1) == b"x"


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's collector and its threads' interval as they were, afterwards.

    What is frozen stays so, as the tests themselves do (``tests/conftest.py``).
    """
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*before)
    gc.enable()
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("collector")
def test_the_collector_rests_during_the_start_and_passes_over_what_it_has_made() -> None:
    before = gc.get_freeze_count()
    hub.prepare()
    assert not gc.isenabled()
    hub.resume_collection()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before


def answered_while_the_hub_stands_still(wait: Callable[[Event, float], object]) -> bool:
    """Whether a wait sees the answer that came in the middle of it, in a hub that was held up."""
    event = Event()
    here, there = socket.socketpair()
    here.setblocking(False)

    def read() -> None:
        hubs.trampoline(here, read=True)
        event.send()

    def stand_still() -> None:
        there.send(b"answer")
        # Beyond the end of the wait.
        CLOCK.advance(0.3)

    eventlet.spawn(read)
    eventlet.sleep(0)
    eventlet.spawn(stand_still)
    try:
        return bool(wait(event, 0.2))
    finally:
        eventlet.sleep(0.01)
        here.close()
        there.close()


def test_an_answer_that_came_while_the_hub_stood_still_is_in_time() -> None:
    def timer_alone(event: Event, seconds: float) -> bool:
        with eventlet.Timeout(seconds, False):
            event.wait()
            return True
        return False

    assert answered_while_the_hub_stands_still(hub.wait)
    assert not answered_while_the_hub_stands_still(timer_alone)


def test_a_wait_for_an_answer_ends() -> None:
    begun = CLOCK.now()
    assert not hub.wait(Event(), 0.1)
    assert CLOCK.now() - begun == pytest.approx(0.1)
    event = Event()
    event.send()
    assert hub.wait(event, 0)
