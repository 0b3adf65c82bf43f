"""Kept connections to a server, each of which belongs to one instance for as long as it is open.

A faulty balancer may send bytes behind an answer, and they may arrive when the connection is in use
again: they would be the answer to the next request (RFC 9112, 11.2). So the next request on a
connection is of the same instance. A guest that boots sends some 27 requests within seconds, and
uses its connection again; soon after, the connection is closed.

The connections are httplib2's, with requests of their own: httplib2 uses http.client, whose header
parser takes half of the time of a request, decompresses bodies, follows challenges, joins headers
of one name and repeats a request after some errors. None of this is wanted here.
"""

import math
from collections import OrderedDict
from typing import Any, Final

import httplib2

from dfmeta import errors, metrics, model
from dfmeta.http import http1, responses
from dfmeta.http.client import ClientConnection, HttpRequest
from dfmeta.http.responses import PIECE, HttpResponse
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import green_socket, original, wait_for_io

ADDRESS_PATIENCE: Final = 2.0
"""Seconds for each address of a name except the last: with one dead address of two, no request
fails."""
POOL_SIZE: Final = 128
"""Idle connections to each server, of all instances."""
OF_INSTANCE: Final = 8
"""Idle connections of one instance: as many as a port has requests at a time by default."""
IDLE: Final = 5.0
"""Seconds after which an idle connection is closed."""

_OPENED = metrics.BACKEND_CONNECTIONS.labels("opened")
_FAILED = metrics.BACKEND_CONNECTIONS.labels("failed")
_REUSED = metrics.BACKEND_CONNECTIONS.labels("reused")
_STALE = metrics.BACKEND_CONNECTIONS.labels("stale")
# eventlet's patching removes poll, and select supports no descriptor above 1,023.
_select = original("select")


