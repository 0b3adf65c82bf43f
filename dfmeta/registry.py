"""Who is behind which endpoint, now: the one place where controller and proxy meet.

It decides; flows only carry. Every request is asked under a :class:`Claim` and its answer leaves
only while :meth:`Registry.holds` still says so, whatever the datapath has revalidated by then.

All methods run on the hub and none of them waits, so each is atomic.

A slot whose guest has gone rests before another guest of that port gets it: connections may still
wait in the listener's queue, and the kernel may still repeat segments of the old guest's answers,
all under the old key. So a key is one guest's for as long as anything of it can be under way.

Which port has which number, OVSDB says and the switch says. Both have to say the same: OVSDB's word
comes later, by as much as its session or our reading of it is behind, and meanwhile the number may
be another guest's (a port renumbered by ``ofport_request``, or a restart of ovs-vswitchd). While a
number is in doubt (:mod:`dfmeta.numbering`) its guest keeps its place, but nothing is answered.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address

from dfmeta.contenders import Contenders
from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.key import IN_PORT, Keys
from dfmeta.model import (
    Caller,
    Endpoint,
    GuestAddress,
    Identity,
    PeerAddress,
    Port,
    PortId,
    PortState,
)
from dfmeta.numbering import Device, Numbering
from dfmeta.slots import Guest, Learned, Slot
from dfmeta.waits import Waits

REST = 120.0
"""Seconds that a slot rests after a change of its endpoint's guest: longer than Linux keeps
repeating what a closed connection still had to say."""


class Phase(enum.IntEnum):
    """When a subscriber hears of a change: in this order, whichever subscribed first.

    Once the guest of a port has changed, the switch first lets nothing of the one before in, and
    only then its connections end: no request of it comes behind them.
    """

    FLOWS = 1
    """The flows on the switch follow."""
    CONNECTIONS = 2
    """Connections and requests under way end, and the counts of the guest before are forgotten."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a connection was accepted as. Valid while :meth:`Registry.holds` says so."""

    identity: Identity
    caller: Caller
    slot: int
    epoch: int
    address: GuestAddress | PeerAddress

    @property
    def endpoint(self) -> Endpoint:
        """The caller, where it is a guest at a port.

        :raises TypeError: it is known by its address alone.
        """
        if not isinstance(self.caller, Endpoint):
            raise TypeError(f"{self.caller} is not at a port")
        return self.caller


