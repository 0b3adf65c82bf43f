"""Idle connections to a server, each of which belongs to one instance for as long as it is open.

A faulty balancer may send bytes behind an answer, and they may arrive when the connection is in use
again: they would be the answer to the next request (RFC 9112, 11.2). So the next request on a
connection is of the same instance. A guest that boots sends some 27 requests within seconds, and
uses its connection again; soon after, the connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from dfmeta.runtime import clock, threads

POOL_SIZE: Final = 128
"""Idle connections to each server, of all instances."""
OF_INSTANCE: Final = 8
"""Idle connections of one instance: as many as a port has requests at a time by default."""
IDLE: Final = 5.0
"""Seconds after which an idle connection is closed."""


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """The idle connections to one server. No method waits.

    :param later: calls a function after that many seconds.
    """

    def __init__(
        self, later: Callable[[float, Callable[[], None]], object] = threads.spawn_after
    ) -> None:
        self._later = later
        self._idle: OrderedDict[C, tuple[str, float]] = OrderedDict()
        """Connection → its instance and since when it is idle; the longest idle first."""
        self._of: dict[str, list[C]] = {}
        self._expects = False
        """Whether :meth:`_expire` will be called."""

    def __len__(self) -> int:
        return len(self._idle)

    def of(self, instance: str) -> list[C]:
        """Return the idle connections of an instance, the longest idle first."""
        return list(self._of.get(instance, ()))

    def take(self, instance: str) -> C | None:
        """Remove and return the connection of that instance that was used last; None: none."""
        there = self._of.get(instance)
        if not there:
            return None
        connection = there[-1]
        self._remove(connection)
        return connection

    def put(self, instance: str, connection: C) -> None:
        """Keep a connection of that instance; the longest idle one is closed if there are many."""
        present = self._of.get(instance, ())
        if len(present) >= OF_INSTANCE:
            self._close(present[0])
        elif len(self._idle) >= POOL_SIZE:
            self._close(next(iter(self._idle)))
        self._idle[connection] = instance, clock.now()
        self._of.setdefault(instance, []).append(connection)
        self._expect(IDLE)

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._close(next(iter(self._idle)))

    def _expect(self, seconds: float) -> None:
        if not self._expects:
            self._expects = True
            self._later(seconds, self._expire)

    def _expire(self) -> None:
        self._expects = False
        now = clock.now()
        while self._idle:
            connection, (_instance, since) = next(iter(self._idle.items()))
            if since + IDLE > now:
                self._expect(since + IDLE - now)
                return
            self._close(connection)

    def _close(self, connection: C) -> None:
        self._remove(connection)
        connection.close()

    def _remove(self, connection: C) -> None:
        instance, _since = self._idle.pop(connection)
        self._of[instance].remove(connection)
        if not self._of[instance]:
            del self._of[instance]
