"""Counters for each guest: connections accepted by the proxy, first SYNs at the controller.

A comparison with the switch's counts of SYNs (:mod:`dfmeta.identity.syn_accounting`) shows guests
that send SYNs but get no connection. A worker keeps its counts until it sends them to the daemon.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from dfmeta.model import Caller, Endpoint

PORTS: Final = 8192
"""Maximum number of guests with a count; beyond it, the least recently counted one is dropped."""


class GuestCounts:
    """Counter for the present guest of each endpoint."""

    def __init__(self, *, ports: int = PORTS) -> None:
        self._most = ports
        self._counts: OrderedDict[Caller, tuple[int, int]] = OrderedDict()
        """Caller → incarnation of its guest, and its count."""

    def add(self, caller: Caller, incarnation: int, count: int = 1) -> None:
        """Add *count* to the counter of that guest."""
        known, before = self._counts.get(caller, (incarnation, 0))
        self._counts[caller] = incarnation, count + (before if known == incarnation else 0)
        self._counts.move_to_end(caller)
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def of(self, caller: Caller, incarnation: int) -> int:
        """Return the count of that guest."""
        known, count = self._counts.get(caller, (incarnation, 0))
        return count if known == incarnation else 0

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Return all counts as JSON values, and reset them; see :meth:`merge`."""
        taken, self._counts = self._counts, OrderedDict()
        return [[*caller, *counted] for caller, counted in taken.items()]

    def merge(self, told: Iterable[Any], current: Callable[[Endpoint], int | None]) -> None:
        """Add the counts that a worker returned from :meth:`take`.

        :param current: returns the incarnation of the endpoint's present guest; counts of another
            incarnation are dropped.
        """
        for ofport, vid, incarnation, count in told:
            endpoint = Endpoint(ofport, vid)
            if current(endpoint) == incarnation:
                self.add(endpoint, incarnation, count)


ACCEPTED: Final = GuestCounts()
"""Connections that this process has accepted, for each guest."""
