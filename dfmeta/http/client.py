"""The HTTP client: a request and its response are values, and each has a deadline.

A socket's timeout starts again with each byte. Here, the complete response has to arrive before one
deadline. The sockets are Python's, which eventlet replaces in the daemon: then a greenthread waits,
else the calling thread. :mod:`dfmeta.http.pool` keeps connections.

Trust: addresses are the operator's. With TLS, the server is identified by its certificate. A server
is trusted with no more than this process' time and memory, and both are bounded. Errors quote
nothing of a response.
"""

import functools
import math
import os
import re
import socket
import ssl
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from dfmeta import errors, model
from dfmeta.http.http1 import host_header
from dfmeta.http.responses import HttpResponse, lost, read_response
from dfmeta.runtime import clock


def client_context(
    authorities: str | None = None, *, create: Callable[..., Any] | None = None
) -> ssl.SSLContext:
    """Return a TLS context that verifies servers' certificates and names (RFC 9110, 4.3.4).

    The system's authorities are those that OpenSSL finds, including ``SSL_CERT_FILE`` and
    ``SSL_CERT_DIR`` of the environment (SSL_CTX_set_default_verify_paths(3)). Libraries with their
    own list, such as httplib2 and requests with certifi's, get this context instead, so that an
    operator has to add an authority only to the system. This function reads the files. The minimum
    version is TLS 1.2. A connection that ends without the closing alert is an error
    (:func:`is_cut`), if the caller's socket does not suppress it.

    :param authorities: PEM file of the only trusted authorities; None or empty: the system's.
    :param create: ``ssl.create_default_context``, or eventlet's; None: the one of this process.
    :raises OSError: the file cannot be read, or contains no certificate (ssl.SSLError).
    """
    # Looked up here, because eventlet may replace it after the import of this module.
    make = create or ssl.create_default_context
    context: ssl.SSLContext = make(cafile=authorities or None)
    # Debian 12's Python ignores by default that a connection was cut (python/cpython#95494).
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    return context


def is_cut(error: ssl.SSLError) -> bool:
    """Return whether the connection ended without the closing alert (RFC 8446, 6.1).

    An attacker can end it so. Python has an exception of its own for it since 3.11.4.
    """
    return isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING"


TIMEOUT: Final = 60.0
"""Seconds for a request of a command and its whole answer: a server may have work to do for it."""
TOKEN_MAX: Final = 16384
"""Characters of a token: servers accept no longer header, and an issuer that puts many groups into
one needs some thousands."""
BODY_MAX: Final = 24 << 20
"""Bytes. User-data has up to 16 MiB (:data:`dfmeta.store.api.checks.USERDATA_MAX`), and base64
needs a third more."""
_COMMON: Final = {
    "User-Agent": "dfmeta",
    "Accept-Encoding": "identity",
    "Connection": "close",
}
_LINE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]+")

Clock = Callable[[], float]
Resolve = Callable[[str, int, float], Sequence[tuple[Any, ...]]]
"""Host, port and seconds → the result of :func:`socket.getaddrinfo` for streams."""


def resolve(host: str, port: int, _seconds: float) -> Sequence[tuple[Any, ...]]:
    """Resolve a name with the C library, however long it takes, where no other work waits for it.

    :raises socket.gaierror: as getaddrinfo(3).
    """
    return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)


class UpstreamLateError(errors.UpstreamError):
    """The answer was not complete before the deadline."""

    name = "exchange-late"


@dataclass(slots=True)
class HttpRequest:
    """A request on a connection."""

    method: str
    message: bytes = field(repr=False)
    """The whole request in its wire format."""
    deadline: float = math.inf
    """Monotonic seconds; without one, the caller limits the time."""
    sent: bool = False
    """Whether a byte of the request may have been sent."""


