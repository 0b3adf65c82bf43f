"""The hub has one thread: how long somebody has kept it from all others, and how to share it.

The threads that a process cannot do without are kept in :data:`VITAL`.

Whatever loops over all ports gives way every few milliseconds. What it has read before may have
changed after that, so nothing that was looked up is carried over such a place.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import eventlet
from eventlet import tpool
from eventlet.event import Event
from eventlet.hubs import get_hub, trampoline
from eventlet.patcher import original
from eventlet.semaphore import Semaphore
from eventlet.support.greenlets import GreenletExit

from dfmeta import metrics

LOG = logging.getLogger(__name__)

_os = original("os")
"""Unpatched: what does not block must not go through the hub, least of all in a handler."""

TICK = 0.05
"""Seconds between two looks at how late the hub is; none of them wakes it. A stall that begins
between two is seen shorter by as much."""
SLICE = 0.005
"""Seconds that a loop over many ports may keep the hub for."""

PARTS = 8
"""Of a wait for an answer; a part in which the hub was held up does not count."""

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


def wait(event: Event, seconds: float) -> bool:
    """Wait for *event*; tell whether it came within so many seconds.

    Time in which the hub stands still counts for little: a hub that was held up finds its timers
    expired before it reads the answer that has arrived meanwhile. The wait ends after twice the
    time in any case.
    """
    part = seconds / PARTS
    left = PARTS
    for _ in range(2 * PARTS):
        begun = time.monotonic()
        with eventlet.Timeout(part, False):
            event.wait()
        if event.ready():
            return True
        left -= time.monotonic() - begun < 2 * part
        if not left:
            break
    return False


class Looks:
    """How late the hub is for what is due every :data:`TICK`, told by its own waits.

    A thread that slept for that long would wake an idle process 20 times a second.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + TICK
        self._longest = 0.0

    def rest(self) -> float:
        """Note that the hub has nothing to do; returns the time."""
        now = self._clock()
        if now >= self._due:
            self._note(now - self._due)
            self._due = now + TICK
        return now

    def wake(self, latest: float) -> None:
        """Note that the hub goes on.

        :param latest: when it was to do so at the latest: from then on it is late.
        """
        rested = min(self._clock(), latest)
        while self._due <= rested:
            self._note(0.0)
            self._due += TICK

    def _note(self, late: float) -> None:
        metrics.HUB_STALL_SECONDS.observe(late)
        if late > self._longest:
            self._longest = late
            metrics.HUB_LONGEST_STALL_SECONDS.set(late)


def watch() -> None:
    """Note from now on how late the hub of this thread is.

    Only eventlet's hubs of poll(2) and epoll(7) tell; Linux has the second by default.
    """
    loop = get_hub()
    poll = getattr(loop, "do_poll", None)
    if poll is None:
        return
    looks = Looks()

    def do_poll(seconds: float) -> object:
        latest = looks.rest() + seconds
        try:
            return poll(seconds)
        finally:
            looks.wake(latest)

    loop.do_poll = do_poll


class Bell:
    """Wakes the one greenthread that waits for it.

    Rung from the hub, from any OS thread or by a signal, once or more often.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._rung = False

    def ring(self) -> None:
        """Wake the one that waits, or have the next wait end at once."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(BlockingIOError):  # full: it will be read
                _os.write(self._writing, b"x")

    def ring_on_signals(self) -> None:
        """Have each signal with a handler ring it, whichever thread the kernel gives the signal to.

        Handlers run in the main thread alone, and do not wake it.
        """
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def wait(self, seconds: float) -> bool:
        """Wait until it rings.

        :return: whether it did within that time.
        """
        rung = self._rung
        if not rung:
            with contextlib.suppress(TimeoutError):
                trampoline(self._reading, read=True, timeout=seconds, timeout_exc=TimeoutError)
                rung = True
        self._rung = False
        # After that: a ring from here on is of the next wait.
        with contextlib.suppress(BlockingIOError):
            _os.read(self._reading, 64)
        return rung


