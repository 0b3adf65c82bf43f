"""The WSGI application: a guest's request to a backend and its answer back.

Who asks was decided when the connection was accepted and is asked again, of the registry, before
the backend is and before a byte of the answer leaves.
"""

from __future__ import annotations

import http
import http.client
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import eventlet
import webob

from dfmeta import metrics
from dfmeta.exceptions import BackendError, BackendTimeoutError
from dfmeta.model import Answer, GuestRequest, Identity
from dfmeta.proxy.backends import Backend
from dfmeta.registry import Claim, Registry

LOG = logging.getLogger(__name__)

CLAIM = "dfmeta.claim"
DEADLINE = "dfmeta.deadline"
LAST = "dfmeta.last"
"""Keys of the WSGI environment that the server sets; LAST is called when no further request may
be read from the connection."""
BODY_MAX = 4096
"""Bytes of a guest's POST; Nova takes 1,020 for a password."""
HOLD_POLL = 0.1
_PASSWORD = re.compile(r"/openstack/[^/]+/password/?")
_OPENSTACK_VERSION = re.compile(r"/+openstack/+[^/]+")
_PATH = re.compile(r"/[\x21-\x7e]*")
_ADMIN = re.compile(
    r"/(?:api/v1/.*|healthz(?:/.*)?|metrics|version|device-(?:meta|user)data(?:/.*)?)"
)
"""What the admin listener has is not there for guests, whatever a backend would make of it."""


class Abandoned(BaseException):
    """The connection is to be closed without an answer.

    Not an :class:`Exception`, since eventlet's WSGI server answers 500 for each of those.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the application is told of the configuration."""

    timeout_answer: str = "auto"
    needs_project: bool = False
    """The backend has no use for an instance whose project is not known."""


class Application:
    """A guest's requests, one call each."""

    def __init__(self, registry: Registry, backend: Backend, settings: Settings) -> None:
        self._registry = registry
        self._backend = backend
        self._settings = settings

    def replace(self, backend: Backend, settings: Settings) -> None:
        """Answer from *backend* from the next request on."""
        self._backend, self._settings = backend, settings

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333).

        :raises Abandoned: when nothing may be answered.
        """
        claim: Claim = environ[CLAIM]
        method = environ["REQUEST_METHOD"]
        try:
            answer = self._answer(environ, claim, method)
        except Exception:
            # A defect of ours must cost this request alone; the guest learns nothing of it.
            LOG.exception("A request of %s failed", claim.identity.instance_id)
            answer = Answer(500, b"500 Internal Server Error\n")
        if not self._registry.holds(claim):
            raise Abandoned("changed")
        metrics.REQUESTS.labels(f"{answer.status // 100}xx").inc()
        response = _response(answer, head=method == "HEAD")
        return response(environ, start_response)  # type: ignore[no-any-return]  # webob has no types

    def _answer(self, environ: dict[str, Any], claim: Claim, method: str) -> Answer:
        path = environ["RAW_PATH_INFO"]
        headers = _headers(environ)
        if not _PATH.fullmatch(path) or not environ.get("QUERY_STRING", "").isprintable():
            return Answer(400, b"400 Bad Request: not an origin-form request\n")
        if not all(value.isprintable() for value in headers.values()):
            # A folded line (RFC 9112, 5.2) could carry another header along.
            environ[LAST]()
            return Answer(400, b"400 Bad Request: a header has control characters\n")
        if _ADMIN.fullmatch(path):
            return Answer(404, b"404 Not Found\n")
        allowed = ("GET", "HEAD", "POST") if _PASSWORD.fullmatch(path) else ("GET", "HEAD")
        if method not in allowed:
            allow = (("Allow", ", ".join(allowed)),)
            return Answer(405, b"405 Method Not Allowed\n", headers=allow)
        try:
            body = _body(environ) if method == "POST" else b""
        except (OSError, ValueError) as error:
            LOG.debug("A body that cannot be read: %s", error)
            environ[LAST]()
            return Answer(400, b"400 Bad Request: the body cannot be read\n")
        if len(body) > BODY_MAX:
            environ[LAST]()
            return Answer(413, b"413 Content Too Large\n")
        request = GuestRequest(
            method,
            path,
            query=environ.get("QUERY_STRING", ""),
            headers=headers,
            body=body,
            guest_ip=str(claim.address.ip),
        )
        return self._ask(request, claim, environ[DEADLINE])

    def _ask(self, request: GuestRequest, claim: Claim, deadline: float) -> Answer:
        identity = self._registry.current(claim)
        while identity is not None and self._lacks_project(identity):
            if time.monotonic() >= deadline:
                LOG.warning(
                    "%s (%s): its project is not known, so that nothing can be asked of %s",
                    identity.instance_id,
                    identity.port_name,
                    self._backend.name,
                )
                return self._out_of_time(request, 503)
            eventlet.sleep(HOLD_POLL)
            identity = self._registry.current(claim)
        if identity is None:
            raise Abandoned("changed")
        try:
            return self._backend.answer(request, identity, deadline=deadline)
        except BackendError as error:
            LOG.warning("%s: %s", identity.instance_id, error)
            if request.method == "POST" and isinstance(error, BackendTimeoutError):
                return Answer(504, b"504 Gateway Timeout\n")
            return self._out_of_time(request, 503)

    def _lacks_project(self, identity: Identity) -> bool:
        # Of an instance that is only claimed, the project is what the claim is checked against.
        return (self._settings.needs_project or identity.claimed) and not identity.project_id

    def _out_of_time(self, request: GuestRequest, status: int) -> Answer:
        how = self._settings.timeout_answer
        retried = _OPENSTACK_VERSION.match(request.path) is not None
        if how == "close" or (how == "auto" and retried):
            raise Abandoned("timeout")
        phrase = http.HTTPStatus(status).phrase
        return Answer(status, f"{status} {phrase}\n".encode(), headers=(("Retry-After", "2"),))


def _headers(environ: dict[str, Any]) -> dict[str, str]:
    headers = {
        key[5:].replace("_", "-").lower(): value
        for key, value in environ.items()
        if key.startswith("HTTP_")
    }
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    return headers


def _body(environ: dict[str, Any]) -> bytes:
    body: bytes = webob.Request(environ).body_file_raw.read(BODY_MAX + 1)
    return body


def _response(answer: Answer, *, head: bool) -> webob.Response:
    phrase = http.client.responses.get(answer.status, "Unknown")
    length = next(
        (value for name, value in answer.headers if name.lower() == "content-length"),
        str(len(answer.body)),
    )
    headers = [(n.title(), v) for n, v in answer.headers if n.lower() != "content-length"]
    return webob.Response(
        status=f"{answer.status} {phrase}",
        headerlist=[
            ("Content-Type", answer.content_type),
            ("Content-Length", length),
            *headers,
        ],
        app_iter=[] if head else [answer.body],
    )
