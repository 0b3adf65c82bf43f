"""Connections to an HTTP server, as httplib2 wants them.

httplib2's own connections are http.client's, whose header parser is the email package: half of the
time that a request takes. A :class:`Connection` is given to ``httplib2.Http.request`` as
``connection_type`` in their place. It sends a request in one piece and reads the answer with
:mod:`dfmeta.proxy.nova.replies`.

httplib2 unpacks bodies, follows challenges, joins headers of one name and asks again on errors that
it knows. None of it is wanted here: it gets to see a status and the body, no header, and errors
that are not of its kinds. The request goes past it as an :class:`Exchange` in the place of a body,
since it would quote a URL anew and fold the white space of headers.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import eventlet
import eventlet.patcher
import httplib2
from eventlet.green import socket, ssl
from eventlet.hubs import trampoline

from dfmeta import metrics
from dfmeta.exceptions import (
    UpstreamAwayError,
    UpstreamError,
    UpstreamLostError,
    UpstreamStaleError,
)
from dfmeta.model import HttpHost
from dfmeta.proxy.nova.remedies import explain
from dfmeta.proxy.nova.replies import Reply, lost, read_reply
from dfmeta.proxy.nova.request import host_header

POOL_SIZE = 32
"""Kept connections for each server."""
ADDRESS_PATIENCE = 2.0
"""Seconds for each address of a name but the last: one dead address of two costs no request."""
SHARE = 65536
"""Bytes of an answer after which others have their turn: what is there is read without a wait."""
URL = "http://n/"
"""What httplib2 is told, and takes apart for each request; a connection knows where it goes."""

_OPENED = metrics.BACKEND_CONNECTIONS.labels("opened")
_FAILED = metrics.BACKEND_CONNECTIONS.labels("failed")
_REUSED = metrics.BACKEND_CONNECTIONS.labels("reused")
_STALE = metrics.BACKEND_CONNECTIONS.labels("stale")
# eventlet's patching takes poll away, and select knows no descriptor over 1,023.
_select = eventlet.patcher.original("select")


@dataclass(slots=True)
class Exchange:
    """A request to a server and what has become of it."""

    method: str
    message: bytes
    """The whole request as it goes over the wire."""
    sent: bool = False
    """A byte of it may have left."""
    reply: Reply = field(init=False)


class Connection:
    """One connection; a subclass says where to, see :func:`connection_type`."""

    target: ClassVar[HttpHost]
    context: ClassVar[Any]
    """An ssl.SSLContext, eventlet's; None for no TLS."""

    def __init__(self, _authority: str, **_options: object) -> None:
        self.host = self.target.host
        self.sock: Any = None
        self._exchange = Exchange("", b"")
        self._kept = False
        self._poll: Any = None
        self._read = 0
        self._begun = False

    def set_debuglevel(self, _level: int) -> None:
        """Nothing: what goes over the wire is secret."""

    def connect(self) -> None:
        """Open the connection.

        :raises UpstreamAwayError: with what the last of the server's addresses has failed with.
        """
        try:
            self.sock = self._connect()
        except (OSError, UnicodeError) as error:
            _FAILED.inc()
            cause, remedy = explain(error)
            raise UpstreamAwayError(cause=cause, remedy=remedy) from error
        except BaseException:  # the caller's time is over
            _FAILED.inc()
            raise
        _OPENED.inc()
        self._kept = False
        self._poll = _select.poll()
        self._poll.register(self.sock.fileno(), _select.POLLIN)

    def request(self, _method: str, _uri: str, body: Exchange, _headers: object) -> None:
        """Send the request of an exchange.

        :raises UpstreamAwayError: as :meth:`connect`, which it does again where a kept connection
            was closed, or something came over it, while nobody waited for an answer.
        """
        if self._kept and self._poll.poll(0):
            _STALE.inc()
            self.close()
            self.connect()
        elif self._kept:
            _REUSED.inc()
        self._exchange, self._read, self._begun = body, 0, False
        body.sent = True
        # It may have answered before it closed: reading says what has happened.
        with contextlib.suppress(OSError):
            self.sock.sendall(body.message)

    def getresponse(self) -> _Shown:
        """Read the answer.

        :raises UpstreamAnswerError: it cannot be passed on.
        :raises UpstreamLostError: the connection has ended before it.
        """
        try:
            reply = read_reply(self._receive, head=self._exchange.method == "HEAD")
        except UpstreamError as error:
            self.close()
            if self._kept and isinstance(error, UpstreamLostError) and not error.fields["begun"]:
                raise UpstreamStaleError(**error.fields) from error
            raise
        self._exchange.reply = reply
        self._kept = reply.keep
        if not reply.keep:
            self.close()
        return _Shown(reply)

    def close(self) -> None:
        """Close it. Idempotent."""
        sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()

    def _connect(self) -> Any:
        found = socket.getaddrinfo(self.target.host, self.target.port, 0, socket.SOCK_STREAM)
        for family, kind, protocol, _name, address in found[:-1]:
            try:
                sock = self._open((family, kind, protocol), address, ADDRESS_PATIENCE)
            except OSError:
                continue
            sock.settimeout(None)
            return sock
        family, kind, protocol, _name, address = found[-1]
        return self._open((family, kind, protocol), address, None)

    def _open(self, kind: tuple[int, int, int], address: Any, patience: float | None) -> Any:
        sock = socket.socket(*kind)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(patience)
            sock.connect(address)
            if self.context is not None:
                sock = self._wrap(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _wrap(self, sock: Any) -> Any:
        # Without the closing alert the end of a body that has no length is anybody's doing.
        wrapped = self.context.wrap_socket(
            sock,
            server_hostname=self.target.host.partition("%")[0],
            do_handshake_on_connect=False,
            suppress_ragged_eofs=False,
        )
        try:
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _receive(self, size: int) -> bytes:
        try:
            data = self._receive_some(size)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                cause, remedy = explain(error)
                begun = self._begun
                raise UpstreamLostError(cause=cause, remedy=remedy, begun=begun) from error
            raise lost(begun=self._begun) from error
        self._begun = True
        self._read += len(data)
        if self._read >= SHARE:
            self._read = 0
            eventlet.sleep(0)
        return data

    def _receive_some(self, size: int) -> bytes:
        if self.context is not None:
            return self.sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
        # eventlet's own gives a reset for an end: with no length, half a body would be taken.
        sock = self.sock.fd
        while True:
            try:
                return sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
            except BlockingIOError:
                trampoline(sock, read=True)


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


def connection_type(host: HttpHost, context: Any) -> type[Connection]:
    """The class of the connections to *host*: httplib2 makes them by itself."""
    return type("ServerConnection", (Connection,), {"target": host, "context": context})


class Server:
    """A server and the connections that are kept to it.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    def __init__(self, host: HttpHost, context: Any = None) -> None:
        self.host = host
        self.name = host_header(host)
        """Value of a request's Host header."""
        self.rests_until = 0.0
        """Monotonic seconds; whoever has others to ask leaves it alone before."""
        self._type = connection_type(host, context)
        self._pool: list[httplib2.Http] = []

    def exchange(self, exchange: Exchange, *, fresh: bool = False) -> Reply:
        """Send a request and wait for the answer; the caller bounds the time.

        :param fresh: on a connection that has carried none before.
        :raises UpstreamError: when there is no answer that can be passed on;
            :class:`~dfmeta.exceptions.UpstreamStaleError` never where it is *fresh*.
        """
        client = self._pool.pop() if self._pool and not fresh else _client()
        kept = False
        try:
            client.request(URL, exchange.method, body=exchange, connection_type=self._type)
            reply = exchange.reply
            kept = reply.keep and len(self._pool) < POOL_SIZE
        finally:
            if kept:
                self._pool.append(client)
            else:
                client.close()
        return reply

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._pool:
            self._pool.pop().close()


def _client() -> httplib2.Http:
    client = httplib2.Http(proxy_info=None)
    client.follow_redirects = False
    return client
