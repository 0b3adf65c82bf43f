"""Rate limit for repeated log lines: once a minute, so that the log does not fill the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dfmeta.runtime import clock

QUIET: Final = 60.0
"""Seconds after a log line in which similar lines are only counted."""


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
