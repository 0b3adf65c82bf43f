"""The store's admin API: who may, pushes, reads and removes records over HTTP.

Routes, bodies, scopes and texts are those of hollow-metadataservice (specification 003), whose
clients it serves; doc/source/store-api.rst says where ours differ.

Trust: none before the authorizer has agreed, and nothing of a body is read before that. After it,
what is pushed is validated in :mod:`dfmeta.store.api.requests`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs

from dfmeta.exceptions import (
    ApiError,
    AuthUnavailable,
    DeviceError,
    Forbidden,
    LookupAnswerError,
    LookupAwayError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    Unauthorized,
)
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.api import attached, listing, openapi
from dfmeta.store.api.bodies import Body
from dfmeta.store.api.representations import JSON, document, envelope, wants_envelope
from dfmeta.store.api.requests import (
    parse_after,
    parse_device,
    parse_id,
    parse_push,
    parse_query,
    parse_selector,
    refused_devices,
    refused_selector,
)
from dfmeta.store.auth import scopes
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.db.record import Kind, Record, parse_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.etags import conditional

LOG = logging.getLogger(__name__)

PREFIX: Final = "/api/v1"
"""Every route is there below it as well."""
NO_ROUTE: Final = "invalid request - route not found"
NOT_FOUND: Final = "resource not found"
LARGE: Final = 16 * 1024
"""Bytes of a body that is read aside: a megabyte of small objects takes a third of a second."""
RETRY_SECONDS: Final = 1
"""What an answer names that says "not now"."""

Environ = dict[str, Any]
Refresh = Callable[[Kind, str], Record | None]
_T = TypeVar("_T")
_Handler = Callable[[Kind, str, Environ, Body], Answer]

_KINDS: Final = {f"device-{kind}": kind for kind in Kind}
_OPERATIONS: Final[dict[str, scopes.Operation]] = {
    "GET": "read",
    "HEAD": "read",
    "POST": "upsert",
    "DELETE": "delete",
}
_OPENAPI: Final = "openapi.json"
_RECORDS: Final = "records"
_FIRST: Final = frozenset({*_KINDS, _RECORDS})


class Aside(Protocol):
    """Calls what computes for long, where nobody waits for it."""

    def __call__(self, step: Callable[[], _T]) -> _T:
        """Return what *step* returns, or raise what it raises."""
        ...


def at_once(step: Callable[[], _T]) -> _T:
    """Call a step here and now; see :class:`Aside`."""
    return step()


class AdminApi:
    """Answers the API's requests (PEP 3333).

    :param repository: where records are.
    :param authorizer: decides on each request; None lets everybody do everything, and whoever
        mounts it sees to it that only this host can reach it.
    :param max_body: bytes of a request's body.
    :param refresh: asks upstream for one half of a record, stores it and gives the record, None
        when upstream has none; raises StoreError. None: there is no upstream.
    :param aside: calls what computes for long, where nobody waits for it.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        authorizer: Authorizer | None,
        max_body: int,
        refresh: Refresh | None,
        aside: Aside = at_once,
    ) -> None:
        self._repository = repository
        self._aside = aside
        self._authorizer = authorizer
        self._max_body = max_body
        self._refresh = refresh or (lambda _kind, record_id: repository.get(record_id))
        self._routes: dict[str, dict[str, _Handler]] = {
            "all": {"GET": self._find, "POST": self._push},
            "one": {"GET": self._get, "DELETE": self._delete},
            "refresh": {"POST": self._refreshed},
            "devices": {"GET": self._devices, "POST": self._attach, "DELETE": self._detach},
        }

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a path is the API's to answer, be it with 404.

        :param path: PATH_INFO.
        """
        first = path.removeprefix("/").partition("/")[0]
        inside = path == PREFIX or path.startswith(f"{PREFIX}/")
        return inside or first in _FIRST or path == f"/{_OPENAPI}"

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        try:
            answer = self._answer(environ, Body(environ, self._max_body))
        except ApiError as error:
            answer = _refusal(error)
        except StoreError as error:
            answer = _refusal(_failure(error))
        return _respond(answer, environ, start_response)

    def _answer(self, environ: Environ, body: Body) -> Answer:
        path, method = environ.get("PATH_INFO", ""), environ["REQUEST_METHOD"]
        match path.removeprefix(PREFIX).split("/"):
            case ["", name] if name == _OPENAPI:
                _allow(method, ["GET"])
                text = openapi.text(secured=self._authorizer is not None)
                return _conditional(Answer(200, text, content_type=JSON), environ)
            case ["", name] if name == _RECORDS:
                return self._list(method, environ)
            case ["", name] if name in _KINDS:
                route, record_id = "all", ""
            case ["", name, "refresh", record_id] if name in _KINDS and record_id:
                route = "refresh"
            case ["", name, record_id, attached.MEMBER] if (
                _KINDS.get(name) is Kind.METADATA and record_id
            ):
                route = "devices"
            case ["", name, record_id] if name in _KINDS and record_id:
                route = "one"
            case _:
                raise ApiError(status=404, message=NO_ROUTE)
        handlers, kind = self._routes[route], _KINDS[name]
        _allow(method, handlers)
        # A device that goes changes a record, and removes none.
        changes = route == "devices" and method == "DELETE"
        operation: scopes.Operation = "upsert" if changes else _OPERATIONS[method]
        self._authorize(environ, scopes.accepted(operation, kind))
        if route != "all":
            record_id = _known(parse_id(record_id))
        handler = handlers["GET" if method == "HEAD" else method]
        return handler(kind, record_id, environ, body)

    def _authorize(self, environ: Environ, accepted: tuple[str, ...]) -> None:
        if self._authorizer is None:
            return
        header = environ.get("HTTP_AUTHORIZATION")
        try:
            self._authorizer.authorize(header, accepted)
        except Unauthorized as error:
            raise ApiError(status=401, message=error.message) from error
        except Forbidden as error:
            raise ApiError(status=403, message=error.message) from error
        except AuthUnavailable as error:
            LOG.warning("the admin API cannot tell whether a token is good: %s", error)
            raise ApiError(status=503, message=error.message) from error

    def _list(self, method: str, environ: Environ) -> Answer:
        _allow(method, ["GET"])
        self._authorize(environ, scopes.accepted_for_any("read"))
        page = self._repository.page(parse_after(_asked(environ, "after")))
        body = self._aside(lambda: listing.dump(page))
        return _conditional(Answer(200, body, content_type=JSON), environ)

    def _push(self, kind: Kind, _id: str, _environ: Environ, body: Body) -> Answer:
        push = self._parsed(body, lambda text: parse_push(kind, text))
        self._repository.push(
            kind,
            push.record_id,
            content=push.content,
            networks=push.networks,
            http_tokens=push.http_tokens,
        )
        return Answer(200, content_type="")

    def _parsed(self, body: Body, parse: Callable[[bytes], _T]) -> _T:
        text = body.read()
        return self._aside(lambda: parse(text)) if len(text) > LARGE else parse(text)

    def _get(self, kind: Kind, record_id: str, environ: Environ, _body: Body) -> Answer:
        return self._one(kind, self._repository.get(record_id), environ)

    def _refreshed(self, kind: Kind, record_id: str, environ: Environ, _body: Body) -> Answer:
        return self._one(kind, self._refresh(kind, record_id), environ)

    def _one(self, kind: Kind, record: Record | None, environ: Environ) -> Answer:
        accept = environ.get("HTTP_ACCEPT", "")
        found = document(kind, record)
        if found is not None and record is not None and wants_envelope(accept):
            found = envelope(kind, record, self._repository.addresses(record.id), named=True)
        return _conditional(_known(found), environ)

    def _find(self, kind: Kind, _id: str, environ: Environ, _body: Body) -> Answer:
        record = _known(self._repository.find(parse_query(_asked(environ, "ip_address"))))
        addresses = self._repository.addresses(record.id)
        accept = environ.get("HTTP_ACCEPT", "")
        found = envelope(kind, record, addresses, named=wants_envelope(accept))
        return _conditional(_known(found), environ)

    def _delete(self, kind: Kind, record_id: str, _environ: Environ, _body: Body) -> Answer:
        if not self._repository.remove(kind, record_id):
            raise ApiError(status=404, message=NOT_FOUND)
        return Answer(200, content_type="")

    def _devices(self, _kind: Kind, record_id: str, environ: Environ, _body: Body) -> Answer:
        record = _known(self._repository.get(record_id))
        text = _known(record.metadata)
        return _conditional(_listed(parse_document(record.id, text)), environ)

    def _attach(self, _kind: Kind, record_id: str, _environ: Environ, body: Body) -> Answer:
        device = self._parsed(body, parse_device)
        try:
            changed = self._repository.change(
                record_id, lambda document: attached.attach(document, device)
            )
        except DeviceError as error:
            raise refused_devices(error) from error
        return _listed(_known(changed))

    def _detach(self, _kind: Kind, record_id: str, environ: Environ, _body: Body) -> Answer:
        query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        selector = parse_selector(query)
        try:
            changed = self._repository.change(
                record_id, lambda document: attached.detach(document, selector)
            )
        except DeviceError as error:
            raise refused_selector() from error
        return _listed(_known(changed))


def later(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer any request (PEP 3333) in the place of an API that is not there yet: 503."""
    error = ApiError(status=503, message="the store is not open yet")
    return _respond(_refusal(error), environ, start_response)


