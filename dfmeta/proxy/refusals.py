"""How often a port may have a connection that is closed with something unread.

Such an end costs more than an answer: the next request needs a connection, which is accepted, read
and refused anew. So the connection keeps its place among its port's until the port is within its
share. A guest that makes a mistake now and then never waits.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dfmeta.model import Caller

AT_ONCE: Final = 64
PER_SECOND: Final = 32.0
"""Connections of a port that end so without a pause, and for how many more each second has room."""
LONGEST: Final = 1.0
"""Seconds that a connection keeps its place at most."""


class Refusals:
    """Shares of ports.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: OrderedDict[Caller, float] = OrderedDict()
        """Port → when its share is whole again, by the latest end."""

    def pause(self, caller: Caller) -> float:
        """Count an end; return the seconds for which the connection keeps its place."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        until = max(self._until.get(caller, now), now) + 1 / PER_SECOND
        pause = min(max(until - now - AT_ONCE / PER_SECOND, 0.0), LONGEST)
        # What was not waited for is not owed: else a flood would be felt long after its end.
        self._until[caller] = min(until, now + AT_ONCE / PER_SECOND + LONGEST)
        self._until.move_to_end(caller)
        return pause

    def forget(self, caller: Caller) -> None:
        """Let a port begin anew: it is another guest's."""
        self._until.pop(caller, None)
