"""The pause after a failure: a server, a source or a query that failed rests before the next try.

Without it each caller of a dead server would wait for its time limit. A thing that fails rests for
some seconds, and callers use another one, or get the failure again at once. When the rest is over,
tries are allowed again: the first of them that fails begins the next rest, which may be longer, and
one that succeeds ends the series.

A :class:`Backoff` neither waits nor reads a clock, and it does not limit the number of tries after
a rest: a caller that allows only one holds a lock of its own.
"""

from __future__ import annotations

import math


class Backoff:
    """The rest of one thing after its failures. All times are monotonic seconds.

    :param first: seconds of the first rest.
    :param most: each rest of a series is twice as long as the one before, up to this; None: all
        have the length of the first.
    """

    __slots__ = ("_failures", "_first", "_most", "until")

    def __init__(self, first: float, most: float | None = None) -> None:
        self._first, self._most = first, first if most is None else most
        self._failures = 0
        self.until = -math.inf
        """The end of the latest rest."""

    def rests(self, now: float) -> bool:
        """Return whether it rests; no longer at the very end of the rest."""
        return now < self.until

    def failed(self, now: float) -> None:
        """Begin a rest. One in progress is replaced, so that it lasts longer."""
        # A power is bounded before it is computed: a float overflows after 1,024 failures.
        self.until = now + min(self._most, self._first * 2.0 ** min(self._failures, 64))
        self._failures += 1

    def reset(self) -> None:
        """Give the next rest the first length again. A rest in progress goes on."""
        self._failures = 0

    def succeeded(self) -> None:
        """End the rest and the series."""
        self._failures, self.until = 0, -math.inf
