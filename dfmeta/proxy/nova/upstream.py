"""Connections to an HTTP server, with the interface that httplib2 needs.

httplib2 uses the connections of http.client. Their header parser is the email package, which takes
half of the time of a request. ``httplib2.Http.request`` gets a :class:`Connection` as
``connection_type`` instead. It sends a request in one piece and reads the answer with
:mod:`dfmeta.proxy.nova.replies`.

httplib2 decompresses bodies, follows challenges, joins headers of one name and repeats a request
after errors that it knows. Nothing of this is wanted here: httplib2 sees a status and the body, no
header, and only errors of other classes. The request passes through it as an :class:`Exchange` in
the place of a body, since it would quote a URL again and fold the white space of headers.
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
from dfmeta.proxy.nova.pool import Pool
from dfmeta.proxy.nova.remedies import explain
from dfmeta.proxy.nova.replies import Reply, lost, read_reply
from dfmeta.proxy.nova.request import host_header
from dfmeta.trust import is_cut

ADDRESS_PATIENCE = 2.0
"""Seconds for each address of a name except the last: with one dead address of two, no request
fails."""
SHARE = 65536
"""Bytes of an answer after which the greenthread yields: available data is read without a wait."""
URL = "http://n/"
"""A dummy for httplib2, which parses it for each request; a connection knows its own target."""

_OPENED = metrics.BACKEND_CONNECTIONS.labels("opened")
_FAILED = metrics.BACKEND_CONNECTIONS.labels("failed")
_REUSED = metrics.BACKEND_CONNECTIONS.labels("reused")
_STALE = metrics.BACKEND_CONNECTIONS.labels("stale")
# eventlet's patching removes poll, and select supports no descriptor above 1,023.
_select = eventlet.patcher.original("select")


@dataclass(slots=True)
class Exchange:
    """A request to a server, and its result."""

    instance: str
    """Id of the instance that it is for; of the persistent connections, it uses that instance's."""
    method: str
    message: bytes
    """The whole request in its wire format."""
    sent: bool = False
    """Whether a byte of the request may have been sent."""
    reply: Reply = field(init=False)


class Connection:
    """One connection; a subclass sets its target, see :func:`connection_type`."""

    target: ClassVar[HttpHost]
    context: ClassVar[Any]
    """An ssl.SSLContext, eventlet's; None for no TLS."""

    def __init__(self, _authority: str, **_options: object) -> None:
        self.host = self.target.host
        self.sock: Any = None
        self._exchange = Exchange("", "", b"")
        self._kept = False
        self._poll: Any = None
        self._read = 0
        self._begun = False

    def set_debuglevel(self, _level: int) -> None:
        """Do nothing: the data on the wire is secret."""

    def connect(self) -> None:
        """Open the connection.

        :raises UpstreamAwayError: with the failure of the last of the server's addresses.
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

        :raises UpstreamAwayError: as :meth:`connect`, which is called again if a persistent
            connection was closed, or received data, while no request was pending.
        """
        if self._kept and self._poll.poll(0):
            _STALE.inc()
            self.close()
            self.connect()
        elif self._kept:
            _REUSED.inc()
        self._exchange, self._read, self._begun = body, 0, False
        body.sent = True
        # The server may have answered before it closed: the read shows the result.
        with contextlib.suppress(OSError):
            self._send(body.message)

    def getresponse(self) -> _Shown:
        """Read the answer.

        :raises UpstreamAnswerError: when the answer cannot be forwarded.
        :raises UpstreamLostError: when the connection ended before the answer did.
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
        """Close the connection. Idempotent."""
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
        # A connection that ends without the closing alert may have been cut by an attacker: a body
        # without a length would be accepted incomplete.
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

    def _send(self, message: bytes) -> None:
        sent = 0
        if self.context is None:
            # The send buffer nearly always has room for all of it: 2 us less than eventlet's loop.
            with contextlib.suppress(BlockingIOError):
                sent = self.sock.fd.send(message)
        if sent < len(message):
            self.sock.sendall(message[sent:])

    def _receive(self, size: int) -> bytes:
        try:
            data = self._receive_some(size)
        except OSError as error:
            if isinstance(error, ssl.SSLError) and not is_cut(error):
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
        # eventlet's own recv reports a reset as an end: an incomplete body without a length would
        # be accepted.
        sock = self.sock.fd
        while True:
            try:
                return sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
            except BlockingIOError:
                trampoline(sock, read=True)


class _Shown:
    """The part of an answer that httplib2 sees."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def items(self) -> list[tuple[str, str]]:
        """Return the status, and no header."""
        return [("status", str(self._reply.status))]

    def read(self) -> bytes:
        """Return the body."""
        return self._reply.body


def connection_type(host: HttpHost, context: Any) -> type[Connection]:
    """Return a class for the connections to *host*, since httplib2 creates them itself."""
    return type("ServerConnection", (Connection,), {"target": host, "context": context})


class Server:
    """A server and the persistent connections to it.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    def __init__(self, host: HttpHost, context: Any = None) -> None:
        self.host = host
        self.name = host_header(host)
        """Value of a request's Host header."""
        self._type = connection_type(host, context)
        self._pool: Pool[httplib2.Http] = Pool()

    def exchange(self, exchange: Exchange, *, fresh: bool = False) -> Reply:
        """Send a request and wait for the answer; the caller limits the time.

        :param fresh: use a new connection.
        :raises UpstreamError: when there is no answer that can be forwarded;
            :class:`~dfmeta.exceptions.UpstreamStaleError` never if *fresh*.
        """
        client = (None if fresh else self._pool.take(exchange.instance)) or _client()
        kept = False
        try:
            client.request(URL, exchange.method, body=exchange, connection_type=self._type)
            reply = exchange.reply
            kept = reply.keep
        finally:
            if kept:
                self._pool.put(exchange.instance, client)
            else:
                client.close()
        return reply

    def close(self) -> None:
        """Close the persistent connections."""
        self._pool.close()


def _client() -> httplib2.Http:
    client = httplib2.Http(proxy_info=None)
    client.follow_redirects = False
    return client
