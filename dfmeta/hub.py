"""The hub has one thread: how long somebody has kept it from all others, and how to share it.

Whatever loops over all ports gives way every few milliseconds. What it has read before may have
changed after that, so nothing that was looked up is carried over such a place.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import eventlet
from eventlet import tpool
from eventlet.hubs import get_hub
from eventlet.semaphore import Semaphore
from eventlet.support.greenlets import GreenletExit

from dfmeta import metrics

TICK = 0.05
"""Seconds between two looks at how late the hub is, which cost an idle daemon some 0.01 % of a core
for each in a second. A stall that begins between two is seen shorter by as much."""
SLICE = 0.005
"""Seconds that a loop over many ports may keep the hub for."""

SWITCH_INTERVAL = 0.001
"""Seconds after which an OS thread that computes lets the hub go on: each socket call of the hub
gives the interpreter to OVSDB's thread, and 5,000 ports keep that busy for seconds at a start."""
YOUNG, MIDDLE, OLD = 10_000, 5, 50
"""When Python's collector looks at new objects, at those that have stayed and at all: what one look
takes is kept from everybody, 1 ms for some thousand objects."""

_M_MMAP_THRESHOLD = -3
MAPPED = 131072
"""Bytes of memory from which on a piece is the host's again as soon as it is free."""

T = TypeVar("T")

Clock = Callable[[], float]
Sleep = Callable[[float], object]


class Turns:
    """Gives the hub to others when a loop has had it for long enough.

    :param longest: seconds that the loop may have it for.
    :param clock: monotonic seconds.
    :param sleep: lets the others run.
    """

    def __init__(
        self,
        longest: float = SLICE,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = eventlet.sleep,
    ) -> None:
        self._longest, self._clock, self._sleep = longest, clock, sleep
        self._since = clock()

    @property
    def over(self) -> bool:
        """Whether it is time to give way."""
        return self._clock() - self._since >= self._longest

    def give_way(self) -> bool:
        """Let the others run if it is time for that; say whether they could."""
        if not self.over:
            return False
        self._sleep(0)
        self._since = self._clock()
        return True


def watch(*, clock: Clock = time.monotonic, sleep: Sleep = eventlet.sleep) -> None:
    """Note for ever how late the hub wakes who has slept; run it in a thread of its own."""
    longest = 0.0
    while True:
        due = clock() + TICK
        sleep(TICK)
        late = max(0.0, clock() - due)
        metrics.HUB_STALL_SECONDS.observe(late)
        if late > longest:
            longest = late
            metrics.HUB_LONGEST_STALL_SECONDS.set(late)


def prepare() -> None:
    """Have nothing but the hub's own work delay the start; :func:`settle` follows it.

    The collector goes through everything that is read at the start again and again, and holds all
    threads meanwhile: a tenth of a second and more with thousands of ports.
    """
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL)


def settle() -> None:
    """Let the collector run again, past what the start has made and what stays.

    And have large documents given back to the host: each that is freed raises glibc's threshold,
    up to 32 MiB, for what is kept for the next one (mallopt(3), M_MMAP_THRESHOLD).
    """
    with contextlib.suppress(AttributeError):  # where the C library is another one
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED)
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.enable()


def abandon_threads() -> None:
    """Have the end of the process not wait for what still runs in :class:`Threads`.

    What a server keeps waiting would be waited for. Whoever has been answered has what was done.
    """
    atexit.unregister(tpool.killall)


class Threads:
    """OS threads for calls that wait for a disk, a lock or another host.

    See :class:`dfmeta.store.apart.Apart`. Whoever calls waits; the hub goes on.

    :param readers: how many calls that only read may run at once.
    :param writers: how many others may. eventlet has 20 threads in all (EVENTLET_THREADPOOL_SIZE).
    """

    def __init__(self, *, readers: int, writers: int) -> None:
        self._readers = Semaphore(readers)
        self._writers = Semaphore(writers)

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step* in a thread; see :class:`dfmeta.store.apart.Apart`.

        :raises TimeoutError: when all threads were taken for that long.
        """
        slots = self._writers if write else self._readers
        deadline = time.monotonic() + seconds
        if not slots.acquire(timeout=max(seconds, 0.001)):
            raise TimeoutError
        timer = get_hub().schedule_call_global(max(deadline - time.monotonic(), 0.0), abort)
        try:
            return tpool.execute(step)  # type: ignore[no-any-return]  # eventlet is untyped
        except (GreenletExit, eventlet.Timeout):
            # Nobody waits for it any more, and its thread is wanted.
            abort()
            raise
        finally:
            timer.cancel()
            slots.release()
