"""Upstream lookup: missing halves of records are fetched from the upstream store, and stored.

Each half of a record is fetched separately: the document may have been pushed here while only the
upstream store has the user-data. Only the halves that a request needs are fetched, so that no half
waits for the other one or fails with it.

Pushed halves are never fetched and never expire. Fetched halves are fetched again after they
expire; while the upstream store does not answer, the stored ones are served. The answer that
the upstream store has no record is cached for a while. A failure is not cached as an answer: a
request for a half that is not stored gets the error.

Trust: the caller has verified that ids and addresses belong to the guest. A record is used for an
address only if it names that address.
"""

import functools
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from dfmeta import metrics
from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.runtime import clock, throttle
from dfmeta.store.db.cache import LruCache
from dfmeta.store.db.record import BOTH, Address, Kind, Need, Push, Record, stamp
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.values import unusable
from dfmeta.store.lookup.upstream import UUID, Upstream

LOG = logging.getLogger(__name__)

ENTRIES: Final = 16384
"""Maximum entries of each memory. A guest with a /64 can send requests from any number of
addresses."""
_MOVES: Final = 3
"""How often an address may move to another record during its lookup."""

T = TypeVar("T")
Failure = LookupAwayError | LookupAnswerError
Question = tuple[Kind, str]
"""The half that is queried, and the record's id or address."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long answers of the upstream store are used, in seconds."""

    negative: float = 10.0
    """Seconds for which "no record" is cached."""
    expiry: float = 0.0
    """Seconds after which a fetched half expires; 0: never."""


