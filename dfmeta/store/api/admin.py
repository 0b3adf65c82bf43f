"""The store's admin API: pushes, reads and removes records over HTTP.

Routes are in :mod:`dfmeta.store.api.routes`; bodies and texts are those of hollow-metadataservice
(specification 003), whose clients the API serves.

Trust: none. No part of a body is read before the authorizer has accepted the request. The body is
then validated in :mod:`dfmeta.store.api.requests`. Each change of a record and each refused client
has a line in the log, the audit: method, path, instance, the client's token or subject, its address
and the status; never a body, a query or a part of a token. A client without a token can send any
number of requests: the lines of refused clients are limited, and the omitted ones are counted.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import webob

from dfmeta import errors, model
from dfmeta.runtime.throttle import LogThrottle
from dfmeta.store.api import openapi, requests, routes
from dfmeta.store.api.representations import (
    JSON,
    document,
    dump_rows,
    envelope,
    wants_envelope,
)
from dfmeta.store.auth.caller import Authorizer
from dfmeta.store.db.record import Kind, Record, parse_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.requests import etag_of

LOG = logging.getLogger(__name__)

NO_ROUTE: Final = "invalid request - route not found"
NOT_FOUND: Final = "resource not found"
LARGE: Final = 16 * 1024
"""Bytes above which a body is parsed aside: 1 MB of small objects takes a third of a second."""
RETRY_SECONDS: Final = 1
"""Retry-After of a 503."""
_FAILURES: Final[Mapping[type[errors.StoreError], tuple[int, str]]] = {
    errors.LookupAwayError: (503, "upstream does not answer"),
    errors.LookupAnswerError: (502, "upstream answers nonsense"),
    errors.StoreAwayError: (503, "the database does not answer"),
    errors.StoreFullError: (507, "the disk of the database is full"),
}

REFUSED: Final = (401, 403)
"""Statuses of a refused client (RFC 9110, 15.5.2 and 15.5.4)."""
REFUSALS: Final = 60
"""Maximum number of lines of refused clients in a minute."""
NOT_KNOWN: Final = "an unknown client"

Refresh = Callable[[Kind, str], Record | None]
Gate = Callable[[webob.Request], str]
Aside = Callable[[Callable[[], Any]], Any]
"""Runs a long computation without blocking other requests."""
_T = TypeVar("_T")


@dataclass(slots=True)
class AuditedCall:
    """One request, and the facts about it for its line."""

    request: webob.Request
    route: routes.Route | None = None
    """None: the path is unknown, or does not have the method."""
    record_id: str = ""
    """In lower case; empty: not known."""
    client: str = NOT_KNOWN


class Audit:
    """Writes the lines of the audit."""

    def __init__(self) -> None:
        self._throttle = LogThrottle(REFUSALS)

    def note(self, call: AuditedCall, status: int) -> None:
        """Write the line of a request that is for a change or is refused; others have none.

        :param status: of the answer.
        """
        route = call.route
        if route is None or not (route.changes or status in REFUSED):
            return
        level = logging.INFO
        if status in REFUSED:
            level = logging.WARNING
            held = self._throttle.take()
            if held is None:
                return
            if held:
                LOG.warning("Audit: %d more requests of refused clients had no line", held)
        LOG.log(
            level,
            "Audit: %s %s, instance %s, by %s from %s: %d",
            call.request.method,
            route.path,
            call.record_id or "unknown",
            call.client,
            call.request.remote_addr or "unknown",
            status,
        )


class AdminApi:
    """Answers the API's requests.

    :param repository: the records.
    :param authorizer: decides on each request. None: every client may do everything, and the
        caller has to ensure that only this host can reach the API.
    :param max_body: bytes of a request's body.
    :param refresh: queries the upstream store for one half of a record, stores it and returns the
        record, or None if the upstream store has none; raises StoreError. None: there is no
        upstream store.
    :param aside: see :data:`Aside`.
    :param gate: returns the reason to refuse a request, or an empty string. It is called before
        anything of the request's body is read.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        authorizer: Authorizer | None,
        max_body: int,
        refresh: Refresh | None,
        aside: Aside = lambda step: step(),
        gate: Gate | None = None,
    ) -> None:
        self._repository = repository
        self._aside = aside
        self._authorizer = authorizer
        self._max_body = max_body
        self._refresh = refresh or (lambda _kind, record_id: repository.get(record_id))
        self._gate = gate
        self._audit = Audit()
        self._handlers: dict[routes.Action, Callable[[Kind, AuditedCall], model.Answer]] = {
            routes.Action.FIND: self._find,
            routes.Action.PUSH: self._push,
            routes.Action.GET: self._get,
            routes.Action.DELETE: self._delete,
            routes.Action.REFRESH: self._refreshed,
            routes.Action.LIST_DEVICES: self._devices,
            routes.Action.ATTACH: self._attach,
            routes.Action.DETACH: self._detach,
        }

    @staticmethod
    def handles(path: str) -> bool:
        """Whether the API answers requests for a path, even if only with 404.

        :param path: PATH_INFO.
        """
        return routes.is_ours(path)

    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer one request."""
        call = AuditedCall(request)
        status = 500
        try:
            answer = self._answer(call)
            status = answer.status
        except errors.ApiError as error:
            status, answer = error.status, _refusal(error)
        except errors.StoreError as error:
            answer = _refusal(_failure(error))
            status = answer.status
        finally:
            self._audit.note(call, status)
        return _respond(answer, request)

    def _answer(self, call: AuditedCall) -> model.Answer:
        methods, given_id = routes.find(call.request.environ["PATH_INFO"])
        if not methods:
            raise errors.ApiError(status=404, message=NO_ROUTE)
        method = call.request.method
        allowed = routes.allowed(methods)
        if method not in allowed:
            raise errors.ApiError(
                status=405, message="method not allowed", allow=", ".join(allowed)
            )
        call.route = route = methods["GET" if method == "HEAD" else method]
        call.record_id = requests.parse_id(given_id) or ""
        self._let_in(call, route.scopes)
        if route.action is routes.Action.DESCRIBE:
            text = openapi.text(secured=self._authorizer is not None)
            return model.Answer(200, text, content_type=JSON)
        if route.kind is None:
            return self._list(call)
        if given_id:
            _existing(call.record_id or None)
        return self._handlers[route.action](route.kind, call)

    def _let_in(self, call: AuditedCall, accepted: tuple[str, ...]) -> None:
        """Check that the client is authorized.

        :raises ApiError: 401 or 403 if it is not, 503 if that cannot be verified now.
        """
        refused = self._gate(call.request) if self._gate is not None else ""
        if refused:
            raise errors.ApiError(status=403, message=refused)
        if self._authorizer is None or not accepted:
            return
        header = call.request.headers.get("Authorization")
        try:
            call.client = self._authorizer.authorize(header, accepted).name
        except errors.Unauthorized as error:
            raise errors.ApiError(status=401, message=error.message) from error
        except errors.Forbidden as error:
            call.client = error.client
            raise errors.ApiError(status=403, message=error.message) from error
        except errors.AuthUnavailable as error:
            LOG.warning("the admin API cannot verify a token: %s", error)
            raise errors.ApiError(status=503, message=error.message) from error

    def _list(self, call: AuditedCall) -> model.Answer:
        page = self._repository.page(requests.parse_after(_query(call).get("after", [])))
        body = self._aside(lambda: dump_rows(page))
        return model.Answer(200, body, content_type=JSON)

    def _push(self, kind: Kind, call: AuditedCall) -> model.Answer:
        push = self._parsed(call, lambda text: requests.parse_push(kind, text))
        call.record_id = push.record_id
        self._repository.push_all([push])
        return model.Answer(200, content_type="")

    def _parsed(self, call: AuditedCall, parse: Callable[[bytes], _T]) -> _T:
        text = read_body(call.request, self._max_body)
        parsed: _T = self._aside(lambda: parse(text)) if len(text) > LARGE else parse(text)
        return parsed

    def _get(self, kind: Kind, call: AuditedCall) -> model.Answer:
        return self._one(kind, self._repository.get(call.record_id), call)

    def _refreshed(self, kind: Kind, call: AuditedCall) -> model.Answer:
        return self._one(kind, self._refresh(kind, call.record_id), call)

    def _one(self, kind: Kind, record: Record | None, call: AuditedCall) -> model.Answer:
        answer = document(kind, record)
        if answer is not None and record is not None and wants_envelope(call.request.accept):
            answer = envelope(kind, record, self._repository.addresses(record.id), named=True)
        return _existing(answer)

    def _find(self, kind: Kind, call: AuditedCall) -> model.Answer:
        address = requests.parse_query(_query(call).get("ip_address", []))
        record = _existing(self._repository.find(address))
        addresses = self._repository.addresses(record.id)
        named = wants_envelope(call.request.accept)
        return _existing(envelope(kind, record, addresses, named=named))

    def _delete(self, kind: Kind, call: AuditedCall) -> model.Answer:
        if not self._repository.remove(kind, call.record_id):
            raise errors.ApiError(status=404, message=NOT_FOUND)
        return model.Answer(200, content_type="")

    def _devices(self, _kind: Kind, call: AuditedCall) -> model.Answer:
        record = _existing(self._repository.get(call.record_id))
        text = _existing(record.metadata)
        return _listed(parse_document(record.id, text))

    def _attach(self, _kind: Kind, call: AuditedCall) -> model.Answer:
        device = self._parsed(call, requests.parse_device)
        try:
            changed = self._repository.change(
                call.record_id, lambda document: requests.attach(document, device)
            )
        except errors.DeviceError as error:
            raise requests.invalid(f"metadata.{error.path}", "device") from error
        return _listed(_existing(changed))

    def _detach(self, _kind: Kind, call: AuditedCall) -> model.Answer:
        selector = requests.parse_selector(_query(call))
        try:
            changed = self._repository.change(
                call.record_id, lambda document: requests.detach(document, selector)
            )
        except errors.DeviceError as error:
            raise requests.invalid("type", "required") from error
        return _listed(_existing(changed))


def not_open(request: webob.Request) -> webob.Response:
    """Answer any request with 503, until the API is available."""
    error = errors.ApiError(status=503, message="the store is not open yet")
    return _respond(_refusal(error), request)


def _respond(answer: model.Answer, request: webob.Request) -> webob.Response:
    """Return an answer, or 304 if the client has the same answer already.

    A successful answer to GET has an entity tag, compared weakly (RFC 9110, 13.1.2).
    """
    status, headers = HTTPStatus(answer.status), list(answer.headers)
    if answer.content_type:
        headers.append(("Content-Type", answer.content_type))
    if answer.status == HTTPStatus.OK and request.method in ("GET", "HEAD"):
        etag = etag_of(answer)
        headers.append(("ETag", etag))
        if etag.strip('"') in request.if_none_match:
            status = HTTPStatus.NOT_MODIFIED
            headers = [(name, value) for name, value in headers if name != "Content-Type"]
    return webob.Response(status=status.value, headerlist=headers, body=answer.body)


def read_body(request: webob.Request, limit: int) -> bytes:
    """Return the whole body of a request, no part of which is read before.

    Trust: none. The server has determined where the body ends (:mod:`dfmeta.http.http1`).

    :param limit: maximum number of bytes of a body.
    :raises ApiError: 413 if it is over the limit or has too many chunks, 400 if it is shorter than
        announced or malformed, 408 if it does not arrive in time, 503 if there is no room for it
        now.
    """
    # None: it is chunked, or there is none.
    length = request.content_length
    messages = {
        413: f"request body over {limit} bytes",
        408: "the request body did not come",
        503: "too many large bodies at once",
        400: requests.INVALID_BODY,
    }
    try:
        body: bytes = request.body_file_raw.read(limit if length is None else min(length, limit))
    except errors.BadRequestError as error:
        status = error.status if error.status in messages else 400
        chunks = error.reason == "chunks"
        message = "the request body has too many chunks" if chunks else messages[status]
        raise errors.ApiError(status=413 if chunks else status, message=message) from error
    if length is not None and len(body) < length:
        status = 413 if length > limit else 400
        raise errors.ApiError(status=status, message=messages[status])
    return body


def _query(call: AuditedCall) -> dict[str, list[str]]:
    """Return all values of each query parameter. Bytes that are not UTF-8 are replaced."""
    return parse_qs(call.request.query_string, keep_blank_values=True)


def _listed(document: Mapping[str, Any]) -> model.Answer:
    return model.Answer(
        200, requests.dump_devices(requests.devices_in(document)), content_type=JSON
    )


def _existing(value: _T | None) -> _T:
    if value is None:
        raise errors.ApiError(status=404, message=NOT_FOUND)
    return value


def _failure(error: errors.StoreError) -> errors.ApiError:
    """Return the answer to a failure of the database or of the upstream store, and log it."""
    LOG.error("the admin API has failed: %s", error.line)
    for kind, (status, message) in _FAILURES.items():
        if isinstance(error, kind):
            return errors.ApiError(status=status, message=message)
    return errors.ApiError(status=500, message="internal server error")


def _refusal(error: errors.ApiError) -> model.Answer:
    value: dict[str, object] = {"message": error.message}
    if error.errors:
        value["errors"] = error.errors
    headers = {
        401: [("WWW-Authenticate", "Bearer")],
        405: [("Allow", str(error.fields.get("allow")))],
        503: [("Retry-After", str(RETRY_SECONDS))],
    }.get(error.status, [])
    body = json.dumps(value, separators=(",", ":")).encode()
    return model.Answer(error.status, body, content_type=JSON, headers=tuple(headers))
