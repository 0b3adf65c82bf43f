"""One request of a guest, from its head to its answer, as a value.

The server creates it, an application answers it. Trust: only the field ``request`` comes from the
guest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dfmeta import metrics
from dfmeta.identity.registry import Claim
from dfmeta.model import Answer, GuestRequest
from dfmeta.runtime import clock
from dfmeta.runtime.threads import Semaphore

_UNREAD = frozenset({"content-length", "transfer-encoding"})
"""Headers that announce a body (RFC 9112, 6.3)."""


class Abandoned(BaseException):
    """The connection is to be closed without an answer.

    Not an :class:`Exception`, so that no handler of exceptions turns it into an answer.
    """

    def __init__(self, reason: metrics.Closed) -> None:
        self.reason = reason
        super().__init__(reason)


class Exchange(NamedTuple):
    """One request and the conditions of its answer."""

    claim: Claim
    """The guest that the connection was accepted for, with its port."""
    request: GuestRequest
    """The request; :meth:`whole` adds its body."""
    deadline: float
    """Monotonic seconds until which the request may wait."""
    turn: Callable[[float], bool]
    """Wait for the request's turn among those of its port, until those monotonic seconds; return
    whether it came. See :class:`Turn`."""
    read: Callable[[int], bytes]
    """Read the body, of at most that many bytes, or of at most the configured number where that is
    0; raise BadRequestError."""
    limit_hops: Callable[[int], object]
    """Give everything that is sent on the connection from now on that hop limit. May raise
    OSError."""
    source_port: Callable[[], int] = lambda: 0
    """Return the TCP port that the guest sends from; 0: not known. May raise OSError."""

    def whole(self, most: int = 0) -> Exchange:
        """Return the exchange with its body; the time to read the body is added to the deadline.

        :param most: largest size of the body in bytes; 0: the configured size.
        :raises BadRequestError: as :attr:`read` does.
        """
        if _UNREAD.isdisjoint(self.request.headers):
            return self
        begun = clock.now()
        request = replace(self.request, body=self.read(most))
        return self._replace(request=request, deadline=self.deadline + clock.now() - begun)


Handler = Callable[[Exchange], Answer]
"""Answer a request; raise Abandoned to close its connection without an answer."""


class Turn:
    """A request's place among those of its port; it lasts until the answer has been sent."""

    def __init__(self, slots: Semaphore) -> None:
        self._slots = slots
        self._taken = False

    def __call__(self, deadline: float) -> bool:
        """Take a place, waiting until *deadline* (monotonic); False when none became free."""
        self._taken = self._slots.acquire(blocking=False)
        if not self._taken:
            metrics.LIMITS.labels("requests_per_port").inc()
            metrics.HELD_REQUESTS.labels("port").inc()
            left = max(deadline - clock.now(), 0.001)
            self._taken = self._slots.acquire(timeout=left)
        return self._taken

    def end(self) -> None:
        """Return the place if it was taken."""
        if self._taken:
            self._slots.release()
