"""The service of one server: everything that its connections share.

Generic over the claim of a connection: the client that it was accepted for.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from dfmeta import metrics
from dfmeta.errors import BodyFault, HeadFault
from dfmeta.http.connection_limiter import ConnectionLimiter
from dfmeta.http.exchange import ClientClaim, Handler, K
from dfmeta.http.fairness import FairScheduler, RefusalThrottle
from dfmeta.http.limits import CROWDED, Limits
from dfmeta.model import Caller
from dfmeta.runtime import threads
from dfmeta.runtime.threads import Semaphore

K_contra = TypeVar("K_contra", bound=ClientClaim, contravariant=True)


class ConnectionObserver(Protocol[K_contra]):
    """Counts and logs what happens to connections, besides answered requests."""

    def accepted(self, claim: K_contra, /) -> None:
        """Count an accepted connection."""
        ...

    def closed(self, reason: metrics.Closed, /) -> None:
        """Count a connection that ends without an answer."""
        ...

    def limited(self, limit: metrics.Limit, /) -> None:
        """Count a connection that has reached a limit: it waits, is refused or is given up."""
        ...

    def silent(self, claim: K_contra, /) -> None:
        """Count a connection that sent nothing in time."""
        ...

    def refused(self, claim: K_contra, status: int, reason: HeadFault | BodyFault, /) -> None:
        """Count input that is not an acceptable request."""
        ...


class HttpService(Generic[K]):
    """The application of a server, its limits, and the places and turns of its connections.

    :param application: called for each request.
    :param hold_timeout: seconds that a request may wait in total, including the time that its first
        SYN was held.
    :param throttle: limits how often a client's connections are refused; None: no limit.
    """

    def __init__(
        self,
        application: Handler[K],
        observer: ConnectionObserver[K],
        *,
        limits: Limits,
        hold_timeout: float = 0.0,
        throttle: RefusalThrottle | None = None,
    ) -> None:
        self.application = application
        self.observer = observer
        self.hold_timeout = hold_timeout
        self.draining = False
        """Whether the server stops, so that no connection is kept."""
        self.limiter: ConnectionLimiter[Any] = ConnectionLimiter(
            limits, quiet=lambda connection: connection.may_go
        )
        self.scheduler = FairScheduler()
        self._throttle = throttle
        self._slots: dict[Caller, Semaphore] = {}

    @property
    def limits(self) -> Limits:
        """Limits of clients; new limits apply from the next connection and request on."""
        return self.limiter.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Replace the limits."""
        self.limiter.limits = limits
        self._slots.clear()

    def may_keep(self, claim: K, *, spared: bool) -> bool:
        """Whether a connection may be kept open after an answer.

        It is not when others of its port wait for a place: the answer says so.

        :param spared: its next request has to come on it.
        """
        limits = self.limits
        if not limits.keepalive_timeout or len(self.limiter) >= CROWDED * limits.connections:
            return False
        return spared or not self.limiter.awaited(claim.caller)

    def slots(self, claim: K) -> Semaphore:
        """Return the semaphore for requests of the claim's port."""
        slots = self._slots.get(claim.caller)
        if slots is None:
            slots = self._slots[claim.caller] = Semaphore(self.limits.requests_per_port)
        return slots

    def forget(self, caller: Caller) -> None:
        """Forget a port without connections."""
        self._slots.pop(caller, None)

    def throttle(self, sharer: Hashable) -> None:
        """Keep the place of a refused connection until its guest is within its share."""
        pause = self._throttle.pause(sharer) if self._throttle is not None else 0.0
        if pause and not self.draining:
            threads.sleep(pause)
