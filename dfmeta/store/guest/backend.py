"""The store as a backend: a guest's request in, an answer out.

Trust: who asks is ``identity``, which comes from the port that the request came in on. The path,
the headers, the body and the guest's address are claims; only the path, If-None-Match and the body
of a password are looked at, and none of them can name another instance.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

from dfmeta import metrics
from dfmeta.exceptions import (
    BackendError,
    BackendUpstreamError,
    LookupAnswerError,
    LookupAwayError,
    StoreError,
)
from dfmeta.model import Answer, GuestRequest, Identity, View
from dfmeta.store.db.repository import Record, Repository
from dfmeta.store.db.schema import HTTP_TOKENS, REQUIRED
from dfmeta.store.guest import defaults, dialects, openstack
from dfmeta.store.guest.answers import Answers
from dfmeta.store.guest.need import HERE, Need
from dfmeta.store.guest.paths import split_path

PASSWORD_MAX: Final = 1020
"""Bytes. Nova keeps four pieces of 255 (nova/api/metadata/password.py)."""

CONFLICT: Final = Answer(409, b"409 Conflict: the password is set already\n")
TOO_LARGE: Final = Answer(400, b"400 Bad Request: the password is too large\n")

_READING: Final = frozenset({"GET", "HEAD"})


class Reader(Protocol):
    """Gives records, and asks upstream for what is needed of them and not here."""

    def get(self, record_id: str, need: Need) -> Record | None:
        """Return the record of an instance, None when there is none.

        :param need: what has to be known of it; of the rest, what is here.
        :raises StoreError: it cannot be known.
        """
        ...


class StoreBackend:
    """Answers guests from a repository; see :class:`~dfmeta.proxy.backends.Backend`.

    :param settings: how guests are answered.
    :param reader: gives instances' records; None: there is no upstream, and the repository does.
    :param host: the host's name: an instance without a record gets the defaults of this host, of
        its project and of the store. None: it gets nothing.
    """

    name: metrics.Backend = "store"

    def __init__(
        self,
        repository: Repository,
        settings: dialects.Settings | None = None,
        *,
        reader: Reader | None = None,
        host: str | None = None,
    ) -> None:
        self._repository = repository
        self._reader = reader
        self._settings = settings or dialects.Settings()
        self._host = host
        self._answers = Answers(self._settings)

    def open(
        self,
        request: GuestRequest,
        identity: Identity,
        *,
        deadline: float = math.inf,
        goes_on: Callable[[str | None], bool] = lambda _said: True,
    ) -> View:
        """Look up the record of ``identity.instance_id``; see
        :class:`~dfmeta.proxy.backends.Backend`.

        A record that requires tokens says so before upstream is asked for the rest of it.

        :raises BackendError: the database failed, or the record has an http_tokens that is invalid.
        """
        del deadline, goes_on
        need = self._need(request.path, identity)
        with _failing():
            own = self._reader.get(identity.instance_id, HERE) if self._reader else None
            if own is None or own.empty or own.http_tokens != REQUIRED:
                record = self._find(identity, need)
                return self._view(request, identity, record, lambda: record)
        record = self._usable(identity, own)
        return self._view(request, identity, record, lambda: self._find(identity, need))

    def view(self, request: GuestRequest, identity: Identity, record: Record | None) -> View:
        """The same, of a record that has been found; None: there is none.

        :raises BackendError: see :meth:`open`.
        """
        usable = self._usable(identity, record)
        return self._view(request, identity, usable, lambda: usable)

    def remark(self, answer: Answer) -> str:
        """Nothing: an answer of this host's store is no sign of a fault."""
        del answer
        return ""

    def _view(
        self,
        request: GuestRequest,
        identity: Identity,
        record: Record | None,
        whole: Callable[[], Record | None],
    ) -> View:
        """:param whole: gives the record with all that the request needs of it."""

        def answer() -> Answer:
            return self._answer(request, whole)

        if record is None:
            return View(None, answer)
        if record.http_tokens is not None and record.http_tokens not in HTTP_TOKENS:
            cause = f"http_tokens of record {identity.instance_id} is invalid"
            raise BackendError(backend=self.name, cause=cause)
        return View(record.http_tokens or "", answer)

    def _answer(self, request: GuestRequest, whole: Callable[[], Record | None]) -> Answer:
        """Answer a request from a record.

        HEAD is answered as GET: the server leaves the body out and keeps its length. Unknown
        paths, and every path of an instance without a record, are 404. So is an instance that is
        only claimed and whose record is not of the project that claims it, as in Nova.
        """
        segments = split_path(request.path)
        if segments is None:
            return dialects.NOT_FOUND
        posting = _takes_password(segments)
        if request.method not in _READING and not (posting and request.method == "POST"):
            return _method_not_allowed(posting)
        with _failing():
            record = whole()
            if record is None:
                found = None
            elif request.method == "POST":
                found = self._set_password(record, request.body)
            else:
                found = self._answers.answer(record, segments, request)
        return found or dialects.not_found(segments, self._settings)

    def _need(self, path: str, identity: Identity) -> Need:
        """Return what has to be known of the instance's own record."""
        if self._reader is None:
            return HERE
        need = dialects.need(path, self._settings)
        # Defaults are for an instance that has no record.
        return need if identity.unverified or self._host is None else replace(need, record=True)

    def _find(self, identity: Identity, need: Need) -> Record | None:
        """Return the record to answer from, with what is needed of it."""
        if self._reader is None:
            return self._usable(identity, self._repository.get(identity.instance_id))
        return self._usable(identity, self._reader.get(identity.instance_id, need))

    def _usable(self, identity: Identity, own: Record | None) -> Record | None:
        """Return the record to answer from: the instance's own, else one made of defaults.

        One that is empty keeps a password alone, and counts as none.
        """
        if own is not None and not own.empty:
            known = not identity.unverified or own.project_id == identity.project_id
            return own if known else None
        if self._host is None or identity.unverified:
            return None
        ids = defaults.layers(host=self._host, project_id=identity.project_id)
        found = [record for record in map(self._repository.get, ids) if record is not None]
        record = defaults.merged(
            found,
            identity.instance_id,
            instance_name=identity.instance_name,
            project_id=identity.project_id,
        )
        return None if record is None else defaults.with_own(record, own)

    def _set_password(self, record: Record, password: bytes) -> Answer:
        """Keep a password once. An empty one sets nothing, as in Nova."""
        if record.password:
            return CONFLICT
        if len(password) > PASSWORD_MAX:
            return TOO_LARGE
        # With defaults there may be no record yet that could hold it.
        seed = None if self._host is None else record.seed
        if password and not self._repository.set_password(record.id, password, seed=seed):
            return CONFLICT
        return Answer(200)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise failure(error) from error


def failure(error: StoreError) -> BackendError:
    """Say for the proxy what has failed: the database, or whoever is asked upstream."""
    kind = BackendUpstreamError if isinstance(error, LookupAnswerError) else BackendError
    if not isinstance(error, LookupAnswerError | LookupAwayError):
        return kind(backend="store", cause=error.fields["cause"], remedy=error.remedy)
    return kind(
        backend="store",
        cause=f"asks {error.fields['upstream']} in vain: {error.fields['cause']}",
        remedy="See that it runs and can be reached; lookup_base_url (or lookup_issuer, for a "
        "token) names it",
    )


def _takes_password(segments: list[str]) -> bool:
    return segments[:1] == [dialects.OPENSTACK] and openstack.is_password(segments[1:])


def _method_not_allowed(posting: bool) -> Answer:
    allowed = "GET, HEAD, POST" if posting else "GET, HEAD"
    return Answer(405, b"405 Method Not Allowed\n", headers=(("Allow", allowed),))
