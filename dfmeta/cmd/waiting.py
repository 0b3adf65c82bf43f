"""A daemon's waiting at its start, in its log: at once silent, then a line every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

LOG = logging.getLogger(__name__)

BEGIN: Final = 1.0
"""Seconds of waiting that nobody has to know of."""
LINES: Final = 5.0
"""Seconds between two lines."""


class Waiting:
    """Says what is waited for.

    :param deadline: when it ends, monotonic seconds.
    :param clock: monotonic seconds.
    """

    def __init__(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._deadline = deadline
        self._next = self._begun + BEGIN

    def say(self, why: Callable[[], str]) -> None:
        """Log a line, if it is time.

        :param why: what is missing, for people.
        """
        now = self._clock()
        if now < self._next:
            return
        self._next = now + LINES
        left = self._deadline - now
        ends = f"giving up in {left:.0f} s" if left > 0 else "it is at work, and waited for"
        LOG.info("Waiting for %.0f s: %s; %s", now - self._begun, why(), ends)
