"""The registry: current identity of each endpoint, shared by the controller and the proxy.

The registry decides whether a guest is answered; flows only transport packets. Every request has a
:class:`Claim`, and its answer is sent only while :meth:`Registry.holds` is true, whether or not the
datapath has revalidated its flows by then.

All methods run on the hub and none of them waits, so each is atomic.

A slot rests after its guest has left, so a key stands for one guest as long as any packet of it
can be in transit (:mod:`dfmeta.identity.slot_allocator`).

OVSDB and the switch both report the OpenFlow number of a port, and the two must agree. OVSDB's
report is later, by the delay of its session and of dfmeta's reader, and meanwhile the number may
belong to another guest (a port renumbered by ``ofport_request``, or a restart of ovs-vswitchd).
While a number is in doubt (:mod:`dfmeta.identity.numbering`), its guest keeps its state, but no
request is answered.
"""

import enum
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address

from dfmeta import errors, model
from dfmeta.identity import host_wide_allocator, numbering
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.identity.slot_allocator import REST as REST
from dfmeta.identity.slot_allocator import Addresses, SlotAllocator
from dfmeta.identity.slots import EXPECTED, Guest, Learned, Slot, SynHoldTimes
from dfmeta.identity.slots import Claim as Claim
from dfmeta.runtime import clock


class NotifyPhase(enum.IntEnum):
    """Order in which subscribers are notified of a change, independent of the subscription order.

    When the guest of a port has changed, the switch first blocks packets of the previous guest, and
    only then its connections are closed. So no request of it can arrive after they are closed.
    """

    FLOWS = 1
    """Update of the flows on the switch."""
    CONNECTIONS = 2
    """End of connections and running requests, and reset of the previous guest's counts."""


