"""What a test may use follows from its folder: ``tests/core``, ``tests/host`` or ``tests/soak``.

A test of *core* is one process with a given time. A child process, a pause of the kernel's clock or
a connection to another address than this host's fails it, whatever the code under test does with
the error. eventlet's hub is virtual there: its clock stands while anything runs, and moves to the
next timer when all wait.

Tests of the other tiers have the kernel's clock, eventlet's own hub and a PATH of their own
(:mod:`tests.harness.programs`).
"""

import itertools
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, SupportsIndex

import eventlet
import pytest
from eventlet import tpool
from eventlet.hubs import epolls, use_hub
from eventlet.hubs.timer import Timer

from dfmeta.runtime import clock
from tests.harness import programs

TIERS: Final = ("core", "host", "soak")
_TESTS: Final = Path(__file__).resolve().parents[1]
_FORBIDDEN: Final = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
    }
)
"""Events of sys.audit (Python's table of audit events)."""
_SETTLED: Final = 0.003
"""Seconds of the kernel's clock without an event on any socket, after which all greenthreads wait:
loopback delivers in the system call that sends."""


class TierError(BaseException):
    """A test has used more than its tier allows. No code under test catches it."""


class VirtualClock:
    """A clock that moves when it is told to; it starts at the kernel's time."""

    def __init__(self) -> None:
        self._now, self._wall = time.monotonic(), time.time()

    def now(self) -> float:
        """Return the monotonic seconds."""
        return self._now

    def wall(self) -> float:
        """Return the seconds since 1970."""
        return self._wall

    def sleep(self, seconds: float) -> None:
        """Let the other greenthreads run, and the time pass."""
        eventlet.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._wall += seconds


CLOCK: Final = VirtualClock()
"""The clock of core."""


class VirtualHub(epolls.Hub):  # type: ignore[misc]  # eventlet is untyped
    """A hub on :data:`CLOCK`, which moves to the next timer when nothing is ready."""

    is_available = staticmethod(epolls.is_available)

    def __init__(self) -> None:
        super().__init__(clock=CLOCK.now)
        self._numbers = itertools.count()

    def add_timer(self, timer: Timer) -> object:
        """Have timers of one instant, of which there are many here, expire in their order."""
        timer.number = next(self._numbers)
        return super().add_timer(timer)

    def wait(self, seconds: float | None = None) -> None:
        """Handle events, or else let *seconds* pass."""
        if self.listeners[self.READ] or self.listeners[self.WRITE]:
            super().wait(seconds)
        else:
            CLOCK.advance(seconds or 0)

    def do_poll(self, seconds: float) -> list[tuple[int, int]]:
        """Return what is ready; with nothing, let *seconds* pass."""
        ready: list[tuple[int, int]] = self.poll.poll(0)
        if not ready and seconds > 0:
            ready = self.poll.poll(_SETTLED)
            if not ready:
                CLOCK.advance(seconds)
        return ready


def _is_before(timer: Timer, other: Timer) -> bool:
    return bool(getattr(timer, "number", 0) < getattr(other, "number", 0))


# eventlet compares timers of one instant by their addresses in memory.
Timer.__lt__ = _is_before


class _Guard:
    """Fails a test of core that does what core may not."""

    def __init__(self) -> None:
        self.tier = ""
        self.hidden = False
        self.running = False
        self.uses: list[str] = []
        sys.addaudithook(self._hear)
        # Python has an event of it from 3.13 on.
        self._sleep = time.sleep
        time.sleep = self._pause

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FORBIDDEN:
            self._refuse(f"{event} {arguments[0] if arguments else ''}")

    def _pause(self, seconds: float | SupportsIndex) -> None:
        self._refuse("time.sleep")
        self._sleep(seconds)

    def _refuse(self, use: str) -> None:
        if self.running and self.tier == "core":
            self.uses.append(use)
            raise TierError(f"a test of core may not use {use}")

    def enter(self, tier: str) -> None:
        """Give the clock and the hub of a tier to what follows."""
        if tier == self.tier:
            return
        self.tier = tier
        if tier == "core":
            # Threads end on the hub that they began with. Their calls are made at once here.
            tpool.killall()
            tpool._nthreads, tpool._setup_already = 0, True
            clock.use(CLOCK)
            use_hub(VirtualHub)
        else:
            if not self.hidden:
                self.hidden = True
                programs.hide()
            clock.use()
            use_hub()
            tpool._nthreads, tpool._setup_already = 20, False


_GUARD: Final = _Guard()


def tier_of(path: Path) -> str:
    """Return the tier of a test's file; ``soak`` for one in none of the folders."""
    try:
        first = path.relative_to(_TESTS).parts[0]
    except ValueError:
        return "soak"
    return first if first in TIERS else "soak"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the tier's clock and hub from the first fixture on."""
    _GUARD.enter(tier_of(item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that has used more than its tier allows."""
    del item
    _GUARD.uses.clear()
    _GUARD.running = True
    try:
        result = yield
    finally:
        _GUARD.running = False
    if _GUARD.uses:
        pytest.fail(f"a test of core may not use {', '.join(_GUARD.uses)}", pytrace=False)
    return result
