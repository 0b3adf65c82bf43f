"""Nova's metadata API as a backend.

The headers for Nova are built from scratch: of the guest's headers, only ``Accept`` and, for a
password, the body's type are forwarded, so that no spelling of a guest's X- header can reach Nova
(``X-Metadata-Provider`` would switch Nova to another way of authenticating).
"""

import functools
import logging
import re
import string
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple

from dfmeta import errors, metrics
from dfmeta.http.client import HttpRequest
from dfmeta.http.pool import PooledServer
from dfmeta.http.responses import HttpResponse
from dfmeta.model import Answer, AnswerTerms, GuestRequest, Identity, View
from dfmeta.proxy.backends.nova_requests import (
    PRINTABLE,
    READ_LOG,
    NovaSettings,
    explain_upstream,
    nova_context,
    reach,
    signed,
)
from dfmeta.proxy.recent import is_of_every_instance
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_ssl as ssl
from dfmeta.runtime.throttle import FIRST_PAUSE, PORTS, Backoff

LOG = logging.getLogger(__name__)

REST = 10.0
"""Seconds for which a failed host is not used while there are others."""
IDEMPOTENT = frozenset({"GET", "HEAD"})
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that are not forwarded (RFC 9110, 7.6.1)."""
_OURS = frozenset({"content-type", "content-length", "date", "server"})
_ENDS_HERE = HOP_BY_HOP | _OURS
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_REASONS: dict[type[errors.BackendError], metrics.Retried] = {
    errors.BackendUnreachableError: "unreachable",
    errors.BackendTimeoutError: "timeout",
    errors.BackendAnswerError: "broken",
}
_REMARKS = {
    400: "Nova rejected the request: if the guest's request is valid, see Nova's log, "
    "nova_metadata_protocol and nova_client_cert",
    403: "metadata_proxy_shared_secret differs from [neutron] metadata_proxy_shared_secret in "
    "nova.conf",
}
_FAILED = "Nova's metadata API, or a proxy in front of it, has failed: see its log"


class _NovaRequest(NamedTuple):
    """A request to Nova, without its Host header."""

    instance: str
    method: str
    line: bytes
    rest: bytes

    @property
    def once(self) -> bool:
        return self.method not in IDEMPOTENT

    def to(self, server: PooledServer) -> HttpRequest:
        message = b"%bHost: %b\r\n%b" % (self.line, server.name, self.rest)
        return HttpRequest(self.method, message)


class NovaBackend:
    """Signs requests and forwards them over persistent connections.

    :raises StartError: when a file with certificates cannot be loaded.
    """

    name: metrics.Backend = "nova"

    def __init__(self, settings: NovaSettings) -> None:
        self._settings = settings
        context = nova_context(settings, create=ssl.create_default_context)
        self._servers = [PooledServer(host, context) for host in dict.fromkeys(settings.hosts)]
        self._rests = {server: Backoff(REST, REST) for server in self._servers}
        """A server that rests is not used while there are others."""
        self._signed = functools.lru_cache(PORTS)(functools.partial(signed, settings.secret))

    def answer(self, request: GuestRequest, identity: Identity, *, deadline: float) -> Answer:
        """Forward *request*; see :class:`~dfmeta.proxy.application.Backend`.

        A GET or HEAD that fails is sent again, to the next host, until *deadline*. A POST is sent
        once; another host is tried only if no byte of it has been sent.
        """
        signed_request = self._signed_request(request, identity)
        error: errors.BackendError | None = None
        useless: set[PooledServer] = set()
        for server, patience in self._tries(deadline, useless):
            if error is not None:
                metrics.BACKEND_RETRIES.labels(_REASONS[type(error)]).inc()
            try:
                response = self._ask(server, signed_request, patience)
            except errors.BackendError as caught:
                if signed_request.once and not isinstance(caught, errors.BackendUnreachableError):
                    raise
                error = caught
                self._let_rest(server, error)
                if isinstance(error, errors.BackendAnswerError):
                    # The host answered in time: it would give the same answer again.
                    useless.add(server)
            else:
                self._rests[server].succeeded()
                answer = _answer(response, head=request.method == "HEAD")
                if answer.status == HTTPStatus.NOT_FOUND and is_of_every_instance(request.path):
                    return replace(answer, known=False)
                return answer
        raise error or errors.BackendUnreachableError(backend=self.name, cause="no time was left")

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        """Return a view without a lookup, since Nova has no token mode of an instance."""
        return View("", lambda: self.answer(request, identity, deadline=terms.deadline))

    def close(self) -> None:
        """Close the persistent connections."""
        for server in self._servers:
            server.close()

    def _tries(
        self, deadline: float, useless: set[PooledServer]
    ) -> Iterator[tuple[PooledServer, float]]:
        """Yield the next server to query, and the seconds for it, until no time is left."""
        now, several = clock.now(), len(self._servers) > 1
        half = max(0.1, (deadline - now) / 2)
        least, held = 0.0, False
        while candidates := [server for server in self._servers if server not in useless]:
            rested = [server for server in candidates if not self._rests[server].rests(now)]
            for server in rested or candidates:
                left = deadline - now
                if left <= least:
                    return
                # Less could not succeed, and would hide the cause of the last failure.
                least = FIRST_PAUSE
                yield server, min(left, half) if several else left
                now = clock.now()
            over = deadline - now <= 2 * FIRST_PAUSE
            if over or len(useless) == len(self._servers):
                return
            if not held:
                held = True
                metrics.HELD_REQUESTS.labels("backend").inc()
            threads.sleep(FIRST_PAUSE)
            now = clock.now()

    def _let_rest(self, server: PooledServer, error: errors.BackendError) -> None:
        now, rest = clock.now(), self._rests[server]
        if len(self._servers) > 1 and not rest.rests(now):
            # Another host will answer, so that this failure would not be logged otherwise.
            LOG.warning("%s; only other hosts are used for %d s. %s", error, REST, error.remedy)
        rest.failed(now)

    def _signed_request(self, request: GuestRequest, identity: Identity) -> _NovaRequest:
        headers = [self._signed(identity.instance_id, identity.project_id)]
        if PRINTABLE.fullmatch(request.guest_ip):
            headers.append(f"X-Forwarded-For: {request.guest_ip}\r\n")
        accept = request.headers.get("accept", "")
        if PRINTABLE.fullmatch(accept):
            headers.append(f"Accept: {accept}\r\n")
        body = b""
        if request.method not in IDEMPOTENT:
            body = request.body
            kind = request.headers.get("content-type", "")
            kind = kind if PRINTABLE.fullmatch(kind) else "text/plain"
            headers.append(f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n")
        line = f"{request.method} {_target(request)} HTTP/1.1\r\n".encode("ascii")
        rest = "".join([*headers, "\r\n"]).encode("ascii") + body
        return _NovaRequest(identity.instance_id, request.method, line, rest)

    def _ask(
        self, server: PooledServer, signed_request: _NovaRequest, patience: float
    ) -> HttpResponse:
        request = signed_request.to(server)
        response = None
        try:
            with threads.Timeout(patience, False):
                response = _send(server, request, signed_request)
        except errors.UpstreamError as error:
            cause, remedy = explain_upstream(error)
            kind = _kind(error, once=signed_request.once)
            cause = f"{server.host.authority}: {cause}"
            raise kind(backend=self.name, cause=cause, remedy=remedy) from error
        if response is None:
            raise self._too_late(server, patience, sent=request.sent)
        return response

    def _too_late(
        self, server: PooledServer, patience: float, *, sent: bool
    ) -> errors.BackendError:
        where = server.host.authority
        if not sent:
            cause = f"{where}: no connection within {patience:.1f} s"
            remedy = reach("it runs and no firewall blocks it")
            return errors.BackendUnreachableError(backend=self.name, cause=cause, remedy=remedy)
        cause = f"{where} has not answered within {patience:.1f} s"
        return errors.BackendTimeoutError(backend=self.name, cause=cause, remedy=READ_LOG)


def explain_status(status: int) -> str:
    """Return what an operator has to check if a status of Nova indicates a fault; else nothing."""
    return _FAILED if status >= 500 else _REMARKS.get(status, "")


def _send(server: PooledServer, request: HttpRequest, of: _NovaRequest) -> HttpResponse:
    if of.once:
        # A kept connection may end during the request, and it would be unknown whether the server
        # has read the request.
        return server.handle_request(request, of.instance, fresh=True)
    try:
        return server.handle_request(request, of.instance)
    except errors.UpstreamStaleError:
        metrics.BACKEND_RETRIES.labels("stale").inc()
    return server.handle_request(request, of.instance, fresh=True)


def _kind(error: errors.UpstreamError, *, once: bool) -> type[errors.BackendError]:
    if isinstance(error, errors.UpstreamAwayError):
        return errors.BackendUnreachableError
    if once:
        return errors.BackendTimeoutError
    return (
        errors.BackendAnswerError
        if isinstance(error, errors.UpstreamAnswerError)
        else errors.BackendUnreachableError
    )


def _target(request: GuestRequest) -> str:
    # Some servers take the text after a leading // for a host.
    target = "/" + request.path.lstrip("/")
    if request.query:
        target = f"{target}?{request.query}"
    if _VISIBLE.fullmatch(target):
        return target
    return urllib.parse.quote(target.encode("latin-1", "replace"), safe=string.punctuation)


def _answer(response: HttpResponse, *, head: bool) -> Answer:
    drop = _ENDS_HERE | response.options if response.options else _ENDS_HERE
    headers = [pair for pair in response.headers if pair[0] not in drop]
    if head:
        headers += [pair for pair in response.headers if pair[0] == "content-length"][:1]
    return Answer(
        response.status,
        response.body,
        content_type=response.header("content-type"),
        headers=tuple(headers),
        remark=explain_status(response.status),
    )
