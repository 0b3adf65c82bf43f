"""One request to a server, from its head to its answer, as a value.

The server creates it, an application answers it. Trust: only the field ``request`` comes from the
client.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from dfmeta import metrics, model
from dfmeta.runtime import clock, threads

_UNREAD = frozenset({"content-length", "transfer-encoding"})
"""Headers that announce a body (RFC 9112, 6.3)."""


Ends = tuple[tuple[IPv4Address | IPv6Address, int], ...]
"""Address and port of the client, and of this side."""


class ClientClaim(Protocol):
    """The client that a connection was accepted for, as far as the server needs it."""

    @property
    def caller(self) -> model.Caller:
        """The port or address whose share of connections and requests it has."""

    @property
    def vm(self) -> str:
        """The virtual machine whose share of all connections it counts to; empty: none."""

    @property
    def sharer(self) -> Hashable:
        """Whoever it shares turns with."""

    @property
    def ip(self) -> str:
        """The client's address."""

    @property
    def name(self) -> str:
        """Its name in the log."""


K = TypeVar("K", bound=ClientClaim)


class Abandoned(BaseException):
    """The connection is to be closed without an answer.

    Not an :class:`Exception`, so that no handler of exceptions turns it into an answer.
    """

    def __init__(self, reason: metrics.Closed) -> None:
        self.reason = reason
        super().__init__(reason)


class Exchange(NamedTuple, Generic[K]):
    """One request and the conditions of its answer."""

    claim: K
    """The client that the connection was accepted for."""
    request: model.GuestRequest
    """The request; :meth:`whole` adds its body."""
    deadline: float
    """Monotonic seconds until which the request may wait."""
    acquire: Callable[[float], bool]
    """Wait for a slot among the requests of its port, until those monotonic seconds; return whether
    there was one. See :class:`RequestSlot`."""
    read: Callable[[int], bytes]
    """Read the body, of at most that many bytes, or of at most the configured number where that is
    0; raise BadRequestError."""
    limit_hops: Callable[[int], object]
    """Give everything that is sent on the connection from now on that hop limit. May raise
    OSError."""
    source_port: int = 0
    """TCP port that the client sends from; 0: unknown."""
    ends: Callable[[], Ends] = lambda: ()
    """Return both ends of the connection; empty if the client has disconnected."""

    def whole(self, most: int = 0) -> Self:
        """Return the exchange with its body; the time to read the body is added to the deadline.

        :param most: largest size of the body in bytes; 0: the configured size.
        :raises BadRequestError: as :attr:`read` does.
        """
        if _UNREAD.isdisjoint(self.request.headers):
            return self
        begun = clock.now()
        request = replace(self.request, body=self.read(most))
        return self._replace(request=request, deadline=self.deadline + clock.now() - begun)


Handler = Callable[[Exchange[K]], model.Answer]
"""Answer a request; raise Abandoned to close its connection without an answer."""


class RequestSlot:
    """A request's place among those of its port; it lasts until the answer has been sent."""

    def __init__(self, slots: threads.Semaphore) -> None:
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
