"""The admin listener's server: the guests' server, for clients that are known by their address.

It runs in the guests' thread, and any local user reaches it. So it takes no more than a share: one
request, or one piece of a body, in each round of the hub; a number of connections; a number of
bytes in memory. What waits for its client gives way to what does not, the longest wait first, so
that clients that say nothing keep nobody out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import eventlet
from eventlet.semaphore import Semaphore

from dfmeta import hub, metrics
from dfmeta.admin.connection import AdminConnection
from dfmeta.exceptions import BadRequestError
from dfmeta.model import Caller
from dfmeta.proxy.complaints import NOBODY, Together
from dfmeta.proxy.connection import GuestConnection
from dfmeta.proxy.http1 import HeadLimits
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.peers import Peers
from dfmeta.proxy.server import POLL, GuestServer
from dfmeta.registry import Claim

LOG = logging.getLogger(__name__)

SILENCE: Final = 60.0
"""Seconds that a client may keep a body, or a connection between two requests, without a byte."""
HELD: Final = 64 << 20
"""Bytes of bodies and answers in memory. A single one may be larger."""
CONNECTIONS: Final = 1024
"""Of all peers, those that wait included."""
SERVED: Final = 128
"""Of one peer, at a time."""
GRACE: Final = 0.2
"""Seconds that a connection may wait for its client while others of its peer wait for a place."""
LIMITS: Final = Limits(
    # A JWT with many claims has some kilobytes.
    head=HeadLimits(request_line=8192, header=32768, lines=128),
    body_timeout=SILENCE,
    keepalive_timeout=SILENCE,
    send_timeout=SILENCE,
    connections_per_port=SERVED,
    waiting_per_port=CONNECTIONS - SERVED,
    connections=CONNECTIONS,
)
"""By the names of guests' limits: a "port" is a peer's address. A body's length is the
application's to say. A connection has one request at a time, so that a peer has as many requests
in flight as connections."""
PATH_SHOWN: Final = 256
"""Characters of a path that a line of the log shows."""


class AdminServer(GuestServer):
    """Serves the admin listener until it is told to stop.

    :param sock: a listener, green.
    :param application: a WSGI application; reads a body with ``wsgi.input.read(LIMIT)``, which
        raises BadRequestError. What else it raises is a defect: logged, and answered with 500.
    """

    thread_name = "admin listener"

    def __init__(
        self,
        sock: Any,
        application: Callable[..., Iterable[bytes]],
        *,
        limits: Limits = LIMITS,
    ) -> None:
        address = sock.getsockname()
        self.place = (str(address[0]), str(address[1]))
        self._wrapped = application
        self._pace = Semaphore(1)
        self._held = 0
        self._sweeper: Any = None
        """While connections wait for a place."""
        super().__init__(sock, "", Peers(), self._answer, hold_timeout=0.0, limits=limits)
        # An address costs nothing to make up: see the class.
        self._complaints = Together(LOG)

    def stop(self, grace: float) -> None:
        """Accept no more, let running requests be answered, and close the rest after *grace* s."""
        super().stop(grace)
        if self._sweeper is not None:
            self._sweeper.kill()

    def _sweep(self) -> None:
        """Have those that wait for their clients make room for those that wait for a place."""
        while self._room.crowded():
            eventlet.sleep(GRACE)
            for caller in self._room.crowded():
                self._make_way(caller, time.monotonic() - GRACE)
        self._sweeper = None

    def _make_way(self, caller: Caller, until: float) -> None:
        for _ in range(self._room.awaited(caller)):
            if not self._end_longest(lambda one: one.since <= until, caller):
                break

    # For the connections

    def turn(self, connection: GuestConnection) -> None:
        """Nothing: :meth:`pace` has one turn for all peers."""

    def hold_back(self, connection: GuestConnection) -> None:
        """Nothing: one address has many clients, and they have one turn of a round together."""

    def pace(self) -> None:
        """Let one caller go on in each round of the hub, in the order of their calls."""
        with self._pace:
            eventlet.sleep(0)

    def hold(self, connection: AdminConnection, count: int, *, until: float | None = None) -> None:
        """Count bytes that *connection* has in memory.

        Where all have too many, connections that wait for their clients are closed, the longest
        wait first.

        :param until: monotonic seconds until which to wait for room; None: go on without.
        :raises BadRequestError: 503 when there was no room in time.
        """
        while self._held + count > max(HELD, connection.held + count):
            if self._end_longest(lambda one: one is not connection and one.held > 0):
                metrics.ADMIN_REFUSED.labels("memory").inc()
                continue
            if until is None:
                break
            if time.monotonic() > until:
                metrics.ADMIN_REFUSED.labels("memory").inc()
                raise BadRequestError(
                    status=503, reason="body", cause="there are too many large bodies at once"
                )
            # It may be closed meanwhile: two bodies that wait for each other's room would wait on.
            with connection.waiting(reads=False):
                eventlet.sleep(POLL)
        connection.held += count
        self._held += count

    def release(self, connection: AdminConnection) -> None:
        """Count its bytes no more."""
        self._held -= connection.held
        connection.held = 0

    def awaited(self, connection: AdminConnection) -> bool:
        """Whether others of its peer wait for a place."""
        return bool(self._room.awaited(connection.claim.caller))

    def _end_longest(
        self, wanted: Callable[[AdminConnection], bool], caller: Caller | None = None
    ) -> bool:
        """Close the *wanted* one that waits longest for its client, if there is such."""
        found = self._room.longest_idle(
            lambda one: isinstance(one, AdminConnection) and wanted(one), caller
        )
        if isinstance(found, AdminConnection):
            self.release(found)
            found.cut()
        return found is not None

    # The application

    def _answer(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        try:
            return [b"".join(self._wrapped(environ, start_response))]
        except BadRequestError:
            # Of the body, when the application has no words of its own for it.
            raise
        except Exception as error:
            metrics.ADMIN_REFUSED.labels("defect").inc()
            self._complaints.about(
                NOBODY,
                f"defect {type(error).__name__}",
                "%s %s of the admin listener failed: %s. Report this with the traceback below",
                environ["REQUEST_METHOD"],
                ascii(environ["PATH_INFO"][:PATH_SHOWN]),
                type(error).__name__,
                level=logging.ERROR,
                exc_info=True,
            )
        body = json.dumps({"message": "internal server error"}).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("500 Internal Server Error", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    # What guests' connections have otherwise

    def _connection(self, client: Any, claim: Claim, waited: float) -> AdminConnection:
        del waited
        return AdminConnection(client, claim, self)

    def _show_count(self, count: Callable[[], int]) -> None:
        metrics.ADMIN_CONNECTIONS.set_function(count)

    def _note_closed(self, reason: metrics.Closed) -> None:
        match reason:
            case "too_many" | "defect":  # no claim here is unknown or changes
                metrics.ADMIN_REFUSED.labels(reason).inc()

    def _note_crowd(self) -> None:
        if self._sweeper is None:
            self._sweeper = hub.VITAL.spawn(
                "admin listener's sweeper", self._sweep, may_return=True
            )

    def _note_limit(self, limit: metrics.Limit) -> None:
        del limit
        metrics.ADMIN_REFUSED.labels("crowded").inc()
