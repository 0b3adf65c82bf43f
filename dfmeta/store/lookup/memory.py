"""What look-ups remember: who asks at the moment, what was not there, and what has failed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar, cast

from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.quiet import Seldom
from dfmeta.store.db.record import Kind
from dfmeta.store.http import Clock

LOG = logging.getLogger(__name__)

ENTRIES: Final = 16384
"""Of each memory. A guest that has a /64 can ask from as many addresses as it likes."""
REST: Final = 1.0
"""Seconds after a failure in which the same is not asked again: guests that come in a storm do not
each wait for it."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Failure = LookupAwayError | LookupAnswerError
Question = tuple[Kind, str]
"""A half, and the record's id or address that it is asked for by."""


class Memory(Generic[K, T]):
    """Values by key, a bounded number of them; the oldest give way. Safe to use from threads."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._lock = threading.Lock()
        self._values: OrderedDict[K, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> T | None:
        """Return a value; None: there is none, or it has given way."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: T) -> None:
        """Remember a value, as the newest."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._entries:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget a value; one that is not here is no error."""
        with self._lock:
            self._values.pop(key, None)


class _Flight:
    """Somebody's work, and what has come of it."""

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.result: Callable[[], Any] | None = None
        """None: whoever did it has been ended; somebody else has to."""


class Flights:
    """Has work of one name done once, for all that ask for it meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def busy(self, name: Hashable) -> bool:
        """Whether work of that name is under way."""
        return name in self._flights

    def run(self, name: Hashable, work: Callable[[], T]) -> T:
        """Return what *work* returns, or raise what it raises, whoever has done it."""
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
    # Each with a traceback of its own: one that is raised by many would grow.
    fields = getattr(error, "fields", None)
    raise (type(error)(**fields) if isinstance(fields, dict) else error) from error


class Rests:
    """Failures of late: what has failed is left alone for a moment, and said in the log.

    A failure rests what was asked for. All rest when nobody could have been answered; all of one
    half rest when two different questions for it have failed without an answer between them: one
    broken record of upstream's is no reason to keep others from theirs, nor is one broken half.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._failures: Memory[Hashable, tuple[float, Failure]] = Memory()
        self._last: dict[Hashable, Hashable] = {}
        """Of each half, what failed last, unless something was answered since."""
        self._seldom = Seldom(clock=clock)

    def check(self, name: Question) -> None:
        """Raise what has failed a moment ago, for *name*, for its half or for all."""
        for one in (name, name[0], None):
            found = self._failures.get(one)
            if found is not None and self._clock() < found[0]:
                raise type(found[1])(**found[1].fields)

    def failed(self, name: Question, error: Failure) -> None:
        """Remember a failure."""
        # Without where it came from, which would keep all of it in memory.
        kept = type(error)(**error.fields)
        entry = (self._clock() + REST, kept)
        self._failures.put(name, entry)
        half, whole = name[0], error.fields.get("whole")
        again = self._last.get(half) not in (None, name) and isinstance(error, LookupAwayError)
        if whole:
            self._failures.put(None, entry)
        elif whole is None and again:
            self._failures.put(half, entry)
        if whole is not False:
            self._last[half] = name
        self._seldom.warn(LOG, "%s. What is stored is served meanwhile", error)

    def answered(self, name: Question) -> None:
        """Forget the failures that an answer contradicts."""
        self._last.pop(name[0], None)
        for one in (name, name[0], None):
            self._failures.drop(one)
