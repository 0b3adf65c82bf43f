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

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dfmeta.identity import key, slots
from dfmeta.identity.slot_allocator import REST, Addresses, SlotAllocator
from dfmeta.model import Endpoint, GuestAddress, MetaIds, Port, PortId
from dfmeta.runtime import clock

RESERVE: Final = 8
"""One of so many numbers of a range, but at least one number, is left for the first addresses of
ports: further addresses and subports do not get it."""
SHARE: Final = 4
"""One of so many numbers of a range, but at least one number, is the most that all tagged subports
of one parent may have, with those that rest."""
_ANYWHERE: Final = Endpoint(0)
"""Stands for any endpoint: keys of this scheme do not depend on it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """The rest of a number since its guest has left."""

    port: PortId | None
    """The port whose guest had the number, if it is known."""


@dataclass(slots=True)
class _Lease:
    """Why a number is busy: without any of these reasons it is free."""

    port: PortId | None = None
    """The port whose first number it is."""
    user: slots.Guest | None = None
    """The guest that uses it."""
    kept: Endpoint | None = None
    """The endpoint whose guest it is kept for; a number that rests is not kept."""
    rest: _Rest | None = None
    parent: int | None = None
    """No reason: the OpenFlow number of the parent, if it is a tagged subport's."""

    @property
    def over(self) -> bool:
        """Whether no reason is left."""
        return self.port is None and self.user is None and self.kept is None and self.rest is None

    def allows(self, endpoint: Endpoint | None) -> bool:
        """Return whether the number neither rests nor is kept for another endpoint's guest."""
        return self.rest is None and self.kept in (None, endpoint)


