"""The choice of numbers that are unique on the host: ``identity_scheme = meta_ip``.

Each port has a *first* number for each version of IP. It is reserved for the port's row, from the
first time that the port has an endpoint until the row is gone, and is kept in OVSDB. Further
addresses of a port, and all addresses of tagged subports, get further numbers, as long as enough
are left for new ports. A VM can have thousands of subports: those of one parent have a share.

A number that a guest has used rests before another guest gets it, be it on another port or the next
one of the same port: its addresses get further numbers while the port's first number rests. It does
so for :data:`~dfmeta.identity.slot_allocator.REST` seconds from the end of the first comparison of
all flows (a *sweep*) that began after the guest had left: until that end the switch may have flows
that give the number to frames of the former guest's port. A number is *kept* after a start of the
daemon for the guest that used it in the previous run, until the guest uses it again or it has
rested.

A number is busy while it is reserved, used by an address, kept for a guest that used it in the
previous run of the daemon, or resting; only other numbers are given.

Trust: the numbers in OVSDB are the operator's, but may be stale, doubled or invalid: one that is
busy for another port is not used.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from dfmeta.identity.key import Keys, MetaKeys
from dfmeta.identity.slot_allocator import REST, Addresses, PerPortAllocator, SlotAllocator
from dfmeta.identity.slots import Guest
from dfmeta.model import Endpoint, GuestAddress, MetaIds, Port, PortId
from dfmeta.runtime import clock


class _Rest(NamedTuple):
    sweep: int
    """The latest sweep that had begun when the guest left."""
    port: PortId | None
    """The port whose guest had the number, if it is known."""


class Quarantine:
    """Resting and kept numbers; none is both.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._resting: OrderedDict[int, _Rest] = OrderedDict()
        """In the order of their sweeps."""
        self._kept: dict[int, Endpoint] = {}
        """Number → the endpoint whose guest it is kept for."""
        self._kept_at: dict[Endpoint, set[int]] = {}
        """The inverse of it."""
        self._kept_until = math.inf
        self._begun = 0
        """The latest sweep that has begun."""
        self._ended: deque[tuple[float, int]] = deque()
        """Times, and the sweeps that ended :data:`~dfmeta.identity.slot_allocator.REST` seconds
        before."""
        self._rested = 0
        """The latest sweep that ended so long ago: rests that were in progress before are over."""

    def lay(self, number: int, port: PortId | None) -> None:
        """Let a number rest, from now on.

        :param port: the port whose guest had it; None: not known.
        """
        self.take(number)
        self._resting[number] = _Rest(self._begun, port)
        self._resting.move_to_end(number)

    def keep(self, number: int, endpoint: Endpoint) -> None:
        """Keep a number, unless it rests, for the present guest of *endpoint*."""
        if number not in self._resting:
            self._kept[number] = endpoint
            self._kept_at.setdefault(endpoint, set()).add(number)

    def take(self, number: int) -> None:
        """Keep a number no more, because its guest uses it."""
        endpoint = self._kept.pop(number, None)
        if endpoint is not None:
            self._kept_at[endpoint].discard(number)

    def wake(self) -> list[int]:
        """Return the numbers that have rested, or need not be kept any more, and forget them."""
        now, over = self._clock(), []
        while self._ended and self._ended[0][0] <= now:
            self._rested = max(self._rested, self._ended.popleft()[1])
        while self._resting:
            number, rest = next(iter(self._resting.items()))
            if rest.sweep >= self._rested:
                break
            self._resting.popitem(last=False)
            over.append(number)
        if self._kept_until <= now:
            over += self._kept
            self._kept, self._kept_at = {}, {}
        return over

    def begin_sweep(self) -> int:
        """See :meth:`~dfmeta.identity.slot_allocator.SlotAllocator.begin_sweep`."""
        self._begun += 1
        return self._begun

    def end_sweep(self, sweep: int) -> None:
        """See :meth:`~dfmeta.identity.slot_allocator.SlotAllocator.end_sweep`."""
        until = self._clock() + REST
        self._ended.append((until, sweep))
        self._kept_until = min(self._kept_until, until)

    def resting(self) -> Collection[int]:
        """Return the numbers that rest."""
        return self._resting.keys()

    def kept_at(self, endpoint: Endpoint) -> list[int]:
        """Return the numbers that are kept for the guest of *endpoint*."""
        return sorted(self._kept_at.get(endpoint, ()))

    def port_of(self, number: int) -> PortId | None:
        """Return the port whose guest had a resting number; None if it is not known."""
        rest = self._resting.get(number)
        return rest.port if rest is not None else None

    def allows(self, number: int, endpoint: Endpoint | None) -> bool:
        """Return whether a number neither rests nor is kept for another endpoint's guest."""
        return number not in self._resting and self._kept.get(number, endpoint) == endpoint

    def __contains__(self, number: int) -> bool:
        return number in self._resting or number in self._kept

    def __iter__(self) -> Iterator[int]:
        yield from self._resting
        yield from self._kept


