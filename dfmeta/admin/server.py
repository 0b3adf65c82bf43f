"""The admin listener's server: that of :mod:`dfmeta.http`, with bounds for local clients.

It runs in the guests' thread, and any local user can reach it. So its resources are limited: all
clients together share one guest's part of a round of the hub; a number of connections; a number of
bytes in memory. If a limit is reached, connections that wait for their client are closed in favour
of others, the longest wait first, so that silent clients cannot block the listener.

Trust: none. A client may send any bytes, at any speed. Each wait has a time limit, and a connection
that waits for its client can be closed to make room for another one, also within a request.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import webob

from dfmeta import metrics, model
from dfmeta.errors import BadRequestError, BodyFault, HeadFault
from dfmeta.http import http1, server, sockets
from dfmeta.http.connection import WHOLE, EndedError, Headers, ServerConnection
from dfmeta.http.exchange import Exchange
from dfmeta.http.limits import ConnectionLimiter, Limits
from dfmeta.http.service import ConnectionObserver, HttpService
from dfmeta.proxy.recent import TEXT_MAX
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.throttle import ALL_GUESTS, FIRST_PAUSE, SharedComplaints

TURNS: Final = "requests to the admin listener"
"""All clients together have the turns of one guest, since a client can use many addresses."""
HELD: Final = 64 << 20
"""Maximum number of bytes of bodies and answers in memory. A single one may be larger."""
SILENCE: Final = 60.0
"""Seconds that a client may keep a body, or a connection between two requests, without a byte."""
CONNECTIONS: Final = 1024
"""Maximum number of connections of all peers, including those that wait."""
SERVED: Final = 128
"""Maximum number of connections of one peer that are served at a time."""
LIMITS: Final = Limits(
    # A JWT with many claims has several kilobytes.
    head=http1.HeadLimits(request_line=8192, header=32768, lines=128),
    body_timeout=SILENCE,
    keepalive_timeout=SILENCE,
    send_timeout=SILENCE,
    connections_per_port=SERVED,
    waiting_per_port=CONNECTIONS - SERVED,
    connections=CONNECTIONS,
)
"""Limits under the names of guests' limits: a "port" is a peer's address. The application limits
the length of a body. A connection has one request at a time, so that a peer has at most as many
requests in flight as connections."""
SAME_HOST: Final = "dfmeta.same_host"
"""Environment key: whether a request comes from this host."""
ENDS: Final = "dfmeta.ends"
"""Environment key: address and port of the client, and those of the admin listener that it has
connected to; empty if the client has disconnected."""

AdminHandler = Callable[[webob.Request], webob.Response]


@dataclass(frozen=True, slots=True)
class AdminClaim:
    """A client of the admin listener, identified by its address."""

    address: IPv4Address | IPv6Address
    vm: str = ""

    @property
    def caller(self) -> model.Peer:
        """Its address has a share of connections."""
        return model.Peer(self.address)

    sharer = caller

    @property
    def ip(self) -> str:
        """The client's address."""
        return str(self.address)

    name = ip


class AdminClaims(server.ClaimSource[AdminClaim]):
    """Identifies the admin listener's clients; none is refused."""

    def claim(self, peer: IPv4Address | IPv6Address) -> AdminClaim:
        """See :class:`ClaimSource`."""
        return AdminClaim(getattr(peer, "ipv4_mapped", None) or peer)


