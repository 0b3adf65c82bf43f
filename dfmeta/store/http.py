"""Requests to upstream stores and to issuers of tokens, bounded in size and in time.

A socket's time-out begins anew with each byte, and httplib2 reads an answer to its end, unpacks it
and asks again on errors that it knows. None of it is wanted here: a request goes past it as an
:class:`Exchange` in the place of a body, all of an answer has to come before one deadline, and
httplib2 gets to see a status and the body, no header, and errors that are not of its kinds.

Trust: addresses are the operator's. Who answers is known by its certificate where it is https, and
is not trusted with more than this process' time and memory: both are bounded. Nothing of what came
is quoted in an error.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import httplib2

from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.trust import client_context

BODY_MAX: Final = 24 << 20
"""Bytes. User-data has up to 16 MiB (:data:`dfmeta.store.api.checks.USERDATA_MAX`), and base64
needs a third more."""
HEAD_MAX: Final = 65536
"""Bytes of an answer's head, and of what stands between the chunks of its body beyond the body's
own length."""
PIECE: Final = 65536
IDLE: Final = 15.0
"""Seconds after which a connection is not used again: who answers may be about to close it."""
POOL: Final = 32
"""Connections that are kept."""

Clock = Callable[[], float]
Resolve = Callable[[str, int, float], Sequence[tuple[Any, ...]]]
"""Host, port and seconds → what :func:`socket.getaddrinfo` gives for streams."""


def resolve(host: str, port: int, _seconds: float) -> Sequence[tuple[Any, ...]]:
    """Have the C library resolve a name, as long as it takes: for what nobody else waits behind.

    :raises socket.gaierror: as getaddrinfo(3).
    """
    return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer."""

    status: int
    content_type: str
    """In lower case and without parameters; empty: none was given."""
    body: bytes = field(repr=False)
    whole: bool
    """Its length was known: had the connection ended before the body did, it would be an error."""
    date: str = ""
    """When it was written, as it says itself; empty: it does not."""


@dataclass(slots=True)
class Exchange:
    """A request and what has become of it. Headers and bodies are secret."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    """Of a POST; None: it is a GET."""
    deadline: float = 0.0
    """Monotonic seconds."""
    reply: Reply = field(init=False, repr=False)

    @property
    def method(self) -> str:
        """The request's method."""
        return "GET" if self.body is None else "POST"


class Client:
    """Sends requests and keeps connections. Safe to use from several threads.

    :param context: what servers' certificates are checked against; None: the system's
        authorities, see :func:`dfmeta.trust.client_context`.
    :param clock: monotonic seconds.
    :param resolve: finds a name's addresses in time.
    :param body_max: bytes of an answer's body.
    """

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        clock: Clock = time.monotonic,
        resolve: Resolve = resolve,
        body_max: int = BODY_MAX,
    ) -> None:
        known = {
            # Now, and not with the first request that waits for it: it takes tens of milliseconds.
            "context": client_context() if context is None else context,
            "clock": clock,
            "resolve": staticmethod(resolve),
            "body_max": body_max,
        }
        self._type = type("LookupConnection", (_Connection,), known)
        self._clock = clock
        self._idle: deque[tuple[float, httplib2.Http]] = deque(maxlen=POOL)

    def exchange(self, exchange: Exchange) -> Reply:
        """Send a request and return the answer, whatever its status; no redirection is followed.

        :raises LookupAwayError: there is none before the deadline.
        :raises LookupAnswerError: it is too large, or not HTTP.
        """
        kept = self._take()
        if kept is not None:
            try:
                return self._run(kept, exchange)
            except _StaleError:
                # It was closed while nobody used it: nothing has been answered.
                pass
        return self._run(_client(), exchange)

    def close(self) -> None:
        """Close the connections that are kept."""
        while (client := self._take(idle=float("inf"))) is not None:
            client.close()

    def _run(self, client: httplib2.Http, exchange: Exchange) -> Reply:
        try:
            client.request(
                exchange.url,
                exchange.method,
                body=exchange,
                headers=dict(exchange.headers),
                connection_type=self._type,
            )
        except BaseException:
            client.close()
            raise
        if len(self._idle) == POOL:
            client.close()
        else:
            self._idle.append((self._clock(), client))
        return exchange.reply

    def _take(self, idle: float = IDLE) -> httplib2.Http | None:
        while True:
            try:
                since, client = self._idle.pop()
            except IndexError:
                return None
            if self._clock() - since < idle:
                return client
            client.close()


class _OverlongError(http.client.HTTPException):
    """More has come than an answer may have."""


class _StaleError(LookupAwayError):
    """A connection that had been kept has ended before the first byte of the answer."""