def refused(words: str, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer any request (PEP 3333) with 403 and why, before anything of it is read."""
    error = ApiError(status=403, message=words)
    return _respond(_refusal(error), environ, start_response)


def _respond(
    answer: Answer, environ: Environ, start_response: Callable[..., Any]
) -> Iterable[bytes]:
    headers = list(answer.headers)
    if answer.status != HTTPStatus.NOT_MODIFIED:
        headers.append(("Content-Length", str(len(answer.body))))
    if answer.content_type:
        headers.append(("Content-Type", answer.content_type))
    status = HTTPStatus(answer.status)
    start_response(f"{status.value} {status.phrase}", headers)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else answer.body]


def _asked(environ: Environ, name: str) -> list[str]:
    """Return all that a request's query has of a name."""
    return parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).get(name, [])


def _listed(document: Mapping[str, Any]) -> Answer:
    return Answer(200, attached.dump(attached.devices_in(document)), content_type=JSON)


def _known(found: _T | None) -> _T:
    if found is None:
        raise ApiError(status=404, message=NOT_FOUND)
    return found


def _allow(method: str, methods: Iterable[str]) -> None:
    allowed = [one for one in _OPERATIONS if one in methods or (one == "HEAD" and "GET" in methods)]
    if method not in allowed:
        raise ApiError(status=405, message="method not allowed", allow=", ".join(allowed))


