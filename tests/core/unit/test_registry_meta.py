"""A number that stands for an address of one guest should never stand for another one's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dfmeta.identity.host_wide_allocator import HostWideAllocator
from dfmeta.identity.key import PREFIX6, MetaKeys
from dfmeta.identity.registry import REST, Claim, NotifyPhase, Registry
from dfmeta.model import Endpoint, GuestAddress, Identity, MetaIds, Port
from dfmeta.runtime.saved_state import Holder
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, address, address6, first_numbers, port
from tests.harness.examples import examples

CIDR = IPv4Network("240.0.0.0/28")
NARROW = IPv4Network("240.0.0.0/29")
"""Five guests' addresses, so that there is no number for some."""
HOST = frozenset({CIDR[5], PREFIX6[7], IPv4Address("10.9.9.9"), IPv6Address("::1")})
"""The host's own addresses; two of them would be keys."""
NAMES = ("a", "b", "c", "d")
OFPORTS = (1, 2, 3)
ADDRESSES = [address(f"10.0.0.{n}") for n in range(1, 11)]
ADDRESSES6 = [address6(f"fd12::{n}") for n in range(1, 6)]
KEYS = [*(str(ip) for ip in CIDR), *(str(PREFIX6[n]) for n in range(16))]


class InFlow(NamedTuple):
    """A flow that gives a number to the frames of an endpoint's address."""

    endpoint: Endpoint
    address: GuestAddress
    number: int


class InFlight(NamedTuple):
    """A frame that has left the switch with a number and waits at the proxy."""

    sent: float
    number: int
    sender: int | None
    """Incarnation of the guest that sent it; None: that guest has no claim any more."""