def prepare() -> None:
    """Have nothing but the hub's own work delay the start; :func:`resume_collection` follows it.

    The collector goes through everything that is read at the start again and again, and holds all
    threads meanwhile: a tenth of a second and more with thousands of ports.
    """
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL)


def resume_collection() -> None:
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


class ThreadEndedError(RuntimeError):
    """A thread that the process cannot do without has ended: an error in dfmeta, always.

    Not of :class:`~dfmeta.exceptions.DfmetaError`'s tree, whose errors have a remedy.
    """


class Vital:
    """Threads that the process cannot do without: where one of them ends, the process has to end.

    An end is an exception, or a return where none is expected. A thread that is killed
    (GreenletExit) is ended on purpose, which is no failure. The main thread looks at
    :meth:`check`, and ends the process with a status; :attr:`failure` is there at once, for
    readiness.
    """

    def __init__(self) -> None:
        self.failure: ThreadEndedError | None = None
        """The first end, if there was one."""
        self.on_failure: Callable[[], object] = lambda: None
        """Called at the first end, in the thread that ends."""
        self._running: set[Any] = set()
        """Greenthreads: one that nothing refers to would be collected, and end by that."""
        self._released = False

    @property
    def alive(self) -> bool:
        """Whether all of them run."""
        return self.failure is None

    def check(self) -> None:
        """Raise the first failure, if there was one.

        :raises ThreadEndedError: when a thread has ended.
        """
        if self.failure is not None:
            raise self.failure

    def release(self) -> None:
        """Let the threads end from now on: the process ends."""
        self._released = True

    def spawn(
        self, name: str, function: Callable[..., object], *args: object, may_return: bool = False
    ) -> Any:
        """Run *function* in a greenthread, and return that.

        :param name: for the log and the error.
        :param may_return: it ends when its work is done; only an exception is a failure.
        """
        thread = eventlet.spawn(self.guard(name, function, may_return=may_return), *args)
        self._running.add(thread)
        thread.link(self._running.discard)
        return thread

    def guard(
        self, name: str, function: Callable[..., object], *, may_return: bool = False
    ) -> Callable[..., None]:
        """Return *function* as an OS thread runs it; see :meth:`spawn`."""

        def guarded(*args: object) -> None:
            try:
                function(*args)
            except GreenletExit:
                return
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # eventlet.Timeout is no Exception
                self._ended(name, error)
            else:
                if not may_return:
                    self._ended(name)

        return guarded

    def watch_greenthread(self, name: str, thread: Any) -> None:
        """Count a greenthread of a library's among them; its end is a failure.

        :param thread: an eventlet.greenthread.GreenThread.
        """
        thread.link(lambda _thread: self._ended(name))

    def _ended(self, name: str, error: BaseException | None = None) -> None:
        if self._released and error is None:
            return
        LOG.critical("The thread %r has ended; the process ends", name, exc_info=error)
        if self.failure is None and not self._released:
            cause = "it has returned" if error is None else f"{type(error).__name__}: {error}"
            failure = ThreadEndedError(f"the thread {name!r} has ended: {cause}")
            # The last words name the place that the traceback ends with.
            self.failure = failure.with_traceback(error.__traceback__ if error else None)
            self.on_failure()


VITAL = Vital()
"""Those of this process."""


class Threads:
    """OS threads for calls that wait for a disk, a lock or another host.

    See :class:`dfmeta.store.db.apart.Apart`. Whoever calls waits; the hub goes on.

    :param readers: how many calls that only read may run at once.
    :param writers: how many others may. eventlet has 20 threads in all (EVENTLET_THREADPOOL_SIZE).
    """

    def __init__(self, *, readers: int, writers: int) -> None:
        self._readers = Semaphore(readers)
        self._writers = Semaphore(writers)

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step* in a thread; see :class:`dfmeta.store.db.apart.Apart`.

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