RESERVE: Final = 8
"""One of so many numbers of a range, but at least one number, is left for the first addresses of
ports: further addresses and subports do not get it."""
SHARE: Final = 4
"""One of so many numbers of a range, but at least one number, is the most that all tagged subports
of one parent may have, with those that rest."""


class HostWideAllocator(SlotAllocator):
    """Numbers of ports and addresses on the whole host; see the module.

    :param keys: the key scheme, whose owners of numbers this object keeps.
    :param host_addresses: see :data:`~dfmeta.identity.slot_allocator.Addresses`.
    :param clock: monotonic seconds.
    :param versions: the versions of IP over which guests are served: each port gets a first number
        for each of them.
    """

    def __init__(
        self,
        keys: MetaKeys,
        host_addresses: Addresses,
        clock: Callable[[], float] = clock.now,
        *,
        versions: Collection[int] = (4, 6),
    ) -> None:
        self.keys = self._keys = keys
        self._host_addresses = host_addresses
        self._clock = clock
        self._versions = tuple(versions)
        self._ports: dict[PortId, Port] = {}
        """The ports that may have first numbers: those of untagged frames."""
        self._at: dict[PortId, Endpoint] = {}
        """Port → the endpoint whose guest it is."""
        self._firsts: dict[PortId, dict[int, int]] = {}
        """Port → version of IP → first number."""
        self._reserved: dict[int, PortId] = {}
        """First number → its port."""
        self._users: dict[int, Guest] = {}
        """Number → the guest that uses it."""
        self._rests = Quarantine(clock)
        self._busy: dict[int, set[int]] = {4: set(), 6: set()}
        """Version of IP → its busy numbers."""
        self._cursors: dict[int, int] = {4: 0, 6: 0}
        """Version of IP → position in the range from which the next number is searched."""
        self._waiting: dict[int, dict[PortId, None]] = {version: {} for version in versions}
        """Version of IP → the ports at an endpoint without a first number, in their order."""
        self._unwritten: dict[PortId, MetaIds] = {}
        self._changed: set[PortId] = set()
        """Ports whose first numbers or rows have changed since the last comparison of them."""
        self._tagged: dict[PortId, Guest] = {}
        """The guests of tagged subports, which have no first numbers."""
        self._parents: dict[int, int] = {}
        """Busy number of a tagged subport → OpenFlow number of its parent."""
        self._counts: Counter[tuple[int, int]] = Counter()
        """Version of IP and OpenFlow number of a parent → busy numbers of its tagged subports."""

    # Ports

    def put(self, port: Port) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`.

        A port without a first number gets the one that its row has, unless that is busy. If it has
        one, the row does not matter.
        """
        if port.vid:
            return
        self._ports[port.id] = port
        for version in self._versions:
            if version not in self._firsts.get(port.id, {}):
                number = self._stored(port, version)
                if number is not None:
                    self._reserve(port.id, version, number)
        self._changed.add(port.id)

    def forget(self, port: Port) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`. A number that has not been
        used is free."""
        self._ports.pop(port.id, None)
        self._unwritten.pop(port.id, None)
        for number in self._firsts.pop(port.id, {}).values():
            del self._reserved[number]
            self._release(number)

    def enter(self, guest: Guest) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        port_id = guest.port.id
        if guest.port.vid:
            self._tagged[port_id] = guest
            return
        self._at[port_id] = guest.endpoint
        firsts = self._firsts.get(port_id, {})
        for number in firsts.values():
            self._keys.own(guest.endpoint, number)
        for version in self._versions:
            if version not in firsts:
                self._waiting[version][port_id] = None

    def leave(self, guest: Guest) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`. The port keeps its first
        numbers."""
        for number in guest.slots:
            del self._users[number]
            self._rests.lay(number, guest.port.id)
            self._keys.disown(guest.endpoint, number)
        for number in self._rests.kept_at(guest.endpoint):
            self._rests.lay(number, guest.port.id)
        self._tagged.pop(guest.port.id, None)
        if self._at.pop(guest.port.id, None) is None:
            return
        for number in self._firsts.get(guest.port.id, {}).values():
            self._keys.disown(guest.endpoint, number)
        for waiting in self._waiting.values():
            waiting.pop(guest.port.id, None)

    # Numbers of addresses

    def pick(self, guest: Guest, version: int) -> int | None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`: the port's first number, or a
        further one.

        The guest of an untagged port without any address of that version may get one of the numbers
        that are left for new ports: the first number of its port rests.
        """
        numbers = self._keys.slots(version)
        mine = sum(number in numbers for number in guest.slots)
        if mine >= self._keys.most(version):
            return None
        barred = self._barred(version)
        first = self._firsts.get(guest.port.id, {}).get(version)
        own = [one for one in self._rests.kept_at(guest.endpoint) if one not in self._reserved]
        for number in own if first is None else (first, *own):
            free = number in numbers and number not in guest.slots and number not in barred
            if free and self._rests.allows(number, guest.endpoint):
                return number
        if guest.port.vid and not self._has_room(guest, version, barred):
            return None
        return self._free(version, barred, left=self._reserve_of(version) if mine else 0)

    def _has_room(self, guest: Guest, version: int, barred: frozenset[int]) -> bool:
        """Return whether a tagged subport may get one more number."""
        most = max(1, len(self._keys.slots(version)) // SHARE)
        left = self._left(version, barred) > self._reserve_of(version)
        return left and self._counts[version, guest.endpoint.ofport] < most

    def take(self, guest: Guest, number: int) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        self._users[number] = guest
        self._rests.take(number)
        self._busy[self._version(number)].add(number)
        self._count(number, guest.endpoint)
        self._keys.own(guest.endpoint, number)

    def drop(self, guest: Guest, number: int) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        del self._users[number]
        self._rests.lay(number, guest.port.id)
        if number not in self._reserved:
            self._keys.disown(guest.endpoint, number)

    def may_adopt(self, guest: Guest, number: int, address: GuestAddress) -> bool:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`.

        A number that rests is not adopted: another flow, or the previous run, has had it for
        another guest.
        """
        self._wake()
        numbers = self._keys.slots(address.ip.version)
        return (
            number in numbers
            and sum(one in numbers for one in guest.slots) < self._keys.most(address.ip.version)
            and number not in self._users
            and self._reserved.get(number, guest.port.id) == guest.port.id
            and self._rests.allows(number, guest.endpoint)
            and number not in self._barred(address.ip.version)
        )

    def user(self, number: int) -> Guest | None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        return self._users.get(number)

    def conflicts(self, endpoint: Endpoint, number: int) -> bool:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`. A stale flow of the owner
        itself does not."""
        return self._is_guests(number) and self._keys.owners.get(number) != endpoint

    def first_key(self, port: Port, version: int = 4) -> IPv4Address | IPv6Address | None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`; keys do not depend on the
        endpoint."""
        number = self._firsts.get(port.id, {}).get(version)
        return None if number is None else self._keys.key_of(Endpoint(0), number)

    # Rest

    def rest(self, endpoint: Endpoint | None, numbers: Iterable[int]) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`; *endpoint* may belong to
        another port now."""
        del endpoint
        for number in filter(self._is_guests, numbers):
            self._rests.lay(number, None)
            self._busy[self._version(number)].add(number)

    def expect(self, endpoint: Endpoint, numbers: Iterable[int]) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        for number in filter(self._is_guests, numbers):
            self._rests.keep(number, endpoint)
            self._busy[self._version(number)].add(number)
            self._count(number, endpoint)

    def resting(self) -> list[int]:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        self._wake()
        return list(self._rests)

    def begin_sweep(self) -> int:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        return self._rests.begin_sweep()

    def end_sweep(self, sweep: int) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        self._rests.end_sweep(sweep)

    # First numbers

    def settle(self) -> None:
        """See :class:`~dfmeta.identity.slot_allocator.SlotAllocator`."""
        self._wake()
        for version, waiting in self._waiting.items():
            # Once for all of them: at a start thousands of ports may wait.
            barred = self._barred(version) if waiting else frozenset()
            while waiting and (number := self._free(version, barred, left=0)) is not None:
                self._reserve(next(iter(waiting)), version, number)

    def pending_ovsdb_writes(self) -> dict[str, MetaIds]:
        """See :meth:`~dfmeta.identity.registry.Registry.pending_ovsdb_writes`."""
        for port_id in self._changed & self._firsts.keys():
            self._compare(port_id)
        self._changed.clear()
        return {port_id.row: ids for port_id, ids in self._unwritten.items()}

    def ports_without_number(self) -> list[Port]:
        """See :meth:`~dfmeta.identity.registry.Registry.ports_without_number`."""
        waiting = dict.fromkeys(port_id for one in self._waiting.values() for port_id in one)
        return [*(self._ports[port_id] for port_id in waiting), *self._stuck()]

    def _stuck(self) -> list[Port]:
        """Return the tagged subports without an address whose first one would get no number."""
        found: dict[PortId, Port] = {}
        for version in self._versions if self._tagged else ():
            barred, numbers = self._barred(version), self._keys.slots(version)
            for port_id, guest in self._tagged.items():
                own = (*guest.slots, *self._rests.kept_at(guest.endpoint))
                if any(number in numbers for number in own):
                    continue
                if not self._has_room(guest, version, barred):
                    found[port_id] = guest.port
        return list(found.values())

    def _ids(self, port_id: PortId) -> MetaIds:
        firsts = self._firsts[port_id]
        four, six = firsts.get(4), firsts.get(6)
        endpoint = Endpoint(0)  # keys of this scheme do not depend on it
        return MetaIds(
            ip="" if four is None else str(self._keys.key_of(endpoint, four)),
            mac="" if four is None else self._keys.label(four) or "",
            ip6="" if six is None else str(self._keys.key_of(endpoint, six)),
        )

    def _compare(self, port_id: PortId) -> None:
        ids = self._ids(port_id)
        there = self._ports[port_id].meta
        if any(mine not in ("", other) for mine, other in zip(ids, there, strict=True)):
            self._unwritten[port_id] = ids
        else:
            self._unwritten.pop(port_id, None)

    def _reserve(self, port_id: PortId, version: int, number: int) -> None:
        self._firsts.setdefault(port_id, {})[version] = number
        self._reserved[number] = port_id
        self._busy[version].add(number)
        self._waiting[version].pop(port_id, None)
        endpoint = self._at.get(port_id)
        if endpoint is not None:
            self._keys.own(endpoint, number)
        self._changed.add(port_id)

    def _stored(self, port: Port, version: int) -> int | None:
        """Return the number that the port's row has, if the port may have it."""
        text = port.meta.ip if version == 4 else port.meta.ip6
        try:
            address = ip_address(text)
        except ValueError:
            return None
        number = self._keys.number_of(address) if address.version == version else None
        if number is None or number in self._reserved or number in self._barred(version):
            return None
        self._wake()
        if number not in self._rests:
            return number if number not in self._busy[version] else None
        own = self._rests.port_of(number) == port.id or self._rests.allows(number, port.endpoint)
        return number if own else None

    # Numbers in general

    def _version(self, number: int) -> int:
        return 4 if number in self._keys.slots(4) else 6

    def _is_guests(self, number: int) -> bool:
        return number in self._keys.slots(4) or number in self._keys.slots(6)

    def _reserve_of(self, version: int) -> int:
        return max(1, len(self._keys.slots(version)) // RESERVE)

    def _barred(self, version: int) -> frozenset[int]:
        """Return the numbers whose keys are addresses of the host itself."""
        numbers = self._keys.slots(version)
        found = map(self._keys.number_of, self._host_addresses())
        return frozenset(number for number in found if number is not None and number in numbers)

    def _free(self, version: int, barred: frozenset[int], *, left: int) -> int | None:
        """Return the next number that is not busy, in turn; None unless more than *left* are.

        :param barred: see :meth:`_barred`.
        """
        # Counted first: a search for the last of thousands of numbers would take long.
        if self._left(version, barred) <= left:
            return None
        numbers, busy = self._keys.slots(version), self._busy[version]
        cursor = self._cursors[version]
        while numbers[cursor] in busy or numbers[cursor] in barred:
            cursor = (cursor + 1) % len(numbers)
        self._cursors[version] = (cursor + 1) % len(numbers)
        return numbers[cursor]

    def _left(self, version: int, barred: frozenset[int]) -> int:
        """Return how many numbers are not busy."""
        busy = self._busy[version]
        return len(self._keys.slots(version)) - len(busy) - len(barred - busy)

    def _wake(self) -> None:
        """Release the numbers that have rested."""
        for number in self._rests.wake():
            self._release(number)

    def _release(self, number: int) -> None:
        """Make a number free, unless there is still a reason why it is busy."""
        reasons = (self._reserved, self._users, self._rests)
        if not any(number in reason for reason in reasons):
            self._busy[self._version(number)].discard(number)
            self._count(number, None)

    def _count(self, number: int, endpoint: Endpoint | None) -> None:
        """Count a busy number for the parent of the tagged subport at *endpoint*, if it is one."""
        version, before = self._version(number), self._parents.pop(number, None)
        if before is not None:
            self._counts[version, before] -= 1
        if endpoint is not None and endpoint.vid:
            self._parents[number] = endpoint.ofport
            self._counts[version, endpoint.ofport] += 1


def allocator_of(
    keys: Keys,
    host_addresses: Addresses,
    clock: Callable[[], float] = clock.now,
    *,
    versions: Collection[int] = (4, 6),
) -> SlotAllocator:
    """Return the choice of slot numbers that suits *keys*.

    :param versions: see :class:`HostWideAllocator`.
    """
    if isinstance(keys, MetaKeys):
        return HostWideAllocator(keys, host_addresses, clock, versions=versions)
    return PerPortAllocator(keys, host_addresses, clock)
