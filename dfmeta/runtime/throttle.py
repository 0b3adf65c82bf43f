"""Pauses after failures (:class:`Backoff`), and a rate limit for repeated log lines.

A server, a source or a query that failed rests before the next try; without that each caller of a
dead server would wait for its time limit. Callers use another one meanwhile, or get the failure
again at once. After the rest tries are allowed again: the first of them that fails begins the next
rest, which may be longer, and one that succeeds ends the series.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from dfmeta.runtime import clock

QUIET: Final = 60.0
"""Seconds after a log line in which similar lines are only counted."""


class Backoff:
    """The rest of one thing after its failures. All times are monotonic seconds.

    It neither waits nor reads a clock, and does not limit the number of tries after a rest: a
    caller that allows only one holds a lock of its own.

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


class Seldom:
    """Logs the first of many similar lines, and counts those that follow within a minute.

    :param lines: maximum number of lines in a minute.
    :param clock: monotonic seconds.
    """

    def __init__(self, lines: int = 1, *, clock: Callable[[], float] = clock.now) -> None:
        self._lines, self._clock = lines, clock
        self._since = float("-inf")
        self._logged = self._held = 0

    def take(self) -> int | None:
        """Return the number of lines suppressed before this one; None: suppress this one too."""
        now = self._clock()
        if now - self._since >= QUIET:
            self._since, self._logged = now, 0
        if self._logged >= self._lines:
            self._held += 1
            return None
        self._logged += 1
        held, self._held = self._held, 0
        return held

    def warn(self, log: logging.Logger, message: str, *values: object) -> None:
        """Log at WARNING, unless the line is to be suppressed."""
        held = self.take()
        if held is not None:
            message += counted(held)
            log.warning(message, *values)


def counted(held: int) -> str:
    """Return the suffix of a line that reports *held* suppressed lines; empty for 0."""
    return f" (and {held} more like it since it was last logged)" if held else ""
