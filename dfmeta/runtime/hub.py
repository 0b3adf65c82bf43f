"""The hub, which runs all greenthreads in one thread: measurement of its delays, and sharing of it.

:data:`VITAL` has the threads that are essential for the process, :class:`Health` the parts that do
not work yet.

A loop over all ports yields to the hub every few milliseconds. Other greenthreads may change data
meanwhile, so no result of a lookup may be used after a yield.
"""

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from dfmeta import metrics
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import (
    Event,
    GreenletExit,
    Semaphore,
    call_in_thread,
    get_hub,
    original,
    wait_for_io,
)

LOG = logging.getLogger(__name__)

_os = original("os")
"""Unpatched module: calls that do not block must not go through the hub, above all in a handler."""

TICK = 0.05
"""Seconds between two measurements of the hub's delay. A measurement does not wake the hub. A stall
that begins between two measurements appears shorter by that time."""
SLICE = 0.005
"""Seconds that a loop over many ports may run before it yields to the hub."""

PARTS = 8
"""Number of parts of a wait for an answer; parts in which the hub was delayed do not count."""

SWITCH_INTERVAL = 0.001
"""Seconds after which a computing OS thread lets the hub continue. Each socket call of the hub
gives the interpreter to OVSDB's thread, and 5,000 ports keep that busy for seconds at a start."""
YOUNG, MIDDLE, OLD = 10_000, 5, 50
"""Thresholds of Python's garbage collector for new objects, surviving objects and all objects. A
collection stops all threads, for 1 ms per some thousand objects."""

_M_MMAP_THRESHOLD = -3
MAPPED = 131072
"""Bytes from which on a block of memory returns to the host as soon as it is freed."""

T = TypeVar("T")

Clock = Callable[[], float]
Sleep = Callable[[float], object]


class Turns:
    """Makes a loop yield to the hub when it has run for long enough.

    :param longest: seconds that the loop may run without a yield.
    :param clock: monotonic seconds.
    :param sleep: lets other greenthreads run.
    """

    def __init__(
        self,
        longest: float = SLICE,
        *,
        clock: Clock = clock.now,
        sleep: Sleep = threads.sleep,
    ) -> None:
        self._longest, self._clock, self._sleep = longest, clock, sleep
        self._since = clock()

    @property
    def over(self) -> bool:
        """Whether the loop should yield now."""
        return self._clock() - self._since >= self._longest

    def give_way(self) -> bool:
        """Yield to other greenthreads if it is time for that; return whether it yielded."""
        if not self.over:
            return False
        self._sleep(0)
        self._since = self._clock()
        return True


def wait(event: Event, seconds: float) -> bool:
    """Wait for *event*; return whether it occurred within *seconds*.

    Time in which the hub was blocked counts only partly: after a stall, the hub's timers expire
    before it reads an answer that has arrived meanwhile. The wait ends after twice the time in any
    case.
    """
    part = seconds / PARTS
    left = PARTS
    for _ in range(2 * PARTS):
        begun = clock.now()
        with threads.Timeout(part, False):
            event.wait()
        if event.ready():
            return True
        left -= clock.now() - begun < 2 * part
        if not left:
            break
    return False


class Looks:
    """Measures the delay of the hub every :data:`TICK`, from the hub's own waits.

    A thread that sleeps for :data:`TICK` would wake an idle process 20 times a second.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Clock = clock.now) -> None:
        self._clock = clock
        self._due = clock() + TICK
        self._longest = 0.0

    def rest(self) -> float:
        """Note that the hub becomes idle; return the time."""
        now = self._clock()
        if now >= self._due:
            self._note(now - self._due)
            self._due = now + TICK
        return now

    def wake(self, latest: float) -> None:
        """Note that the hub continues.

        :param latest: the time at which it should have continued; from then on it is late.
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
    """Start to measure the delay of this thread's hub.

    This works only with eventlet's hubs for poll(2) and epoll(7); on Linux, epoll is the default.
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

    The hub, any OS thread or a signal may ring it, once or repeatedly.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._rung = False

    def ring(self) -> None:
        """Wake the waiting greenthread, or let the next wait end at once."""
        if not self._rung:
            self._rung = True
            with contextlib.suppress(BlockingIOError):  # the pipe is full, and so will be read
                _os.write(self._writing, b"x")

    def ring_on_signals(self) -> None:
        """Ring the bell on each signal that has a handler, in any thread that gets the signal.

        Handlers run only in the main thread, and do not wake it.
        """
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the bell rings.

        :param seconds: None: however long it takes.
        :return: whether it rang within *seconds*.
        """
        if not self._rung:
            try:
                wait_for_io(self._reading, read=True, timeout=seconds, timeout_exc=TimeoutError)
            except TimeoutError:
                return False
        self.clear()
        return True

    def fileno(self) -> int:
        """Return the descriptor that is readable after a ring, for a thread that has no hub."""
        return self._reading

    def clear(self) -> None:
        """Forget the rings so far; look for what they announced afterwards."""
        # Read before the reset: a ring in between would write a byte that is read here, and later
        # rings would write none.
        with contextlib.suppress(BlockingIOError):
            _os.read(self._reading, 64)
        self._rung = False


