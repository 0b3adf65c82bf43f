"""The admin listener's server: the guests' server, with clients identified by their address.

It runs in the guests' thread, and any local user can reach it. So its resources are limited: one
request, or one piece of a body, in each round of the hub; a number of connections; a number of
bytes in memory. If a limit is reached, connections that wait for their client are closed in favour
of others, the longest wait first, so that silent clients cannot block the listener.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from dfmeta import metrics
from dfmeta.admin.connection import AdminConnection
from dfmeta.errors import BadRequestError
from dfmeta.http.complaints import NOBODY, Together
from dfmeta.http.connection import GuestConnection
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.http.peers import Peers
from dfmeta.http.server import POLL, GuestServer
from dfmeta.identity.registry import Claim
from dfmeta.model import Caller
from dfmeta.proxy import access
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.threads import Semaphore

LOG = logging.getLogger(__name__)

SILENCE: Final = 60.0
"""Seconds that a client may keep a body, or a connection between two requests, without a byte."""
HELD: Final = 64 << 20
"""Maximum number of bytes of bodies and answers in memory. A single one may be larger."""
CONNECTIONS: Final = 1024
"""Maximum number of connections of all peers, including those that wait."""
SERVED: Final = 128
"""Maximum number of connections of one peer that are served at a time."""
GRACE: Final = 0.2
"""Seconds that a connection may wait for its client while others of its peer wait for a place."""
LIMITS: Final = Limits(
    # A JWT with many claims has several kilobytes.
    head=HeadLimits(request_line=8192, header=32768, lines=128),
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
PATH_SHOWN: Final = 256
"""Maximum number of characters of a path in a log line."""


class AdminServer(GuestServer):
    """Serves the admin listener until :meth:`stop`.

    :param sock: a listening socket of eventlet.
    :param application: a WSGI application. It reads a body with ``wsgi.input.read(LIMIT)``, which
        raises BadRequestError. Any other exception is a defect: it is logged, and answered with
        500.
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
        """Greenthread that runs while connections wait for a place."""
        super().__init__(
            [sock], "", Peers(), self._answer, hold_timeout=0.0, limits=limits, observer=access
        )
        # Clients can use many addresses, so complaints are not kept by address: see the class.
        self._complaints = Together(LOG)

    def stop(self, grace: float) -> None:
        """Accept no more, let running requests be answered, and close the rest after *grace* s."""
        super().stop(grace)
        if self._sweeper is not None:
            self._sweeper.kill()

    def _sweep(self) -> None:
        """Close connections that wait for their clients while others wait for a place."""
        while self._room.crowded():
            threads.sleep(GRACE)
            for caller in self._room.crowded():
                self._make_way(caller, clock.now() - GRACE)
        self._sweeper = None

    def _make_way(self, caller: Caller, until: float) -> None:
        for _ in range(self._room.awaited(caller)):
            if not self._end_longest(lambda one: one.since <= until, caller):
                break

    # For the connections

    def turn(self, connection: GuestConnection) -> None:
        """Do nothing: :meth:`pace` gives one turn to all peers together."""

    def hold_back(self, connection: GuestConnection) -> None:
        """Do nothing: clients behind one address share one turn in each round of the hub."""

    def pace(self) -> None:
        """Let one caller continue in each round of the hub, in the order of their calls."""
        with self._pace:
            threads.sleep(0)

    def hold(self, connection: AdminConnection, count: int, *, until: float | None = None) -> None:
        """Add *count* bytes to the memory in use by *connection*.

        If the total exceeds :data:`HELD`, connections that wait for their clients are closed, the
        longest wait first.

        :param until: monotonic seconds until which to wait for room; None: do not wait, and exceed
            the limit if there is no room.
        :raises BadRequestError: 503 if there was no room in time.
        """
        while self._held + count > max(HELD, connection.held + count):
            if self._end_longest(lambda one: one is not connection and one.held > 0):
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
        self._held += count

    def release(self, connection: AdminConnection) -> None:
        """Stop counting the bytes of *connection*."""
        self._held -= connection.held
        connection.held = 0

    def _end_longest(
        self, wanted: Callable[[AdminConnection], bool], caller: Caller | None = None
    ) -> bool:
        """Close the *wanted* connection that waits longest for its client, if there is one."""
        found = self._room.longest_idle(
            lambda one: isinstance(one, AdminConnection) and wanted(one), caller
        )
        if isinstance(found, AdminConnection):
            self.release(found)
            found.cut()
        return found is not None

    # The application

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> bytes:
        try:
            result = self._wrapped(environ, start_response)
            try:
                return b"".join(result)
            finally:
                close = getattr(result, "close", None)
                if close is not None:
                    close()
        except BadRequestError:
            # Raised for the body, if the application does not handle it.
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
        return b"" if environ["REQUEST_METHOD"] == "HEAD" else body

    # Differences from guests' connections

    def _connection(self, client: Any, claim: Claim, began: float) -> AdminConnection:
        return AdminConnection(client, claim, self, began=began)

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
