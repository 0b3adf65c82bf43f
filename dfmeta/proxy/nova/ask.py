"""Asks one Nova host what ``dfmeta doctor`` wants to know: two requests, on plain sockets.

The first is signed as the daemon signs; the second, where it takes that to tell, carries no headers
of ours. Trust: as :mod:`dfmeta.proxy.nova.replies`; nothing of what Nova answers is quoted.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final

from dfmeta.exceptions import BackendError, StartError, UpstreamError, UpstreamLostError
from dfmeta.inspect.checks_nova import NovaFact
from dfmeta.model import HttpHost
from dfmeta.proxy.nova.remedies import LOG, explain
from dfmeta.proxy.nova.replies import Reply, read_reply
from dfmeta.proxy.nova.request import NovaSettings, host_header, signed
from dfmeta.proxy.nova.trust import nova_context

PATH: Final = "/latest/meta-data/instance-id"
"""Every version of Nova has it, and it is short."""
TLS_THERE: Final = "Set nova_metadata_protocol = https"
_PLAIN: Final = "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
_TELLS_NOTHING: Final = 404
"""Nova's answer to an instance that it does not have, and to whatever comes while its metadata
API does not look at our headers at all."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whose metadata is asked for."""

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
    """Ask *host*; never raises for what it does or does not answer.

    :param seconds: for both requests together.
    :param unsigned: send the second request, where it takes that to tell.
    """
    deadline = time.monotonic() + seconds
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

    :raises TimeoutError: the connection is there, and the answer is not.
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
    context = None
    if settings.protocol == "https":
        context = nova_context(
            settings.ca_cert,
            cert=settings.client_cert,
            key=settings.client_key,
            insecure=settings.insecure,
        )
    try:
        sock = socket.create_connection((host.host, host.port), timeout=_left(deadline))
    except TimeoutError as error:
        cause, remedy = explain(error)
        raise UpstreamError(cause=cause, remedy=remedy) from error
    if context is None:
        return sock
    with sock:
        # The handshake takes the plain socket's place, or the connection ends with it.
        return context.wrap_socket(
            sock, server_hostname=host.host.partition("%")[0], suppress_ragged_eofs=False
        )


def _speaks_tls(host: HttpHost, deadline: float) -> bool:
    """Whether a handshake comes to its end, or to an alert: many close without a word on HTTP."""
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
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