class AdminConnection(ServerConnection[AdminClaim]):
    """A connection to the admin listener.

    :param memory: counts the bytes of all connections.
    """

    def __init__(
        self,
        sock: Any,
        claim: AdminClaim,
        service: HttpService[AdminClaim],
        *,
        memory: AdminMemory,
        began: float,
        source_port: int,
    ) -> None:
        super().__init__(sock, claim, service, began=began, source_port=source_port)
        self.held = 0
        """Bytes of a body or an answer that the connection has in memory."""
        self.since = 0.0
        """Monotonic seconds at which the connection began to wait for its client."""
        self._memory = memory
        self._reads = False
        self._waits = False

    @property
    def evictable(self) -> bool:
        """Whether the connection waits for its client, and the client has sent nothing new."""
        return self._waits and not (self._reads and not sockets.quiet(self.sock))

    @property
    def between(self) -> bool:
        """Whether no byte of the next request, or of the first one, has arrived."""
        return self.evictable and self._reads and not self._buffer and self._body_read

    @contextmanager
    def waiting(self, *, reads: bool) -> Iterator[None]:
        """Allow the server to close the connection in favour of another one during the block.

        :param reads: the wait is for data of the client, and so ends when any has arrived.
        """
        self._waits, self._reads, self.since = True, reads, clock.now()
        self._service.limiter.idle(self.claim.caller, self)
        try:
            yield
        finally:
            self._waits = False
            self._service.limiter.busy(self.claim.caller, self)

    def _serve_request(self) -> None:
        try:
            super()._serve_request()
        finally:
            self._memory.release(self)

    def _read_body(self, head: http1.Head, most: int) -> bytes:
        """Read a request's body, each piece of which has the time limit of its own.

        :raises BadRequestError: 413 for a longer body, 408 if it stops arriving, 400 if it is
            invalid or ends too soon, 503 if other bodies leave no room for it. The connection is
            closed after such an answer.
        """
        try:
            return super()._read_body(head, most)
        except (OSError, EndedError):
            raise BadRequestError(
                status=400, reason="malformed", cause="the body ends too soon"
            ) from None

    def _take_piece(self, until: float) -> float:
        until = clock.now() + self._service.limits.body_timeout
        self._service.scheduler.acquire(TURNS)
        self._memory.hold(self, len(self._buffer), until=until)
        return until

    def _give(self, head: http1.Head, status: str, headers: Headers, body: bytes) -> None:
        if len(body) >= WHOLE:
            self._memory.hold(self, len(body))
        super()._give(head, status, headers, body)

    def _refusal(self, status: str, cause: str) -> tuple[str, bytes]:
        return "application/json", json.dumps({"message": cause}).encode()

    def _acquire(self) -> None:
        """Read without a turn, so that ended connections leave at once: requests take one each."""

    def _receive(self, until: float, *, has_turn: bool = False) -> None:
        with self.waiting(reads=True):
            super()._receive(until, has_turn=has_turn)

    def _send_on(self, rest: memoryview) -> None:
        with self.waiting(reads=False):
            super()._send_on(rest)


class AdminMemory:
    """Counts the bytes of bodies and answers in memory, and closes connections for more room.

    :param limiter: of the listener's connections.
    """

    def __init__(self, limiter: ConnectionLimiter[AdminConnection]) -> None:
        self._limiter = limiter
        self.held = 0
        """Bytes of all connections."""

    def hold(self, connection: AdminConnection, count: int, *, until: float | None = None) -> None:
        """Add *count* bytes to the memory in use by *connection*.

        If the total exceeds :data:`HELD`, connections that wait for their clients are closed, the
        longest wait first.

        :param until: monotonic seconds until which to wait for room; None: do not wait, and exceed
            the limit if there is no room.
        :raises BadRequestError: 503 if there was no room in time.
        """
        while self.held + count > max(HELD, connection.held + count):
            if self.end_longest(lambda other: other is not connection and other.held > 0):
                metrics.ADMIN_REFUSED.labels("memory").inc()
                continue
            if until is None:
                break
            if clock.now() > until:
                metrics.ADMIN_REFUSED.labels("memory").inc()
                raise BadRequestError(
                    status=503, reason="body", cause="there are too many large bodies at once"
                )
            # Others may close it meanwhile; otherwise two bodies could wait for each other's room.
            with connection.waiting(reads=False):
                threads.sleep(clock.POLL)
        connection.held += count
        self.held += count

    def release(self, connection: AdminConnection) -> None:
        """Stop counting the bytes of *connection*."""
        self.held -= connection.held
        connection.held = 0

    def end_longest(
        self, wanted: Callable[[AdminConnection], bool], caller: model.Caller | None = None
    ) -> bool:
        """Close the *wanted* connection that waits longest for its client, if there is one."""
        longest = self._limiter.longest_idle(wanted, caller)
        if longest is not None:
            self.release(longest)
            longest.cut()
        return longest is not None


LOG = logging.getLogger(__name__)


