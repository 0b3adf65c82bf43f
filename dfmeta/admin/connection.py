"""One connection to the admin listener: it can be closed in favour of another one at any time.

Trust: none. A client may send any bytes, at any speed. Each wait has a time limit, and a connection
that waits for its client can be closed to make room for another one, also within a request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from dfmeta import metrics
from dfmeta.errors import BadRequestError
from dfmeta.http.connection import CONTINUE, WHOLE, EndedError, Headers, ServerConnection
from dfmeta.http.http1 import Body, Head
from dfmeta.http.limits import ConnectionLimiter
from dfmeta.http.server import POLL, ClaimSource
from dfmeta.http.service import HttpService
from dfmeta.http.sockets import quiet
from dfmeta.model import Caller, Peer
from dfmeta.runtime import clock, threads

TURNS: Final = "requests to the admin listener"
"""All clients together have the turns of one guest, since a client can use many addresses."""
HELD: Final = 64 << 20
"""Maximum number of bytes of bodies and answers in memory. A single one may be larger."""


@dataclass(frozen=True, slots=True)
class AdminClaim:
    """A client of the admin listener, identified by its address."""

    address: IPv4Address | IPv6Address
    vm: str = ""

    @property
    def caller(self) -> Peer:
        """Its address has a share of connections."""
        return Peer(self.address)

    sharer = caller

    @property
    def ip(self) -> str:
        """The client's address."""
        return str(self.address)

    name = ip


class AdminClaims(ClaimSource[AdminClaim]):
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
    def may_go(self) -> bool:
        """Whether the connection waits for its client, and the client has sent nothing new."""
        return self._waits and not (self._reads and not quiet(self.sock))

    @property
    def between(self) -> bool:
        """Whether no byte of the next request, or of the first one, has arrived."""
        return self.may_go and self._reads and not self._buffer and self._incoming.done

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

    def _read_body(self, head: Head, most: int) -> bytes:
        """Read a request's body, each piece of which has the time limit of its own.

        :raises BadRequestError: 413 for a longer body, 408 if it stops arriving, 400 if it is
            invalid or ends too soon, 503 if other bodies leave no room for it. The connection is
            closed after such an answer.
        """
        limits = self._service.limits
        body = Body(head.body_length, most, limits=limits.head)
        try:
            if head.expects_continue and not self._buffer:
                self._send(CONTINUE)
            while True:
                until = clock.now() + limits.body_timeout
                self._service.scheduler.acquire(TURNS)
                self._memory.hold(self, len(self._buffer), until=until)
                body.feed(bytes(self._buffer))
                self._buffer.clear()
                if body.done:
                    break
                self._receive(until)
        except TimeoutError:
            raise BadRequestError(
                status=408, reason="body_timeout", cause="the body did not come in time"
            ) from None
        except (OSError, EndedError):
            raise BadRequestError(
                status=400, reason="malformed", cause="the body ends too soon"
            ) from None
        self._buffer += body.rest
        return body.content

    def _give(self, head: Head, status: str, headers: Headers, body: bytes) -> None:
        if len(body) >= WHOLE:
            self._memory.hold(self, len(body))
        super()._give(head, status, headers, body)

    def _refusal(self, status: str, cause: str) -> tuple[str, bytes]:
        del status
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
                threads.sleep(POLL)
        connection.held += count
        self.held += count

    def release(self, connection: AdminConnection) -> None:
        """Stop counting the bytes of *connection*."""
        self.held -= connection.held
        connection.held = 0

    def end_longest(
        self, wanted: Callable[[AdminConnection], bool], caller: Caller | None = None
    ) -> bool:
        """Close the *wanted* connection that waits longest for its client, if there is one."""
        longest = self._limiter.longest_idle(wanted, caller)
        if longest is not None:
            self.release(longest)
            longest.cut()
        return longest is not None