def prepare() -> None:
    """Prevent delays of the start by the garbage collector; :func:`resume_collection` ends this.

    The collector would scan all objects of the start repeatedly and stop all threads meanwhile, for
    a tenth of a second and more with thousands of ports.
    """
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL)


def resume_collection() -> None:
    """Enable the garbage collector again, but exclude the objects of the start, which stay.

    Also set a fixed threshold for returning memory to the host. Otherwise each large document that
    is freed raises glibc's threshold, up to 32 MiB, and its memory is kept for the next one
    (mallopt(3), M_MMAP_THRESHOLD).
    """
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED)
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.enable()


class ThreadEndedError(RuntimeError):
    """An essential thread has ended, which is always an error in dfmeta.

    Not in :class:`~dfmeta.errors.DfmetaError`'s tree: the errors there have a remedy.
    """


class Vital:
    """Threads that are essential for the process: if one of them ends, the process must end.

    A failure is an exception, or an unexpected return. A thread that is killed (GreenletExit) ends
    on purpose, which is not a failure. The main thread calls :meth:`check`, and ends the process
    with a status; :attr:`failure` is set at once, for readiness.
    """

    def __init__(self) -> None:
        self.failure: ThreadEndedError | None = None
        """The first failure, if there was one."""
        self.on_failure: Callable[[], object] = lambda: None
        """Called at the first failure, in the thread that ends."""
        self._running: set[Any] = set()
        """Running greenthreads; without a reference they would be garbage-collected."""
        self._released = False

    @property
    def alive(self) -> bool:
        """Whether all essential threads run."""
        return self.failure is None

    def check(self) -> None:
        """Raise the first failure, if there was one.

        :raises ThreadEndedError: if a thread has ended.
        """
        if self.failure is not None:
            raise self.failure

    def release(self) -> None:
        """Allow the threads to end from now on, because the process ends."""
        self._released = True

    def spawn(
        self, name: str, function: Callable[..., object], *args: object, may_return: bool = False
    ) -> Any:
        """Run *function* in a greenthread, and return the greenthread.

        :param name: name of the thread, for the log and the error.
        :param may_return: *function* may return when its work is done; only an exception is a
            failure.
        """
        thread = threads.spawn(self.guard(name, function, may_return=may_return), *args)
        self._running.add(thread)
        thread.link(self._running.discard)
        return thread

    def guard(
        self, name: str, function: Callable[..., object], *, may_return: bool = False
    ) -> Callable[..., None]:
        """Return *function* wrapped for use in an OS thread; see :meth:`spawn`."""

        def guarded(*args: object) -> None:
            try:
                function(*args)
            except GreenletExit:
                return
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # threads.Timeout is not an Exception
                self._ended(name, error)
            else:
                if not may_return:
                    self._ended(name)

        return guarded

    def watch_greenthread(self, name: str, thread: Any) -> None:
        """Watch a library's greenthread as an essential thread; its end is a failure.

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
            # The final error line names the place where the traceback ends.
            self.failure = failure.with_traceback(error.__traceback__ if error else None)
            self.on_failure()


VITAL = Vital()
"""The essential threads of this process."""


class Health:
    """Collects the parts that must work before guests are served."""

    def __init__(self) -> None:
        self._probes: dict[str, Callable[[], bool]] = {}

    def watch(self, name: str, probe: Callable[[], bool]) -> None:
        """Report *name* as missing while *probe* returns False."""
        self._probes[name] = probe

    def missing(self) -> list[str]:
        """Return the names of the parts that do not work at the moment."""
        return [name for name, probe in self._probes.items() if not probe()]


class Threads:
    """OS threads for calls that wait for a disk, a lock or another host.

    See :class:`dfmeta.store.db.database.Apart`. The caller waits; the hub continues.

    :param readers: maximum number of simultaneous calls that only read.
    :param writers: maximum number of other simultaneous calls. eventlet has 20 threads in all
        (EVENTLET_THREADPOOL_SIZE).
    """

    def __init__(self, *, readers: int, writers: int) -> None:
        self._readers = Semaphore(readers)
        self._writers = Semaphore(writers)

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step* in a thread; see :class:`dfmeta.store.db.database.Apart`.

        :raises TimeoutError: if all threads were busy for *seconds*.
        """
        slots = self._writers if write else self._readers
        deadline = clock.now() + seconds
        if not slots.acquire(timeout=max(seconds, 0.001)):
            raise TimeoutError
        timer = get_hub().schedule_call_global(max(deadline - clock.now(), 0.0), abort)
        try:
            return call_in_thread(step)  # type: ignore[no-any-return]  # eventlet is untyped
        except (GreenletExit, threads.Timeout):
            # The caller no longer waits for the result, and other calls need the thread.
            abort()
            raise
        finally:
            timer.cancel()
            slots.release()
