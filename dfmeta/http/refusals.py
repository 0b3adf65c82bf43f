"""Limit how often connections of a guest are closed with unread input.

Such an end costs more than an answer, since the next request needs a new connection, which is
accepted, read and refused again. So the connection keeps its place among those of its port until
the guest is within its share. A guest with occasional errors never waits. A guest here is a virtual
machine with its containers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from dfmeta.runtime import clock

AT_ONCE: Final = 64
PER_SECOND: Final = 32.0
"""Connections of a guest that may end in this way without a pause, and how many more per second."""
LONGEST: Final = 1.0
"""Longest time, in seconds, that a connection keeps its place."""


class Refusals:
    """Counts such ends by guest.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._until: OrderedDict[Hashable, float] = OrderedDict()
        """Guest → time at which its full share is available again, in the order of the last end."""

    def pause(self, guest: Hashable) -> float:
        """Count an end; return the seconds for which the connection keeps its place."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        until = max(self._until.get(guest, now), now) + 1 / PER_SECOND
        pause = min(max(until - now - AT_ONCE / PER_SECOND, 0.0), LONGEST)
        # Bounded: otherwise a flood would delay the connections of the guest, and of the next guest
        # at its port, long after its end.
        self._until[guest] = min(until, now + AT_ONCE / PER_SECOND + LONGEST)
        self._until.move_to_end(guest)
        return pause
