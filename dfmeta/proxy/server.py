"""The guests' listener: eventlet's WSGI server on tap-metadata, with an identity per connection.

A connection is claimed when it is accepted, from its peer's address, and belongs to that claim
for as long as it lives. A peer that is nobody gets no answer at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import socket
import time
from ipaddress import IPv4Address
from typing import Any

import eventlet
import eventlet.green.socket as green_socket
from eventlet import wsgi
from eventlet.patcher import original

from dfmeta import metrics
from dfmeta.exceptions import StartError
from dfmeta.model import Endpoint
from dfmeta.proxy.wsgi import CLAIM, DEADLINE, LAST, Abandoned, Application
from dfmeta.registry import Claim, Registry

LOG = logging.getLogger(__name__)

_select = original("select")
_LIBC = ctypes.CDLL(None, use_errno=True)
_SOCKADDR_SIZE = 16

BACKLOG = 4096
CONNECTIONS_MAX = 1024
REQUEST_LINE_MAX = 2048
KEEPALIVE = 15.0
"""Seconds that an idle connection is kept."""
ACCEPT_PAUSE = 0.1
"""Seconds until accept is tried again when the process has no descriptor left, say."""
OLD_LISTENER = 1.0
"""Seconds that the listener of a device that is gone is still accepted from."""
SOCKET_TIMEOUT = 10.0
"""Seconds that a guest may take for the next piece of a request."""


def listen(device: str, address: str, port: int) -> Any:
    """Open the guests' listener on *device* alone.

    SO_BINDTODEVICE (socket(7)) is what makes the peer's address an identity: nothing that comes
    in on another card reaches it, whatever source it claims.

    :param port: 0 for a free one.
    :raises StartError: when the address or the port cannot be had.
    """
    sock = green_socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sock.bind((address, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise StartError(
            cause=f"{address}:{port} on {device} cannot be listened on: {error.strerror}",
            remedy="Stop what uses it, or give another [df_metadata] port",
        ) from error
    return sock


class GuestServer:
    """Serves guests until it is told to stop.

    :param hold_timeout: seconds that a request may wait in all, its first SYN's time included.
    """

    def __init__(
        self, sock: Any, registry: Registry, application: Application, *, hold_timeout: float
    ) -> None:
        self.registry = registry
        self.hold_timeout = hold_timeout
        self._sock = sock
        self.port = int(sock.getsockname()[1])
        """TCP port that it listens on."""
        self._application = application
        self._pool = eventlet.GreenPool(CONNECTIONS_MAX)
        self._open: dict[Endpoint, set[_GuestProtocol]] = {}
        self._thread: Any = None
        self._device = ""
        self.draining = False
        registry.subscribe(self._endpoint_changed)

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread = self._accept_from(self._sock)

    def move(self, sock: Any, device: str) -> None:
        """Accept from *sock* from now on: *device* was made anew, and the old listener with it is
        deaf.

        Connections that are open are bound to the new device, so that they go on when the switch
        does. What waits in the old listener's queue is still taken from there.
        """
        old, self._sock, self._thread = self._thread, sock, self._accept_from(sock)
        self.port, self._device = int(sock.getsockname()[1]), device
        for connection in self._connections():
            connection.rebind(device)
        if old is not None:
            eventlet.spawn_after(OLD_LISTENER, old.kill)

    def _accept_from(self, sock: Any) -> Any:
        # Not wsgi.server(): when that ends it cuts connections whose first request is on its way.
        server = wsgi.Server(
            sock,
            sock.getsockname(),
            self._application,
            protocol=self._protocol,
            keepalive=KEEPALIVE,
            log_output=False,
            debug=False,
            url_length_limit=REQUEST_LINE_MAX,
            socket_timeout=SOCKET_TIMEOUT,
        )
        return eventlet.spawn(self._accept_loop, sock, server)

    def _accept_loop(self, sock: Any, server: Any) -> None:
        try:
            while True:
                try:
                    client, address = sock.accept()
                except OSError as error:
                    LOG.warning("A connection could not be accepted: %s", error)
                    eventlet.sleep(ACCEPT_PAUSE)
                    continue
                client.settimeout(SOCKET_TIMEOUT)
                self._pool.spawn_n(self._serve, server, client, address)
        finally:
            sock.close()

    def _serve(self, server: Any, client: Any, address: Any) -> None:
        try:
            server.process_request([address, client, wsgi.STATE_IDLE])
        except OSError as error:
            LOG.debug("A connection ended: %s", error)
        finally:
            client.close()

    def stop(self, grace: float) -> None:
        """Accept no more, let running requests be answered, and close the rest after *grace* s."""
        self.draining = True
        if self._thread is not None:
            self._thread.kill()
        for connection in self._connections():
            if connection.idle:
                connection.cut()
        with eventlet.Timeout(grace, False):
            self._pool.waitall()
        for connection in self._connections():
            connection.cut()

    def opened(self, connection: _GuestProtocol) -> None:
        """Note a connection that has a claim."""
        self.registry.opened(connection.claim, time.monotonic())
        self._open.setdefault(connection.claim.endpoint, set()).add(connection)

    def closed(self, connection: _GuestProtocol) -> None:
        """Forget a connection."""
        self.registry.closed(connection.claim, time.monotonic())
        mine = self._open.get(connection.claim.endpoint, set())
        mine.discard(connection)
        if not mine:
            self._open.pop(connection.claim.endpoint, None)

    def _protocol(self, conn_state: list[Any], server: Any) -> None:
        peer, port = conn_state[0][:2]
        claim = self.registry.claim(IPv4Address(peer))
        if claim is None:
            # Nobody: not even an error goes out.
            metrics.CLOSED.labels("unknown_peer").inc()
            _close_now(conn_state[1])
            return
        if self._device:
            _bind_to_device(conn_state[1], self._device)
        waited = self.registry.take_wait(claim.endpoint, port)
        _GuestProtocol(conn_state, server, guest_server=self, claim=claim, waited=waited)

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        for connection in list(self._open.get(endpoint, ())):
            if not self.registry.holds(connection.claim):
                metrics.CLOSED.labels("changed").inc()
                connection.abort()

    def _connections(self) -> list[_GuestProtocol]:
        return [one for connections in self._open.values() for one in connections]


class _GuestProtocol(wsgi.HttpProtocol):  # type: ignore[misc]  # eventlet has no types
    """One guest's connection."""

    def __init__(
        self,
        conn_state: list[Any],
        server: Any,
        *,
        guest_server: GuestServer,
        claim: Claim,
        waited: float,
    ) -> None:
        self.claim = claim
        self._guest_server = guest_server
        self._waited = waited
        self.asked = False
        """Whether it has had an answer already: then it may be closed between two requests."""
        self.busy = False
        guest_server.opened(self)
        try:
            super().__init__(conn_state, server)
        finally:
            guest_server.closed(self)

    def get_environ(self) -> dict[str, Any]:
        """Add what the application needs of the connection to the request's environment."""
        environ: dict[str, Any] = super().get_environ()
        environ[CLAIM] = self.claim
        budget = self._guest_server.hold_timeout - self._waited
        environ[DEADLINE] = time.monotonic() + max(budget, 0.0)
        environ[LAST] = self._last
        self._waited = 0.0
        return environ

    def handle_one_response(self) -> None:
        """Answer a request, or close the connection when nothing may be answered."""
        self.asked = self.busy = True
        try:
            if self._guest_server.draining:
                self._last()
            super().handle_one_response()
        except Abandoned as abandoned:
            self._last()
            metrics.CLOSED.labels(abandoned.reason).inc()
        finally:
            self.busy = False
            if self._guest_server.draining:
                self._last()

    @property
    def idle(self) -> bool:
        """Whether it is kept alive and nothing of a further request has come."""
        if self.busy or not self.asked:
            return False
        ready, _writable, _exceptional = _select.select([self.connection.fileno()], [], [], 0)
        return not ready

    def cut(self) -> None:
        """Close the connection; whoever reads from or writes to it wakes up."""
        self._last()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Close the connection at once; what it still had to say is thrown away."""
        self._last()
        abort(self.connection)

    def rebind(self, device: str) -> None:
        """Go on over *device*."""
        _bind_to_device(self.connection, device)

    def _last(self) -> None:
        self.close_connection = True


def abort(sock: Any) -> None:
    """Reset a connection and discard what is still in its send queue.

    ``shutdown`` would have the kernel send, and repeat, the rest of an answer to whoever has the
    port now. connect(2) with AF_UNSPEC dissolves the association at once.
    """
    nobody = ctypes.create_string_buffer(bytes(_SOCKADDR_SIZE), _SOCKADDR_SIZE)
    if _LIBC.connect(sock.fileno(), nobody, _SOCKADDR_SIZE):
        LOG.debug("A connection could not be dissolved: errno %d", ctypes.get_errno())
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _bind_to_device(sock: Any, device: str) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())


def _close_now(sock: Any) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
