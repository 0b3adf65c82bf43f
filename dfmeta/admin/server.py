"""The admin listener's server: that of :mod:`dfmeta.http`, with bounds for local clients.

It runs in the guests' thread, and any local user can reach it. So its resources are limited: all
clients together share one guest's part of a round of the hub; a number of connections; a number of
bytes in memory. If a limit is reached, connections that wait for their client are closed in favour
of others, the longest wait first, so that silent clients cannot block the listener.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import webob

from dfmeta import metrics
from dfmeta.admin.connection import TURNS, AdminClaim, AdminClaims, AdminConnection, AdminMemory
from dfmeta.errors import BadRequestError, BodyFault, HeadFault
from dfmeta.http.exchange import Exchange
from dfmeta.http.http1 import HeadLimits
from dfmeta.http.limits import Limits
from dfmeta.http.server import HttpServer
from dfmeta.http.service import HttpService
from dfmeta.model import Answer, Caller
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.throttle import ALL_GUESTS, Together

LOG = logging.getLogger(__name__)

SILENCE: Final = 60.0
"""Seconds that a client may keep a body, or a connection between two requests, without a byte."""
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
SAME_HOST: Final = "dfmeta.same_host"
"""Environment key: whether a request comes from this host."""
ENDS: Final = "dfmeta.ends"
"""Environment key: address and port of the client, and those of the admin listener that it has
connected to; empty if the client has disconnected."""

AdminHandler = Callable[[webob.Request], webob.Response]


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
        self._complaints = Together(LOG)
        service = HttpService(self._answer, AdminObserver(self._sweep_on), limits=limits)
        self._limiter, self._scheduler = service.limiter, service.scheduler
        self.memory = AdminMemory(service.limiter)
        metrics.ADMIN_CONNECTIONS.set_function(service.limiter.__len__)
        self._server = HttpServer(
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
            threads.sleep(GRACE)
            for caller in self._limiter.crowded():
                self._make_way(caller, clock.now() - GRACE)
        self._sweeper = None

    def _make_way(self, caller: Caller, until: float) -> None:
        for _ in range(self._limiter.awaited(caller)):
            if not self.memory.end_longest(lambda idle: idle.since <= until, caller):
                break

    def _answer(self, exchange: Exchange[AdminClaim]) -> Answer:
        self._scheduler.acquire(TURNS)
        try:
            response = self._application(request_of(exchange))
            return Answer(response.status_int, response.body, "", tuple(response.headerlist))
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
                ascii(exchange.request.path[:PATH_SHOWN]),
                type(error).__name__,
                level=logging.ERROR,
                exc_info=True,
            )
        return Answer(500, b'{"message": "internal server error"}', "application/json")


class AdminObserver:
    """Counts what happens to the admin listener's connections.

    :param crowded: called when a connection waits for a place.
    """

    def __init__(self, crowded: Callable[[], None]) -> None:
        self._crowded = crowded

    def accepted(self, claim: AdminClaim) -> None:
        """See :class:`~dfmeta.http.service.ConnectionObserver`; this is no metric."""

    def closed(self, reason: metrics.Closed) -> None:
        """See :class:`~dfmeta.http.service.ConnectionObserver`."""
        match reason:
            case "too_many" | "defect":  # no claim here is unknown or changes
                metrics.ADMIN_REFUSED.labels(reason).inc()

    def limited(self, limit: metrics.Limit) -> None:
        """See :class:`~dfmeta.http.service.ConnectionObserver`."""
        metrics.ADMIN_REFUSED.labels("not_read" if limit == "send_timeout" else "crowded").inc()
        if limit == "connections_per_port":
            self._crowded()

    def silent(self, claim: AdminClaim) -> None:
        """See :class:`~dfmeta.http.service.ConnectionObserver`."""
        del claim
        metrics.ADMIN_REFUSED.labels("silent").inc()

    def refused(self, claim: AdminClaim, status: int, reason: HeadFault | BodyFault) -> None:
        """See :class:`~dfmeta.http.service.ConnectionObserver`."""
        del claim, status
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
