"""Counts by guest: connections that the proxy has accepted, first SYNs at the controller.

Beside the SYNs that the switch has counted (:mod:`dfmeta.experience`) connections tell a guest
whose SYNs arrive and come to nothing. A worker keeps what it has not told the daemon yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from dfmeta.model import Caller, Endpoint

PORTS: Final = 8192
"""Guests that are remembered; the one that was counted longest ago falls out."""


class GuestCounts:
    """By endpoint: how many, of its guest of today."""

    def __init__(self, *, ports: int = PORTS) -> None:
        self._most = ports
        self._counts: OrderedDict[Caller, tuple[int, int]] = OrderedDict()
        """Caller → incarnation of its guest, and how many."""

    def add(self, caller: Caller, incarnation: int, count: int = 1) -> None:
        """Count *count* more of that guest."""
        known, before = self._counts.get(caller, (incarnation, 0))
        self._counts[caller] = incarnation, count + (before if known == incarnation else 0)
        self._counts.move_to_end(caller)
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def of(self, caller: Caller, incarnation: int) -> int:
        """How many that guest has had."""
        known, count = self._counts.get(caller, (incarnation, 0))
        return count if known == incarnation else 0

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Give away all that there is, as values that JSON has; see :meth:`merge`."""
        taken, self._counts = self._counts, OrderedDict()
        return [[*caller, *counted] for caller, counted in taken.items()]

    def merge(self, told: Iterable[Any], current: Callable[[Endpoint], int | None]) -> None:
        """Add what a worker has given away.

        :param current: gives the incarnation of the guest that is there now; what is of another is
            dropped.
        """
        for ofport, vid, incarnation, count in told:
            endpoint = Endpoint(ofport, vid)
            if current(endpoint) == incarnation:
                self.add(endpoint, incarnation, count)


ACCEPTED: Final = GuestCounts()
"""Connections that this process has accepted."""