class Puller:
    """Reads records, and fetches missing halves. Safe to use from several threads.

    Besides the errors of the repository, every method that reads raises
    :class:`~dfmeta.errors.LookupAwayError` (503 for a guest) or
    :class:`~dfmeta.errors.LookupAnswerError` (502) when a needed half is not known and the
    upstream store gives no usable answer.
    """

    def __init__(
        self,
        repository: Repository,
        upstream: Upstream,
        *,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self._repository = repository
        self._upstream = upstream
        self._lifetimes = lifetimes or Lifetimes()
        self._flights = Flights()
        self._failures = LookupFailures()
        self._absent: LruCache[Question, float] = LruCache(ENTRIES)
        """Until when a query counts as "no record" at the upstream store."""
        self._later: LruCache[Question, float] = LruCache(ENTRIES)
        """Until when an expired half is not queried again."""

    def get(self, record_id: str, need: Need = BOTH) -> Record | None:
        """Return the record of an instance, None if it has no record. The id's case is ignored.

        :param need: the halves that the caller needs; other halves of the upstream store may be
            missing.
        """
        return self._complete(record_id.lower(), self._repository.get(record_id), need)

    def find(self, address: Address, need: Need = BOTH) -> Record | None:
        """Return the record whose network contains *address*, by the longest prefix, or None.

        :param need: see :meth:`get`.
        """
        for _ in range(_MOVES):
            record = self._repository.find(address)
            if record is None or record.empty:
                record = self._discover(address, need)
            if record is None or self._complete(record.id, record, need) is record:
                return record
            # The fetched half may have other addresses, or the record's last half was removed.
            owner = self._repository.find(address)
            if owner is not None and owner.id == record.id and not owner.empty:
                return owner
        return None

    def addresses(self, record_id: str) -> tuple[str, ...]:
        """Return the stored networks of a record, without an upstream lookup."""
        return self._repository.addresses(record_id)

    def refresh(self, kind: Kind, record_id: str) -> Record | None:
        """Fetch one half from the upstream store now, in any case, and return the new record.

        The fetched half replaces a pushed one. A pushed half stays if the upstream store has none.

        :returns: None if the upstream store has no such half.
        """
        record_id = record_id.lower()
        if not UUID.fullmatch(record_id):
            return None
        name = ("refresh", kind, record_id)
        if not self._flights.run(name, lambda: self._refresh(kind, record_id)):
            return None
        return self._repository.get(record_id)

    def _complete(self, record_id: str, record: Record | None, need: Need) -> Record | None:
        """Return the record with its missing halves; *record* itself if none is missing."""
        if not UUID.fullmatch(record_id):
            return record
        for kind in need.halves:
            if self._is_wanted(kind, record_id, record):
                record = self._pull(kind, record_id, record)
        return self._any_half(record_id, record) if need.record else record

    def _any_half(self, record_id: str, record: Record | None) -> Record | None:
        """Return a record with a half that has not expired, if there is one.

        After an invalid answer for one half, the other half is tried, because the answer came
        quickly. If the upstream store is slow or away, the guest has waited long enough.
        """
        invalid: LookupAnswerError | None = None
        for kind in sorted(Kind, key=lambda half: record is None or not record.has(half)):
            if self._is_wanted(kind, record_id, record):
                try:
                    record = self._pull(kind, record_id, record)
                except LookupAnswerError as error:
                    invalid = error
            if record is not None and record.has(kind):
                return record
        if invalid is not None:
            raise invalid
        return record

    def _is_wanted(self, kind: Kind, record_id: str, record: Record | None) -> bool:
        """Return whether to query the upstream store for a half."""
        key = (kind, record_id)
        if record is None or not record.has(kind):
            return not self._is_until(self._absent, key)
        fetched, expiry = record.fetched_at(kind), self._lifetimes.expiry
        if fetched is None or not expiry or self._is_until(self._later, key):
            return False
        # A time in the future comes from a host whose clock is ahead, or our clock was set.
        return abs((stamp() - fetched).total_seconds()) >= expiry

    def _is_until(self, memory: LruCache[Question, float], key: Question) -> bool:
        until = memory.get(key)
        return until is not None and clock.now() < until

    def _pull(self, kind: Kind, record_id: str, record: Record | None) -> Record | None:
        """Fetch a half, unless that is under way; return the stored record if it fails."""
        key = (kind, record_id)
        is_known = self._is_known(key, record)
        if record is not None and record.has(kind) and self._flights.busy(key):
            # An expired half is used at once; for a missing one the caller waits.
            return record
        try:
            self._flights.run(key, lambda: self._ask(kind, record_id, retry=not is_known))
        except (LookupAwayError, LookupAnswerError):
            if record is None or not is_known:
                raise
            memory = self._later if record.has(kind) else self._absent
            memory.put(key, clock.now() + throttle.LONGEST_PAUSE)
            return record
        return self._repository.get(record_id)

    def _is_known(self, key: Question, record: Record | None) -> bool:
        """Return whether a half is stored, or was absent at the last answer of the upstream store.

        Absence counts only if the other half is stored. A record with no half at all may be about
        to appear upstream, and an instance needs one to boot, so it must be queried.
        """
        if record is None or record.empty:
            return False
        return record.has(key[0]) or self._absent.get(key) is not None

    def _ask(self, kind: Kind, record_id: str, *, retry: bool) -> None:
        before = self._repository.get(record_id)
        # A previous call may just have fetched the half.
        if self._is_wanted(kind, record_id, before):
            fetched = self._asked(
                (kind, record_id), lambda: self._upstream.by_id(kind, record_id, retry=retry)
            )
            self._take_in(kind, fetched, record_id=record_id, before=before)

    def _refresh(self, kind: Kind, record_id: str) -> bool:
        before = self._repository.get(record_id)
        fetched = _counted(lambda: self._upstream.by_id(kind, record_id))
        self._failures.answered((kind, record_id))
        self._take_in(kind, fetched, record_id=record_id, before=before, forced=True)
        return fetched is not None

    def _take_in(
        self,
        kind: Kind,
        fetched: Push | None,
        *,
        record_id: str,
        before: Record | None,
        forced: bool = False,
    ) -> None:
        """Store a fetched half, or remember that the upstream store has none."""
        key = (kind, record_id)
        if fetched is None:
            self._absent.put(key, clock.now() + self._lifetimes.negative)
            if before is not None and before.has(kind):
                self._repository.remove(kind, record_id, fetched=True)
        elif not self._store_fetched(fetched, over=before if forced else None):
            # The stored half is newer; do not query again soon.
            self._later.put(key, clock.now() + max(throttle.LONGEST_PAUSE, self._lifetimes.expiry))

    def _store_fetched(self, fetched: Push, *, over: Record | None = None) -> bool:
        self._absent.drop((fetched.kind, fetched.record_id))
        return self._repository.store_fetched(fetched, over=over)

    def _discover(self, address: Address, need: Need) -> Record | None:
        """Query the upstream store for an address that no record here has."""
        invalid: LookupAnswerError | None = None
        others = (kind for kind in Kind if need.record and kind not in need.halves)
        for kind in (*need.halves, *others):
            key = (kind, str(address))
            if self._is_until(self._absent, key):
                continue
            try:
                self._flights.run(key, functools.partial(self._ask_address, key, address))
            except LookupAnswerError as error:
                if kind in need.halves:
                    raise
                invalid = error
            record = self._repository.find(address)
            if record is not None and not record.empty:
                return record
        if invalid is not None:
            raise invalid
        return None

    def _ask_address(self, key: Question, address: Address) -> None:
        record = self._repository.find(address)
        if self._is_until(self._absent, key) or (record is not None and not record.empty):
            return
        fetched = self._asked(key, lambda: self._upstream.by_address(key[0], address))
        if fetched is not None:
            self._store_fetched(fetched)
            if self._repository.find(address) is not None:
                self._absent.drop(key)
                return
            # The record was pushed here without that address.
        self._absent.put(key, clock.now() + self._lifetimes.negative)

    def _asked(self, key: Question, ask: Callable[[], Push | None]) -> Push | None:
        self._failures.check(key)
        try:
            fetched = _counted(ask)
        except (LookupAwayError, LookupAnswerError) as error:
            self._failures.failed(key, error)
            raise
        self._failures.answered(key)
        return fetched


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
                leads = flight is None
                if flight is None:
                    flight = self._flights[name] = _Flight()
            if leads:
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


class LookupFailures:
    """Recent failures: failed queries are logged, and rest before they are repeated.

    A failure suspends the query that failed. All queries are suspended when no query could have
    been answered. All queries for one half are suspended when two different ones have failed
    without an answer between them: one broken record of the upstream store must not block other
    records, nor one broken half the other half.
    """

    def __init__(self) -> None:
        self._failures: LruCache[Hashable, tuple[throttle.Backoff, Failure]] = LruCache(ENTRIES)
        self._last: dict[Hashable, Hashable] = {}
        """Half → the query that failed last, if none was answered since."""
        self._throttle = throttle.LogThrottle()

    def check(self, name: Question) -> None:
        """Raise the error of a recent failure of *name*, of its half or of all queries."""
        for question in (name, name[0], None):
            failure = self._failures.get(question)
            if failure is not None and failure[0].rests(clock.now()):
                raise type(failure[1])(**failure[1].fields)

    def failed(self, name: Question, error: Failure) -> None:
        """Record a failure of *name*."""
        # A copy without traceback, which would keep its frames in memory.
        kept = type(error)(**error.fields)
        before = self._failures.get(name)
        entry = (before[0] if before is not None else throttle.Backoff(), kept)
        entry[0].failed(clock.now())
        self._failures.put(name, entry)
        half, whole = name[0], error.fields.get("whole")
        again = self._last.get(half) not in (None, name) and isinstance(error, LookupAwayError)
        if whole:
            self._failures.put(None, entry)
        elif whole is None and again:
            self._failures.put(half, entry)
        if whole is not False:
            self._last[half] = name
        self._throttle.warn(LOG, "%s. Stored records are served meanwhile", error)

    def answered(self, name: Question) -> None:
        """Remove the failures that an answer to *name* contradicts."""
        self._last.pop(name[0], None)
        for question in (name, name[0], None):
            self._failures.drop(question)


def _counted(ask: Callable[[], Push | None]) -> Push | None:
    try:
        fetched = ask()
    except LookupAwayError:
        metrics.STORE_LOOKUPS.labels("away").inc()
        raise
    except LookupAnswerError:
        metrics.STORE_LOOKUPS.labels("nonsense").inc()
        raise
    metrics.STORE_LOOKUPS.labels("absent" if fetched is None else "found").inc()
    if fetched is not None and not isinstance(fetched.content, bytes):
        metrics.STORE_KEYS_LEFT_OUT.inc(len(unusable(fetched.content)))
    return fetched