@dataclass(frozen=True, slots=True)
class UrlRequest:
    """A request to a URL. Its headers and its body are secret."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    deadline: float = math.inf
    """Monotonic seconds."""
    method: str = ""
    """Empty: POST with a body, else GET."""


class ClientConnection:
    """One connection to *target*; its first request opens it.

    :param context: an ssl.SSLContext; None for no TLS.
    :param clock: monotonic seconds.
    :param resolve: finds a name's addresses within a time limit.
    """

    body_max = BODY_MAX
    """Largest body of a response, in bytes."""

    def __init__(
        self,
        target: model.HttpHost,
        context: Any = None,
        *,
        clock: Clock = clock.now,
        resolve: Resolve = resolve,
    ) -> None:
        self.sock: Any = None
        self._target = target
        self._context = context
        self._clock = clock
        self._resolve = resolve
        self._deadline = math.inf
        self._begun = False

    def handle_request(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read the response, of any status.

        :raises UpstreamAwayError: no connection can be made.
        :raises UpstreamLateError: the response is not complete before the deadline.
        :raises UpstreamLostError: the connection ended before the response did.
        :raises UpstreamAnswerError: the response is not HTTP, is ambiguous or is too large.
        """
        if self.sock is None:
            self.connect(request.deadline)
        self._deadline = request.deadline
        self._begun = False
        request.sent = True
        self._send(request.message)
        return read_response(self._receive, head=request.method == "HEAD", body_max=self.body_max)

    def connect(self, deadline: float = math.inf) -> None:
        """Open the connection.

        :param deadline: monotonic seconds.
        :raises UpstreamAwayError: with the failure of the last of the server's addresses.
        """
        host, port = self._target.host, self._target.port
        self._deadline = deadline
        try:
            infos = self._resolve(host, port, self._left() or math.inf)
            for number, (family, kind, protocol, _name, address) in enumerate(infos):
                remaining = len(infos) - number
                try:
                    self.sock = self._open((family, kind, protocol), address, remaining)
                    break
                except OSError:
                    if remaining == 1:
                        raise
        except (OSError, UnicodeError) as error:
            raise errors.UpstreamAwayError(cause=cause_of(error)) from error

    def close(self) -> None:
        """Close the connection."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def _left(self) -> float | None:
        """Return the seconds until the deadline; None: there is none.

        :raises TimeoutError: the deadline is over.
        """
        if self._deadline == math.inf:
            return None
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _patience(self, addresses: int) -> float | None:
        """Return the seconds for the first of that many addresses; None: no limit."""
        left = self._left()
        return None if left is None else left / addresses

    def _socket(self, family: int, kind: int, protocol: int) -> Any:
        return socket.socket(family, kind, protocol)

    def _open(self, kind: tuple[int, int, int], address: Any, addresses: int) -> Any:
        sock = self._socket(*kind)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(self._patience(addresses))
            sock.connect(address)
            if self._context is not None:
                sock = self._wrap(sock)
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        return sock

    def _wrap(self, sock: Any) -> Any:
        # A connection that ends without the closing alert may have been cut by an attacker: a body
        # without a length would be accepted incomplete.
        wrapped = self._context.wrap_socket(
            sock,
            server_hostname=self._target.host.partition("%")[0],
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        try:
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _send(self, message: bytes) -> None:
        try:
            self.sock.settimeout(self._left())
            self.sock.sendall(message)
        except TimeoutError as error:
            raise UpstreamLateError(cause="no answer in time") from error
        except OSError:
            # The server may have answered before it closed: the read shows the result.
            return

    def _receive(self, size: int) -> bytes:
        try:
            data = self._receive_some(size)
        except OSError as error:
            if isinstance(error, TimeoutError) and self._deadline < math.inf:
                raise UpstreamLateError(cause="no answer in time") from error
            if isinstance(error, ssl.SSLError) and not is_cut(error):
                raise errors.UpstreamLostError(cause=cause_of(error), begun=self._begun) from error
            raise lost(begun=self._begun) from error
        self._begun = True
        return data

    def _receive_some(self, size: int) -> bytes:
        self.sock.settimeout(self._left())
        data: bytes = self.sock.recv(size)
        return data


class HttpClient:
    """Sends requests to URLs. Safe to use from several threads. No HTTP proxy is ever used.

    Each request has a connection of its own: a faulty balancer may send bytes behind a response,
    and on a kept connection they would be the response to the next request, about another instance
    (RFC 9112, 11.2).

    :param context: TLS context that checks servers' certificates; None: the system's
        authorities, see :func:`dfmeta.http.client.client_context`.
    :param tls: make that context at once. The first https request would wait tens of milliseconds
        for it.
    :param clock: monotonic seconds.
    :param resolve: finds a name's addresses within a time limit.
    :param body_max: largest body of a response, in bytes.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        tls: bool = False,
        clock: Clock = clock.now,
        resolve: Resolve = resolve,
        body_max: int = BODY_MAX,
    ) -> None:
        self._make_context = functools.cache(client_context if context is None else lambda: context)
        if tls:
            self._make_context()
        self._clock = clock
        self._resolve = resolve
        self._body_max = body_max

    def handle_request(self, request: UrlRequest) -> HttpResponse:
        """Send a request and return the response with any status; no redirection is followed.

        :raises UpstreamError: as :meth:`ClientConnection.handle_request`.
        :raises ValueError: the URL is invalid, or a header is not one line of Latin-1.
        """
        url = urlsplit(request.url)
        secure = url.scheme == "https"
        if not url.hostname:
            raise ValueError("there is no host in the URL")
        target = model.HttpHost(url.hostname, url.port or (443 if secure else 80))
        host = host_header(target)
        if url.port is None:
            host = host.rpartition(b":")[0]
        method = request.method or ("GET" if request.body is None else "POST")
        query = f"?{url.query}" if url.query else ""
        path = quote(f"{url.path or '/'}{query}", safe=string.punctuation)
        message = compose(f"{method} {path}", host, request.headers, request.body)
        connection = ClientConnection(
            target,
            self._make_context() if secure else None,
            clock=self._clock,
            resolve=self._resolve,
        )
        connection.body_max = self._body_max
        try:
            response = connection.handle_request(HttpRequest(method, message, request.deadline))
        finally:
            connection.close()
        if (response.header("content-encoding") or "identity").lower() != "identity":
            cause = "its answer is compressed, although that was not requested"
            raise errors.UpstreamAnswerError(cause=cause)
        return response


def compose(start: str, host: bytes, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return a request in its wire format.

    :param start: method and target.
    :param host: value of the Host header.
    :raises ValueError: a header is not one line of Latin-1.
    """
    lines = [f"{name}: {value}" for name, value in {**_COMMON, **headers}.items()]
    if body is not None or not start.startswith(("GET ", "HEAD ", "DELETE ")):
        lines.append(f"Content-Length: {len(body or b'')}")
    if not all(map(_LINE.fullmatch, lines)):
        raise ValueError("a header is not one line of Latin-1")
    text = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return b"%b HTTP/1.1\r\nHost: %b\r\n%b%b" % (start.encode("ascii"), host, text, body or b"")


def cause_of(error: Exception) -> str:
    """Return why a connection could not be made, or ended; nothing that the server sent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails: {error.reason or type(error).__name__}"
    if isinstance(error, UnicodeError):
        return "its host name is invalid"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {error.strerror}"
    if isinstance(error, TimeoutError):
        return "no connection"
    if isinstance(error, OSError) and error.errno:
        # eventlet's sockets have the name of the error number in strerror.
        return os.strerror(error.errno).lower()
    return "no connection"
