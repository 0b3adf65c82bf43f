"""Report the addresses that have connections, so that the daemon does not evict their slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dfmeta.runtime import clock

SlotUse = tuple[int, int, int, int]
"""Ofport, VID, slot and epoch of an address."""


class Tell(Protocol):
    """Called for an address that has connections now, or has had none for a while."""

    def __call__(self, slot: SlotUse, *, used: bool, at: float) -> None:
        """Note whether the address has connections.

        :param at: time of the latest beginning or end of one, monotonic seconds, which all
            processes of a host share.
        """
        ...


class Use:
    """Counts connections by address; reports the first at once and the end of the last late.

    A guest that opens connections one after the other is reported once, not twice for each of them.

    :param clock: monotonic seconds.
    """

    def __init__(self, tell: Tell, *, clock: Callable[[], float] = clock.now) -> None:
        self._tell = tell
        self._clock = clock
        self._counts: dict[SlotUse, int] = {}
        self._latest: dict[SlotUse, float] = {}
        self._since_review: set[SlotUse] = set()
        """Addresses used since the last review; they are kept until the next one."""

    def count(self, slot: SlotUse, change: int) -> None:
        """Count a connection that begins (1) or ends (-1)."""
        before = self._counts.get(slot)
        self._latest[slot] = self._clock()
        if before is None:
            self._tell(slot, used=True, at=self._latest[slot])
        self._counts[slot] = (before or 0) + change
        self._since_review.add(slot)

    def review(self) -> None:
        """Report the addresses that have had no connection since the last review."""
        gone = [
            slot
            for slot, count in self._counts.items()
            if not count and slot not in self._since_review
        ]
        self._since_review.clear()
        for slot in gone:
            del self._counts[slot]
            self._tell(slot, used=False, at=self._latest.pop(slot))
