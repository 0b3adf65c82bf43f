"""The clock of the process: each module asks here for the time and for a pause.

Tests give the time (:func:`use`), so that they do not depend on the speed of a machine. Programs
that run in a guest, and the holder of the listeners, import nothing of dfmeta: they ask the kernel.
"""

import time
from typing import Final, Protocol

POLL: Final = 0.01
"""Seconds between two checks of a condition that no event announces."""
ANSWER_TIMEOUT: Final = 5.0
"""Seconds for the answer of another program."""
CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of something that may change without a notice."""
FULL_CHECK_INTERVAL: Final = 30.0
"""Seconds between two checks of everything, even of what is reported when it changes."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> float:
        """Return the seconds of a clock that never goes back (CLOCK_MONOTONIC)."""

    def wall(self) -> float:
        """Return the seconds since 1970-01-01 00:00 UTC (CLOCK_REALTIME)."""

    def sleep(self, seconds: float) -> object:
        """Pause this thread; a greenthread lets the others run."""


class _Kernel:
    """The kernel's clocks. :func:`time.sleep` is the hub's where eventlet has patched it."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_clock: Clock = _Kernel()


def use(clock: Clock | None = None) -> None:
    """Take the time from *clock* from now on; None: from the kernel."""
    global _clock
    _clock = clock or _Kernel()


def now() -> float:
    """Return monotonic seconds; only their differences have a meaning."""
    return _clock.now()


def wall() -> float:
    """Return the seconds since 1970-01-01 00:00 UTC."""
    return _clock.wall()


def booted() -> float:
    """Return the seconds from 1970-01-01 00:00 UTC to the start of the system."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def sleep(seconds: float) -> None:
    """Pause this thread; a greenthread lets the others run meanwhile."""
    _clock.sleep(seconds)
