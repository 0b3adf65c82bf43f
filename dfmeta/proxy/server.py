"""The guests' listener: eventlet's WSGI server on tap-metadata, with an identity per connection.

A connection is claimed when it is accepted, from its peer's address, and belongs to that claim
for as long as it lives. A peer that is nobody gets no answer at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import struct
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
from dfmeta.proxy.limits import (
    BACKLOG,
    CONNECTIONS_MAX,
    CONNECTIONS_PER_GUEST,
    SYN_ACK_RETRIES,
)
from dfmeta.proxy.wsgi import CLAIM, DEADLINE, LAST, Abandoned, Application
from dfmeta.registry import Claim, Registry

LOG = logging.getLogger(__name__)

_select = original("select")
_LIBC = ctypes.CDLL(None, use_errno=True)
_SOCKADDR_SIZE = 16

SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
"""asm-generic/socket.h; Python has no names for them."""
_BPF = struct.Struct("=HBBI")
_FPROG = struct.Struct("@HP")
"""struct sock_filter and struct sock_fprog of linux/filter.h."""
_BPF_LD_ABS, _BPF_JEQ, _BPF_RET = 0x20, 0x15, 0x06
_SKF_AD_IFINDEX = 0xFFFFF000 + 8
"""Linux, networking/filter: the number of the device that a packet came in on."""
_WHOLE = 0xFFFFFFFF

REQUEST_LINE_MAX = 2048
KEEPALIVE = 15.0
"""Seconds that an idle connection is kept."""
ACCEPT_PAUSE = 0.1
"""Seconds until accept is tried again when the process has no descriptor left, say."""
SOCKET_TIMEOUT = 10.0
"""Seconds that a guest may take for the next piece of a request."""


def listen(device: str, address: str, port: int) -> Any:
    """Open the guests' listener on *device* alone.

    That is what makes the peer's address an identity: nothing that comes in on another card
    reaches it, whatever source it claims. See :func:`confine` for how.

    :param port: 0 for a free one.
    :raises StartError: when the address or the port cannot be had.
    """
    sock = green_socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        confine(sock, socket.if_nametoindex(device))
        keep_room(sock)
    except OSError as error:
        sock.close()
        raise StartError(
            cause=f"{address}:{port} on {device} cannot be listened on: {error.strerror}",
            remedy="Stop what uses it, or give another [df_metadata] port",
        ) from error
    return sock


def keep_room(sock: Any) -> None:
    """Have *sock* listen, with as much room as the host allows now, and give up soon what is half
    open; see :data:`SYN_ACK_RETRIES`. One that listens already is given the room anew."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_SYNCNT, SYN_ACK_RETRIES)
    sock.listen(BACKLOG)


def confine(sock: Any, index: int) -> None:
    """Have the kernel drop whatever comes for the listener *sock* on another device.

    A filter of socket(7), SO_ATTACH_FILTER, and not SO_BINDTODEVICE: what a bound listener has
    in the making is bound for good to the device that was there at the SYN, and when that is
    made anew the guest's next segment is answered with a reset. A filter is replaced, and what
    it drops is sent again. Connections inherit it, until they are bound as they are accepted.

    :param index: the device's number; a device that is made anew has another.
    :raises OSError: when the kernel refuses.
    """
    program = b"".join(
        _BPF.pack(*instruction)
        for instruction in (
            (_BPF_LD_ABS, 0, 0, _SKF_AD_IFINDEX),
            (_BPF_JEQ, 0, 1, index),
            (_BPF_RET, 0, 0, _WHOLE),
            (_BPF_RET, 0, 0, 0),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    whole = _FPROG.pack(len(program) // _BPF.size, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, whole)


class GuestServer:
    """Serves guests until it is told to stop.

    :param device: name of tap-metadata, which answers leave by.
    :param hold_timeout: seconds that a request may wait in all, its first SYN's time included.
    """

    def __init__(
        self,
        sock: Any,
        device: str,
        registry: Registry,
        application: Application,
        *,
        hold_timeout: float,
    ) -> None:
        self.registry = registry
        self.hold_timeout = hold_timeout
        self._sock = sock
        self.port = int(sock.getsockname()[1])
        """TCP port that it listens on."""
        self.inode = os.fstat(sock.fileno()).st_ino
        """The listener's inode."""
        self._application = application
        self._pool = eventlet.GreenPool(CONNECTIONS_MAX)
        self._open: dict[Endpoint, set[_GuestProtocol]] = {}
        self._thread: Any = None
        self._device = device
        self.draining = False
        registry.subscribe(self._endpoint_changed)

    def start(self) -> None:
        """Accept connections from now on."""
        # Not wsgi.server(): when that ends it cuts connections whose first request is on its way.
        server = wsgi.Server(
            self._sock,
            self._sock.getsockname(),
            self._application,
            protocol=self._protocol,
            keepalive=KEEPALIVE,
            log_output=False,
            debug=False,
            url_length_limit=REQUEST_LINE_MAX,
            socket_timeout=SOCKET_TIMEOUT,
        )
        self._thread = eventlet.spawn(self._accept_loop, self._sock, server)

    def rebind(self) -> None:
        """Go on over the device, which has been made anew, with the connections that are open."""
        for connection in self._connections():
            _keep_to(connection.connection, self._device)

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
        if len(self._open.get(claim.endpoint, ())) >= CONNECTIONS_PER_GUEST:
            metrics.CLOSED.labels("too_many").inc()
            abort(conn_state[1])
            return
        _keep_to(conn_state[1], self._device)
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
        # Not select(2), which knows no descriptor above 1,023.
        poll = _select.poll()
        poll.register(self.connection.fileno(), _select.POLLIN)
        return not poll.poll(0)

    def cut(self) -> None:
        """Close the connection; whoever reads from or writes to it wakes up."""
        self._last()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Close the connection at once; what it still had to say is thrown away."""
        self._last()
        abort(self.connection)

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


def _keep_to(sock: Any, device: str) -> None:
    """Bind a connection to *device*: not even with the rules gone does an answer leave elsewhere.

    The inherited filter is needed no more then; it stays where the device is away for a moment.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def _close_now(sock: Any) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