class Registry:
    """Live map of ports to identities and of endpoints to addresses.

    :param host_addresses: gives the addresses of the host itself, which no key may be.
    :param ask: see :class:`~dfmeta.numbering.Numbering`; :meth:`answered` takes the answer.
    :param clock: monotonic seconds.
    :param keys: the scheme of the keys; the flows have the same.
    """

    def __init__(
        self,
        host_addresses: Callable[[], Collection[IPv4Address]] = tuple,
        *,
        ask: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
        keys: Keys = IN_PORT,
    ) -> None:
        self.keys = keys
        self._host_addresses = host_addresses
        self._clock = clock
        self.version = 0
        """Grows with every change of a port or a slot."""
        self._changed: set[Endpoint] = set()
        self._states: Counter[PortState] = Counter()
        self._resting: dict[Endpoint, dict[int, float]] = {}
        self._ports: dict[PortId, Port] = {}
        self._guests: dict[Endpoint, Guest] = {}
        self._contenders = Contenders()
        self._numbering = Numbering(ask)
        self._incarnations = itertools.count(1)
        self._epochs = itertools.count(1)
        self._waits = Waits()
        self._listeners: dict[Phase, list[Callable[[Endpoint], None]]] = {
            phase: [] for phase in Phase
        }
        self._watchers: list[Callable[[Endpoint], None]] = []
        self._certain_listeners: list[Callable[[Endpoint], None]] = []
        self._replaced_listeners: list[Callable[[PortId], None]] = []

    def watch(self, watcher: Callable[[Endpoint], None]) -> None:
        """Call *watcher* with each endpoint of which anything is about to change: its guest, what
        is known of that, its slots, or how long its SYNs have waited."""
        self._watchers.append(watcher)

    def subscribe(
        self, listener: Callable[[Endpoint], None], phase: Phase = Phase.CONNECTIONS
    ) -> None:
        """Call *listener* with each endpoint whose guest has changed, after the change."""
        self._listeners[phase].append(listener)

    def when_certain(self, listener: Callable[[Endpoint], None]) -> None:
        """Call *listener* with each endpoint whose number is in doubt no more."""
        self._certain_listeners.append(listener)

    def when_replaced(self, listener: Callable[[PortId], None]) -> None:
        """Call *listener* with each port that has another device now."""
        self._replaced_listeners.append(listener)

    # Ports, as OVSDB tells of them

    def set_port(self, port: Port) -> None:
        """Take in a port that is new or has changed.

        A port that changed in anything that says who it is starts anew: its addresses are
        forgotten and no earlier claim holds. A project that was not known and now is changes
        nothing of that. Of two rows that claim one endpoint the later wins.
        """
        old = self._ports.get(port.id)
        self._ports[port.id] = port
        if old == port:
            return
        self._states[port.state] += 1
        if old is not None:
            self._states[old.state] -= 1
        self._note(old, port)
        agrees = self._numbering.agrees(port)
        if old is not None and agrees and _only_adds(old, port) and self._add(port):
            return
        touched = self._withdraw(old) if old is not None else set()
        if port.endpoint is not None and not port.dead:
            self._contenders.put(port, port.endpoint)
            touched |= self._enter(port, port.endpoint)
        self._tell(touched)

    def remove_port(self, port_id: PortId) -> None:
        """Forget that port, if it is known; others of its row stay."""
        port = self._ports.pop(port_id, None)
        if port is not None:
            self._states[port.state] -= 1
            self._note(port)
            self._tell(self._withdraw(port))

    def fault(self, port_id: PortId) -> str:
        """The fault of that port, as far as it is known here."""
        port = self._ports.get(port_id)
        return port.fault if port is not None else ""

    def ports(self) -> list[Port]:
        """Every guest port, served or not."""
        return list(self._ports.values())

    def count(self, state: PortState) -> int:
        """How many ports are in that state."""
        return self._states[state]

    def holder(self, endpoint: Endpoint) -> tuple[Port, dict[int, Slot]] | None:
        """The port that is served at *endpoint* and its slots, if its instance is known."""
        guest = self._guests.get(endpoint)
        if guest is None or not guest.port.instance_id:
            return None
        return guest.port, dict(guest.slots)

    def take_changed(self) -> set[Endpoint]:
        """Endpoints whose port or whose slots have changed since the last time."""
        changed, self._changed = self._changed, set()
        return changed

    def touch(self, endpoint: Endpoint) -> None:
        """Have *endpoint* count as changed."""
        self.version += 1
        self._changed.add(endpoint)
        self._show(endpoint)

    # Numbers, as the switch tells of them

    def set_devices(self, devices: Mapping[int, Device], *, gap: bool) -> None:
        """Take in which device has which number on the switch, all of them.

        :param gap: changes may have been missed before; see :meth:`Numbering.put_all`.
        """
        changed = self._numbering.put_all(devices, gap=gap)
        for endpoint in self._contenders.with_number(*self._numbering.doubted()):
            self._show(endpoint)
        for ofport, replaced in changed.items():
            for endpoint in self._contenders.with_number(ofport):
                self._review(endpoint, anew=replaced)
            self._say_replaced(ofport, there=replaced and ofport in devices)

    def set_device(self, ofport: int, device: Device | None) -> None:
        """Take in that the number is that device's now; None: no device's.

        A guest that has the number starts anew: it is another device, perhaps another guest's.
        """
        if self._numbering.put(ofport, device):
            for endpoint in self._contenders.with_number(ofport):
                self._show(endpoint)
                self._review(endpoint, anew=True)
            self._say_replaced(ofport, there=device is not None)

    def answered(self, question: int) -> None:
        """Take in that OVSDB has answered that question, and all that it said before."""
        for endpoint in self._contenders.with_number(*self._numbering.answered(question)):
            self._show(endpoint)
            for listener in self._certain_listeners:
                listener(endpoint)

    def certain(self, endpoint: Caller) -> bool:
        """Whether OVSDB's word about that number counts. Nothing may be answered while not."""
        return not isinstance(endpoint, Endpoint) or self._numbering.certain(endpoint.ofport)

    def doubted(self) -> list[Port]:
        """Ports that are not served, since OVSDB has not yet confirmed their number."""
        found = map(self.port_at, self._contenders.with_number(*self._numbering.doubted()))
        return [port for port in found if port is not None]

    def misnamed(self) -> list[tuple[Port, bytes]]:
        """Ports that are not served, since the switch says that their number is another's."""
        return [
            (port, self._numbering.name(port.ofport or 0))
            for port in self._contenders
            if not self._numbering.agrees(port)
        ]

    # Endpoints, for the controller

    def endpoints(self) -> list[Endpoint]:
        """Endpoints that are to have flows."""
        return list(self._guests)

    def port_at(self, endpoint: Endpoint) -> Port | None:
        """Port behind *endpoint*, if it is a guest's."""
        guest = self._guests.get(endpoint)
        return guest.port if guest else None

    def identity(self, endpoint: Endpoint) -> Identity | None:
        """Who is at *endpoint*; None when no guest is, or its instance is not known."""
        guest = self._guests.get(endpoint)
        return guest.identity if guest else None

    def slots(self, endpoint: Endpoint) -> dict[int, Slot]:
        """Slot → address of *endpoint*, as they are now."""
        guest = self._guests.get(endpoint)
        return dict(guest.slots) if guest else {}

    def learn(self, endpoint: Endpoint, address: GuestAddress, now: float) -> Learned | None:
        """Give *address* a slot at *endpoint*, or find the one that it has.

        The address is the guest's claim; it takes room only among the endpoint's own slots.

        :return: None when the endpoint is not served, or when each slot has an open connection,
            or addresses have given way too often lately.
        """
        guest = self._guests.get(endpoint)
        if guest is None or guest.identity is None or not self.certain(endpoint):
            return None
        for known, slot in guest.slots.items():
            if slot.address == address:
                slot.last_used = now
                return Learned(known, new=False, epoch=slot.epoch)
        displaced = None
        number = self._free_slot(guest)
        if number is None:
            number = guest.longest_idle()
            if number is None or not guest.may_displace(now):
                return None
            displaced = guest.slots[number].address
        self.touch(endpoint)
        epoch = next(self._epochs)
        guest.slots[number] = Slot(address, epoch, now)
        return Learned(number, new=True, epoch=epoch, displaced=displaced)

    def has_slot(self, endpoint: Endpoint, learned: Learned) -> bool:
        """Whether the address that was *learned* still has its slot."""
        guest = self._guests.get(endpoint)
        slot = guest.slots.get(learned.slot) if guest else None
        return slot is not None and slot.epoch == learned.epoch

    def rest(self, endpoint: Endpoint, numbers: Iterable[int]) -> None:
        """Have those slots rest: another guest had them."""
        resting = self._resting.setdefault(endpoint, {})
        resting.update(dict.fromkeys(numbers, self._clock() + REST))

    def adopt(self, endpoint: Endpoint, number: int, address: GuestAddress, now: float) -> bool:
        """Take over an address that was found on the switch; False when there is no place."""
        guest = self._guests.get(endpoint)
        if guest is None or guest.identity is None or number in guest.slots:
            return False
        if any(slot.address == address for slot in guest.slots.values()):
            return False
        if self.keys.key_of(endpoint, number) in self._host_addresses():
            return False
        self.touch(endpoint)
        guest.slots[number] = Slot(address, next(self._epochs), now)
        return True

    # Claims, for the proxy

    def claim(self, peer: IPv4Address | IPv6Address) -> Claim | None:
        """Say who sends from *peer*, the source address of a connection on tap-metadata.

        Trust: nothing but dfmeta's service flows outputs to tap-metadata, so a key is the switch's
        word for an in_port; anything that is not a key in use is nobody.
        """
        try:
            endpoint, number = self.keys.parse(peer)
        except KeyRangeError:
            return None
        guest = self._guests.get(endpoint)
        if guest is None or guest.identity is None:
            return None
        slot = guest.slots.get(number)
        if slot is None:
            return None
        return Claim(guest.identity, endpoint, number, slot.epoch, slot.address)

    def holds(self, claim: Claim) -> bool:
        """Whether an answer may leave: the same incarnation of the same instance is still there,
        at that address, and its number is not in doubt."""
        return self.current(claim) is not None and self.certain(claim.endpoint)

    def current(self, claim: Claim) -> Identity | None:
        """Identity that *claim* stands for, with what has become known since; None when it does
        not hold any more."""
        guest = self._guests.get(claim.endpoint)
        if guest is None or guest.identity is None:
            return None
        slot = guest.slots.get(claim.slot)
        if slot is None or slot.epoch != claim.epoch:
            return None
        same = guest.identity.incarnation == claim.identity.incarnation
        return guest.identity if same else None

    def opened(self, claim: Claim, now: float) -> None:
        """Count a connection under *claim*; its slot does not give way while there is one."""
        self.count_connections(claim.endpoint, claim.slot, claim.epoch, 1, now)

    def closed(self, claim: Claim, now: float) -> None:
        """Take back what :meth:`opened` counted."""
        self.count_connections(claim.endpoint, claim.slot, claim.epoch, -1, now)

    def count_connections(
        self, endpoint: Endpoint, number: int, epoch: int, change: int, now: float
    ) -> None:
        """Count *change* connections more of a slot, if the same address still has it."""
        guest = self._guests.get(endpoint)
        slot = guest.slots.get(number) if guest else None
        if slot is not None and slot.epoch == epoch:
            slot.connections += change
            slot.last_used = now

    # How long a first SYN waited, against the one hold budget

    def note_wait(self, endpoint: Endpoint, source_port: int, seconds: float) -> None:
        """Remember that the SYN of that connection was held for *seconds*."""
        self._show(endpoint)
        self._waits.note(endpoint, source_port, seconds)

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """Give back what was noted for that connection, once; 0.0 when nothing was."""
        return self._waits.take(endpoint, source_port)

    def take_waits(self, endpoint: Endpoint) -> list[tuple[int, float]]:
        """Give back all that was noted for *endpoint*: source ports and seconds."""
        return self._waits.take_all(endpoint)

    def _note(self, *ports: Port | None) -> None:
        self.version += 1
        for port in ports:
            if port is not None and port.ofport is not None:
                # Also of one that is broken, and so has no endpoint: it may have had one.
                endpoint = Endpoint(port.ofport, port.vid)
                self._changed.add(endpoint)
                self._show(endpoint)

    def _show(self, endpoint: Endpoint) -> None:
        for watcher in self._watchers:
            watcher(endpoint)

    def _identify(self, port: Port) -> Identity | None:
        if port.state is not PortState.SERVED:
            return None
        return Identity(
            instance_id=port.instance_id,
            project_id=port.project_id,
            port_id=port.iface_id,
            port_name=port.name,
            incarnation=next(self._incarnations),
            unverified=port.unverified,
            instance_name=port.instance_name,
        )

    def _add(self, port: Port) -> bool:
        guest = self._guests.get(port.endpoint) if port.endpoint is not None else None
        if guest is None or guest.port.id != port.id or guest.identity is None:
            return False
        guest.port = port
        self._contenders.put(port, guest.endpoint)
        guest.identity = replace(
            guest.identity,
            project_id=port.project_id,
            port_name=port.name,
            unverified=port.unverified,
            instance_name=port.instance_name,
        )
        self._tell({guest.endpoint})
        return True

    def _withdraw(self, port: Port) -> set[Endpoint]:
        endpoint = port.endpoint
        if endpoint is None:
            return set()
        self._contenders.remove(port, endpoint)
        guest = self._guests.get(endpoint)
        if guest is None or guest.port.id != port.id:
            return set()
        self._leave(guest)
        # Another row may have claimed the number before, and given way.
        rightful = self._rightful(endpoint)
        if rightful is not None:
            self._enter(rightful, endpoint)
        return {endpoint}

    def _enter(self, port: Port, endpoint: Endpoint) -> set[Endpoint]:
        if not self._numbering.agrees(port):
            return set()
        before = self._guests.get(endpoint)
        if before is not None:
            self._leave(before)
        self._guests[endpoint] = Guest(port, endpoint, self._identify(port))
        return {endpoint}

    def _rightful(self, endpoint: Endpoint) -> Port | None:
        return self._contenders.latest(endpoint, self._numbering.agrees)

    def _review(self, endpoint: Endpoint, *, anew: bool) -> None:
        guest, rightful = self._guests.get(endpoint), self._rightful(endpoint)
        same = (guest.port.id if guest else None) == (rightful.id if rightful else None)
        if same and (guest is None or not anew):
            return
        self.touch(endpoint)
        if guest is not None:
            self._leave(guest)
        if rightful is not None:
            self._enter(rightful, endpoint)
        self._tell({endpoint})

    def _leave(self, guest: Guest) -> None:
        del self._guests[guest.endpoint]
        if guest.slots:
            self.rest(guest.endpoint, guest.slots)
        self._waits.take_all(guest.endpoint)

    def _free_slot(self, guest: Guest) -> int | None:
        taken, now = self._host_addresses(), self._clock()
        resting = self._resting.get(guest.endpoint, {})
        for number in [number for number, until in resting.items() if until <= now]:
            del resting[number]
        if not resting:
            self._resting.pop(guest.endpoint, None)
        free = [
            number
            for number in self.keys.slots
            if number not in guest.slots and self.keys.key_of(guest.endpoint, number) not in taken
        ]
        rested = [number for number in free if number not in resting]
        if rested or guest.slots:
            return rested[0] if rested else None
        # All of them rest, after a guest for each within two minutes: the one that did longest.
        return min(free, key=lambda number: resting[number], default=None)

    def _say_replaced(self, ofport: int, *, there: bool) -> None:
        ids = self._contenders.ids(ofport) if there else ()
        for port_id, listener in itertools.product(ids, self._replaced_listeners):
            listener(port_id)

    def _tell(self, endpoints: Collection[Endpoint]) -> None:
        listeners = [one for phase in Phase for one in self._listeners[phase]]
        for endpoint, listener in itertools.product(endpoints, listeners):
            listener(endpoint)

    def __iter__(self) -> Iterator[tuple[Port, dict[int, Slot]]]:
        for port in self._ports.values():
            endpoint = port.endpoint
            guest = self._guests.get(endpoint) if endpoint else None
            mine = guest is not None and guest.port.id == port.id
            yield port, dict(guest.slots) if guest is not None and mine else {}


def _only_adds(old: Port, new: Port) -> bool:
    """Whether *new* is the same guest's port, of which more is known."""
    who = ("id", "ofport", "iface_id", "instance_id", "dead", "fault")
    same = all(getattr(old, name) == getattr(new, name) for name in who)
    # A claim may be confirmed; what was known may not become a claim.
    return same and old.project_id in ("", new.project_id) and old.unverified >= new.unverified
