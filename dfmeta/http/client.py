"""Persistent connections to an HTTP server: httplib2's, with exchanges of their own.

httplib2's own exchanges use http.client, whose header parser is the email package: it takes half of
the time of a request. Besides, ``httplib2.Http`` parses a URL for each request, decompresses
bodies, follows challenges, joins headers of one name and repeats a request after some errors. None
of this is wanted here. So a :class:`Connection` sends a request in one piece and reads the answer
with :mod:`dfmeta.http.responses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httplib2

from dfmeta import metrics
from dfmeta.errors import (
    UpstreamAwayError,
    UpstreamLostError,
    UpstreamStaleError,
)
from dfmeta.http.authorities import is_cut
from dfmeta.http.failures import explain
from dfmeta.http.http1 import host_header
from dfmeta.http.pool import Pool
from dfmeta.http.responses import Reply, lost, read_reply
from dfmeta.model import HttpHost
from dfmeta.runtime import threads
from dfmeta.runtime.threads import green_socket as socket
from dfmeta.runtime.threads import green_ssl as ssl
from dfmeta.runtime.threads import original, wait_for_io

ADDRESS_PATIENCE = 2.0
"""Seconds for each address of a name except the last: with one dead address of two, no request
fails."""
SHARE = 65536
"""Bytes of an answer after which the greenthread yields: available data is read without a wait."""

_OPENED = metrics.BACKEND_CONNECTIONS.labels("opened")
_FAILED = metrics.BACKEND_CONNECTIONS.labels("failed")
_REUSED = metrics.BACKEND_CONNECTIONS.labels("reused")
_STALE = metrics.BACKEND_CONNECTIONS.labels("stale")
# eventlet's patching removes poll, and select supports no descriptor above 1,023.
_select = original("select")


@dataclass(slots=True)
class Exchange:
    """A request to a server."""

    instance: str
    """Id of the instance that it is for; of the persistent connections, it uses that instance's."""
    method: str
    message: bytes
    """The whole request in its wire format."""
    sent: bool = False
    """Whether a byte of the request may have been sent."""


class Connection(httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]  # httplib2 has no types
    """One connection to *target*; its first exchange opens it.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    sock: Any

    def __init__(self, target: HttpHost, context: Any) -> None:
        super().__init__(target.host, target.port)
        self._context = context
        self._poll: Any = None
        self._read = 0
        self._begun = False

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
        self._poll = _select.poll()
        self._poll.register(self.sock.fileno(), _select.POLLIN)

    def exchange(self, exchange: Exchange) -> Reply:
        """Send a request and read the answer.

        The connection is opened again if it was closed, or received data, while no request was
        pending.

        :raises UpstreamAwayError: as :meth:`connect`.
        :raises UpstreamAnswerError: when the answer cannot be forwarded.
        :raises UpstreamLostError: when the connection ended before the answer did;
            UpstreamStaleError if it had been kept, and ended before a byte of the answer.
        """
        kept = self.sock is not None
        if kept and self._poll.poll(0):
            _STALE.inc()
            self.close()
            kept = False
        if kept:
            _REUSED.inc()
        else:
            self.connect()
        self._read, self._begun = 0, False
        exchange.sent = True
        self._send(exchange.message)
        try:
            return read_reply(self._receive, head=exchange.method == "HEAD")
        except UpstreamLostError as error:
            if kept and not error.fields["begun"]:
                raise UpstreamStaleError(**error.fields) from error
            raise

    def _connect(self) -> Any:
        found = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
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
            if self._context is not None:
                sock = self._wrap(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    def _wrap(self, sock: Any) -> Any:
        # A connection that ends without the closing alert may have been cut by an attacker: a body
        # without a length would be accepted incomplete.
        wrapped = self._context.wrap_socket(
            sock,
            server_hostname=self.host.partition("%")[0],
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
            try:
                # The send buffer nearly always has room for all of it: eventlet's loop costs more.
                sent = self.sock.fd.send(message) if self._context is None else 0
            except BlockingIOError:
                sent = 0
            if sent < len(message):
                self.sock.sendall(message[sent:])
        except OSError:
            # The server may have answered before it closed: the read shows the result.
            return

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
            threads.sleep(0)
        return data

    def _receive_some(self, size: int) -> bytes:
        if self._context is not None:
            return self.sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
        # eventlet's own recv reports a reset as an end: an incomplete body without a length would
        # be accepted.
        sock = self.sock.fd
        while True:
            try:
                return sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
            except BlockingIOError:
                wait_for_io(sock, read=True)


class Server:
    """A server and the persistent connections to it.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    def __init__(self, host: HttpHost, context: Any = None) -> None:
        self.host = host
        self.name = host_header(host)
        """Value of a request's Host header."""
        self._context = context
        self._pool: Pool[Connection] = Pool()

    def exchange(self, exchange: Exchange, *, fresh: bool = False) -> Reply:
        """Send a request and wait for the answer; the caller limits the time.

        :param fresh: use a new connection.
        :raises UpstreamError: when there is no answer that can be forwarded;
            :class:`~dfmeta.errors.UpstreamStaleError` never if *fresh*.
        """
        connection = None if fresh else self._pool.take(exchange.instance)
        if connection is None:
            connection = Connection(self.host, self._context)
        kept = False
        try:
            reply = connection.exchange(exchange)
            kept = reply.keep
        finally:
            if kept:
                self._pool.put(exchange.instance, connection)
            else:
                connection.close()
        return reply

    def close(self) -> None:
        """Close the persistent connections."""
        self._pool.close()
