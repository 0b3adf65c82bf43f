"""The time that a guest has for an answer. No I/O, no clock.

A guest behind a slow link reads a large answer slowly, and gets all of it. A guest that stops
reading, or reads slowly on purpose, holds the answer's memory for a limited time only.
"""

from __future__ import annotations

from typing import Final

FLOOR: Final = 1024.0
"""Bytes per second that a guest reads at least, on average."""


class Progress:
    """The progress of one answer.

    :param now: monotonic seconds.
    :param patience: seconds without progress after which the guest has no time left, and seconds
        that it has in addition to those of :data:`FLOOR`.
    """

    def __init__(self, *, now: float, patience: float) -> None:
        self._begun = self._last = now
        self._patience = patience
        self._taken = 0

    def left(self, taken: int, *, now: float) -> float:
        """Return the seconds that are left until the next progress; 0 or less: none.

        :param taken: bytes of the answer that the guest's host has acknowledged.
        """
        if taken > self._taken:
            self._taken, self._last = taken, now
        slowest = self._begun + self._taken / FLOOR
        return min(self._last, slowest) + self._patience - now
