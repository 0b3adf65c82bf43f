"""One connection to the admin listener: the guests' connection, with a body read on demand.

The application authorizes a request before it asks for the body, so that a client without a token
has dfmeta neither read nor keep one.

Trust: none. A client may send any bytes, as slowly or as fast as it likes. Each wait has an end,
and a connection that waits for its client can be closed for another one at any time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from dfmeta import metrics
from dfmeta.exceptions import BadRequestError, BodyFault, HeadFault
from dfmeta.proxy.connection import (
    CONTINUE,
    LINGER_MAX,
    WHOLE,
    EndedError,
    GuestConnection,
    Headers,
    Host,
)
from dfmeta.proxy.environ import SAME_HOST, Incoming, base_environ
from dfmeta.proxy.http1 import Body, Head
from dfmeta.proxy.sockets import quiet
from dfmeta.registry import Claim

OVER: Final = 2
"""Bytes of a body that is too long which are thrown away, for each byte that it may have."""


class AdminHost(Host, Protocol):
    """What an admin connection needs of its server."""

    place: tuple[str, str]
    """Address and port of the listener."""

    def pace(self) -> None:
        """Wait until the guests have had their turn."""
        ...

    def hold(self, connection: AdminConnection, count: int, *, until: float | None = None) -> None:
        """Count bytes that the connection has in memory; with *until*, wait for room.

        :raises BadRequestError: 503 when there was none until then (monotonic seconds).
        """
        ...

    def release(self, connection: AdminConnection) -> None:
        """Count them no more."""
        ...

    def awaited(self, connection: AdminConnection) -> bool:
        """Whether others of its peer wait for a place."""
        ...


class AdminConnection(GuestConnection):
    """A connection to the admin listener; see :class:`GuestConnection`."""

    def __init__(self, sock: Any, claim: Claim, server: AdminHost) -> None:
        super().__init__(sock, claim, server, accepted=time.monotonic(), waited=0.0)
        self.held = 0
        """Bytes of a body or an answer that it has in memory."""
        self.since = 0.0
        """Monotonic seconds at which it began to wait for its client."""
        self._server = server
        self._reads = False
        self._waits = False

    @property
    def may_go(self) -> bool:
        """Whether it waits for its client, which has sent nothing new."""
        return self._waits and not (self._reads and not quiet(self.sock))

    @property
    def between(self) -> bool:
        """Whether nothing of a request has come, the first one included."""
        return self.may_go and self._reads and not self._buffer and self._incoming.done

    def take_body(self, head: Head, limit: int) -> bytes:
        """Read a request's body.

        :param limit: bytes that it may have.
        :raises BadRequestError: 413 for a longer one, 408 when it stops coming, 400 when it is no
            body or ends too soon, 503 when other bodies leave no room for it. The connection is
            closed after the answer then.
        """
        body = Body(head, limit, limits=self._server.limits.head)
        try:
            if head.expects_continue and not self._buffer:
                self._send(CONTINUE)
            while True:
                until = time.monotonic() + self._server.limits.body_timeout
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
        # One request of the admin side at a time: many connections are no more than one.
        self._server.pace()
        self._first = False
        there = head.length or head.chunked
        self._incoming = Incoming((lambda size: self.take_body(head, size)) if there else None)
        environ = base_environ(head, server=self._server.place, peer=str(self.claim.address.ip))
        environ["wsgi.input"] = self._incoming
        environ[SAME_HOST] = _within_a_host(self.sock)
        if "content-length" in head.headers:
            environ["CONTENT_LENGTH"] = str(head.length)
        try:
            self._answer(head, environ)
        finally:
            self._server.release(self)
            self._incoming.close()

    def _give(self, head: Head, status: str, headers: Headers, body: bytes) -> None:
        if len(body) >= WHOLE:
            self._server.hold(self, len(body))
        super()._give(head, status, headers, body)

    def _keeps(self, head: Head) -> bool:
        return super()._keeps(head) and not self._server.awaited(self)

    def _linger(self, most: int = LINGER_MAX) -> None:
        # Who may send a body, and sends too much, gets to read that.
        super()._linger(most + OVER * self._incoming.asked)

    def _refusal(self, status: str, cause: str) -> tuple[str, bytes]:
        del status
        return "application/json", json.dumps({"message": cause}).encode()

    # Waits

    def _receive(self, until: float) -> None:
        with self.waiting(reads=True):
            super()._receive(until)

    def _send_on(self, rest: memoryview) -> None:
        with self.waiting(reads=False):
            super()._send_on(rest)

    @contextmanager
    def waiting(self, *, reads: bool) -> Iterator[None]:
        """Let it be closed for another one until the block ends.

        :param reads: it does not wait any more as soon as its client has sent something.
        """
        self._waits, self._reads, self.since = True, reads, time.monotonic()
        self._server.idle(self)
        try:
            yield
        finally:
            self._waits = False
            self._server.busy(self)

    # The books

    def _note_closed(self, reason: metrics.Closed) -> None:
        """Nothing: an answer that is not read in time is all that ends without one."""

    def _note_silent(self) -> None:
        metrics.ADMIN_REFUSED.labels("silent").inc()

    def _note_refused(self, status: int, reason: HeadFault | BodyFault) -> None:
        del status
        match reason:
            case "body" | "chunks" | "body_timeout":
                """The API refuses bodies in its own words."""
            case _:
                metrics.ADMIN_REFUSED.labels(reason).inc()

    def _note_unread(self) -> None:
        metrics.ADMIN_REFUSED.labels("not_read").inc()


def _within_a_host(sock: Any) -> bool:
    """Whether a connection has the same address at both ends, as one within a host has."""
    with suppress(OSError):  # the client has gone
        return bool(sock.getsockname()[0] == sock.getpeername()[0])
    return False