class AdminServer:
    """Serves the admin listener until :meth:`stop`.

    :param sock: a listening socket of eventlet.
    :param application: answers a request. It reads a body with ``body_file_raw.read(LIMIT)``, which
        raises BadRequestError: the body is not read before, so that dfmeta neither reads nor keeps
        that of a client without a token. Any other exception is a defect: it is logged, and
        answered with 500.
    """

    def __init__(self, sock: Any, application: AdminHandler, *, limits: Limits = LIMITS) -> None:
        self._application = application
        self._port = int(sock.getsockname()[1])
        self._sweeper: Any = None
        """Greenthread that runs while connections wait for a place."""
        # Clients can use many addresses, so complaints are not kept by address: see the class.
        self._complaints = SharedComplaints(LOG)
        service = HttpService(self._answer, AdminObserver(self._sweep_on), limits=limits)
        self._limiter, self._scheduler = service.limiter, service.scheduler
        self.memory = AdminMemory(service.limiter)
        metrics.ADMIN_CONNECTIONS.set_function(service.limiter.__len__)
        self._server = server.HttpServer(
            [sock],
            AdminClaims(),
            service,
            connect=partial(AdminConnection, memory=self.memory),
            name="admin listener",
            complaints=self._complaints,
        )

    @property
    def port(self) -> int:
        """TCP port of the listener."""
        return self._port

    def start(self) -> None:
        """Accept connections from now on."""
        self._server.start()

    def stop(self, grace: float) -> None:
        """Accept no more, let running requests be answered, and close the rest after *grace* s."""
        self._server.stop(grace)
        if self._sweeper is not None:
            self._sweeper.kill()

    def _sweep_on(self) -> None:
        """Note that a connection waits for a place; it gets the next free place of its peer."""
        if self._sweeper is None:
            self._sweeper = hub.VITAL.spawn(
                "admin listener's sweeper", self._sweep, may_return=True
            )

    def _sweep(self) -> None:
        """Close connections that wait for their clients while others wait for a place."""
        while self._limiter.crowded():
            threads.sleep(FIRST_PAUSE)
            for caller in self._limiter.crowded():
                self._make_way(caller, clock.now() - FIRST_PAUSE)
        self._sweeper = None

    def _make_way(self, caller: model.Caller, until: float) -> None:
        for _ in range(self._limiter.awaited(caller)):
            if not self.memory.end_longest(lambda idle: idle.since <= until, caller):
                break

    def _answer(self, exchange: Exchange[AdminClaim]) -> model.Answer:
        self._scheduler.acquire(TURNS)
        try:
            response = self._application(request_of(exchange))
            return model.Answer(response.status_int, response.body, "", tuple(response.headerlist))
        except BadRequestError:
            # Raised for the body, if the application does not handle it.
            raise
        except Exception as error:
            metrics.ADMIN_REFUSED.labels("defect").inc()
            self._complaints.about(
                ALL_GUESTS,
                f"defect {type(error).__name__}",
                "%s %s of the admin listener failed: %s. Report this with the traceback below",
                exchange.request.method,
                ascii(exchange.request.path[:TEXT_MAX]),
                type(error).__name__,
                level=logging.ERROR,
                exc_info=True,
            )
        return model.Answer(500, b'{"message": "internal server error"}', "application/json")


class AdminObserver(ConnectionObserver[AdminClaim]):
    """Counts what happens to the admin listener's connections.

    :param crowded: called when a connection waits for a place.
    """

    def __init__(self, crowded: Callable[[], None]) -> None:
        self._crowded = crowded

    def closed(self, reason: metrics.Closed) -> None:
        """See :class:`ConnectionObserver`."""
        match reason:
            case "too_many" | "defect":  # no claim here is unknown or changes
                metrics.ADMIN_REFUSED.labels(reason).inc()

    def limited(self, limit: metrics.Limit) -> None:
        """See :class:`ConnectionObserver`."""
        metrics.ADMIN_REFUSED.labels("not_read" if limit == "send_timeout" else "crowded").inc()
        if limit == "connections_per_port":
            self._crowded()

    def silent(self, claim: AdminClaim) -> None:
        """See :class:`ConnectionObserver`."""
        metrics.ADMIN_REFUSED.labels("silent").inc()

    def refused(self, claim: AdminClaim, status: int, reason: HeadFault | BodyFault) -> None:
        """See :class:`ConnectionObserver`."""
        match reason:
            case "body" | "chunks" | "body_timeout":
                """Not counted: the API refuses bodies with its own messages."""
            case _:
                metrics.ADMIN_REFUSED.labels(reason).inc()


def request_of(exchange: Exchange[AdminClaim]) -> webob.Request:
    """Return a request whose body is read on demand."""
    guest_request, ends = exchange.request, exchange.ends()
    request = webob.Request.blank(
        f"{guest_request.path}?{guest_request.query}",
        environ={
            "wsgi.input": exchange,
            "REMOTE_ADDR": exchange.claim.ip,
            ENDS: ends,
            # Both ends of a connection within a host have the same address.
            SAME_HOST: len({address for address, _port in ends}) == 1,
        },
        method=guest_request.method,
    )
    del request.environ["HTTP_HOST"]
    # "a_b" and "a-b" have the same key in the environment: only the spelling with hyphens counts.
    request.headers.update(
        {name: value for name, value in guest_request.headers.items() if "_" not in name}
    )
    return request
