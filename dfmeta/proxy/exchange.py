"""One request of a guest, from its head to its answer, as a value.

The server makes it, an application answers it. Its fields are ours but for ``request``, which is
the guest's word.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dfmeta import metrics
from dfmeta.model import Answer, GuestRequest
from dfmeta.registry import Claim

_UNREAD = frozenset({"content-length", "transfer-encoding"})
"""Headers that say that there is a body (RFC 9112, 6.3)."""


class Abandoned(BaseException):
    """The connection is to be closed without an answer.

    Not an :class:`Exception`, since no handler of those may make an answer of it.
    """

    def __init__(self, reason: metrics.Closed) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and the conditions of its answer."""

    claim: Claim
    """The port that it came in on, and the guest that had it then."""
    request: GuestRequest
    """Without its body until :meth:`whole`."""
    deadline: float
    """Monotonic seconds until which it may wait."""
    turn: Callable[[float], bool]
    """Waits for its place among the requests of its port, until those monotonic seconds; gives
    whether it has one. See :class:`Turn`."""
    read: Callable[[], bytes]
    """Reads its body; raises BadRequestError."""

    def whole(self) -> Exchange:
        """Return it with its body. The time that the body takes to come is added to the deadline.

        :raises BadRequestError: as :attr:`read` does.
        """
        if _UNREAD.isdisjoint(self.request.headers):
            return self
        begun = time.monotonic()
        request = replace(self.request, body=self.read())
        return replace(self, request=request, deadline=self.deadline + time.monotonic() - begun)


Handler = Callable[[Exchange], Answer]
"""Answers a request; raises Abandoned when nothing may be answered."""


class Slots(Protocol):
    """A port's places for requests, as eventlet's semaphore has them."""

    def acquire(self, blocking: bool = ..., timeout: float | None = ...) -> bool:
        """Take one; False when there was none in time."""
        ...

    def release(self, *args: Any) -> Any:
        """Give one back."""
        ...


class Turn:
    """A request's place among those of its port, until its answer has been taken."""

    def __init__(self, slots: Slots) -> None:
        self._slots: Slots = slots
        self._taken = False

    def __call__(self, deadline: float) -> bool:
        """Take the place, and wait for it until *deadline* (monotonic); False when none came."""
        self._taken = self._slots.acquire(blocking=False)
        if not self._taken:
            metrics.LIMITS.labels("requests_per_port").inc()
            metrics.HELD_REQUESTS.labels("port").inc()
            left = max(deadline - time.monotonic(), 0.001)
            self._taken = self._slots.acquire(timeout=left)
        return self._taken

    def end(self) -> None:
        """Give it back, if it was taken."""
        if self._taken:
            self._slots.release()
