"""The guest of an endpoint and its addresses' slots."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfmeta.model import Endpoint, GuestAddress, Identity, Port

DISPLACED_AT_ONCE = 16
DISPLACED_PER_SECOND = 4.0
"""How many addresses of one endpoint may give way to others: a guest that makes up a source for
each packet costs the switch no more flows than that."""


@dataclass(slots=True)
class Slot:
    """One address of an endpoint, in use."""

    address: GuestAddress
    epoch: int
    last_used: float
    connections: int = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """Where an address stands among its endpoint's slots."""

    slot: int
    new: bool
    """Its flows are not on the switch yet."""
    displaced: GuestAddress | None = None
    """The address that gave way for it."""
    epoch: int = field(default=0, compare=False)
    """Stays the same for as long as the address has the slot."""


@dataclass(slots=True)
class Guest:
    """The guest of an endpoint, and its addresses there."""

    port: Port
    endpoint: Endpoint
    identity: Identity | None
    slots: dict[int, Slot] = field(default_factory=dict)
    room: float = DISPLACED_AT_ONCE
    """How many addresses may give way now."""
    room_at: float = 0.0
    """When that was so."""

    def may_displace(self, now: float) -> bool:
        """Whether one more may, and take it if so (a token bucket)."""
        grown = self.room + max(0.0, now - self.room_at) * DISPLACED_PER_SECOND
        self.room, self.room_at = min(grown, DISPLACED_AT_ONCE), now
        if self.room < 1:
            return False
        self.room -= 1
        return True

    def longest_idle(self) -> int | None:
        """The slot without an open connection that was used least lately."""
        idle = [
            (one.last_used, number) for number, one in self.slots.items() if not one.connections
        ]
        return min(idle)[1] if idle else None
