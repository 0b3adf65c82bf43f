"""The guests' listener: eventlet's WSGI server on tap-metadata, with an identity per connection.

A connection is claimed when it is accepted, from its peer's address, and belongs to that claim
for as long as it lives. A peer that is nobody gets no answer at all.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from ipaddress import IPv4Address
from typing import Any

import eventlet
import eventlet.green.socket as green_socket
from eventlet import wsgi

from dfmeta import metrics
from dfmeta.exceptions import StartError
from dfmeta.model import Endpoint
from dfmeta.proxy.wsgi import CLAIM, DEADLINE, LAST, Abandoned, Application
from dfmeta.registry import Claim, Registry

LOG = logging.getLogger(__name__)

BACKLOG = 4096
CONNECTIONS_MAX = 1024
REQUEST_LINE_MAX = 2048
KEEPALIVE = 15.0
"""Seconds that an idle connection is kept."""
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
        self.draining = False
        registry.subscribe(self._endpoint_changed)

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread = eventlet.spawn(
            wsgi.server,
            self._sock,
            self._application,
            protocol=self._protocol,
            custom_pool=self._pool,
            keepalive=KEEPALIVE,
            log_output=False,
            debug=False,
            url_length_limit=REQUEST_LINE_MAX,
            socket_timeout=SOCKET_TIMEOUT,
        )

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
        waited = self.registry.take_wait(claim.endpoint, port)
        _GuestProtocol(conn_state, server, guest_server=self, claim=claim, waited=waited)

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        for connection in list(self._open.get(endpoint, ())):
            if not self.registry.holds(connection.claim):
                metrics.CLOSED.labels("changed").inc()
                connection.cut()

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
        self.idle = True
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
        self.idle = False
        try:
            if self._guest_server.draining:
                self._last()
            super().handle_one_response()
        except Abandoned as abandoned:
            self._last()
            metrics.CLOSED.labels(abandoned.reason).inc()
        finally:
            self.idle = True
            if self._guest_server.draining:
                self._last()

    def cut(self) -> None:
        """Close the connection; whoever reads from or writes to it wakes up."""
        self._last()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _last(self) -> None:
        self.close_connection = True


def _close_now(sock: Any) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
