"""The memory of lookups: queries under way, records not found, and failures."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar, cast

from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.http.client import Clock
from dfmeta.runtime.throttle import Backoff, Seldom
from dfmeta.store.db.record import Kind

LOG = logging.getLogger(__name__)

ENTRIES: Final = 16384
"""Maximum entries of each memory. A guest with a /64 can send requests from any number of
addresses."""
REST: Final = 1.0
"""Seconds after a failure during which the same query is not sent again, so that not every guest of
a boot storm waits for it."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Failure = LookupAwayError | LookupAnswerError
Question = tuple[Kind, str]
"""The half that is queried, and the record's id or address."""


class Memory(Generic[K, T]):
    """A bounded number of values by key; the oldest is evicted first. Safe to use from threads."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._lock = threading.Lock()
        self._values: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> T | None:
        """Return a value, None if there is no value or it was evicted."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: T) -> None:
        """Store a value as the newest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._entries:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove a value; do nothing if it does not exist."""
        with self._lock:
            self._values.pop(key, None)


class _Flight:
    """A call under way, and its result."""

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.result: Callable[[], Any] | None = None
        """Returns or raises the result. None: the thread was ended, and another one must call."""


class Flights:
    """Runs work of one name once, and shares the result with all callers that wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def busy(self, name: Hashable) -> bool:
        """Return whether work of that name is under way."""
        return name in self._flights

    def run(self, name: Hashable, work: Callable[[], T]) -> T:
        """Return the result of *work* or raise its error; another caller may have run it."""
        while True:
            with self._lock:
                flight = self._flights.get(name)
                mine = flight is None
                if flight is None:
                    flight = self._flights[name] = _Flight()
            if mine:
                return self._lead(name, flight, work)
            flight.landed.wait()
            if flight.result is not None:
                return cast("T", flight.result())

    def _lead(self, name: Hashable, flight: _Flight, work: Callable[[], T]) -> T:
        try:
            result = work()
        except Exception as error:
            flight.result = lambda error=error: _raise_again(error)
            raise
        else:
            flight.result = lambda: result
            return result
        finally:
            with self._lock:
                del self._flights[name]
            flight.landed.set()


def _raise_again(error: Exception) -> None:
    # Each caller raises its own copy: the traceback of a shared error would grow.
    fields = getattr(error, "fields", None)
    raise (type(error)(**fields) if isinstance(fields, dict) else error) from error


class Failures:
    """Recent failures: failed queries are logged, and not repeated for :data:`REST` seconds.

    A failure suspends the query that failed. All queries are suspended when no query could have
    been answered. All queries for one half are suspended when two different ones have failed
    without an answer between them: one broken record of the upstream store must not block other
    records, nor one broken half the other half.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._failures: Memory[Hashable, tuple[Backoff, Failure]] = Memory()
        self._last: dict[Hashable, Hashable] = {}
        """Half → the query that failed last, if none was answered since."""
        self._seldom = Seldom(clock=clock)

    def check(self, name: Question) -> None:
        """Raise the error of a recent failure of *name*, of its half or of all queries."""
        for one in (name, name[0], None):
            found = self._failures.get(one)
            if found is not None and found[0].rests(self._clock()):
                raise type(found[1])(**found[1].fields)

    def failed(self, name: Question, error: Failure) -> None:
        """Record a failure of *name*."""
        # A copy without traceback, which would keep its frames in memory.
        kept = type(error)(**error.fields)
        entry = (Backoff(REST), kept)
        entry[0].failed(self._clock())
        self._failures.put(name, entry)
        half, whole = name[0], error.fields.get("whole")
        again = self._last.get(half) not in (None, name) and isinstance(error, LookupAwayError)
        if whole:
            self._failures.put(None, entry)
        elif whole is None and again:
            self._failures.put(half, entry)
        if whole is not False:
            self._last[half] = name
        self._seldom.warn(LOG, "%s. Stored records are served meanwhile", error)

    def answered(self, name: Question) -> None:
        """Remove the failures that an answer to *name* contradicts."""
        self._last.pop(name[0], None)
        for one in (name, name[0], None):
            self._failures.drop(one)
