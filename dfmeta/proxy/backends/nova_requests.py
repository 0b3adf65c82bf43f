"""Requests to Nova, the causes of their failures, and the request of ``dfmeta doctor``.

This module does not use eventlet's hub: ``dfmeta doctor`` sends the same requests as the daemon, in
threads of its own.

Nothing that the server sent is quoted in a cause or a remedy: the texts come from the system, from
OpenSSL's own tables and from this module.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from dfmeta import errors, model
from dfmeta.http.client import (
    ClientConnection,
    HttpRequest,
    UpstreamLateError,
    client_context,
    is_cut,
)
from dfmeta.http.http1 import host_header
from dfmeta.http.responses import HttpResponse
from dfmeta.runtime import clock

BACKEND = "nova"
PROBE_PATH: Final = "/latest/meta-data/instance-id"
"""A path that every version of Nova has; its answer is short."""
_UNSIGNED: Final = "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
"""Status of Nova for an unknown instance, and for every request while its metadata API ignores
dfmeta's headers."""
AUTHORITY: Final = "Set auth_ca_cert to the authority that signed Nova's certificate"
CLIENT: Final = (
    "Set nova_client_cert and nova_client_priv_key to a certificate that Nova's server accepts"
)
CLOCK: Final = "Renew Nova's certificate, or set the clock of this host"
NAME: Final = "Set nova_metadata_host to a name that Nova's certificate is for"
READ_LOG: Final = "Read its log"
LISTENS: Final = "Check that Nova's metadata API listens there"
TLS_THERE: Final = "Set nova_metadata_protocol = https"
NO_TLS: Final = "Check that the server speaks TLS, or set nova_metadata_protocol = http"
_VERIFY: Final[Mapping[int, str]] = {
    2: AUTHORITY,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT
    7: AUTHORITY,  # X509_V_ERR_CERT_SIGNATURE_FAILURE
    9: CLOCK,  # X509_V_ERR_CERT_NOT_YET_VALID
    10: CLOCK,  # X509_V_ERR_CERT_HAS_EXPIRED
    18: AUTHORITY,  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
    19: AUTHORITY,  # X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN
    20: AUTHORITY,  # X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY
    21: AUTHORITY,  # X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE
    62: NAME,  # X509_V_ERR_HOSTNAME_MISMATCH
    64: NAME,  # X509_V_ERR_IP_ADDRESS_MISMATCH
}
"""OpenSSL's x509_vfy.h."""
_REASONS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "UNEXPECTED_EOF_WHILE_READING": NO_TLS,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": CLIENT,
    "SSLV3_ALERT_BAD_CERTIFICATE": CLIENT,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": CLIENT,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": CLIENT,
    "TLSV1_ALERT_UNKNOWN_CA": CLIENT,
    "TLSV1_ALERT_ACCESS_DENIED": CLIENT,
    "TLSV1_ALERT_DECRYPT_ERROR": CLIENT,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": CLIENT,
    "TLSV1_UNRECOGNIZED_NAME": NAME,
    "TLSV1_ALERT_PROTOCOL_VERSION": "Let Nova's server speak TLS 1.2 or later",
}
PRINTABLE = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class NovaSettings:
    """Settings of the connection to Nova."""

    hosts: Sequence[model.HttpHost]
    secret: bytes
    protocol: str = "http"
    insecure: bool = False
    """Whether any certificate of any server is accepted."""
    ca_cert: str | None = None
    """PEM file of authorities; None: the system's."""
    client_cert: str | None = None
    """PEM file of the client's certificate."""
    client_key: str | None = None
    """PEM file of its private key, unencrypted."""


def signed(secret: bytes, instance_id: str, project_id: str) -> str:
    """Return the header lines that identify the instance (``nova/api/metadata/handler.py``).

    :param instance_id, project_id: from the operator or an identity source; they are checked to be
        valid header values.
    :raises BackendError: when one of them is not a valid header value.
    """
    if not PRINTABLE.fullmatch(instance_id) or not PRINTABLE.fullmatch(project_id):
        raise errors.BackendError(
            backend=BACKEND,
            cause="the id of the instance or of its project is not a valid header value",
            remedy="See its source with: dfmeta ports",
        )
    signature = hmac.new(secret, instance_id.encode(), hashlib.sha256).hexdigest()
    return (
        f"X-Instance-ID: {instance_id}\r\nX-Tenant-ID: {project_id}\r\n"
        f"X-Instance-ID-Signature: {signature}\r\n"
        # A compressed answer would be forwarded as it is, but few guests can decompress it.
        "Accept-Encoding: identity\r\nUser-Agent: dfmeta\r\n"
    )