class _Connection(http.client.HTTPConnection):
    """One connection; httplib2 makes it by itself."""

    context: ClassVar[ssl.SSLContext]
    clock: ClassVar[Clock]
    resolve: ClassVar[Resolve]
    body_max: ClassVar[int]

    def __init__(self, authority: str, *, timeout: object, proxy_info: object) -> None:
        del timeout, proxy_info
        super().__init__(authority)
        self._authority = authority
        self._exchange = Exchange("", {})
        self._used = self.begun = False

    def set_debuglevel(self, level: int) -> None:
        """Nothing: what goes over the wire is secret."""

    def connect(self) -> None:
        """Nothing: httplib2 calls it when nobody has said yet by when."""

    def request(  # type: ignore[override]  # what httplib2 calls it with
        self, method: str, url: str, body: Exchange, headers: Mapping[str, str]
    ) -> None:
        """Send the request of an exchange."""
        self._exchange, self.begun = body, False
        try:
            if self.sock is None:
                self._used = False
                self._open(secure=body.url.lower().startswith("https:"))
            self.sock.settimeout(self.left())
            super().request(method, url, body=body.body, headers=dict(headers))
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error

    def getresponse(self) -> Any:
        """Read the answer and show httplib2 what it may see of it."""
        try:
            with super().getresponse() as response:
                reply = self._read(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise
        self._used = True
        self._exchange.reply = reply
        return _Shown(reply)

    def response_class(  # type: ignore[override]  # an attribute there
        self, sock: socket.socket, **options: Any
    ) -> http.client.HTTPResponse:
        """An answer that is read before the deadline; http.client asks for it under this name."""
        reading: Any = _Reading(sock, self)
        return http.client.HTTPResponse(reading, **options)

    def _open(self, *, secure: bool) -> None:
        try:
            port = self.port if ":" in self._authority.rpartition("]")[2] else 443
            where = (self.host, port if secure else self.port)
            found = type(self).resolve(*where, self.left())
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
            self.close()
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
        # Without the closing alert the end of a body that has no length is anybody's doing.
        self.sock.settimeout(self.left())
        self.sock = self.context.wrap_socket(
            self.sock, server_hostname=self.host, suppress_ragged_eofs=False
        )

    def _read(self, response: http.client.HTTPResponse) -> Reply:
        if (response.getheader("Content-Encoding") or "identity").lower() != "identity":
            raise self._refused("what it answers is packed, unasked")
        if (response.getheader("Transfer-Encoding") or "chunked").lower() != "chunked":
            raise self._refused("the Transfer-Encoding of what it answers is not just chunked")
        length, pieces, total = response.length, [], 0
        while piece := response.read(PIECE):
            pieces.append(piece)
            total += len(piece)
            if total > self.body_max:
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
        """Seconds until the deadline; raises TimeoutError when it is over."""
        left = self._exchange.deadline - type(self).clock()
        if left <= 0:
            raise TimeoutError
        return left

    def _failed(self, error: Exception) -> LookupAwayError | LookupAnswerError:
        """Close the connection and say what an error of the socket or of http.client means."""
        self.close()
        if isinstance(error, TimeoutError):
            return LookupAwayError(upstream=self._authority, cause="no answer in time")
        if isinstance(error, _OverlongError):
            return self._refused(f"what it answers has over {self.body_max} bytes")
        lost = (OSError, http.client.IncompleteRead, http.client.ImproperConnectionState)
        if isinstance(error, lost):
            kind = _StaleError if self._used and not self.begun else LookupAwayError
            cause = "it closed the connection before the answer had come whole"
            return kind(upstream=self._authority, cause=cause)
        return self._refused("what answers there does not speak HTTP")

    def _refused(self, cause: str) -> LookupAnswerError:
        return LookupAnswerError(upstream=self._authority, cause=cause)


class _Reading(io.RawIOBase):
    """What http.client takes for a socket: what comes over one, before the deadline."""

    def __init__(self, sock: socket.socket, connection: _Connection) -> None:
        self._sock = sock
        # It keeps the socket open when the connection has closed it for a "Connection: close".
        self._raw = sock.makefile("rb", buffering=0)
        self._connection = connection
        self._left = 2 * connection.body_max + HEAD_MAX

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return itself, to be read."""
        return _Lines(self)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there, see :class:`io.RawIOBase`."""
        self._sock.settimeout(self._connection.left())
        count = self._raw.readinto(buffer) or 0
        self._left -= count
        if self._left < 0:
            raise _OverlongError
        self._connection.begun = self._connection.begun or count > 0
        return count

    def close(self) -> None:
        """Let go of the socket."""
        self._raw.close()
        super().close()


class _Lines(io.BufferedReader):
    """Has a head that is cut off be no head, where http.client takes it for all of one."""

    def readline(self, size: int | None = -1) -> bytes:
        """Read a line with its end, or as much of one as may be asked for."""
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise ConnectionResetError
        return line


class _Shown:
    """What httplib2 gets to see of an answer."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def items(self) -> list[tuple[str, str]]:
        """A status, and no header."""
        return [("status", str(self._reply.status))]

    def read(self) -> bytes:
        """The body."""
        return self._reply.body


def _client() -> httplib2.Http:
    client = httplib2.Http(proxy_info=None)
    client.follow_redirects = False
    return client


def _explain(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "TLS fails"
    if isinstance(error, UnicodeError):
        return "its name is none"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        # eventlet's sockets have the number's name in strerror.
        return os.strerror(number).lower()
    return getattr(error, "strerror", None) or "no connection"