class Ports(RuleBasedStateMachine):
    """Ports come, change and go; the switch and OVSDB are late; the daemon is started again."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.rows: dict[str, Port] = {}
        self.made = 0
        self.flows: set[InFlow] = set()
        self.connected = True
        self.sweep: set[InFlow] | None = None
        self.in_flight: list[InFlight] = []
        self.cidr = CIDR
        self.start()

    @initialize(cidr=st.sampled_from([CIDR, NARROW, NARROW]), ports=st.integers(1, 3))
    def begin(self, cidr: IPv4Network, ports: int) -> None:
        self.cidr = cidr
        self.start()
        for ofport, name in zip(range(1, ports + 1), NAMES, strict=False):
            self.set_port(name, ofport, INSTANCE, {}, 0)

    def start(self) -> None:
        self.keys = MetaKeys(self.cidr, PREFIX6, "fa:16:ee:00:00:00")
        allocator = HostWideAllocator(self.keys, lambda: HOST, self.clock)
        self.registry = Registry(clock=self.clock, allocator=allocator)
        self.registry.subscribe(self.apply, NotifyPhase.FLOWS)
        self.firsts: dict[str, MetaIds] = {}
        self.claims: list[tuple[Claim, Port]] = []
        self.open: list[Claim] = []

    def clock(self) -> float:
        return self.now

    def key(self, number: int) -> IPv4Address | IPv6Address:
        return self.keys.key_of(Endpoint(1), number)

    def desired(self, endpoint: Endpoint) -> set[InFlow]:
        slots = self.registry.slots(endpoint)
        return {InFlow(endpoint, slot.address, number) for number, slot in slots.items()}

    def apply(self, endpoint: Endpoint) -> None:
        """Do what the reconciler does with a change: flows change if the switch is reachable."""
        if self.connected:
            self.flows = {flow for flow in self.flows if flow.endpoint != endpoint}
            self.flows |= self.desired(endpoint)

    # OVSDB

    @rule(
        name=st.sampled_from(NAMES),
        ofport=st.sampled_from([*OFPORTS, *OFPORTS, None]),
        instance=st.sampled_from([INSTANCE, OTHER_INSTANCE, ""]),
        odd=st.sampled_from([{}, {}, {}, {"project_id": ""}, {"dead": True}, {"fault": "odd"}]),
        vid=st.sampled_from([0, 0, 0, 7]),
        away=st.booleans(),
    )
    def set_port(
        self,
        name: str,
        ofport: int | None,
        instance: str,
        odd: dict[str, Any],
        vid: int,
        *,
        away: bool = False,
    ) -> None:
        made = replace(port(ofport, name=name, instance=instance), **odd)
        there = next((row for row in self.rows.values() if row.name == name), None)
        if there is None:
            self.made += 1
            there = replace(made, row=f"row-{self.made}", vid=vid)
        with self.away(away):
            self.put(replace(made, row=there.row, vid=there.vid, meta=there.meta))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), away=st.booleans())
    def remove_port(self, data: st.DataObject, away: bool) -> None:
        gone = self.rows.pop(data.draw(st.sampled_from(sorted(self.rows))))
        self.firsts.pop(gone.row, None)
        with self.away(away):
            self.registry.remove_port(gone.id)

    @contextmanager
    def away(self, away: bool) -> Iterator[None]:
        """If *away*, the switch is not reachable meanwhile, and keeps its flows."""
        if away:
            connected, self.connected, self.sweep = self.connected, False, None
            yield
            self.connected = connected
        else:
            yield

    @rule(data=st.data(), what=st.sampled_from(["pass", "pass", "write", "forge", "connect"]))
    def meanwhile(self, data: st.DataObject, what: str) -> None:
        """What is seldom of interest, so that the other rules come more often."""
        if what == "pass":
            self.others_come_and_go(data.draw(st.integers(1, 12)))
        elif what == "write":
            self.write()
        elif what == "forge" and self.rows:
            texts = st.sampled_from([*KEYS, "", "x"])
            meta = MetaIds(data.draw(texts), "fa:16:ee:00:00:01", data.draw(texts))
            self.forge(data.draw(st.sampled_from(sorted(self.rows))), meta)
        elif what == "connect" and self.claims:
            self.connection(data.draw(st.sampled_from(self.claims))[0])

    def others_come_and_go(self, times: int) -> None:
        """Numbers are given in turn, so that this brings one nearer to its next port."""
        for _ in range(times):
            self.registry.set_port(passing := port(77, name="passing"))
            self.registry.pending_ovsdb_writes()
            self.registry.remove_port(passing.id)

    def forge(self, row: str, meta: MetaIds) -> None:
        """Somebody writes into a row what belongs to another one, or to nobody."""
        before = self.registry.identity(self.rows[row].endpoint or Endpoint(99))
        self.put(replace(self.rows[row], meta=meta))
        assert self.registry.identity(self.rows[row].endpoint or Endpoint(99)) is before

    def write(self) -> None:
        with self.quiet():
            unwritten = self.registry.pending_ovsdb_writes()
        for row, ids in unwritten.items():
            there = self.rows[row].meta
            assert any(mine not in ("", other) for mine, other in zip(ids, there, strict=True))
            self.put(replace(self.rows[row], meta=ids))
        assert not self.registry.pending_ovsdb_writes(), "each of them is written once"

    def connection(self, claim: Claim) -> None:
        if claim in self.open:
            self.registry.closed(claim, self.now)
            self.open.remove(claim)
        else:
            self.registry.opened(claim, self.now)
            self.open.append(claim)

    def put(self, new: Port) -> None:
        self.rows[new.row] = new
        self.registry.set_port(new)

    # Guests

    @precondition(lambda self: self.connected and self.registry.endpoints())
    @rule(
        data=st.data(),
        some=st.lists(
            st.sampled_from([*ADDRESSES, *ADDRESSES, *ADDRESSES6]), min_size=1, max_size=8
        ),
    )
    def learn(self, data: st.DataObject, some: list[GuestAddress]) -> None:
        endpoint = data.draw(st.sampled_from(self.registry.endpoints()))
        for address_ in some:
            self.learn_one(endpoint, address_)

    def learn_one(self, endpoint: Endpoint, address_: GuestAddress) -> None:
        self.now += 1
        before = self.registry.slots(endpoint)
        with self.quiet(but=endpoint):
            found = self.registry.learn(endpoint, address_, self.now)
        self.apply(endpoint)
        if found is None:
            mine = [
                slot for slot in before.values() if slot.address.ip.version == address_.ip.version
            ]
            known = self.registry.identity(endpoint) is not None
            assert not known or not any(slot.idle(self.now) for slot in mine)
            return
        assert self.registry.slots(endpoint)[found.slot].address == address_
        assert found.slot in self.keys.slots(address_.ip.version)
        if found.new and found.displaced is None:
            assert found.slot not in self.registry.allocator.resting()
        claim = self.registry.claim(self.key(found.slot))
        assert claim is not None
        behind = self.registry.port_at(endpoint)
        assert behind is not None
        assert claim.endpoint == endpoint
        self.claims.append((claim, behind))

    @precondition(lambda self: self.flows)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """The guest that is behind a port now sends with the address of a flow."""
        through = data.draw(st.sampled_from(sorted(self.flows, key=str)))
        identity = self.registry.identity(through.endpoint)
        sender = identity.incarnation if identity is not None else None
        self.in_flight.append(InFlight(self.now, through.number, sender))

    @rule(seconds=st.sampled_from([1.0, REST - 1, REST, REST]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.in_flight = [one for one in self.in_flight if self.now - one.sent < REST]

    @contextmanager
    def quiet(self, but: Endpoint | None = None) -> Iterator[None]:
        """Other endpoints lose idle further addresses at most, to a port without any number."""
        before = {endpoint: self.registry.slots(endpoint) for endpoint in self.registry.endpoints()}
        first = {ip for ids in first_numbers(self.registry).values() for ip in (ids.ip, ids.ip6)}
        yield
        for endpoint, slots in before.items():
            after = self.registry.slots(endpoint)
            lost = {number: slot for number, slot in slots.items() if number not in after}
            assert not lost or self.registry.ports_without_number()
            for number, slot in lost.items():
                assert str(self.key(number)) not in first
                assert slot.idle(self.now)
                version = slot.address.ip.version
                assert any(slot.address.ip.version == version for slot in after.values())
            kept = {number: slots[number].epoch for number in slots.keys() - lost.keys()}
            if endpoint != but:
                assert {number: after[number].epoch for number in after} == kept

    # The switch

    @rule(lost=st.sampled_from([False, False, True]))
    def connection_to_the_switch(self, lost: bool) -> None:
        self.connected, self.sweep = not self.connected, None
        self.flows = set() if lost else self.flows

    @precondition(lambda self: self.connected)
    @rule(at_once=st.booleans())
    def compare(self, at_once: bool) -> None:
        if self.sweep is None:
            self.registry.allocator.begin_sweep()
            self.sweep = set(self.flows)
            if not at_once:
                return
        found, self.sweep = self.sweep, None
        desired = set().union(*map(self.desired, self.registry.endpoints()))
        self.flows = self.flows - (found - desired) | desired
        self.registry.allocator.end_sweep()

    # The daemon

    @rule(
        data=st.data(),
        changed=st.booleans(),
        lost=st.booleans(),
        odd=st.none()
        | st.builds(
            InFlow,
            st.sampled_from(OFPORTS).map(Endpoint),
            st.sampled_from(ADDRESSES[:2]),
            st.integers(2, 6),
        ),
    )
    def start_again(
        self, data: st.DataObject, changed: bool, lost: bool, odd: InFlow | None
    ) -> None:
        """Another guest may be at a port, the switch may have lost all flows, or have one that
        nobody understands."""
        before = self.registry
        written = self.kept_by_a_restart()
        held = {endpoint: before.guest(endpoint) for endpoint in before.endpoints()}
        holders = {
            endpoint: Holder(
                guest.port.iface_id,
                guest.port.instance_id,
                {number: slot.address for number, slot in guest.slots.items()},
            )
            for endpoint, guest in held.items()
            if guest is not None and guest.port.instance_id
        }
        resting = before.allocator.resting()
        identities = {endpoint: before.identity(endpoint) for endpoint in before.endpoints()}
        if changed and self.rows:
            row = data.draw(st.sampled_from(sorted(self.rows)))
            instance = data.draw(st.sampled_from([INSTANCE, OTHER_INSTANCE, ""]))
            self.rows[row] = replace(self.rows[row], instance_id=instance)
        if lost:
            self.flows = set()
        if odd is not None:
            self.flows = {flow for flow in self.flows if flow[:2] != odd[:2]} | {odd}
        self.start()
        self.connected = False
        for row in data.draw(st.permutations(sorted(self.rows))):
            self.registry.set_port(self.rows[row])
        self.rest_strangers(holders, resting)
        self.connected = True
        self.registry.allocator.begin_sweep()
        found = set(self.flows)
        for flow in data.draw(st.permutations(sorted(found, key=str))):
            self.adopt(flow, holders)
        self.restore(holders, complete=not changed and odd is None)
        self.remap(identities)
        self.sweep = found
        self.compare(at_once=True)
        self.registry.pending_ovsdb_writes()
        ids = first_numbers(self.registry)
        for row, key in written:
            assert key in (ids[row].ip, ids[row].ip6), "a first number survives a restart"

    def kept_by_a_restart(self) -> list[tuple[str, str]]:
        """Rows and keys that the rows have, and that no other row has."""
        stored = [text for row in self.rows.values() for text in (row.meta.ip, row.meta.ip6)]
        return [
            (row, key)
            for row, ids in first_numbers(self.registry).items()
            for key, there in zip((ids.ip, ids.ip6), self.rows[row].meta[::2], strict=True)
            if key and key == there and stored.count(key) == 1
        ]

    def rest_strangers(self, holders: dict[Endpoint, Holder], resting: list[int]) -> None:
        self.registry.rest(None, resting)
        for endpoint, holder in holders.items():
            if self.adopts(endpoint, holder):
                self.registry.allocator.expect(endpoint, holder.slots)
            else:
                self.registry.rest(endpoint, holder.slots)

    def adopts(self, endpoint: Endpoint, holder: Holder | None) -> bool:
        now = self.registry.identity(endpoint)
        known = holder is not None and (holder.port_id, holder.instance_id)
        return now is not None and known == (now.port_id, now.instance_id)

    def adopt(self, flow: InFlow, holders: dict[Endpoint, Holder]) -> None:
        owner = self.keys.owners.get(flow.number)
        if owner not in (None, flow.endpoint):
            self.registry.quarantine(flow.endpoint, flow.number)
        elif self.adopts(flow.endpoint, holders.get(flow.endpoint)):
            self.registry.adopt(flow.endpoint, flow.number, flow.address, self.now)
        else:
            self.registry.rest(flow.endpoint, [flow.number])

    def restore(self, holders: dict[Endpoint, Holder], *, complete: bool) -> None:
        """Restore the remembered addresses: all of them, if nothing else has happened."""
        for endpoint, holder in holders.items():
            if self.adopts(endpoint, holder):
                for number, slot in holder.slots.items():
                    assert slot is not None
                    self.registry.restore(endpoint, number, slot, self.now)
                    if complete:
                        assert self.registry.slots(endpoint)[number].address == slot

    def remap(self, before: dict[Endpoint, Identity | None]) -> None:
        """Return the senders of the frames in flight, in terms of the new process."""
        same: dict[int | None, int] = {}
        for endpoint, old in before.items():
            new = self.registry.identity(endpoint)
            if old is not None and new is not None:
                known = (old.port_id, old.instance_id) == (new.port_id, new.instance_id)
                same |= {old.incarnation: new.incarnation} if known else {}
        self.in_flight = [
            InFlight(one.sent, one.number, same.get(one.sender)) for one in self.in_flight
        ]

    # What must hold

    @invariant()
    def no_frame_is_taken_for_another_guests(self) -> None:
        for one in self.in_flight:
            claim = self.registry.claim(self.key(one.number))
            assert claim is None or claim.identity.incarnation == one.sender

    @invariant()
    def no_flow_leads_frames_of_one_endpoint_to_a_claim_of_another(self) -> None:
        for flow in self.flows:
            claim = self.registry.claim(self.key(flow.number))
            assert claim is None or claim.endpoint == flow.endpoint

    @invariant()
    def no_two_addresses_have_one_number(self) -> None:
        used = [
            (number, endpoint, slot)
            for endpoint in self.registry.endpoints()
            for number, slot in self.registry.slots(endpoint).items()
        ]
        numbers = [number for number, _endpoint, _slot in used]
        assert len(numbers) == len(set(numbers))
        assert not set(numbers) & set(self.registry.allocator.resting())
        for number, endpoint, slot in used:
            version = slot.address.ip.version
            assert number in self.keys.slots(version)
            assert self.key(number) not in HOST
            assert self.keys.owners[number] == endpoint
            mine = [
                claim
                for claim in self.open
                if (claim.endpoint, claim.epoch) == (endpoint, slot.epoch)
            ]
            assert slot.connections == len(mine)
        for version in (4, 6):
            for endpoint in self.registry.endpoints():
                slots = self.registry.slots(endpoint).values()
                addresses = [slot.address for slot in slots if slot.address.ip.version == version]
                assert len(set(addresses)) == len(addresses) <= self.keys.most(version)

    @invariant()
    def first_numbers_are_those_of_one_row_and_stay(self) -> None:
        ids = first_numbers(self.registry)
        for of in ("ip", "mac", "ip6"):
            given = [getattr(ids_, of) for ids_ in ids.values() if getattr(ids_, of)]
            assert len(given) == len(set(given))
        for row, ids_ in ids.items():
            assert not self.rows[row].vid
            for key, version in ((ids_.ip, 4), (ids_.ip6, 6)):
                if key:
                    number = self.keys.number_of(ip_of(key))
                    assert number in self.keys.slots(version), "none of network, gateway, broadcast"
                    owner = self.registry.allocator.user(number)
                    assert owner is None or owner.port.row == row
                    if version == 4:
                        assert ids_.mac == self.keys.label(number)
            before = self.firsts.get(row, MetaIds())
            assert all(old in ("", new) for old, new in zip(before, ids_, strict=True))
            self.firsts[row] = ids_

    @invariant()
    def a_number_has_the_owner_that_may_use_it(self) -> None:
        at = {port.row: port.endpoint for port in self.registry.ports()}
        expected = {
            number: endpoint
            for endpoint in self.registry.endpoints()
            for number in self.registry.slots(endpoint)
        }
        for row, ids in first_numbers(self.registry).items():
            endpoint = at[row]
            if endpoint is not None and self.registry.port_at(endpoint) == self.rows[row]:
                for key in filter(None, (ids.ip, ids.ip6)):
                    expected[self.keys.number_of(ip_of(key)) or 0] = endpoint
        assert self.keys.owners == expected


def ip_of(key: str) -> IPv4Address | IPv6Address:
    return IPv6Address(key) if ":" in key else IPv4Address(key)


TestPorts = Ports.TestCase
TestPorts.settings = settings(deadline=None, max_examples=examples(40), stateful_step_count=50)
