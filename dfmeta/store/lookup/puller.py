"""Upstream look-up: what this store does not have is asked of another one, and kept.

Each half of a record is asked for by itself: a document may have been pushed here and its user-data
be upstream's to know. Only what a request needs is asked for, so that neither half has to wait for
the other, or fails with it.

What was pushed is never asked for and never expires. What was fetched is asked for again when it
has expired; while upstream is away, what is known is served. That upstream has nothing is believed
for a while, that it has failed is not: whoever asks for what is not known gets the error.

Trust: ids and addresses are those that the caller has found to be the guest's. A record counts for
an address only if it names it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dfmeta import metrics
from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.store.db.networks import Address
from dfmeta.store.db.record import Kind, Record
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.need import BOTH, Need
from dfmeta.store.http import Clock
from dfmeta.store.lookup.answer import UUID, FetchedHalf
from dfmeta.store.lookup.memory import Flights, Memory, Question, Rests
from dfmeta.store.lookup.upstream import Upstream

LATER: Final = 5.0
"""Seconds in which what has expired is served unasked once upstream was found to be away."""
_MOVES: Final = 3
"""Times that an address may turn out to have moved while it is looked up."""

Now = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long what upstream has said is believed, in seconds."""

    negative: float = 10.0
    """That it has nothing."""
    expiry: float = 0.0
    """What it has; 0: for ever."""


