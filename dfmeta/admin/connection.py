"""One connection to the admin listener: like a guest's, but the body is read on demand.

The application authorizes a request before it reads the body, so that dfmeta neither reads nor
keeps a body from a client without a token.

Trust: none. A client may send any bytes, at any speed. Each wait has a time limit, and a connection
that waits for its client can be closed at any time to make room for another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final

from dfmeta import metrics
from dfmeta.errors import BadRequestError, BodyFault, HeadFault
from dfmeta.http.connection import (
    CONTINUE,
    LINGER_MAX,
    WHOLE,
    EndedError,
    GuestConnection,
    Headers,
)
from dfmeta.http.environ import ENDS, NO_BODY, SAME_HOST, Incoming, base_environ
from dfmeta.http.http1 import Body, Head
from dfmeta.http.sockets import quiet
from dfmeta.identity.registry import Claim
from dfmeta.runtime import clock

if TYPE_CHECKING:
    from dfmeta.admin.server import AdminServer

OVER: Final = 2
"""Bytes of a body above its limit that are read and discarded, per byte of the limit."""


class AdminConnection(GuestConnection):
    """A connection to the admin listener; see :class:`GuestConnection`."""

    def __init__(self, sock: Any, claim: Claim, server: AdminServer, *, began: float) -> None:
        super().__init__(sock, claim, server, began=began)
        self.held = 0
        """Bytes of a body or an answer that the connection has in memory."""
        self.since = 0.0
        """Monotonic seconds at which the connection began to wait for its client."""
        self._server = server
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

    def take_body(self, head: Head, limit: int) -> bytes:
        """Read a request's body.

        :param limit: maximum length in bytes.
        :raises BadRequestError: 413 for a longer body, 408 if it stops arriving, 400 if it is
            invalid or ends too soon, 503 if other bodies leave no room for it. The connection is
            closed after such an answer.
        """
        body = Body(head, limit, limits=self._server.limits.head)
        try:
            if head.expects_continue and not self._buffer:
                self._send(CONTINUE)
            while True:
                until = clock.now() + self._server.limits.body_timeout
                self._server.pace()
                self._server.hold(self, len(self._buffer), until=until)
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

    # One request

    def _turn(self) -> None:
        head = self._read_head()
        # One admin request at a time: many connections get no more time than a single one.
        self._server.pace()
        self._first = False
        there = head.length or head.chunked
        self._incoming = Incoming(lambda size: self.take_body(head, size)) if there else NO_BODY
        environ = base_environ(head, server=self._server.place, peer=str(self.claim.address.ip))
        environ["wsgi.input"] = self._incoming
        environ[ENDS] = ends = _ends(self.sock)
        # Both ends of a connection within a host have the same address.
        environ[SAME_HOST] = len({address for address, _port in ends}) == 1
        if "content-length" in head.headers:
            environ["CONTENT_LENGTH"] = str(head.length)
        try:
            self._answer(head, environ)
        finally:
            self._server.release(self)
            self._incoming.close()

    def _answer(self, head: Head, environ: dict[str, Any]) -> None:
        given: list[tuple[str, Headers]] = []

        def start_response(status: str, headers: Headers, _error: Any = None) -> None:
            given[:] = [(status, headers)]

        body = self._host.application(environ, start_response)
        ((status, headers),) = given
        self._give(head, status, headers, body)

    def _give(self, head: Head, status: str, headers: Headers, body: bytes) -> None:
        if len(body) >= WHOLE:
            self._server.hold(self, len(body))
        super()._give(head, status, headers, body)

    def _linger(self, most: int = LINGER_MAX) -> None:
        # A client that may send a body, and sends too much, should still read the refusal.
        super()._linger(most + OVER * self._incoming.asked)

    def _refusal(self, status: str, cause: str) -> tuple[str, bytes]:
        del status
        return "application/json", json.dumps({"message": cause}).encode()

    # Waits

    def _receive(self, until: float, *, has_turn: bool = False) -> None:
        with self.waiting(reads=True):
            super()._receive(until, has_turn=has_turn)

    def _send_on(self, rest: memoryview) -> None:
        with self.waiting(reads=False):
            super()._send_on(rest)

    @contextmanager
    def waiting(self, *, reads: bool) -> Iterator[None]:
        """Allow the server to close the connection in favour of another one during the block.

        :param reads: the wait is for data of the client, and so ends when any has arrived.
        """
        self._waits, self._reads, self.since = True, reads, clock.now()
        self._server.idle(self)
        try:
            yield
        finally:
            self._waits = False
            self._server.busy(self)

    # The books

    def _note_closed(self, reason: metrics.Closed) -> None:
        """Count nothing: the only connections closed here without a whole answer are those of
        clients that do not read, which :meth:`_note_unread` counts."""

    def _note_silent(self) -> None:
        metrics.ADMIN_REFUSED.labels("silent").inc()

    def _note_refused(self, status: int, reason: HeadFault | BodyFault) -> None:
        del status
        match reason:
            case "body" | "chunks" | "body_timeout":
                """Not counted: the API refuses bodies with its own messages."""
            case _:
                metrics.ADMIN_REFUSED.labels(reason).inc()

    def _note_unread(self) -> None:
        metrics.ADMIN_REFUSED.labels("not_read").inc()


def _ends(sock: Any) -> tuple[tuple[IPv4Address | IPv6Address, int], ...]:
    """Return address and port of the client and of this side; empty if it has disconnected."""
    with suppress(OSError):
        both = (sock.getpeername(), sock.getsockname())
        return tuple((ip_address(host), port) for host, port, *_scope in both)
    return ()
