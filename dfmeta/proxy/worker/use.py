"""Which addresses have connections, told to whoever decides which of them gives way."""

from __future__ import annotations

from typing import Protocol

Place = tuple[int, int, int, int]
"""Ofport, VID, slot and epoch of an address."""


class Tell(Protocol):
    """Told of an address that has connections now, or has had none for a while."""

    def __call__(self, place: Place, *, used: bool) -> None:
        """Note it."""
        ...


class Use:
    """Counts connections by address, and tells of the first at once and of the last late.

    A guest that opens one after the other is told of once, and not twice for each.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._counts: dict[Place, int] = {}
        self._since_review: set[Place] = set()
        """Used since the last review, so that they stay until the next."""

    def count(self, place: Place, change: int) -> None:
        """Count a connection that begins (1) or ends (-1)."""
        before = self._counts.get(place)
        if before is None:
            self._tell(place, used=True)
        self._counts[place] = (before or 0) + change
        self._since_review.add(place)

    def review(self) -> None:
        """Tell of the addresses that have had no connection since the last time."""
        gone = [
            place
            for place, count in self._counts.items()
            if not count and place not in self._since_review
        ]
        self._since_review.clear()
        for place in gone:
            del self._counts[place]
            self._tell(place, used=False)
