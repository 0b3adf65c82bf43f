"""Query one Nova host for ``dfmeta doctor``: up to two requests.

The first request is signed in the same way as the daemon's requests. The second is sent only if the
first is not conclusive, and has none of dfmeta's headers. Trust: as in
:mod:`dfmeta.http.responses`; nothing from Nova's answer is quoted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from dfmeta.errors import (
    BackendError,
    StartError,
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
)
from dfmeta.http.client import ClientConnection, HttpRequest, UpstreamLateError
from dfmeta.http.http1 import host_header
from dfmeta.http.responses import HttpResponse
from dfmeta.model import HttpHost
from dfmeta.proxy.backends.nova.failures import LOG, TLS_THERE, explain_upstream
from dfmeta.proxy.backends.nova.request import NovaSettings, nova_context, signed
from dfmeta.runtime import clock

PATH: Final = "/latest/meta-data/instance-id"
"""A path that every version of Nova has; its answer is short."""
_PLAIN: Final = "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
_TELLS_NOTHING: Final = 404
"""Status of Nova for an unknown instance, and for every request while its metadata API ignores
dfmeta's headers."""


@dataclass(frozen=True, slots=True)
class Question:
    """The instance to request metadata of."""

    instance_id: str
    project_id: str


def ask_nova(
    host: HttpHost,
    question: Question,
    settings: NovaSettings,
    *,
    seconds: float,
    unsigned: bool = True,
) -> NovaFact:
    """Query *host*; no failure or answer of it raises an error.

    :param seconds: time limit for both requests together.
    :param unsigned: allow the second request, if the first is not conclusive.
    """
    deadline = clock.now() + seconds
    name = host.authority
    try:
        headers = signed(settings.secret, question.instance_id, question.project_id)
        context = nova_context(settings)
        response = _get(host, context, headers, deadline)
        plain = 0
        if unsigned and response.status == _TELLS_NOTHING:
            plain = _get(host, context, _PLAIN, deadline).status
    except UpstreamLateError:
        return NovaFact(name, cause=f"it has not answered within {seconds:g} s", remedy=LOG)
    except UpstreamError as error:
        cause, remedy = explain_upstream(error)
        lost = isinstance(error, UpstreamLostError)
        if lost and settings.protocol == "http" and _speaks_tls(host, deadline):
            cause, remedy = "it speaks TLS", TLS_THERE
        return NovaFact(name, cause=cause, remedy=remedy)
    except (BackendError, StartError) as error:
        return NovaFact(name, cause=str(error.fields["cause"]), remedy=error.remedy)
    date = response.header("date")
    return NovaFact(name, response.status, plain, date=date)


def _get(host: HttpHost, context: Any, headers: str, deadline: float) -> HttpResponse:
    """Send one GET on a connection of its own.

    :raises UpstreamError: see :meth:`~dfmeta.http.client.ClientConnection.handle_request`.
    """
    request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n%b\r\n" % (
        PATH.encode(),
        host_header(host),
        headers.encode("latin-1"),
    )
    connection = ClientConnection(host, context)
    try:
        return connection.handle_request(HttpRequest("GET", request, deadline))
    finally:
        connection.close()


def _speaks_tls(host: HttpHost, deadline: float) -> bool:
    """Whether a TLS handshake ends, or fails with an alert.

    Many TLS servers close the connection without an answer when they receive plain HTTP.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = ClientConnection(host, context)
    try:
        connection.connect(deadline)
    except UpstreamAwayError as error:
        origin = error.__cause__
        return isinstance(origin, ssl.SSLError) and "ALERT" in (origin.reason or "")
    finally:
        connection.close()
    return True


@dataclass(frozen=True, slots=True)
class NovaFact:
    """The answer of one host of nova_metadata_host to a signed request."""

    authority: str
    """HOST:PORT."""
    status: int = 0
    """0: there was no answer."""
    unsigned: int = 0
    """The status of the same request without dfmeta's headers; 0: it was not sent."""
    cause: str = ""
    """Why there was no answer."""
    remedy: str = ""
    date: str = ""
    """The answer's Date header, unparsed."""

    @property
    def takes_signature(self) -> bool:
        """Whether the status depends on the signed headers, and not on the client's address."""
        if self.cause:
            return False
        unknown = self.status == HTTPStatus.NOT_FOUND
        differs = self.unsigned not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
        return self.status == HTTPStatus.OK or (unknown and differs)
