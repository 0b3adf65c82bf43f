"""The hub beside OS threads: a bell that they ring, and calls that block in them."""

import signal
import threading
from typing import Any

import eventlet
import pytest

from dfmeta.runtime import hub
from tests.core.unit.support import until
from tests.harness.poll import DEADLINE


@pytest.mark.parametrize("ringer", ["thread", "signal"])
def test_a_bell_wakes_from_other_threads_and_on_signals(ringer: str) -> None:
    bell = hub.Bell()
    handled: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _frame: handled.append(number))
    wakeup = signal.set_wakeup_fd(-1)
    bell.ring_on_signals()
    waits = threading.Event()

    def ring() -> None:
        waits.wait()
        if ringer == "thread":
            bell.ring()
        else:
            # The kernel gives it to that thread, and wakes no other.
            signal.raise_signal(signal.SIGUSR1)

    thread = threading.Thread(target=ring)
    thread.start()
    eventlet.spawn_n(waits.set)
    try:
        assert bell.wait(DEADLINE)
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGUSR1, before)
        thread.join()
    assert handled == ([signal.SIGUSR1] if ringer == "signal" else [])


class Gate:
    """A step that blocks its OS thread until it is opened or aborted."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self.aborted = False

    def __call__(self) -> str:
        self.entered.set()
        self._open.wait()
        return "aborted" if self.aborted else "passed"

    def open(self) -> None:
        self._open.set()

    def abort(self) -> None:
        self.aborted = True
        self._open.set()


def call(threads: hub.Threads, gate: Gate, *, seconds: float = 60, write: bool = False) -> Any:
    return eventlet.spawn(threads, gate, seconds=seconds, abort=gate.abort, write=write)


def test_a_step_that_blocks_leaves_the_other_threads_free() -> None:
    threads, gate = hub.Threads(readers=2, writers=1), Gate()
    waiting = call(threads, gate)
    until(gate.entered.is_set, "the step")
    assert threads(lambda: 5, seconds=60, abort=gate.abort, write=False) == 5
    gate.open()
    assert waiting.wait() == "passed"


def test_an_exception_of_a_step_is_raised() -> None:
    threads, gate = hub.Threads(readers=1, writers=1), Gate()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            threads(lambda: 1 // 0, seconds=60, abort=gate.abort, write=False)
    assert not gate.aborted


def test_writers_wait_for_their_turn_and_no_longer_than_their_time() -> None:
    threads, first, second = hub.Threads(readers=1, writers=1), Gate(), Gate()
    running = call(threads, first, write=True)
    until(first.entered.is_set, "the step")
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


def test_a_step_whose_caller_has_ended_is_aborted() -> None:
    threads, gate = hub.Threads(readers=1, writers=1), Gate()
    waiting = call(threads, gate)
    until(gate.entered.is_set, "the step")
    waiting.kill()
    until(lambda: gate.aborted, "the step")
