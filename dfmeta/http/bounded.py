"""HTTP requests to upstream stores and to issuers of tokens, bounded in size and in time.

A socket's timeout starts again with each byte. Here, the complete answer has to arrive before one
deadline.

Each request has a connection of its own: a faulty balancer may send bytes behind an answer, and on
a kept connection they would be the answer to the next request, of another instance (RFC 9112,
11.2). An instance needs few requests, since its record is stored.

Trust: addresses are the operator's. With https, the server is identified by its certificate. A
server is trusted with no more than this process' time and memory, and both are bounded. Errors
quote nothing of an answer.
"""

from __future__ import annotations

import errno
import functools
import http.client
import io
import os
import socket
import ssl
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from dfmeta.errors import LookupAnswerError, LookupAwayError
from dfmeta.http.authorities import client_context
from dfmeta.runtime import clock

BODY_MAX: Final = 24 << 20
"""Bytes. User-data has up to 16 MiB (:data:`dfmeta.store.api.checks.USERDATA_MAX`), and base64
needs a third more."""
HEAD_MAX: Final = 65536
"""Bytes of an answer's head, and of the data between the chunks of its body that exceed the body's
own length."""
PIECE: Final = 65536

Clock = Callable[[], float]
Resolve = Callable[[str, int, float], Sequence[tuple[Any, ...]]]
"""Host, port and seconds → the result of :func:`socket.getaddrinfo` for streams."""


def resolve(host: str, port: int, _seconds: float) -> Sequence[tuple[Any, ...]]:
    """Resolve a name with the C library, however long it takes, where no other work waits for it.

    :raises socket.gaierror: as getaddrinfo(3).
    """
    return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request."""

    status: int
    content_type: str
    """In lower case and without parameters; empty if the answer has no Content-Type."""
    body: bytes = field(repr=False)
    whole: bool
    """Whether the length was known, so that a connection that ends too early is an error."""
    date: str = ""
    """The answer's Date header; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request. Its headers and its body are secret."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    """The body of a POST; None for a GET."""
    deadline: float = 0.0
    """Monotonic seconds."""

    @property
    def method(self) -> str:
        """Return the request's method."""
        return "GET" if self.body is None else "POST"


