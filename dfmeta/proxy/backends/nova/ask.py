"""Query one Nova host for ``dfmeta doctor``: up to two requests, on plain sockets.

The first request is signed in the same way as the daemon's requests. The second is sent only if the
first is not conclusive, and has none of dfmeta's headers. Trust: as in
:mod:`dfmeta.http.responses`; nothing from Nova's answer is quoted.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from dfmeta.errors import BackendError, StartError, UpstreamError, UpstreamLostError
from dfmeta.http.failures import LOG, explain
from dfmeta.http.http1 import host_header
from dfmeta.http.responses import Reply, read_reply
from dfmeta.model import HttpHost
from dfmeta.proxy.backends.nova.request import NovaSettings, nova_context, signed
from dfmeta.runtime import clock

PATH: Final = "/latest/meta-data/instance-id"
"""A path that every version of Nova has; its answer is short."""
TLS_THERE: Final = "Set nova_metadata_protocol = https"
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
        reply = _exchange(host, settings, headers, deadline)
        plain = 0
        if unsigned and reply.status == _TELLS_NOTHING:
            plain = _exchange(host, settings, _PLAIN, deadline).status
    except TimeoutError:
        return NovaFact(name, cause=f"it has not answered within {seconds:g} s", remedy=LOG)
    except (UpstreamLostError, ConnectionResetError) as error:
        if settings.protocol == "http" and _speaks_tls(host, deadline):
            return NovaFact(name, cause="it speaks TLS", remedy=TLS_THERE)
        cause, remedy = explain(error)
        if isinstance(error, UpstreamLostError):
            cause, remedy = str(error.fields["cause"]), error.remedy
        return NovaFact(name, cause=cause, remedy=remedy)
    except (UpstreamError, BackendError) as error:
        return NovaFact(name, cause=str(error.fields["cause"]), remedy=error.remedy)
    except StartError as error:
        return NovaFact(name, cause=str(error.fields["cause"]), remedy=str(error.fields["remedy"]))
    except (OSError, UnicodeError) as error:
        cause, remedy = explain(error)
        return NovaFact(name, cause=cause, remedy=remedy)
    dates = [value for field, value in reply.headers if field == "date"]
    return NovaFact(name, reply.status, plain, date=dates[0] if dates else "")


def _exchange(host: HttpHost, settings: NovaSettings, headers: str, deadline: float) -> Reply:
    """Send one GET on a connection of its own.

    :raises TimeoutError: when the connection was made, but the answer is not complete in time.
    """
    name = host_header(host)
    request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n%b\r\n" % (
        PATH.encode(),
        name,
        headers.encode("latin-1"),
    )
    with _connected(host, settings, deadline) as sock:

        def receive(size: int) -> bytes:
            sock.settimeout(_left(deadline))
            return sock.recv(size)

        sock.settimeout(_left(deadline))
        sock.sendall(request)
        return read_reply(receive)


def _connected(host: HttpHost, settings: NovaSettings, deadline: float) -> socket.socket:
    context = nova_context(settings)
    try:
        sock = socket.create_connection((host.host, host.port), timeout=_left(deadline))
    except TimeoutError as error:
        cause, remedy = explain(error)
        raise UpstreamError(cause=cause, remedy=remedy) from error
    if context is None:
        return sock
    with sock:
        # wrap_socket detaches the plain socket; if the handshake fails, the socket is closed.
        return context.wrap_socket(
            sock, server_hostname=host.host.partition("%")[0], suppress_ragged_eofs=False
        )


def _speaks_tls(host: HttpHost, deadline: float) -> bool:
    """Whether a TLS handshake ends, or fails with an alert.

    Many TLS servers close the connection without an answer when they receive plain HTTP.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.host, host.port), timeout=_left(deadline)) as sock,
            context.wrap_socket(sock),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _left(deadline: float) -> float:
    left = deadline - clock.now()
    if left <= 0:
        raise TimeoutError
    return left


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
        looks = self.unsigned not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND)
        found = self.status == HTTPStatus.NOT_FOUND and looks
        return not self.cause and (found or self.status == HTTPStatus.OK)
