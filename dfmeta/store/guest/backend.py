"""The store as a backend: it answers guests' requests from records.

Trust: ``identity`` comes from the port on which the request arrived. The path, the headers, the
body and the guest's address are not trusted; only the path, If-None-Match and the body of a
password are read, and none of them can name another instance.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, Protocol

from dfmeta import errors, metrics
from dfmeta.model import ANYTIME, Answer, AnswerTerms, GuestRequest, Identity, View
from dfmeta.store.db.record import HERE, HTTP_TOKENS, REQUIRED, Need
from dfmeta.store.db.repository import Record, Repository
from dfmeta.store.guest import defaults, dialects, openstack, requests

PASSWORD_MAX: Final = 1020
"""Bytes. Nova keeps four pieces of 255 (nova/api/metadata/password.py)."""

CONFLICT: Final = Answer(409, b"409 Conflict: the password is set already\n")
NOT_KEPT: Final = Answer(404, b"404 Not Found: this record keeps no password\n")
TOO_LARGE: Final = Answer(400, b"400 Bad Request: the password is too large\n")


class Reader(Protocol):
    """Returns records, and fetches needed parts that are missing here from the upstream store."""

    def get(self, record_id: str, need: Need) -> Record | None:
        """Return the record of an instance; None if there is none.

        :param need: the parts that have to be known; other parts may be missing in the result.
        :raises StoreError: a needed part cannot be determined.
        """


Containers = Callable[[str], Record | None]
"""Return the record of a container by its instance; None: it is no container's.

