"""Queries to the upstream store for one half of a record, by instance id or by address."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.http.client import Clock, HttpClient, UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.runtime import clock
from dfmeta.store.api.representations import ENVELOPE
from dfmeta.store.db.networks import Address
from dfmeta.store.db.record import FetchedHalf, Kind
from dfmeta.store.lookup.answer import by_address, by_id, fetch
from dfmeta.store.lookup.tokens import TokenSource

AT_ONCE: Final = 32
"""Concurrent queries for each half; further queries wait, within their time limit."""
WAIT: Final = 0.05
"""Seconds before the second try, doubled before each further one, plus up to as much at random."""
WAIT_MAX: Final = 0.5
"""Longest such wait in seconds, without the random part."""

_ACCEPT: Final = f"{ENVELOPE}, application/json"
_TRANSIENT: Final = frozenset({408, 425, 429})
"""Statuses, besides 5xx, of a server that may answer later (RFC 9110, 15.5; RFC 8470; RFC 6585)."""
_random: Final = random.SystemRandom()

Wait = Callable[[int], float]
"""Seconds to wait after a try, by its number from 1 on."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limit and retries of a query."""

    timeout: float = 2.0
    """Seconds for each try, including its connection and token; all tries share the sum."""
    retries: int = 2
    """Number of tries after the first one."""


class Upstream:
    """Client of the upstream store.

    Safe to use from several threads. Blocks its caller.

    :param base_url: URL that the operator has configured, ``http`` or ``https``, with or without a
        path.
    :param tokens: source of tokens; None: queries have no token.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        base_url: str,
        *,
        client: HttpClient,
        tokens: TokenSource | None = None,
        patience: Patience | None = None,
        clock: Clock = clock.now,
        wait: Wait | None = None,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._name = urlsplit(base_url).netloc
        self._client = client
        self._tokens = tokens
        self._patience = patience or Patience()
        self._clock = clock
        self._wait = wait or pause
        self._turns = {kind: threading.BoundedSemaphore(AT_ONCE) for kind in Kind}

    def by_address(self, kind: Kind, address: Address) -> FetchedHalf | None:
        """Return the upstream store's half for an address.

        :returns: None if it has no record for the address, or its record does not name the address.
        :raises LookupAwayError: it is slow, away, or answers with a temporary error.
        :raises LookupAnswerError: its answer is invalid.
        """
        path = f"/device-{kind}?ip_address={quote(str(address), safe='')}"
        found = self._ask(kind, path, lambda reply: by_address(kind, reply), retry=True)
        # A record that does not name the address could give one guest another guest's data.
        return found if found is not None and found.names(address) else None

    def by_id(self, kind: Kind, record_id: str, *, retry: bool = True) -> FetchedHalf | None:
        """Return the upstream store's half for an instance id, a UUID in lower case.

        :returns: None if it has no such half.
        :raises LookupAwayError: see :meth:`by_address`.
        :raises LookupAnswerError: its answer is invalid, or contains another record.
        """
        path = f"/device-{kind}/{record_id}"
        return self._ask(kind, path, lambda reply: by_id(kind, record_id, reply), retry=retry)

    def try_out(self, record_id: str, *, seconds: float) -> HttpResponse:
        """Query an instance's metadata once, and return the answer with any status.

        :param record_id: a UUID in lower case.
        :raises LookupAwayError, LookupAnswerError: see :meth:`by_address`.
        """
        deadline = self._clock() + seconds
        token = self._tokens.get(deadline=deadline) if self._tokens else ""
        return self._exchange(f"/device-metadata/{record_id}", token, deadline)

    def _ask(
        self, kind: Kind, path: str, read: Callable[[HttpResponse], FetchedHalf], *, retry: bool
    ) -> FetchedHalf | None:
        tries = self._patience.retries + 1 if retry else 1
        end = self._clock() + tries * self._patience.timeout
        if not self._turns[kind].acquire(timeout=end - self._clock()):
            cause = f"{AT_ONCE} lookups of {kind} are already under way"
            raise LookupAwayError(upstream=self._name, cause=cause, whole=False)
        try:
            reply = self._retried(path, tries, end)
        finally:
            self._turns[kind].release()
        if reply.status == 404:
            return None
        try:
            return read(reply)
        except ValueError as error:
            cause = f"its answer is not a usable record: {error}"
            raise LookupAnswerError(upstream=self._name, cause=cause) from error

    def _retried(self, path: str, tries: int, end: float) -> HttpResponse:
        number = 1
        while True:
            try:
                return self._try(path, end)
            except LookupAwayError:
                if number >= tries or self._clock() + WAIT >= end:
                    raise
            clock.sleep(min(self._wait(number), end - self._clock()))
            number += 1

    def _try(self, path: str, end: float) -> HttpResponse:
        deadline = min(end, self._clock() + self._patience.timeout)
        token = self._tokens.get(deadline=deadline) if self._tokens else ""
        reply = self._exchange(path, token, deadline)
        if reply.status == 401 and self._tokens:
            token = self._tokens.get(deadline=deadline, refused=token)
            reply = self._exchange(path, token, deadline)
        if reply.status in (200, 404):
            return reply
        cause = f"it answers {reply.status}"
        if reply.status >= 500 or reply.status in _TRANSIENT:
            raise LookupAwayError(upstream=self._name, cause=cause)
        raise LookupAnswerError(upstream=self._name, cause=cause)

    def _exchange(self, path: str, token: str, deadline: float) -> HttpResponse:
        headers = {"Accept": _ACCEPT}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return fetch(self._client, UrlRequest(self._base + path, headers, deadline=deadline))


def pause(attempt: int) -> float:
    """Return the seconds to wait after a try: doubled each time, plus a random part."""
    return min(WAIT * 2.0 ** (attempt - 1), WAIT_MAX) * (1 + _random.random())
