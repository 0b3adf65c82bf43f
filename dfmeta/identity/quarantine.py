"""Numbers of the host that no new guest gets for a while, because their former guest used them.

A number *rests* after its guest has left: :data:`~dfmeta.identity.slot_allocator.REST` seconds from
the end of the first comparison of all flows (a *sweep*) that began after the guest had left. Until
that end the switch may have flows that give the number to frames from the former guest's port, such
as those of the port's next guest.

A number is *kept* after a start of the daemon for the guest that used it in the previous run, until
the guest uses it again or it would have rested.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from dfmeta.identity.slot_allocator import REST
from dfmeta.model import Endpoint, PortId


class _Rest(NamedTuple):
    sweep: int
    """The latest sweep that had begun when the guest left."""
    port: PortId | None
    """The port whose guest had the number, if it is known."""


class Rests:
    """Resting and kept numbers; none is both.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resting: OrderedDict[int, _Rest] = OrderedDict()
        """In the order of their sweeps."""
        self._kept: dict[int, Endpoint] = {}
        """Number → the endpoint whose guest it is kept for."""
        self._kept_at: dict[Endpoint, set[int]] = {}
        """The inverse of it."""
        self._kept_until = math.inf
        self._begun = 0
        """The latest sweep that has begun."""
        self._ended: deque[tuple[float, int]] = deque()
        """Times, and the sweeps that ended :data:`~dfmeta.identity.slot_allocator.REST` seconds
        before."""
        self._rested = 0
        """The latest sweep that ended so long ago: rests that were in progress before are over."""

    def lay(self, number: int, port: PortId | None) -> None:
        """Let a number rest, from now on.

        :param port: the port whose guest had it; None: not known.
        """
        self.take(number)
        self._resting[number] = _Rest(self._begun, port)
        self._resting.move_to_end(number)

    def keep(self, number: int, endpoint: Endpoint) -> None:
        """Keep a number, unless it rests, for the present guest of *endpoint*."""
        if number not in self._resting:
            self._kept[number] = endpoint
            self._kept_at.setdefault(endpoint, set()).add(number)

    def take(self, number: int) -> None:
        """Keep a number no more, because its guest uses it."""
        endpoint = self._kept.pop(number, None)
        if endpoint is not None:
            self._kept_at[endpoint].discard(number)

    def wake(self) -> list[int]:
        """Return the numbers that have rested, or need not be kept any more, and forget them."""
        now, over = self._clock(), []
        while self._ended and self._ended[0][0] <= now:
            self._rested = max(self._rested, self._ended.popleft()[1])
        while self._resting:
            number, rest = next(iter(self._resting.items()))
            if rest.sweep >= self._rested:
                break
            self._resting.popitem(last=False)
            over.append(number)
        if self._kept_until <= now:
            over += self._kept
            self._kept, self._kept_at = {}, {}
        return over

    def begin_sweep(self) -> int:
        """See :meth:`~dfmeta.identity.slot_allocator.Allotment.begin_sweep`."""
        self._begun += 1
        return self._begun

    def end_sweep(self, sweep: int) -> None:
        """See :meth:`~dfmeta.identity.slot_allocator.Allotment.end_sweep`."""
        until = self._clock() + REST
        self._ended.append((until, sweep))
        self._kept_until = min(self._kept_until, until)

    def resting(self) -> Collection[int]:
        """Return the numbers that rest."""
        return self._resting.keys()

    def kept_at(self, endpoint: Endpoint) -> list[int]:
        """Return the numbers that are kept for the guest of *endpoint*."""
        return sorted(self._kept_at.get(endpoint, ()))

    def port_of(self, number: int) -> PortId | None:
        """Return the port whose guest had a resting number; None if it is not known."""
        rest = self._resting.get(number)
        return rest.port if rest is not None else None

    def allows(self, number: int, endpoint: Endpoint | None) -> bool:
        """Return whether a number neither rests nor is kept for another endpoint's guest."""
        return number not in self._resting and self._kept.get(number, endpoint) == endpoint

    def __contains__(self, number: int) -> bool:
        return number in self._resting or number in self._kept

    def __iter__(self) -> Iterator[int]:
        yield from self._resting
        yield from self._kept