class Client:
    """Sends requests. Safe to use from several threads.

    :param context: TLS context that checks servers' certificates; None: the system's
        authorities, see :func:`dfmeta.http.authorities.client_context`.
    :param tls: make that context at once. The first https request would wait tens of milliseconds
        for it.
    :param clock: monotonic seconds.
    :param resolve: finds a name's addresses within a time limit.
    :param body_max: largest body of an answer, in bytes.
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
        self.context = functools.cache(client_context if context is None else lambda: context)
        if tls:
            self.context()
        self.clock = clock
        self.resolve = resolve
        self.body_max = body_max

    def exchange(self, exchange: Exchange) -> Reply:
        """Send a request and return the answer with any status; no redirection is followed.

        :raises LookupAwayError: no answer arrives before the deadline.
        :raises LookupAnswerError: the answer is too large, or not HTTP.
        :raises ValueError, http.client.InvalidURL: the URL is invalid.
        """
        url = urlsplit(exchange.url)
        connection = _Connection(self, url.netloc)
        try:
            return connection.exchange(exchange, url)
        finally:
            connection.close()


class _OverlongError(http.client.HTTPException):
    """An answer is larger than the limit."""


class _Connection(http.client.HTTPConnection):
    """One connection; *authority* is the server's, with or without a port."""

    def __init__(self, client: Client, authority: str) -> None:
        if not authority:
            raise ValueError("there is no host in the URL")
        super().__init__(authority)
        self._client = client
        self._authority = authority
        self._deadline = 0.0

    def exchange(self, exchange: Exchange, url: SplitResult) -> Reply:
        """Send the request and read its answer; the caller closes the connection."""
        self._deadline = exchange.deadline
        query = f"?{url.query}" if url.query else ""
        target = quote(f"{url.path or '/'}{query}", safe=string.punctuation)
        try:
            self._open(secure=url.scheme == "https")
            self.sock.settimeout(self.left())
            headers = {**exchange.headers, "Connection": "close"}
            self.request(exchange.method, target, exchange.body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        try:
            with self.getresponse() as response:
                return self._read(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failed(error) from error

    def response_class(  # type: ignore[override]  # an attribute there
        self, sock: socket.socket, **options: Any
    ) -> http.client.HTTPResponse:
        """Return an answer that is read before the deadline; http.client calls it by this name."""
        reading: Any = _Reading(sock, self, most=2 * self._client.body_max + HEAD_MAX)
        return http.client.HTTPResponse(reading, **options)

    def _open(self, *, secure: bool) -> None:
        try:
            port = self.port if ":" in self._authority.rpartition("]")[2] else 443
            where = (self.host, port if secure else self.port)
            found = self._client.resolve(*where, self.left())
            for number, (family, kind, protocol, _name, address) in enumerate(found, 1):
                try:
                    patience = self.left() / (len(found) - number + 1)
                    self.sock = self._dial((family, kind, protocol), address, patience)
                    break
                except OSError:
                    if number == len(found):
                        raise
            if secure:
                self._wrap()
        except (OSError, UnicodeError) as error:
            cause = "no connection" if isinstance(error, TimeoutError) else _explain(error)
            raise LookupAwayError(upstream=self._authority, cause=cause, whole=True) from error

    def _dial(self, kind: tuple[int, int, int], address: Any, patience: float) -> socket.socket:
        sock = socket.socket(*kind)
        try:
            sock.settimeout(patience)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _wrap(self) -> None:
        # Without the closing alert, any party on the path may have ended a body without a length.
        self.sock.settimeout(self.left())
        context = self._client.context()
        self.sock = context.wrap_socket(
            self.sock, server_hostname=self.host, suppress_ragged_eofs=False
        )

    def _read(self, response: http.client.HTTPResponse) -> Reply:
        if (response.getheader("Content-Encoding") or "identity").lower() != "identity":
            raise self._refused("its answer is compressed, although that was not requested")
        if (response.getheader("Transfer-Encoding") or "chunked").lower() != "chunked":
            raise self._refused("its answer has a Transfer-Encoding other than chunked")
        length, pieces, total = response.length, [], 0
        while piece := response.read(PIECE):
            pieces.append(piece)
            total += len(piece)
            if total > self._client.body_max:
                raise _OverlongError
        if length is not None and total < length:
            raise ConnectionResetError
        return Reply(
            status=response.status,
            content_type=(response.getheader("Content-Type") or "")
            .partition(";")[0]
            .strip()
            .lower(),
            body=b"".join(pieces),
            whole=length is not None or getattr(response, "chunked", False) is True,
            date=response.getheader("Date") or "",
        )

    def left(self) -> float:
        """Return the seconds until the deadline.

        :raises TimeoutError: the deadline is over.
        """
        left = self._deadline - self._client.clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _failed(self, error: Exception) -> LookupAwayError | LookupAnswerError:
        """Return our error for one of the socket or of http.client."""
        if isinstance(error, TimeoutError):
            return LookupAwayError(upstream=self._authority, cause="no answer in time")
        if isinstance(error, _OverlongError):
            return self._refused(f"its answer has more than {self._client.body_max} bytes")
        lost = (OSError, http.client.IncompleteRead, http.client.ImproperConnectionState)
        if isinstance(error, lost):
            cause = "it closed the connection before the answer was complete"
            return LookupAwayError(upstream=self._authority, cause=cause)
        return self._refused("the server does not speak HTTP")

    def _refused(self, cause: str) -> LookupAnswerError:
        return LookupAnswerError(upstream=self._authority, cause=cause)


class _Reading(io.RawIOBase):
    """Data received over a socket before the deadline; http.client takes it for the socket."""

    def __init__(self, sock: socket.socket, connection: _Connection, *, most: int) -> None:
        self._sock = sock
        # Keeps the socket open after the connection has closed it for a "Connection: close".
        self._raw = sock.makefile("rb", buffering=0)
        self._connection = connection
        self._left = most

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffered reader of this object."""
        return _Lines(self)

    def readable(self) -> bool:
        """Return True, see :class:`io.IOBase`."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the data that has arrived, see :class:`io.RawIOBase`."""
        self._sock.settimeout(self._connection.left())
        count = self._raw.readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise _OverlongError
        return count

    def close(self) -> None:
        """Release the socket."""
        self._raw.close()
        super().close()


class _Lines(io.BufferedReader):
    """Refuses a head that is cut off, which http.client would accept as a complete one."""

    def readline(self, size: int | None = -1) -> bytes:
        """Read a complete line, or *size* bytes of a longer one."""
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise ConnectionResetError
        return line


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "TLS fails"
    if isinstance(error, UnicodeError):
        return "its host name is invalid"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        # eventlet's sockets have the name of the error number in strerror.
        return os.strerror(number).lower()
    return getattr(error, "strerror", None) or "no connection"
