"""Queries to the upstream store for one half of a record, by instance id or by address.

dfmeta's own API, and servers written for hollow-metadataservice's client, return an envelope
``{id, ipAddresses, metadata}`` or ``{id, ipAddresses, userdata}``. hollow-metadataservice itself
returns only the content for a query by id.

Trust: the upstream store is the operator's, and its metadata is trusted. User-data without an
envelope comes from a tenant: if it looks like an envelope, its addresses are ignored.
"""

import base64
import random
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

from dfmeta import errors
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import FIRST_PAUSE, LONGEST_PAUSE
from dfmeta.store.api import checks, requests
from dfmeta.store.api.representations import ENVELOPE
from dfmeta.store.db.record import (
    KEEP,
    Address,
    Content,
    Kind,
    Push,
)
from dfmeta.store.strictjson import loads

AT_ONCE: Final = 32
"""Concurrent queries for each half; further queries wait, within their time limit."""

UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""In lower case."""

_JSON: Final = frozenset({ENVELOPE, "application/json"})
_GZIP: Final = b"\x1f\x8b"
_BLANK: Final = frozenset("\t\n\r\f")

_ACCEPT: Final = f"{ENVELOPE}, application/json"
_TRANSIENT: Final = frozenset({408, 425, 429})
"""Statuses, besides 5xx, of a server that may answer later (RFC 9110, 15.5; RFC 8470; RFC 6585)."""
_random: Final = random.SystemRandom()


class TokenSource(Protocol):
    """Returns valid tokens."""

    def get(self, *, deadline: float, refused: str = "") -> str:
        """Return a token.

        :param deadline: monotonic seconds; latest time for the return.
        :param refused: a token that the upstream store has refused, and that is replaced.
        :raises LookupAwayError: no token is available.
        """


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
    """

    def __init__(
        self,
        base_url: str,
        *,
        client: HttpClient,
        tokens: TokenSource | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._base = base_url.rstrip("/")
        self._name = urlsplit(base_url).netloc
        self._client = client
        self._tokens = tokens
        self._patience = patience or Patience()
        self._turns = {kind: threading.BoundedSemaphore(AT_ONCE) for kind in Kind}

    def by_address(self, kind: Kind, address: Address) -> Push | None:
        """Return the upstream store's half for an address.

        :returns: None if it has no record for the address, or its record does not name the address.
        :raises LookupAwayError: it is slow, away, or answers with a temporary error.
        :raises LookupAnswerError: its answer is invalid.
        """
        path = f"/device-{kind}?ip_address={quote(str(address), safe='')}"
        fetched = self._ask(kind, path, lambda reply: by_address(kind, reply), retry=True)
        # A record that does not name the address could give one guest another guest's data.
        return fetched if fetched is not None and fetched.names(address) else None

    def by_id(self, kind: Kind, record_id: str, *, retry: bool = True) -> Push | None:
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
        deadline = clock.now() + seconds
        token = self._tokens.get(deadline=deadline) if self._tokens else ""
        return self._exchange(f"/device-metadata/{record_id}", token, deadline)

    def _ask(
        self, kind: Kind, path: str, read: Callable[[HttpResponse], Push], *, retry: bool
    ) -> Push | None:
        tries = self._patience.retries + 1 if retry else 1
        end = clock.now() + tries * self._patience.timeout
        if not self._turns[kind].acquire(timeout=end - clock.now()):
            cause = f"{AT_ONCE} lookups of {kind} are already under way"
            raise errors.LookupAwayError(upstream=self._name, cause=cause, whole=False)
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
            raise errors.LookupAnswerError(upstream=self._name, cause=cause) from error

    def _retried(self, path: str, tries: int, end: float) -> HttpResponse:
        number = 1
        while True:
            try:
                return self._try(path, end)
            except errors.LookupAwayError:
                if number >= tries or clock.now() + FIRST_PAUSE >= end:
                    raise
            clock.sleep(min(pause(number), end - clock.now()))
            number += 1

    def _try(self, path: str, end: float) -> HttpResponse:
        deadline = min(end, clock.now() + self._patience.timeout)
        token = self._tokens.get(deadline=deadline) if self._tokens else ""
        reply = self._exchange(path, token, deadline)
        if reply.status == 401 and self._tokens:
            token = self._tokens.get(deadline=deadline, refused=token)
            reply = self._exchange(path, token, deadline)
        if reply.status in (200, 404):
            return reply
        cause = f"it answers {reply.status}"
        if reply.status >= 500 or reply.status in _TRANSIENT:
            raise errors.LookupAwayError(upstream=self._name, cause=cause)
        raise errors.LookupAnswerError(upstream=self._name, cause=cause)

    def _exchange(self, path: str, token: str, deadline: float) -> HttpResponse:
        headers = {"Accept": _ACCEPT}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return fetch(self._client, UrlRequest(self._base + path, headers, deadline=deadline))


def pause(attempt: int) -> float:
    """Return the seconds to wait after a try: doubled each time, plus a random part."""
    return min(FIRST_PAUSE * 2.0 ** (attempt - 1), LONGEST_PAUSE) * (1 + _random.random())


def fetch(client: HttpClient, request: UrlRequest) -> HttpResponse:
    """Send a request of a lookup, and return the answer with any status.

    :raises LookupAwayError: no answer arrives before the deadline.
    :raises LookupAnswerError: the answer is too large, or not HTTP.
    """
    try:
        return client.handle_request(request)
    except errors.UpstreamError as error:
        upstream = urlsplit(request.url).netloc
        if isinstance(error, errors.UpstreamAnswerError):
            raise errors.LookupAnswerError(upstream=upstream, cause=error.cause) from error
        whole = isinstance(error, errors.UpstreamAwayError)
        raise errors.LookupAwayError(upstream=upstream, cause=error.cause, whole=whole) from error


def by_address(kind: Kind, reply: HttpResponse) -> Push:
    """Return the half in an answer to a query by address, which must be an envelope.

    :raises ValueError: the answer is not a valid envelope. The error quotes nothing of it.
    """
    return _opened(kind, loads(reply.body))


def by_id(kind: Kind, record_id: str, reply: HttpResponse) -> Push:
    """Return the half in an answer to a query by id: an envelope, or the content alone.

    :param record_id: in lower case.
    :raises ValueError: the answer is neither, or contains another record.
    """
    if kind is Kind.USERDATA and reply.content_type not in _JSON:
        return _alone(record_id, reply)
    document = loads(reply.body)
    if reply.content_type == ENVELOPE or _is_envelope(kind, document):
        fetched = _opened(kind, document)
        if fetched.record_id != record_id:
            raise ValueError("it has the id of another record")
        return fetched
    if kind is Kind.USERDATA or not isinstance(document, dict):
        raise ValueError("it is neither a record nor a document")
    return _opened(kind, {"id": record_id, "metadata": document})


def _alone(record_id: str, reply: HttpResponse) -> Push:
    try:
        document = loads(reply.body)
        if _is_envelope(Kind.USERDATA, document) and document["id"].lower() == record_id:
            # Go's servers label JSON as text by default. If a tenant wrote this envelope, it can
            # change only that tenant's own user-data.
            return replace(_opened(Kind.USERDATA, document), networks=KEEP, http_tokens=KEEP)
    except (ValueError, AttributeError):
        pass
    if not reply.complete:
        raise ValueError("it has neither a length nor chunks that show its end")
    return Push(kind=Kind.USERDATA, record_id=record_id, content=_bounded(reply.body))


def _is_envelope(kind: Kind, document: object) -> bool:
    return (
        isinstance(document, dict)
        and {"id", kind.value} <= document.keys()
        and ("ipAddresses" in document or document.keys() <= checks.MEMBERS)
    )


def _opened(kind: Kind, envelope: Any) -> Push:
    members = envelope if isinstance(envelope, dict) else {}
    text = members.get("userdata")
    guessed = kind is Kind.USERDATA and members.get("userdata_encoding") is None
    try:
        push = requests.push_of(kind, members, check_keys=False)
    except errors.ApiError as error:
        raise ValueError(f"it is invalid: {', '.join(error.errors)}") from None
    content = _guessed(text) if guessed and isinstance(text, str) else push.content
    networks = push.networks if "ipAddresses" in members else KEEP
    return replace(push, content=_bounded(content), networks=networks)


def _guessed(text: str) -> bytes:
    """Return user-data whose encoding is not given.

    hollow-metadataservice's client takes base64, its README plain text. A text counts as base64 if
    it is exactly the base64 encoding of text or gzip (cloud-init takes both). A script never is,
    because it contains spaces.
    """
    plain = text.encode()
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return plain
    if base64.b64encode(decoded) != plain:
        return plain
    if decoded.startswith(_GZIP):
        return decoded
    try:
        decoded_text = decoded.decode()
    except UnicodeError:
        return plain
    return (
        decoded
        if all(character.isprintable() or character in _BLANK for character in decoded_text)
        else plain
    )


def _bounded(content: Content) -> Content:
    if isinstance(content, bytes) and len(content) > checks.USERDATA_MAX:
        raise ValueError(f"its userdata has more than {checks.USERDATA_MAX} bytes")
    return content