class Puller:
    """Reads records, and asks upstream for what is missing. Safe to use from several threads.

    Every method that reads raises, beside what the repository raises,
    :class:`~dfmeta.exceptions.LookupAwayError` (503 for a guest) or
    :class:`~dfmeta.exceptions.LookupAnswerError` (502), when something that is needed is not known
    and upstream does not say.

    :param clock: monotonic seconds.
    :param now: the time of day, with its zone; compared with when a record was fetched.
    """

    def __init__(
        self,
        repository: Repository,
        upstream: Upstream,
        *,
        lifetimes: Lifetimes | None = None,
        clock: Clock = time.monotonic,
        now: Now = lambda: datetime.now(UTC),
    ) -> None:
        self._repository = repository
        self._upstream = upstream
        self._lifetimes = lifetimes or Lifetimes()
        self._clock = clock
        self._now = now
        self._flights = Flights()
        self._rests = Rests(clock=clock)
        self._absent: Memory[Question, float] = Memory()
        """Until when it is believed that upstream has nothing."""
        self._later: Memory[Question, float] = Memory()
        """Until when what has expired is not asked for again."""

    def get(self, record_id: str, need: Need = BOTH) -> Record | None:
        """Return the record of an instance, None when there is none. The id's case is ignored.

        :param need: what the caller has to know; what else upstream has may be missing.
        """
        return self._complete(record_id.lower(), self._repository.get(record_id), need)

    def find(self, address: Address, need: Need = BOTH) -> Record | None:
        """Return the record that has *address*, by the longest prefix; None when none has.

        :param need: see :meth:`get`.
        """
        for _ in range(_MOVES):
            record = self._repository.find(address)
            if record is None or record.empty:
                record = self._discover(address, need)
            if record is None or self._complete(record.id, record, need) is record:
                return record
            # What has come may have other addresses, or have been the last of the record.
            owner = self._repository.find(address)
            if owner is not None and owner.id == record.id and not owner.empty:
                return owner
        return None

    def addresses(self, record_id: str) -> tuple[str, ...]:
        """Return the networks of a record, as the store has them: upstream is not asked."""
        return self._repository.addresses(record_id)

    def refresh(self, kind: Kind, record_id: str) -> Record | None:
        """Ask upstream for one half now, whatever is stored, and return the record after that.

        What was pushed before gives way to what upstream has, and stays where it has nothing.

        :returns: None when upstream has nothing.
        """
        record_id = record_id.lower()
        if not UUID.fullmatch(record_id):
            return None
        name = ("refresh", kind, record_id)
        if not self._flights.run(name, lambda: self._refresh(kind, record_id)):
            return None
        return self._repository.get(record_id)

    def close(self) -> None:
        """Close the connections to upstream. The repository stays open."""
        self._upstream.close()

    def _complete(self, record_id: str, record: Record | None, need: Need) -> Record | None:
        """Return a record with the halves that were missing; itself when none was."""
        if not UUID.fullmatch(record_id):
            return record
        for kind in need.halves:
            if self._is_wanted(kind, record_id, record):
                record = self._pull(kind, record_id, record)
        return self._any_half(record_id, record) if need.record else record

    def _any_half(self, record_id: str, record: Record | None) -> Record | None:
        """Return a record with a half that has not expired, if there is one.

        The other half may say what this one's nonsense leaves open, and says it at once; where this
        one is slow or away the guest has waited long enough.
        """
        nonsense: LookupAnswerError | None = None
        for kind in sorted(Kind, key=lambda one: record is None or not record.has(one)):
            if self._is_wanted(kind, record_id, record):
                try:
                    record = self._pull(kind, record_id, record)
                except LookupAnswerError as error:
                    nonsense = error
            if record is not None and record.has(kind):
                return record
        if nonsense is not None:
            raise nonsense
        return record

    def _is_wanted(self, kind: Kind, record_id: str, record: Record | None) -> bool:
        """Whether upstream is to be asked for a half."""
        key = (kind, record_id)
        if record is None or not record.has(kind):
            return not self._is_until(self._absent, key)
        fetched, expiry = record.fetched_at(kind), self._lifetimes.expiry
        if fetched is None or not expiry or self._is_until(self._later, key):
            return False
        # One that is to come was fetched by a host whose clock is ahead, or ours was set.
        return abs((self._now() - fetched).total_seconds()) >= expiry

    def _is_until(self, memory: Memory[Question, float], key: Question) -> bool:
        until = memory.get(key)
        return until is not None and self._clock() < until

    def _pull(self, kind: Kind, record_id: str, record: Record | None) -> Record | None:
        """Ask upstream for a half, unless somebody does; what is known will do if it fails."""
        key = (kind, record_id)
        known = self._is_known(key, record)
        if record is not None and record.has(kind) and self._flights.busy(key):
            # What has expired will do, what may have come has to be waited for.
            return record
        try:
            self._flights.run(key, lambda: self._ask(kind, record_id, retry=not known))
        except (LookupAwayError, LookupAnswerError):
            if record is None or not known:
                raise
            memory = self._later if record.has(kind) else self._absent
            memory.put(key, self._clock() + LATER)
            return record
        return self._repository.get(record_id)

    def _is_known(self, key: Question, record: Record | None) -> bool:
        """Whether a half is here, or was not there the last time that upstream could be asked.

        That counts only where the other half is here: what an instance has none of may be about to
        come, what it boots with has to be asked for.
        """
        if record is None or record.empty:
            return False
        return record.has(key[0]) or self._absent.get(key) is not None

    def _ask(self, kind: Kind, record_id: str, *, retry: bool) -> None:
        before = self._repository.get(record_id)
        # Whoever was here a moment ago may have asked already.
        if self._is_wanted(kind, record_id, before):
            found = self._asked(
                (kind, record_id), lambda: self._upstream.by_id(kind, record_id, retry=retry)
            )
            self._take_in(kind, found, record_id=record_id, before=before)

    def _refresh(self, kind: Kind, record_id: str) -> bool:
        before = self._repository.get(record_id)
        found = _counted(lambda: self._upstream.by_id(kind, record_id))
        self._rests.answered((kind, record_id))
        self._take_in(kind, found, record_id=record_id, before=before, forced=True)
        return found is not None

    def _take_in(
        self,
        kind: Kind,
        found: FetchedHalf | None,
        *,
        record_id: str,
        before: Record | None,
        forced: bool = False,
    ) -> None:
        """Store what upstream has, or that it has nothing."""
        key = (kind, record_id)
        if found is None:
            self._absent.put(key, self._clock() + self._lifetimes.negative)
            if before is not None and before.has(kind):
                self._repository.remove(kind, record_id, fetched=True)
        elif not self._store_fetched(kind, found, over=before if forced else None):
            # What is here is newer, and upstream was asked all the same.
            self._later.put(key, self._clock() + max(LATER, self._lifetimes.expiry))

    def _store_fetched(self, kind: Kind, found: FetchedHalf, *, over: Record | None = None) -> bool:
        self._absent.drop((kind, found.id))
        return self._repository.store_fetched(
            kind,
            found.id,
            content=found.content,
            networks=found.networks,
            http_tokens=found.http_tokens,
            over=over,
        )

    def _discover(self, address: Address, need: Need) -> Record | None:
        """Ask upstream whose an address is that no record here has."""
        nonsense: LookupAnswerError | None = None
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
                nonsense = error
            record = self._repository.find(address)
            if record is not None and not record.empty:
                return record
        if nonsense is not None:
            raise nonsense
        return None

    def _ask_address(self, key: Question, address: Address) -> None:
        record = self._repository.find(address)
        if self._is_until(self._absent, key) or (record is not None and not record.empty):
            return
        found = self._asked(key, lambda: self._upstream.by_address(key[0], address))
        if found is not None:
            self._store_fetched(key[0], found)
            if self._repository.find(address) is not None:
                self._absent.drop(key)
                return
            # It was pushed here, and without that address.
        self._absent.put(key, self._clock() + self._lifetimes.negative)

    def _asked(self, key: Question, ask: Callable[[], FetchedHalf | None]) -> FetchedHalf | None:
        self._rests.check(key)
        try:
            found = _counted(ask)
        except (LookupAwayError, LookupAnswerError) as error:
            self._rests.failed(key, error)
            raise
        self._rests.answered(key)
        return found


def _counted(ask: Callable[[], FetchedHalf | None]) -> FetchedHalf | None:
    try:
        found = ask()
    except LookupAwayError:
        metrics.STORE_LOOKUPS.labels("away").inc()
        raise
    except LookupAnswerError:
        metrics.STORE_LOOKUPS.labels("nonsense").inc()
        raise
    metrics.STORE_LOOKUPS.labels("absent" if found is None else "found").inc()
    return found