class NumberPool:
    """The numbers of one version of IP.

    :param numbers: all of them.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers
        self.leases: dict[int, _Lease] = {}
        """The busy numbers."""
        self.waiting: dict[PortId, None] = {}
        """The ports at an endpoint without a first number, in their order."""
        self._of_parent: Counter[int] = Counter()
        """OpenFlow number of a parent → busy numbers of its tagged subports."""
        self._cursor = 0
        """Position from which the next number is searched."""

    def lease(self, number: int) -> _Lease:
        """Return the lease of a number that is busy from now on."""
        return self.leases.setdefault(number, _Lease())

    def release(self, number: int) -> None:
        """Make a number free, unless there is still a reason why it is busy."""
        if self.leases[number].over:
            self.count_for(number, None)
            del self.leases[number]

    def count_for(self, number: int, endpoint: Endpoint | None) -> None:
        """Count a busy number for the parent of the tagged subport at *endpoint*, if it is one."""
        lease = self.leases[number]
        if lease.parent is not None:
            self._of_parent[lease.parent] -= 1
        lease.parent = endpoint.ofport if endpoint is not None and endpoint.vid else None
        if lease.parent is not None:
            self._of_parent[lease.parent] += 1

    @property
    def reserve(self) -> int:
        """How many numbers are left for new ports."""
        return max(1, len(self.numbers) // RESERVE)

    def left(self, barred: frozenset[int]) -> int:
        """Return how many numbers are not busy, without the *barred* ones."""
        free = len(self.numbers) - len(self.leases)
        return free - sum(number not in self.leases for number in barred)

    def has_room(self, parent: int, barred: frozenset[int]) -> bool:
        """Return whether a tagged subport of *parent* may get one more number."""
        most = max(1, len(self.numbers) // SHARE)
        return self.left(barred) > self.reserve and self._of_parent[parent] < most

    def free(self, barred: frozenset[int], *, left: int = 0) -> int | None:
        """Return the next number that is not busy, in turn; None unless more than *left* are."""
        # Counted first: a search for the last of thousands of numbers would take long.
        if self.left(barred) <= left:
            return None
        while True:
            number = self.numbers[self._cursor]
            self._cursor = (self._cursor + 1) % len(self.numbers)
            if number not in self.leases and number not in barred:
                return number


@dataclass(slots=True)
class _Holder:
    """A port of untagged frames, which may have first numbers."""

    port: Port
    endpoint: Endpoint | None = None
    """The endpoint whose guest it is."""
    firsts: dict[int, int] = field(default_factory=dict)
    """Version of IP → first number."""


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
        keys: key.MetaKeys,
        host_addresses: Addresses,
        clock: Callable[[], float] = clock.now,
        *,
        versions: Collection[int] = (4, 6),
    ) -> None:
        super().__init__(keys, host_addresses, clock)
        self._keys = keys
        self._versions = tuple(versions)
        self._pools = {version: NumberPool(keys.slots(version)) for version in (4, 6)}
        self._unswept: list[tuple[int, _Rest]] = []
        """The resting numbers for which no sweep has ended, in the order of their beginning."""
        self._in_sweep = 0
        """How many of these rested already when the present sweep began."""
        self._swept: deque[tuple[float, list[tuple[int, _Rest]]]] = deque()
        """Times, and the numbers whose rest is over by then."""
        self._kept: dict[Endpoint, set[int]] = {}
        """Endpoint → the numbers that are kept for its guest."""
        self._kept_until = math.inf
        self._holders: dict[PortId, _Holder] = {}
        self._tagged: dict[PortId, slots.Guest] = {}
        """The guests of tagged subports, which have no first numbers."""
        self._unwritten: dict[PortId, MetaIds] = {}

    # Ports

    def put(self, port: Port) -> None:
        """See :class:`SlotAllocator`.

        A port without a first number gets the one that its row has, unless that is busy. If it has
        one, the row does not matter.
        """
        if port.vid:
            return
        holder = self._holders.setdefault(port.id, _Holder(port))
        holder.port = port
        for version in self._versions:
            if version not in holder.firsts:
                number = self._stored(port, version)
                if number is not None:
                    self._reserve(holder, version, number)
        self._compare(holder)

    def forget(self, port: Port) -> None:
        """See :class:`SlotAllocator`. A number that has not been used is free."""
        self._unwritten.pop(port.id, None)
        holder = self._holders.pop(port.id, None)
        for version, number in holder.firsts.items() if holder is not None else ():
            self._pools[version].leases[number].port = None
            self._pools[version].release(number)

    def enter(self, guest: slots.Guest) -> None:
        """See :class:`SlotAllocator`."""
        port_id = guest.port.id
        if guest.port.vid:
            self._tagged[port_id] = guest
            return
        holder = self._holders[port_id]
        holder.endpoint = guest.endpoint
        for number in holder.firsts.values():
            self._keys.own(guest.endpoint, number)
        for version in self._versions:
            if version not in holder.firsts:
                self._pools[version].waiting[port_id] = None

    def leave(self, guest: slots.Guest) -> None:
        """See :class:`SlotAllocator`. The port keeps its first numbers."""
        port_id = guest.port.id
        for number in guest.slots:
            self._begin_rest(number, port_id)
            self._keys.disown(guest.endpoint, number)
        for number in self._kept_for(guest):
            self._begin_rest(number, port_id)
        self._tagged.pop(port_id, None)
        holder = self._holders.get(port_id)
        if holder is None or holder.endpoint is None:
            return
        holder.endpoint = None
        for number in holder.firsts.values():
            self._keys.disown(guest.endpoint, number)
        for pool in self._pools.values():
            pool.waiting.pop(port_id, None)

    # Numbers of addresses

    def pick(self, guest: slots.Guest, version: int) -> int | None:
        """See :class:`SlotAllocator`: the port's first number, or a further one.

        The guest of an untagged port without any address of that version may get one of the numbers
        that are left for new ports: the first number of its port rests.
        """
        pool = self._pools[version]
        used = sum(number in pool.numbers for number in guest.slots)
        if used >= self._keys.most(version):
            return None
        barred, holder = self._barred(version), self._holders.get(guest.port.id)
        first = holder.firsts.get(version) if holder is not None else None
        kept = (n for n in self._kept_for(guest) if n in pool.numbers and not pool.leases[n].port)
        for number in (*kept,) if first is None else (first, *kept):
            free = number not in guest.slots and number not in barred
            if free and pool.leases[number].allows(guest.endpoint):
                return number
        if guest.port.vid and not pool.has_room(guest.endpoint.ofport, barred):
            return None
        return pool.free(barred, left=pool.reserve if used else 0)

    def take(self, guest: slots.Guest, number: int) -> None:
        """See :class:`SlotAllocator`."""
        pool = self._pool(number)
        pool.lease(number).user = guest
        self._keep(number, None)
        pool.count_for(number, guest.endpoint)
        self._keys.own(guest.endpoint, number)

    def drop(self, guest: slots.Guest, number: int) -> None:
        """See :class:`SlotAllocator`."""
        self._begin_rest(number, guest.port.id)
        if self._pool(number).leases[number].port is None:
            self._keys.disown(guest.endpoint, number)

    def may_adopt(self, guest: slots.Guest, number: int, address: GuestAddress) -> bool:
        """See :class:`SlotAllocator`.

        A number that rests is not adopted: another flow, or the previous run, has had it for
        another guest.
        """
        self._end_rests()
        version = address.ip.version
        pool = self._pools[version]
        lease = pool.leases.get(number, _Lease())
        return (
            number in pool.numbers
            and sum(slot in pool.numbers for slot in guest.slots) < self._keys.most(version)
            and lease.user is None
            and lease.port in (None, guest.port.id)
            and lease.allows(guest.endpoint)
            and number not in self._barred(version)
        )

    def user(self, number: int) -> slots.Guest | None:
        """See :class:`SlotAllocator`."""
        lease = self._pool(number).leases.get(number)
        return lease.user if lease is not None else None

    def conflicts(self, endpoint: Endpoint, number: int) -> bool:
        """See :class:`SlotAllocator`. A stale flow of the owner itself does not."""
        return self._is_guests(number) and self._keys.owners.get(number) != endpoint

    def first_key(self, port: Port, version: int = 4) -> IPv4Address | IPv6Address | None:
        """See :class:`SlotAllocator`."""
        holder = self._holders.get(port.id)
        number = holder.firsts.get(version) if holder is not None else None
        return None if number is None else self._keys.key_of(_ANYWHERE, number)

    # Rest

    def rest(self, endpoint: Endpoint | None, numbers: Iterable[int]) -> None:
        """See :class:`SlotAllocator`; *endpoint* may belong to another port now."""
        for number in filter(self._is_guests, numbers):
            self._begin_rest(number, None)

    def expect(self, endpoint: Endpoint, numbers: Iterable[int]) -> None:
        """See :class:`SlotAllocator`."""
        for number in filter(self._is_guests, numbers):
            pool = self._pool(number)
            if pool.lease(number).rest is None:
                self._keep(number, endpoint)
            pool.count_for(number, endpoint)

    def resting(self) -> list[int]:
        """See :class:`SlotAllocator`."""
        self._end_rests()
        return [
            number
            for pool in self._pools.values()
            for number, lease in pool.leases.items()
            if lease.rest is not None or lease.kept is not None
        ]

    def begin_sweep(self) -> None:
        """See :class:`SlotAllocator`."""
        self._in_sweep = len(self._unswept)

    def end_sweep(self) -> None:
        """See :class:`SlotAllocator`."""
        until = self._clock() + REST
        self._swept.append((until, self._unswept[: self._in_sweep]))
        del self._unswept[: self._in_sweep]
        self._in_sweep = 0
        self._kept_until = min(self._kept_until, until)

    def _begin_rest(self, number: int, port: PortId | None) -> None:
        """Let a number rest; *port*: see :class:`_Rest`."""
        lease = self._pool(number).lease(number)
        self._keep(number, None)
        lease.user, lease.rest = None, _Rest(port)
        self._unswept.append((number, lease.rest))

    def _keep(self, number: int, endpoint: Endpoint | None) -> None:
        """Keep a number for the present guest of *endpoint*; None: for no guest."""
        lease = self._pool(number).leases[number]
        if lease.kept is not None:
            self._kept[lease.kept].discard(number)
        lease.kept = endpoint
        if endpoint is not None:
            self._kept.setdefault(endpoint, set()).add(number)

    def _kept_for(self, guest: slots.Guest) -> list[int]:
        return sorted(self._kept.get(guest.endpoint, ()))

    def _end_rests(self) -> None:
        """Release the numbers that have rested, or need not be kept any more."""
        now = self._clock()
        while self._swept and self._swept[0][0] <= now:
            for number, rest in self._swept.popleft()[1]:
                pool = self._pool(number)
                lease = pool.leases.get(number)
                # Another rest of the number may have begun later.
                if lease is not None and lease.rest is rest:
                    lease.rest = None
                    pool.release(number)
        if self._kept and self._kept_until <= now:
            for number in [number for numbers in self._kept.values() for number in numbers]:
                self._keep(number, None)
                self._pool(number).release(number)
            self._kept = {}

    # First numbers

    def assign_waiting(self) -> None:
        """See :class:`SlotAllocator`."""
        self._end_rests()
        changed: dict[PortId, _Holder] = {}
        for version, pool in self._pools.items():
            # Once for all of them: at a start thousands of ports may wait.
            barred = self._barred(version) if pool.waiting else frozenset()
            while pool.waiting and (number := pool.free(barred)) is not None:
                port_id = next(iter(pool.waiting))
                changed[port_id] = holder = self._holders[port_id]
                self._reserve(holder, version, number)
        for holder in changed.values():
            self._compare(holder)

    def pending_ovsdb_writes(self) -> dict[str, MetaIds]:
        """See :meth:`~dfmeta.identity.registry.Registry.pending_ovsdb_writes`."""
        return {port_id.row: ids for port_id, ids in self._unwritten.items()}

    def ports_without_number(self) -> list[Port]:
        """See :meth:`~dfmeta.identity.registry.Registry.ports_without_number`."""
        waiting = dict.fromkeys(
            port_id for pool in self._pools.values() for port_id in pool.waiting
        )
        return [*(self._holders[port_id].port for port_id in waiting), *self._stuck()]

    def _stuck(self) -> list[Port]:
        """Return the tagged subports without an address whose first one would get no number."""
        stuck: dict[PortId, Port] = {}
        for version in self._versions if self._tagged else ():
            barred, pool = self._barred(version), self._pools[version]
            for port_id, guest in self._tagged.items():
                numbers = (*guest.slots, *self._kept_for(guest))
                if any(number in pool.numbers for number in numbers):
                    continue
                if not pool.has_room(guest.endpoint.ofport, barred):
                    stuck[port_id] = guest.port
        return list(stuck.values())

    def _reserve(self, holder: _Holder, version: int, number: int) -> None:
        pool = self._pools[version]
        holder.firsts[version] = number
        pool.lease(number).port = holder.port.id
        pool.waiting.pop(holder.port.id, None)
        if holder.endpoint is not None:
            self._keys.own(holder.endpoint, number)

    def _compare(self, holder: _Holder) -> None:
        """Note whether OVSDB has the first numbers of a port."""
        ids = self._ids(holder)
        if any(
            wanted not in ("", other) for wanted, other in zip(ids, holder.port.meta, strict=True)
        ):
            self._unwritten[holder.port.id] = ids
        else:
            self._unwritten.pop(holder.port.id, None)

    def _ids(self, holder: _Holder) -> MetaIds:
        number = holder.firsts.get(4)
        return MetaIds(
            ip=str(self.first_key(holder.port) or ""),
            mac="" if number is None else self._keys.label(number),
            ip6=str(self.first_key(holder.port, 6) or ""),
        )

    def _stored(self, port: Port, version: int) -> int | None:
        """Return the number that the port's row has, if the port may have it."""
        text = port.meta.ip if version == 4 else port.meta.ip6
        try:
            address = ip_address(text)
        except ValueError:
            return None
        number = self._keys.number_of(address) if address.version == version else None
        if number is None or number in self._barred(version):
            return None
        self._end_rests()
        lease = self._pools[version].leases.get(number)
        if lease is None:
            return number
        if lease.port is not None or lease.user is not None:
            return None
        rested_here = lease.rest is not None and lease.rest.port == port.id
        return number if rested_here or lease.allows(port.endpoint) else None

    # Numbers in general

    def _pool(self, number: int) -> NumberPool:
        return self._pools[4 if number in self._pools[4].numbers else 6]

    def _is_guests(self, number: int) -> bool:
        return any(number in pool.numbers for pool in self._pools.values())

    def _barred(self, version: int) -> frozenset[int]:
        """Return the numbers whose keys are addresses of the host itself."""
        numbers = self._pools[version].numbers
        host_numbers = map(self._keys.number_of, self._host_addresses())
        return frozenset(
            number for number in host_numbers if number is not None and number in numbers
        )


def allocator_of(
    keys: key.Keys,
    host_addresses: Addresses,
    clock: Callable[[], float] = clock.now,
    *,
    versions: Collection[int] = (4, 6),
) -> SlotAllocator:
    """Return the choice of slot numbers that suits *keys*.

    :param versions: see :class:`HostWideAllocator`.
    """
    if isinstance(keys, key.MetaKeys):
        return HostWideAllocator(keys, host_addresses, clock, versions=versions)
    return SlotAllocator(keys, host_addresses, clock)
