"""Which addresses have connections, told to whoever decides which of them gives way."""

from __future__ import annotations

from typing import Protocol

SlotUse = tuple[int, int, int, int]
"""Ofport, VID, slot and epoch of an address."""


class Tell(Protocol):
    """Told of an address that has connections now, or has had none for a while."""

    def __call__(self, slot: SlotUse, *, used: bool) -> None:
        """Note it."""
        ...


class Use:
    """Counts connections by address, and tells of the first at once and of the last late.

    A guest that opens one after the other is told of once, and not twice for each.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._counts: dict[SlotUse, int] = {}
        self._since_review: set[SlotUse] = set()
        """Used since the last review, so that they stay until the next."""

    def count(self, slot: SlotUse, change: int) -> None:
        """Count a connection that begins (1) or ends (-1)."""
        before = self._counts.get(slot)
        if before is None:
            self._tell(slot, used=True)
        self._counts[slot] = (before or 0) + change
        self._since_review.add(slot)

    def review(self) -> None:
        """Tell of the addresses that have had no connection since the last time."""
        gone = [
            slot
            for slot, count in self._counts.items()
            if not count and slot not in self._since_review
        ]
        self._since_review.clear()
        for slot in gone:
            del self._counts[slot]
            self._tell(slot, used=False)
