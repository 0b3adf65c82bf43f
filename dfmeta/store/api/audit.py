"""The audit of the admin API: one line for each change of a record, and for each refused client.

A line names the method, the path, the instance, the client's token or subject, its address and the
status of the answer; never a body, a query or a part of a token.

Trust: of a request, only the method and path of a route, an id that is a UUID and the name of a
verified client are written. A client without a token can send any number of requests: the lines of
refused clients are limited, and the omitted ones are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import webob

from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Seldom
from dfmeta.store.api.routes import Route

LOG = logging.getLogger(__name__)

REFUSED: Final = (401, 403)
"""Statuses of a refused client (RFC 9110, 15.5.2 and 15.5.4)."""
REFUSALS: Final = 60
"""Maximum number of lines of refused clients in a minute."""
NOT_KNOWN: Final = "an unknown client"


@dataclass(slots=True)
class AuditedCall:
    """One request, and the facts about it for its line."""

    request: webob.Request
    route: Route | None = None
    """None: the path is unknown, or does not have the method."""
    record_id: str = ""
    """In lower case; empty: not known."""
    client: str = NOT_KNOWN


class Audit:
    """Writes the lines of the audit.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.now) -> None:
        self._seldom = Seldom(REFUSALS, clock=clock)

    def note(self, call: AuditedCall, status: int) -> None:
        """Write the line of a request that is for a change or is refused; others have none.

        :param status: of the answer.
        """
        route = call.route
        if route is None or not (route.changes or status in REFUSED):
            return
        level = logging.INFO
        if status in REFUSED:
            level = logging.WARNING
            held = self._seldom.take()
            if held is None:
                return
            if held:
                LOG.warning("Audit: %d more requests of refused clients had no line", held)
        LOG.log(
            level,
            "Audit: %s %s, instance %s, by %s from %s: %d",
            call.request.method,
            route.path,
            call.record_id or "unknown",
            call.client,
            call.request.remote_addr or "unknown",
            status,
        )