class Registry:
    """Live map of ports to identities and of endpoints to addresses.

    :param host_addresses: see :data:`~dfmeta.identity.slot_allocator.Addresses`.
    :param ask: see :class:`~dfmeta.identity.numbering.Numbering`; :meth:`answered` receives the
    answer.
    :param look: counts an endpoint's connections before one of its addresses is evicted.
    :param clock: monotonic seconds.
    :param keys: the key scheme; the flows use the same.
    :param allocator: the choice of slots, with its own *keys*; None: the one that suits *keys*.
    """

    def __init__(
        self,
        host_addresses: Addresses = tuple,
        *,
        ask: Callable[[], int] = lambda: 0,
        look: Callable[[model.Endpoint], object] = lambda _endpoint: None,
        clock: Callable[[], float] = clock.now,
        keys: Keys = IN_PORT,
        allocator: SlotAllocator | None = None,
    ) -> None:
        self.allocator = allocator or host_wide_allocator.allocator_of(keys, host_addresses, clock)
        self.keys: Keys = self.allocator.keys
        self._clock = clock
        self.version = 0
        """Grows with each change to save: of an identity or a slot, but no eviction, which a guest
        can cause without end."""
        self._changed: set[model.Endpoint] = set()
        self._ports: dict[model.PortId, model.Port] = {}
        self._guests: dict[model.Endpoint, Guest] = {}
        self._claims = numbering.OfportClaims()
        self._numbering, self._look = numbering.Numbering(ask), look
        self._incarnations = itertools.count(1)
        self._epochs = itertools.count(1)
        self._waits = SynHoldTimes()
        self._listeners: dict[NotifyPhase, list[Callable[[model.Endpoint], None]]] = {
            phase: [] for phase in NotifyPhase
        }
        self._watchers: list[Callable[[model.Endpoint], None]] = []
        self._certain_listeners: list[Callable[[model.Endpoint], None]] = []
        self._replaced_listeners: list[Callable[[model.PortId], None]] = []

    def watch(self, watcher: Callable[[model.Endpoint], None]) -> None:
        """Call *watcher* with each endpoint before a change: of its guest, of the guest's identity,
        of its slots, or of the time that its SYNs have waited."""
        self._watchers.append(watcher)

    def subscribe(
        self,
        listener: Callable[[model.Endpoint], None],
        phase: NotifyPhase = NotifyPhase.CONNECTIONS,
    ) -> None:
        """Call *listener* with each endpoint after its guest has changed."""
        self._listeners[phase].append(listener)

    def when_certain(self, listener: Callable[[model.Endpoint], None]) -> None:
        """Call *listener* with each endpoint whose number is no longer in doubt."""
        self._certain_listeners.append(listener)

    def when_replaced(self, listener: Callable[[model.PortId], None]) -> None:
        """Call *listener* with each port after its device was replaced by another one."""
        self._replaced_listeners.append(listener)

    # Ports, as reported by OVSDB

    def set_port(self, port: model.Port) -> None:
        """Store a port that is new or has changed.

        If a field changed that identifies the guest, the port starts again: its addresses are
        forgotten, and earlier claims no longer hold. This does not apply to a project that becomes
        known. If two rows claim the same endpoint, the later row wins.
        """
        old = self._ports.get(port.id)
        if old == port:
            self._ports[port.id] = port
            return
        self.allocator.put(port)
        if old is not None and old.with_notes_of(port) == port:
            self._ports[port.id] = port
            self._keep_in_place(port)
            return
        self._note(old, port)
        agrees = self._numbering.agrees(port)
        if old is not None and agrees and old.only_gains(port):
            self._ports[port.id] = port
            if self._add(port):
                return
        # The old port stays until its guest has left: after an error, remove_port withdraws it.
        touched = self._withdraw(old) if old is not None else set()
        self._ports[port.id] = port
        if port.endpoint is not None and not port.dead:
            self._claims.put(port.id, port.endpoint)
            touched |= self._enter(port, port.endpoint)
        self._tell(touched)

    def remove_port(self, port_id: model.PortId) -> None:
        """Remove the port, if it is known; other ports of its row stay."""
        port = self._ports.pop(port_id, None)
        if port is not None:
            self._note(port)
            touched = self._withdraw(port)
            self.allocator.forget(port)
            self._tell(touched)

    def port(self, port_id: model.PortId) -> model.Port | None:
        """Return the port, served or not; None if it is unknown."""
        return self._ports.get(port_id)

    def ports(self) -> list[model.Port]:
        """Return all guests' ports, served or not."""
        return list(self._ports.values())

    def count_addresses(self) -> dict[str, int]:
        """Return version of IP → number of guests' addresses that have a slot."""
        guests = self._guests.values()
        versions = Counter(s.address.ip.version for guest in guests for s in guest.slots.values())
        return {"4": versions[4], "6": versions[6]}

    def take_changed(self) -> set[model.Endpoint]:
        """Return the endpoints whose port or slots have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def touch(self, endpoint: model.Endpoint, *, save: bool = True) -> None:
        """Mark *endpoint* as changed; *save*: which is a reason to write the state file."""
        self.version += save
        self._changed.add(endpoint)
        self._show(endpoint)

    # Numbers, as reported by the switch

    def set_devices(self, devices: Mapping[int, numbering.SwitchDevice], *, gap: bool) -> None:
        """Store all devices of the switch by their numbers.

        :param gap: earlier changes may have been missed; see :meth:`Numbering.put_all`.
        """
        patches = self._patches() if gap else ()
        changed = self._numbering.put_all(devices, gap=gap, patches=patches)
        for endpoint in self._claims.with_number(*self._numbering.doubted()):
            self._show(endpoint)
        for ofport, replaced in changed.items():
            for endpoint in self._claims.with_number(ofport):
                self._review(endpoint, anew=replaced)
            if replaced and ofport in devices:
                self._tell_replaced(ofport)

    def set_device(self, ofport: int, device: numbering.SwitchDevice | None) -> None:
        """Store the device that has the number now; None: no device.

        A guest with that number starts again: the other device may belong to another guest.
        """
        if self._numbering.put(ofport, device):
            for endpoint in self._claims.with_number(ofport):
                self._show(endpoint)
                self._review(endpoint, anew=True)
            if device is not None:
                self._tell_replaced(ofport)

    def answered(self, question: int) -> None:
        """Note that OVSDB has answered *question*, and that everything before it has been read."""
        for endpoint in self._claims.with_number(*self._numbering.answered(question)):
            self._show(endpoint)
            for listener in self._certain_listeners:
                listener(endpoint)

    def certain(self, endpoint: model.Caller) -> bool:
        """Return whether the endpoint's number is not in doubt. If it is, no answer may be sent."""
        return not isinstance(endpoint, model.Endpoint) or self._numbering.certain(endpoint.ofport)

    def doubted(self) -> list[model.Port]:
        """Return the ports that are not served because OVSDB has not yet confirmed their number."""
        ports = map(self.port_at, self._claims.with_number(*self._numbering.doubted()))
        return [port for port in ports if port is not None]

    def misnamed(self) -> list[tuple[model.Port, bytes]]:
        """Return the ports that are not served because the switch reports another device at their
        number, each with the name of that device."""
        return [
            (self._ports[port_id], self._numbering.name(ofport))
            for ofport, port_id in self._claims
            if not self._numbering.agrees(self._ports[port_id])
        ]

    # Endpoints, for the controller

    def endpoints(self) -> list[model.Endpoint]:
        """Return the endpoints that should have flows."""
        return list(self._guests)

    def guest(self, endpoint: model.Endpoint) -> Guest | None:
        """Return the guest at *endpoint*, with its port and slots; read only."""
        return self._guests.get(endpoint)

    def guest_of(self, port: model.Port) -> Guest | None:
        """Return the guest at the endpoint of *port*, if it is the guest of that port."""
        guest = self._guests.get(port.endpoint) if port.endpoint is not None else None
        return guest if guest is not None and guest.port.id == port.id else None

    def name(self, endpoint: model.Endpoint) -> str:
        """Return the name of the port at *endpoint*, for the log."""
        port = self.port_at(endpoint)
        return port.name if port is not None else str(endpoint)

    def port_at(self, endpoint: model.Endpoint) -> model.Port | None:
        """Return the port at *endpoint*; None if no guest's port is there."""
        guest = self._guests.get(endpoint)
        return guest.port if guest else None

    def identity(self, endpoint: model.Endpoint) -> model.Identity | None:
        """Return the identity at *endpoint*; None if no guest with a known instance is there."""
        guest = self._guests.get(endpoint)
        return guest.identity if guest else None

    def slots(self, endpoint: model.Endpoint) -> dict[int, Slot]:
        """Return slot number → slot of *endpoint*, as a copy."""
        guest = self._guests.get(endpoint)
        return dict(guest.slots) if guest else {}

    def learn(
        self, endpoint: model.Endpoint, address: model.GuestAddress, now: float
    ) -> Learned | None:
        """Give *address* a slot at *endpoint*, or find its present slot.

        The address is untrusted; it uses room only among the endpoint's own slots.

        :return: None if the endpoint is not served at that address, if each slot has an open
            connection, or if there were too many evictions recently.
        """
        guest = self._guests.get(endpoint)
        if guest is None or not guest.admits(address) or not self.certain(endpoint):
            return None
        self.allocator.assign_waiting()
        for taken, slot in guest.slots.items():
            if slot.address == address:
                slot.last_used = now
                return Learned(taken, new=False, epoch=slot.epoch)
        displaced = None
        number = self.allocator.pick(guest, address.ip.version)
        if number is None:
            self._look(endpoint)
            number = guest.longest_idle(self.keys.slots(address.ip.version), now)
            if number is None or not guest.may_displace(now):
                return None
            displaced = guest.slots[number].address
        self.touch(endpoint, save=displaced is None)
        epoch = next(self._epochs)
        guest.slots[number] = Slot(address, epoch, now, expected_until=now + EXPECTED)
        self.allocator.take(guest, number)
        return Learned(number, new=True, epoch=epoch, displaced=displaced)

    def expect(self, endpoint: model.Endpoint, learned: Learned, now: float) -> None:
        """Expect the connection of an address that was *learned*.

        :param now: the time at which its first SYN was sent on; infinity until then, while its
            flows are installed.
        """
        slot = self._slot(endpoint, learned.slot, learned.epoch)
        if slot is not None and not slot.connections:
            slot.expected_until = now + EXPECTED

    def has_slot(self, endpoint: model.Endpoint, learned: Learned) -> bool:
        """Return whether the address that was *learned* still has its slot."""
        return self._slot(endpoint, learned.slot, learned.epoch) is not None

    def _slot(self, endpoint: model.Endpoint, number: int, epoch: int) -> Slot | None:
        """Return a slot, if the same address still has it."""
        guest = self._guests.get(endpoint)
        slot = guest.slots.get(number) if guest is not None else None
        return slot if slot is not None and slot.epoch == epoch else None

    def rest(self, endpoint: model.Endpoint | None, numbers: Iterable[int]) -> None:
        """Let slots rest, because an earlier guest of *endpoint* had them.

        An address that has one of these numbers by now loses it, if the number alone identifies it:
        frames of two guests may have the same key until the switch has no such flow any more.

        :param endpoint: None for :meth:`~dfmeta.identity.slot_allocator.SlotAllocator.resting` of
        the previous run.
        """
        numbers = list(numbers)
        users = [(self.allocator.user(number), number) for number in numbers]
        touched = self._take_away((guest, number) for guest, number in users if guest is not None)
        self.allocator.rest(endpoint, numbers)
        self._tell(touched)

    def adopt(
        self, endpoint: model.Endpoint, number: int, address: model.GuestAddress, now: float
    ) -> bool:
        """Adopt an address found in the switch's flows; return False if the slot is not free."""
        if not (adopted := self.restore(endpoint, number, address, now)):
            self.quarantine(endpoint, number)
        return adopted

    def restore(
        self, endpoint: model.Endpoint, number: int, address: model.GuestAddress, now: float
    ) -> bool:
        """Give an address the slot of an earlier run again; return False if it is not free."""
        guest = self._guests.get(endpoint)
        slots = guest.slots if guest is not None else {}
        taken = number in slots or any(slot.address == address for slot in slots.values())
        is_free = guest is not None and guest.admits(address) and not taken
        if guest is None or not is_free or not self.allocator.may_adopt(guest, number, address):
            return False
        self.touch(endpoint)
        guest.slots[number] = Slot(address, next(self._epochs), now)
        self.allocator.take(guest, number)
        return True

    def adopt_next_hop(self, endpoint: model.Endpoint, hop: model.NextHop) -> bool:
        """Keep a guest next hop found in the switch's flows until the port's own are known.

        :return: False if they are known, so that the flow is compared with them.
        """
        guest = self._guests.get(endpoint)
        if guest is None or guest.port.next_hops is not None:
            return False
        guest.next_hops = (*guest.next_hops, hop)
        return True

    def quarantine(self, endpoint: model.Endpoint, number: int) -> None:
        """Let *number* rest, if a flow of *endpoint* has it that a start finds and cannot adopt."""
        if self.allocator.conflicts(endpoint, number):
            self.rest(endpoint, (number,))

    # Numbers that are unique on the host

    def pending_ovsdb_writes(self) -> dict[str, model.MetaIds]:
        """Return row → its Meta addresses for OVSDB, those of its port's first numbers, where they
        differ from ``Port.meta``; it takes little time. An empty field is no difference: there is
        no number for it.

        This gives new ports their numbers. If it is called before the addresses of an earlier run
        are adopted, some of these may lose theirs.
        """
        self.allocator.assign_waiting()
        return self.allocator.pending_ovsdb_writes()

    def ports_without_number(self) -> list[model.Port]:
        """Return the ports without a number, which get one that has become free at the next
        :meth:`learn` or :meth:`pending_ovsdb_writes`."""
        self.allocator.assign_waiting()
        return self.allocator.ports_without_number()

    # Claims, for the proxy

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """Return the claim for *peer*, the source address of a connection on tap-metadata.

        Trust: only dfmeta's service flows output to tap-metadata, so the switch vouches for the
        in_port that a key stands for. For an address that is not a key in use, there is no claim.
        """
        try:
            endpoint, number = self.keys.parse(peer)
        except errors.KeyRangeError:
            return None
        guest = self._guests.get(endpoint)
        if guest is None or guest.identity is None:
            return None
        slot = guest.slots.get(number)
        if slot is None:
            return None
        return Claim(guest.identity, endpoint, number, slot.epoch, slot.address)

    def holds(self, claim: Claim) -> bool:
        """Return whether an answer may be sent: the same incarnation of the same instance is still
        at that address, and its number is not in doubt."""
        return self.current(claim) is not None and self.certain(claim.caller)

    def current(self, claim: Claim) -> model.Identity | None:
        """Return the identity of *claim*, with the fields that have become known since; None if the
        claim no longer holds."""
        guest = self._guests.get(claim.endpoint)
        if guest is None or guest.identity is None:
            return None
        if self._slot(claim.endpoint, claim.slot, claim.epoch) is None:
            return None
        same = guest.identity.incarnation == claim.identity.incarnation
        return guest.identity if same else None

    def opened(self, claim: Claim, now: float) -> None:
        """Count a connection under *claim*; a slot with open connections is not evicted."""
        self.count_connections(claim.endpoint, claim.slot, claim.epoch, 1, now)

    def closed(self, claim: Claim, now: float) -> None:
        """Undo the count of :meth:`opened`."""
        self.count_connections(claim.endpoint, claim.slot, claim.epoch, -1, now)

    def count_connections(
        self, endpoint: model.Endpoint, number: int, epoch: int, change: int, now: float
    ) -> None:
        """Add *change* to the number of a slot's connections, if the same address still has it.

        :param now: time of the change, monotonic seconds. Workers report changes late, and not in
            the order of their times.
        """
        slot = self._slot(endpoint, number, epoch)
        if slot is not None:
            slot.connections += change
            slot.last_used = max(slot.last_used, now)
            slot.expected_until = 0.0 if change else slot.expected_until

    # Time that a first SYN waited, which counts towards hold_timeout of its requests

    def note_wait(self, endpoint: model.Endpoint, source_port: int, seconds: float) -> None:
        """Remember that the SYN of that connection was held for *seconds*."""
        self._show(endpoint)
        self._waits.note(endpoint, source_port, seconds)

    def take_wait(self, endpoint: model.Caller, source_port: int) -> float:
        """Return and forget the time noted for that connection; 0.0 if there is none."""
        return self._waits.take(endpoint, source_port)

    def take_waits(self, endpoint: model.Endpoint) -> list[tuple[int, float]]:
        """Return and forget all times noted for *endpoint*: source ports and seconds."""
        return self._waits.take_all(endpoint)

    def _note(self, *ports: model.Port | None) -> None:
        self.version += 1
        for port in ports:
            if port is not None and port.ofport is not None:
                # A broken port has no endpoint now, but may have had one: note it as well.
                endpoint = model.Endpoint(port.ofport, port.vid)
                self._changed.add(endpoint)
                self._show(endpoint)

    def _show(self, endpoint: model.Endpoint) -> None:
        for watcher in self._watchers:
            watcher(endpoint)

    def _identify(self, port: model.Port) -> model.Identity | None:
        if port.state not in (model.PortState.SERVED, model.PortState.UNNAMED):
            return None
        return port.identify(next(self._incarnations))

    def _add(self, port: model.Port) -> bool:
        guest = self.guest_of(port)
        if guest is None or guest.identity is None:
            return False
        guest.put(port)
        guest.identity = port.identify(guest.identity.incarnation)
        self._tell({guest.endpoint})
        return True

    def _withdraw(self, port: model.Port) -> set[model.Endpoint]:
        endpoint, guest = port.endpoint, self.guest_of(port)
        if endpoint is not None:
            self._claims.remove(port.id, endpoint)
        if guest is None:
            return set()
        self._leave(guest)
        # Another row may have claimed the number earlier, and lost it to this one.
        self._enter(self._claimant(guest.endpoint), guest.endpoint)
        return {guest.endpoint}

    def _enter(self, port: model.Port | None, endpoint: model.Endpoint) -> set[model.Endpoint]:
        if port is None or not self._numbering.agrees(port):
            return set()
        before = self._guests.get(endpoint)
        if before is not None:
            self._leave(before)
        guest = self._guests[endpoint] = Guest(port, endpoint, self._identify(port))
        self.allocator.enter(guest)
        return {endpoint}

    def _claimant(self, endpoint: model.Endpoint) -> model.Port | None:
        """Return the latest port of *endpoint* with which the switch agrees."""
        ports = map(self._ports.__getitem__, self._claims.at(endpoint))
        return next(filter(self._numbering.agrees, ports), None)

    def _patches(self) -> set[int]:
        """Return the numbers that only patch ports have."""
        numbers: dict[bool, set[int]] = {False: set(), True: set()}
        for ofport, port_id in self._claims:
            numbers[self._ports[port_id].patch].add(ofport)
        return numbers[True] - numbers[False]

    def _review(self, endpoint: model.Endpoint, *, anew: bool) -> None:
        guest, claimant = self._guests.get(endpoint), self._claimant(endpoint)
        same = (guest.port.id if guest else None) == (claimant.id if claimant else None)
        if same and (guest is None or not anew):
            return
        self.touch(endpoint)
        if guest is not None:
            self._leave(guest)
        self._enter(claimant, endpoint)
        self._tell({endpoint})

    def _leave(self, guest: Guest) -> None:
        del self._guests[guest.endpoint]
        self.allocator.leave(guest)
        self._waits.take_all(guest.endpoint)

    def _keep_in_place(self, port: model.Port) -> None:
        """Store a port of which only what does not identify the guest has changed."""
        guest = self.guest_of(port)
        if guest is None:
            return
        before = guest.next_hops, guest.port.binding
        guest.put(port)
        if guest.identity is not None and guest.identity.vm != port.vm:
            self._show(guest.endpoint)
            guest.identity = port.identify(guest.identity.incarnation)
        if (guest.next_hops, guest.port.binding) != before:
            self._tell({guest.endpoint}, NotifyPhase.FLOWS)

    def _take_away(self, taken: Iterable[tuple[Guest, int]]) -> set[model.Endpoint]:
        """Take numbers from guests, and return the endpoints of these guests."""
        touched = set()
        for guest, number in taken:
            self.touch(guest.endpoint)
            self.allocator.drop(guest, number)
            del guest.slots[number]
            touched.add(guest.endpoint)
        return touched

    def _tell_replaced(self, ofport: int) -> None:
        endpoints = self._claims.with_number(ofport)
        ports = list(itertools.chain.from_iterable(map(self._claims.at, endpoints)))
        for port_id, listener in itertools.product(ports, self._replaced_listeners):
            listener(port_id)

    def _tell(self, endpoints: Collection[model.Endpoint], *phases: NotifyPhase) -> None:
        """Call the listeners of *phases*; without any, those of all phases."""
        listeners = [each for phase in phases or NotifyPhase for each in self._listeners[phase]]
        for endpoint, listener in itertools.product(endpoints, listeners):
            listener(endpoint)

    def __iter__(self) -> Iterator[tuple[model.Port, dict[int, Slot]]]:
        for port in self._ports.values():
            guest = self.guest_of(port)
            yield port, dict(guest.slots) if guest is not None else {}
