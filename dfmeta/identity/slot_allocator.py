"""The choice of slot numbers: which slot, and so which key, an address of a guest gets.

A number rests after its guest has left, before another guest gets it. Connections may still wait in
the listener's queue, and the kernel may still repeat segments of the old guest's answers, all with
the old key. So a key stands for one guest as long as any packet of it can be in transit.

:mod:`dfmeta.identity.host_wide_allocator` has the choice for numbers that are unique on the host.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dfmeta.identity.key import Keys
from dfmeta.identity.slots import Guest
from dfmeta.model import Endpoint, GuestAddress, MetaIds, Port

REST: Final = 120.0
"""Seconds that a slot rests after a change of its endpoint's guest, and a number that is unique on
the host after the switch has no flow with it any more: longer than Linux retransmits the last
segments of a closed connection."""

Addresses = Callable[[], Collection[IPv4Address | IPv6Address]]
"""Returns the addresses of the host itself, which cannot be keys."""


class SlotAllocator:
    """The choice of slot numbers, for keys that contain their endpoint: each endpoint has all slots
    of the scheme, and no number is unique on the host.

    The registry calls it on the hub, and no method waits. A number is *in use* from :meth:`take` to
    :meth:`drop` or :meth:`leave`.

    :param keys: the key scheme of the numbers.
    :param host_addresses: see :data:`Addresses`.
    :param clock: monotonic seconds.
    """

    def __init__(self, keys: Keys, host_addresses: Addresses, clock: Callable[[], float]) -> None:
        self.keys = keys
        self._host_addresses = host_addresses
        self._clock = clock
        self._resting: dict[Endpoint, dict[int, float]] = {}
        """Endpoint → its resting slots, and until when."""

    # Ports and guests

    def put(self, port: Port) -> None:
        """Note a port that is new or has changed."""

    def forget(self, port: Port) -> None:
        """Note that a port is gone; its guest has left before."""

    def enter(self, guest: Guest) -> None:
        """Note a guest that is new at its endpoint."""

    def leave(self, guest: Guest) -> None:
        """Let all numbers of *guest* rest, which leaves its endpoint."""
        if guest.slots:
            self.rest(guest.endpoint, guest.slots)

    # Numbers of addresses

    def pick(self, guest: Guest, version: int) -> int | None:
        """Return the number for one more address of *guest*; None if there is none."""
        taken, resting = self._host_addresses(), self._rests(guest.endpoint)
        free = [
            number
            for number in self.keys.slots(version)
            if number not in guest.slots and self.keys.key_of(guest.endpoint, number) not in taken
        ]
        rested = [number for number in free if number not in resting]
        if rested or not guest.slots.keys().isdisjoint(self.keys.slots(version)):
            return rested[0] if rested else None
        # All of them rest, after a new guest for each within two minutes: take the longest resting.
        return min(free, key=lambda number: resting[number], default=None)

    def may_adopt(self, guest: Guest, number: int, address: GuestAddress) -> bool:
        """Return whether *address* may have *number*, which it had in an earlier run, perhaps in
        another key scheme."""
        fits = number in self.keys.slots(address.ip.version)
        return fits and self.keys.key_of(guest.endpoint, number) not in self._host_addresses()

    def take(self, guest: Guest, number: int) -> None:
        """Note that an address of *guest* has *number* from now on."""

    def drop(self, guest: Guest, number: int) -> None:
        """Let a number rest that an address of *guest* has lost, although the guest stays."""
        self.rest(guest.endpoint, (number,))

    def user(self, number: int) -> Guest | None:
        """Return the guest that uses *number*; None: there is none, or the key shows it."""
        return None

    def conflicts(self, endpoint: Endpoint, number: int) -> bool:
        """Return whether an undesired flow of *endpoint* gives its frames a key that may be, or
        become, another guest's."""
        return False

    # Rest

    def rest(self, endpoint: Endpoint | None, numbers: Iterable[int]) -> None:
        """Let numbers rest, none of which is in use; see
        :meth:`~dfmeta.identity.registry.Registry.rest`."""
        if endpoint is not None:
            resting = self._resting.setdefault(endpoint, {})
            resting.update(dict.fromkeys(numbers, self._clock() + REST))

    def expect(self, endpoint: Endpoint, numbers: Iterable[int]) -> None:
        """Keep numbers for the guest of *endpoint*, which used them in the previous run.

        No other guest gets them before they have rested.
        """

    def resting(self) -> list[int]:
        """Return the numbers that rest on the whole host, for the state of the daemon."""
        return []

    def begin_sweep(self) -> None:
        """Note that the switch is now asked for all flows, to remove those that are not desired."""

    def end_sweep(self) -> None:
        """Note that the switch has confirmed all changes of the sweep that began last.

        The rest of a number that is unique on the host is counted from the end of a sweep that
        began after its guest had left: until then the switch may have flows with that number.
        """

    # First numbers of ports

    def first_key(self, port: Port, version: int = 4) -> IPv4Address | IPv6Address | None:
        """Return the key of the port's first address of *version*, used or not; None if none."""
        if port.endpoint is None:
            return None
        return self.keys.key_of(port.endpoint, self.keys.slots(version)[0])

    def assign_waiting(self) -> None:
        """Give waiting ports their numbers, as many as are free."""

    def pending_ovsdb_writes(self) -> dict[str, MetaIds]:
        """See :meth:`~dfmeta.identity.registry.Registry.pending_ovsdb_writes`."""
        return {}

    def ports_without_number(self) -> list[Port]:
        """See :meth:`~dfmeta.identity.registry.Registry.ports_without_number`."""
        return []

    def _rests(self, endpoint: Endpoint) -> Mapping[int, float]:
        """Return the slots of *endpoint* that still rest, and until when."""
        now, resting = self._clock(), self._resting.get(endpoint, {})
        for number in [number for number, until in resting.items() if until <= now]:
            del resting[number]
        if not resting:
            self._resting.pop(endpoint, None)
        return resting