:raises StoreError: the database of attachments failed.
"""


class StoreBackend:
    """Answers guests from a repository; see :class:`~dfmeta.proxy.application.Backend`.

    :param settings: configuration of answers.
    :param reader: returns instances' records; None: there is no upstream store, and the repository
        returns them.
    :param host: name of the host: an instance without a record gets the defaults of this host, of
        its project and of the store. None: it gets no defaults.
    :param containers: returns the records of containers for which the store has no metadata.
    """

    name: metrics.Backend = "store"

    def __init__(
        self,
        repository: Repository,
        settings: dialects.AnswerSettings | None = None,
        *,
        reader: Reader | None = None,
        host: str | None = None,
        containers: Containers = lambda _instance_id: None,
    ) -> None:
        self._repository = repository
        self._reader = reader
        self._settings = settings or dialects.AnswerSettings()
        self._host = host
        self._containers = containers
        self._answers = dialects.Answers(self._settings)

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms = ANYTIME) -> View:
        """Look up the record of ``identity.instance_id``; see
        :class:`~dfmeta.proxy.application.Backend`.

        If the part of a record that is here requires tokens, that is known before the upstream
        store is queried for the rest.

        :raises BackendError: the database failed, or the record's http_tokens is invalid.
        """
        need = self._need(request.path, identity)
        with _failing():
            stored = self._reader.get(identity.instance_id, HERE) if self._reader else None
            if stored is None or stored.empty or stored.http_tokens != REQUIRED:
                record = self._find(identity, need)
                return self._view(request, identity, record, lambda: record)
            record = self._usable(identity, stored)
        return self._view(request, identity, record, lambda: self._find(identity, need))

    def view(self, request: GuestRequest, identity: Identity, record: Record | None) -> View:
        """Return the view of a record that has been found already; None: there is no record.

        :raises BackendError: see :meth:`open`.
        """
        with _failing():
            usable = self._usable(identity, record)
        return self._view(request, identity, usable, lambda: usable)

    def _view(
        self,
        request: GuestRequest,
        identity: Identity,
        record: Record | None,
        whole: Callable[[], Record | None],
    ) -> View:
        """:param whole: returns the record with all parts that the request needs."""

        def answer() -> Answer:
            return self._answer(request, identity.mac, whole)

        if record is None:
            return View(None, answer)
        if record.http_tokens is not None and record.http_tokens not in HTTP_TOKENS:
            cause = f"http_tokens of record {identity.instance_id} is invalid"
            raise errors.BackendError(backend=self.name, cause=cause)
        return View(record.http_tokens or "", answer)

    def _answer(
        self, request: GuestRequest, mac: str, whole: Callable[[], Record | None]
    ) -> Answer:
        """Answer a request from a record.

        HEAD is answered as GET: the server omits the body and keeps its length. Unknown paths, and
        every path of an instance without a record, are 404. So is every path of an unverified
        identity with another project than the instance's record, as in Nova.
        """
        segments = requests.split_path(request.path)
        if segments is None:
            return dialects.NOT_FOUND
        posting = segments[:1] == [openstack.PREFIX] and openstack.is_password(segments[1:])
        allowed = ("GET", "HEAD", "POST") if posting else ("GET", "HEAD")
        if request.method not in allowed:
            headers = (("Allow", ", ".join(allowed)),)
            return Answer(405, b"405 Method Not Allowed\n", headers=headers)
        with _failing():
            record = whole()
            if record is None:
                answer = None
            elif request.method == "POST":
                answer = self._set_password(record, request.body)
            else:
                answer = self._answers.answer(record, segments, request, mac=mac)
        if answer is not None:
            return answer
        missing = dialects.not_found(segments, self._settings)
        return missing if record is not None else replace(missing, known=False)

    def _need(self, path: str, identity: Identity) -> Need:
        """Return the parts of the instance's own record that the answer depends on."""
        if self._reader is None:
            return HERE
        need = dialects.need(path, self._settings)
        # Defaults apply only to an instance that has no record.
        return need if identity.unverified or self._host is None else replace(need, record=True)

    def _find(self, identity: Identity, need: Need) -> Record | None:
        """Return the record to answer from, with its needed parts."""
        if self._reader is None:
            return self._usable(identity, self._repository.get(identity.instance_id))
        return self._usable(identity, self._reader.get(identity.instance_id, need))

    def _usable(self, identity: Identity, stored: Record | None) -> Record | None:
        """Return the record to answer from: the instance's own, else one made of defaults.

        A container without metadata of its own has that of its attachment. An empty record holds
        only a password, and counts as absent.
        """
        if stored is None or stored.metadata is None:
            container = self._containers(identity.instance_id)
            if container is not None:
                stored = stored or container
                project_id = stored.project_id or container.project_id
                stored = replace(stored, metadata=container.metadata, project_id=project_id)
        if stored is not None and not stored.empty:
            shown = not identity.unverified or stored.project_id == identity.project_id
            return stored if shown else None
        if self._host is None or identity.unverified:
            return None
        ids = defaults.layers(host=self._host, project_id=identity.project_id)
        layers = [record for record in map(self._repository.get, ids) if record is not None]
        record = defaults.merged(
            layers,
            identity.instance_id,
            instance_name=identity.instance_name,
            project_id=identity.project_id,
        )
        return None if record is None else defaults.with_own(record, stored)

    def _set_password(self, record: Record, password: bytes) -> Answer:
        """Store a password, which can be set once. An empty one sets nothing, as in Nova."""
        if record.derived:
            # It would stay in the store when the container is gone.
            return NOT_KEPT
        if record.password:
            return CONFLICT
        if len(password) > PASSWORD_MAX:
            return TOO_LARGE
        # With defaults there may be no record yet that could hold the password.
        seed = None if self._host is None else record.seed
        if password and not self._repository.set_password(record.id, password, seed=seed):
            return CONFLICT
        return Answer(200)


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except errors.StoreError as error:
        raise failure(error) from error


def failure(error: errors.StoreError) -> errors.BackendError:
    """Return the proxy's error for a failure of the database, upstream store or token issuer."""
    kind = (
        errors.BackendUpstreamError
        if isinstance(error, errors.LookupAnswerError)
        else errors.BackendError
    )
    if not isinstance(error, errors.LookupAnswerError | errors.LookupAwayError):
        return kind(backend="store", cause=error.cause, remedy=error.remedy)
    return kind(
        backend="store",
        cause=f"failed to query {error.fields['upstream']}: {error.fields['cause']}",
        remedy="Check that it runs and can be reached; its URL is lookup_base_url (or "
        "lookup_issuer, for a token)",
    )