def nova_context(
    settings: NovaSettings, *, create: Callable[..., Any] | None = None
) -> ssl.SSLContext | None:
    """Return the context of :func:`dfmeta.http.client.client_context` with the client's
    certificate.

    There is no ALPN, since only HTTP/1.1 is used. Files are read here and not again.

    :param create: see :func:`dfmeta.http.client.client_context`.
    :returns: None without TLS.
    :raises StartError: when a file cannot be loaded.
    """
    if settings.protocol != "https":
        return None
    try:
        context = client_context(settings.ca_cert, create=create)
        if settings.client_cert:
            # Without it, OpenSSL would ask for a passphrase on the terminal.
            context.load_cert_chain(settings.client_cert, settings.client_key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise errors.StartError(
            cause=f"certificates for Nova cannot be loaded: {error.args[-1]}",
            remedy="See auth_ca_cert, nova_client_cert and nova_client_priv_key",
        ) from error
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def explain_upstream(error: errors.UpstreamError) -> tuple[str, str]:
    """Return cause and remedy of a request that failed."""
    origin = error.__cause__
    if isinstance(error, errors.UpstreamAwayError) and isinstance(origin, Exception):
        return explain(origin)
    if isinstance(origin, ssl.SSLError) and not is_cut(origin):
        return _explain_tls(origin)
    cause = error.cause
    if isinstance(error, errors.UpstreamAnswerError):
        return cause, TLS_THERE if error.fields.get("tls") else LISTENS
    return cause, READ_LOG


def explain(error: Exception) -> tuple[str, str]:
    """Return cause and remedy of a connection that failed or ended."""
    if isinstance(error, ssl.SSLError):
        return _explain_tls(error)
    if isinstance(error, socket.gaierror | UnicodeError):
        remedy = "Set nova_metadata_host to an address, or to a name that this host can resolve"
        return "its name cannot be resolved", remedy
    if isinstance(error, TimeoutError):
        return "the connection timed out", reach("no firewall blocks it")
    if isinstance(error, ConnectionRefusedError):
        return "connection refused", reach("Nova's metadata API listens there")
    if isinstance(error, ConnectionError):
        return "it closed the connection", READ_LOG
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or type(error).__name__, reach("there is a route to it")


def reach(condition: str) -> str:
    """Return the remedy for a server that cannot be reached."""
    return f"Check that {condition}; nova_metadata_host and nova_metadata_port set the address"


def _explain_tls(error: ssl.SSLError) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY.get(error.verify_code, "Fix Nova's certificate")
        return f"TLS: CERTIFICATE_VERIFY_FAILED: {error.verify_message}", remedy
    reason = error.reason or type(error).__name__
    return f"TLS: {reason}", _REASONS.get(reason, READ_LOG)


@dataclass(frozen=True, slots=True)
class Question:
    """The instance to request metadata of."""

    instance_id: str
    project_id: str


def ask_nova(
    host: model.HttpHost,
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
        if unsigned and response.status == HTTPStatus.NOT_FOUND:
            plain = _get(host, context, _UNSIGNED, deadline).status
    except UpstreamLateError:
        return NovaFact(name, cause=f"it has not answered within {seconds:g} s", remedy=READ_LOG)
    except errors.UpstreamError as error:
        cause, remedy = explain_upstream(error)
        lost = isinstance(error, errors.UpstreamLostError)
        if lost and settings.protocol == "http" and _speaks_tls(host, deadline):
            cause, remedy = "it speaks TLS", TLS_THERE
        return NovaFact(name, cause=cause, remedy=remedy)
    except (errors.BackendError, errors.StartError) as error:
        return NovaFact(name, cause=error.cause, remedy=error.remedy)
    date = response.header("date")
    return NovaFact(name, response.status, plain, date=date)


def _get(host: model.HttpHost, context: Any, headers: str, deadline: float) -> HttpResponse:
    """Send one GET on a connection of its own.

    :raises UpstreamError: see :meth:`~dfmeta.http.client.ClientConnection.handle_request`.
    """
    request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n%b\r\n" % (
        PROBE_PATH.encode(),
        host_header(host),
        headers.encode("latin-1"),
    )
    connection = ClientConnection(host, context)
    try:
        return connection.handle_request(HttpRequest("GET", request, deadline))
    finally:
        connection.close()


def _speaks_tls(host: model.HttpHost, deadline: float) -> bool:
    """Whether a TLS handshake ends, or fails with an alert.

    Many TLS servers close the connection without an answer when they receive plain HTTP.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = ClientConnection(host, context)
    try:
        connection.connect(deadline)
    except errors.UpstreamAwayError as error:
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