def _conditional(answer: Answer, environ: Environ) -> Answer:
    """Give a GET's answer its tag, and make it 304 where the client has it already."""
    if environ["REQUEST_METHOD"] == "POST":
        return answer
    headers = {"if-none-match": environ.get("HTTP_IF_NONE_MATCH", "")}
    return conditional(answer, GuestRequest(method="GET", path="", headers=headers))


def _failure(error: StoreError) -> ApiError:
    """Return what a client is told of the database or of upstream, and say the rest in the log."""
    LOG.error("the admin API has failed: %s", error.line)
    match error:
        case LookupAwayError():
            return ApiError(status=503, message="upstream does not answer")
        case LookupAnswerError():
            return ApiError(status=502, message="upstream answers nonsense")
        case StoreAwayError():
            return ApiError(status=503, message="the database does not answer")
        case StoreFullError():
            return ApiError(status=507, message="the disk of the database is full")
    return ApiError(status=500, message="internal server error")


def _refusal(error: ApiError) -> Answer:
    value: dict[str, object] = {"message": error.message}
    if error.errors:
        value["errors"] = error.errors
    headers = {
        401: [("WWW-Authenticate", "Bearer")],
        405: [("Allow", str(error.fields.get("allow")))],
        503: [("Retry-After", str(RETRY_SECONDS))],
    }.get(error.status, [])
    body = json.dumps(value, separators=(",", ":")).encode()
    return Answer(error.status, body, content_type=JSON, headers=tuple(headers))
