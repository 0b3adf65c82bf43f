"""The guest of an endpoint, its addresses' slots, and counts for it."""

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.model import Caller, Endpoint, GuestAddress, Identity, NextHop, PeerAddress, Port
from dfmeta.runtime.throttle import PORTS

DISPLACED_AT_ONCE = 16
DISPLACED_PER_SECOND = 4.0
"""Limits on evictions of an endpoint's addresses: a guest that invents a source address for each
packet cannot make the switch change more flows than that."""
EXPECTED = 2.9
"""Seconds after its first SYN was sent on, during which an address without a connection is not
evicted: the connection may be established already and wait to be accepted, on a busy host for more
than a second. A guest repeats a SYN after 1 s and after 3 s."""


@dataclass(slots=True)
class Slot:
    """One address of an endpoint that is in use."""

    address: GuestAddress
    epoch: int
    last_used: float
    connections: int = 0
    expected_until: float = 0.0
    """Until when the connection of its first SYN is expected; 0.0: it has been accepted."""

    def idle(self, now: float) -> bool:
        """Return whether it has neither an open nor an expected connection."""
        return not self.connections and self.expected_until <= now


@dataclass(frozen=True, slots=True)
class Learned:
    """Slot of an address at its endpoint."""

    slot: int
    new: bool
    """Whether the address is new, so that its flows are not on the switch yet."""
    displaced: GuestAddress | None = None
    """The address that was evicted for it."""
    epoch: int = field(default=0, compare=False)
    """Number that stays the same as long as the address has the slot."""


@dataclass(slots=True)
class Guest:
    """The guest of an endpoint, and its addresses there."""

    port: Port
    endpoint: Endpoint
    identity: Identity | None
    slots: dict[int, Slot] = field(default_factory=dict)
    first_syns: int = 0
    """Packet-ins of SYNs while its instance was known."""
    room: float = DISPLACED_AT_ONCE
    """Number of evictions that were allowed at ``room_at``."""
    room_at: float = 0.0
    next_hops: tuple[NextHop, ...] = ()
    """Those of its port; while these are not known, those that an earlier run has left on the
    switch."""

    def __post_init__(self) -> None:
        self.put(self.port)

    def put(self, port: Port) -> None:
        """Take the present data of its port."""
        self.port = port
        if port.next_hops is not None:
            self.next_hops = port.next_hops

    def admits(self, address: GuestAddress) -> bool:
        """Return whether the guest is served at *address*, which is untrusted."""
        return self.identity is not None and self.port.only_mac in ("", address.mac)

    def may_displace(self, now: float) -> bool:
        """Return whether one more eviction is allowed, and count it if so (a token bucket)."""
        grown = self.room + max(0.0, now - self.room_at) * DISPLACED_PER_SECOND
        self.room, self.room_at = min(grown, DISPLACED_AT_ONCE), now
        if self.room < 1:
            return False
        self.room -= 1
        return True

    def longest_idle(self, numbers: Container[int], now: float) -> int | None:
        """Return the least recently used of the slots *numbers* without an open or an expected
        connection; None if there is none."""
        idle = [
            (slot.last_used, number)
            for number, slot in self.slots.items()
            if number in numbers and slot.idle(now)
        ]
        return min(idle)[1] if idle else None


@dataclass(frozen=True, slots=True)
class Claim:
    """The guest that a connection was accepted for.

    Valid while :meth:`~dfmeta.identity.registry.Registry.holds` is true.
    """

    identity: Identity
    caller: Caller
    slot: int
    epoch: int
    address: GuestAddress | PeerAddress

    @property
    def name(self) -> str:
        """The port's name, for the log."""
        return self.identity.port_name

    @property
    def ip(self) -> str:
        """The guest's address."""
        return str(self.address.ip)

    @property
    def vm(self) -> str:
        """The virtual machine that the port belongs to; empty: unknown."""
        return self.identity.vm

    @property
    def sharer(self) -> Hashable:
        """The virtual machine whose share the connection counts to; without one, the caller."""
        return self.identity.vm or self.caller

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint of the caller.

        :raises TypeError: if the caller is identified by its address only.
        """
        if not isinstance(self.caller, Endpoint):
            raise TypeError(f"{self.caller} is not at a port")
        return self.caller


KEPT = 1024
"""Maximum number of times that are kept for the proxy."""


class SynHoldTimes:
    """Caller and source port → seconds that the SYN was held."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[Caller, int], float] = OrderedDict()

    def note(self, endpoint: Endpoint, source_port: int, seconds: float) -> None:
        """Store the time of one SYN; above :data:`KEPT`, the oldest entry is dropped."""
        self._seconds[endpoint, source_port] = seconds
        while len(self._seconds) > KEPT:
            self._seconds.popitem(last=False)

    def take(self, endpoint: Caller, source_port: int) -> float:
        """Return and forget one time; 0.0 if there is none."""
        return self._seconds.pop((endpoint, source_port), 0.0)

    def take_all(self, endpoint: Endpoint) -> list[tuple[int, float]]:
        """Return and forget all times of *endpoint*: source ports and seconds."""
        keys = [key for key in self._seconds if key[0] == endpoint] if self._seconds else []
        return [(key[1], self._seconds.pop(key)) for key in keys]


class GuestCounts:
    """Counter for the present guest of each endpoint."""

    def __init__(self, *, ports: int = PORTS) -> None:
        self._most = ports
        self._counts: OrderedDict[Caller, tuple[int, int]] = OrderedDict()
        """Caller → incarnation of its guest, and its count."""

    def add(self, caller: Caller, incarnation: int, count: int = 1) -> None:
        """Add *count* to the counter of that guest."""
        counted, before = self._counts.get(caller, (incarnation, 0))
        self._counts[caller] = incarnation, count + (before if counted == incarnation else 0)
        self._counts.move_to_end(caller)
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def of(self, caller: Caller, incarnation: int) -> int:
        """Return the count of that guest."""
        counted, count = self._counts.get(caller, (incarnation, 0))
        return count if counted == incarnation else 0

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Return all counts as JSON values, and reset them; see :meth:`merge`."""
        taken, self._counts = self._counts, OrderedDict()
        return [[*caller, *counted] for caller, counted in taken.items()]

    def merge(self, counts: Iterable[Any], current: Callable[[Endpoint], int | None]) -> None:
        """Add the counts that a worker returned from :meth:`take`.

        :param current: returns the incarnation of the endpoint's present guest; counts of another
            incarnation are dropped.
        """
        for ofport, vid, incarnation, count in counts:
            endpoint = Endpoint(ofport, vid)
            if current(endpoint) == incarnation:
                self.add(endpoint, incarnation, count)


ACCEPTED: Final = GuestCounts()
"""Connections that this process has accepted, for each guest."""