class KeptConnection(ClientConnection, httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]  # httplib2 has no types
    """A connection of a greenthread, which may be used for several requests, one at a time.

    The caller limits the time of a request.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    body_max = responses.BODY_MAX

    def __init__(self, target: model.HttpHost, context: Any) -> None:
        httplib2.HTTPConnectionWithTimeout.__init__(self, target.host, target.port)
        ClientConnection.__init__(self, target, context, resolve=_resolve)
        self._poll: Any = None
        self._read = 0

    def handle_request(self, request: HttpRequest) -> HttpResponse:
        """See :class:`~dfmeta.http.client.ClientConnection`.

        The connection is opened again if it was closed, or received data, while no request was
        pending.

        :raises UpstreamStaleError: it had been kept, and ended before a byte of the response.
        """
        kept = self.sock is not None
        if kept and self._poll.poll(0):
            _STALE.inc()
            self.close()
            kept = False
        if kept:
            _REUSED.inc()
        self._read = 0
        try:
            return super().handle_request(request)
        except errors.UpstreamLostError as error:
            if kept and not error.fields["begun"]:
                raise errors.UpstreamStaleError(**error.fields) from error
            raise

    def connect(self, deadline: float = math.inf) -> None:
        """See :class:`~dfmeta.http.client.ClientConnection`."""
        try:
            super().connect(deadline)
        except BaseException:  # the caller's time may be over
            _FAILED.inc()
            raise
        _OPENED.inc()
        self._poll = _select.poll()
        self._poll.register(self.sock.fileno(), _select.POLLIN)

    def _patience(self, addresses: int) -> float | None:
        return ADDRESS_PATIENCE if addresses > 1 else None

    def _socket(self, family: int, kind: int, protocol: int) -> Any:
        return green_socket.socket(family, kind, protocol)

    def _send_all(self, message: bytes) -> None:
        try:
            # The send buffer nearly always has room for all of it: eventlet's loop costs more.
            sent = self.sock.fd.send(message) if self._context is None else 0
        except BlockingIOError:
            sent = 0
        if sent < len(message):
            self.sock.sendall(message[sent:])

    def _receive_some(self, size: int) -> bytes:
        data: bytes = self._receive_plain(size) if self._context is None else self.sock.recv(size)
        self._read += len(data)
        if self._read >= PIECE:
            self._read = 0
            threads.sleep(0)
        return data

    def _receive_plain(self, size: int) -> bytes:
        # eventlet's own recv reports a reset as an end: an incomplete body without a length would
        # be accepted.
        sock = self.sock.fd
        while True:
            try:
                return sock.recv(size)  # type: ignore[no-any-return]  # eventlet has no types
            except BlockingIOError:
                wait_for_io(sock, read=True)


def _resolve(host: str, port: int, _seconds: float) -> Any:
    return green_socket.getaddrinfo(host, port, 0, green_socket.SOCK_STREAM)


class ConnectionPool:
    """The idle connections to one server. No method waits."""

    def __init__(self) -> None:
        self._idle: OrderedDict[KeptConnection, tuple[str, float]] = OrderedDict()
        """Connection → its instance and since when it is idle; the longest idle first."""
        self._of: dict[str, list[KeptConnection]] = {}
        self._expects = False
        """Whether :meth:`_expire` will be called."""

    def __len__(self) -> int:
        return len(self._idle)

    def of(self, instance: str) -> list[KeptConnection]:
        """Return the idle connections of an instance, the longest idle first."""
        return list(self._of.get(instance, ()))

    def take(self, instance: str) -> KeptConnection | None:
        """Remove and return the connection of that instance that was used last; None: none."""
        kept = self._of.get(instance)
        if not kept:
            return None
        connection = kept[-1]
        self._remove(connection)
        return connection

    def put(self, instance: str, connection: KeptConnection) -> None:
        """Keep a connection of that instance; the longest idle one is closed if there are many."""
        present = self._of.get(instance, ())
        if len(present) >= OF_INSTANCE:
            self._close(present[0])
        elif len(self._idle) >= POOL_SIZE:
            self._close(next(iter(self._idle)))
        self._idle[connection] = instance, clock.now()
        self._of.setdefault(instance, []).append(connection)
        self._expect(IDLE)

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._close(next(iter(self._idle)))

    def _expect(self, seconds: float) -> None:
        if not self._expects:
            self._expects = True
            threads.spawn_after(seconds, self._expire)

    def _expire(self) -> None:
        self._expects = False
        now = clock.now()
        while self._idle:
            connection, (_instance, since) = next(iter(self._idle.items()))
            if since + IDLE > now:
                self._expect(since + IDLE - now)
                return
            self._close(connection)

    def _close(self, connection: KeptConnection) -> None:
        self._remove(connection)
        connection.close()

    def _remove(self, connection: KeptConnection) -> None:
        instance, _since = self._idle.pop(connection)
        self._of[instance].remove(connection)
        if not self._of[instance]:
            del self._of[instance]


class PooledServer:
    """A server and the kept connections to it.

    :param context: an ssl.SSLContext of eventlet's; None for no TLS.
    """

    def __init__(self, host: model.HttpHost, context: Any = None) -> None:
        self.host = host
        self.name = http1.host_header(host)
        """Value of a request's Host header."""
        self._context = context
        self._pool = ConnectionPool()

    def handle_request(
        self, request: HttpRequest, instance: str, *, fresh: bool = False
    ) -> HttpResponse:
        """Send a request and wait for the response; the caller limits the time.

        :param instance: id of the instance that it is for; of the kept connections, it uses that
            instance's.
        :param fresh: use a new connection.
        :raises UpstreamError: when there is no response that can be forwarded;
            :class:`~dfmeta.errors.UpstreamStaleError` never if *fresh*.
        """
        connection = None if fresh else self._pool.take(instance)
        if connection is None:
            connection = KeptConnection(self.host, self._context)
        kept = False
        try:
            response = connection.handle_request(request)
            kept = response.keep
        finally:
            if kept:
                self._pool.put(instance, connection)
            else:
                connection.close()
        return response

    def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()
