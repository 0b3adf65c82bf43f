"""A claim should hold exactly as long as the same guest is at the same address of the same port."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dfmeta.identity.key import IN_PORT, SLOT6, SLOTS, SLOTS6
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import REST, Claim, NotifyPhase, Registry
from dfmeta.identity.slots import DISPLACED_AT_ONCE, DISPLACED_PER_SECOND, EXPECTED, KEPT, Learned
from dfmeta.model import Endpoint, GuestAddress, Port, PortId, PortKind, PortState
from tests.core.unit.support import (
    GUEST_MAC,
    INSTANCE,
    OTHER_INSTANCE,
    SERVICE6,
    Clock,
    address,
    address6,
    port,
)
from tests.harness.examples import examples

HERE = Endpoint(13)
RESERVED = {
    IN_PORT.key_of(Endpoint(1), 0),
    IN_PORT.key_of(Endpoint(1), 3),
    IN_PORT.key_of(Endpoint(2), 7),
    IN_PORT.key_of(Endpoint(1), SLOT6 + 2),
}
ADDRESSES = [address(f"10.0.0.{n}", f"fa:16:3e:00:00:{n:02x}") for n in range(1, 11)]
ADDRESSES6 = [address6(f"fd12::{n}", service=SERVICE6[n % 2]) for n in range(1, 21)]
ALL_ADDRESSES = [*ADDRESSES, *ADDRESSES6]
PLACED = [(slot, address_) for slot in SLOTS for address_ in ADDRESSES]
PLACED += [(slot, address_) for slot in SLOTS6 for address_ in ADDRESSES6]
"""A slot and an address of the same version."""


def slots_of(address_: GuestAddress) -> Sequence[int]:
    return IN_PORT.slots(address_.ip.version)


def learned(registry: Registry, number: int, now: float = 0.0, at: Endpoint = HERE) -> Learned:
    found = registry.learn(at, ADDRESSES[number], now)
    assert found is not None
    return found


def claimed(registry: Registry, slot: int = 0, at: Endpoint = HERE) -> Claim:
    claim = registry.claim(IN_PORT.key_of(at, slot))
    assert claim is not None
    return claim


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(clock: Clock) -> Registry:
    registry = Registry(clock=clock)
    registry.set_port(port())
    return registry


VIDS = st.sampled_from([0, 0, 0, 5])
PLACES = st.builds(Endpoint, st.sampled_from([1, 2, 3]), VIDS)
DEVICES = [
    *(SwitchDevice(name) for name in (b"a", b"b", b"c", b"x")),
    SwitchDevice(b"a", GUEST_MAC),
]


class Ports(RuleBasedStateMachine):
    """Ports, addresses and connections come, change and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Endpoint] = []
        self.now = 0.0
        self.asked = 0
        self.doubted: set[int] = set()
        self.registry = Registry(lambda: RESERVED, ask=self.ask, clock=lambda: self.now)
        self.registry.subscribe(self.told.append)
        self.resting: dict[tuple[Endpoint, int], float] = {}
        self.rows: dict[PortId, Port] = {}
        self.devices: dict[int, SwitchDevice] = {}
        self.addresses: dict[tuple[Endpoint, int], GuestAddress] = {}
        self.unverified: list[tuple[Claim, Port]] = []
        self.broken: list[Claim] = []
        self.open: list[Claim] = []

    # What OVSDB says

    @rule(
        name=st.sampled_from(["a", "b", "c"]),
        ofport=st.sampled_from([None, 1, 1, 2, 2, 3]),
        instance=st.sampled_from([INSTANCE, INSTANCE, OTHER_INSTANCE, ""]),
        project=st.sampled_from(["", "p"]),
        odd=st.sampled_from(["", "", "", "", "dead", "fault"]),
        vid=VIDS,
    )
    def set_port(
        self, name: str, ofport: int | None, instance: str, project: str, odd: str, vid: int
    ) -> None:
        made = port(
            ofport,
            name=name,
            instance=instance,
            project=project,
            dead=odd == "dead",
            fault="odd" if odd == "fault" else "",
        )
        new = replace(made, vid=vid)
        old = self.rows.get(new.id)
        self.rows[new.id] = new
        self._changing(lambda: self.registry.set_port(new), kept=self._kept(old, new))

    def _kept(self, old: Port | None, new: Port) -> Endpoint | None:
        """Endpoint whose guest stays the same one, because only its project became known."""
        if old is None or old.project_id or replace(old, project_id=new.project_id) != new:
            return None
        endpoint = old.endpoint
        served = endpoint is not None and self.registry.port_at(endpoint) == old
        return endpoint if served and old.state is PortState.SERVED else None

    @rule(name=st.sampled_from(["a", "b", "c", "nobody"]), vid=VIDS)
    def remove_port(self, name: str, vid: int) -> None:
        port_id = PortId(f"row-of-{name}", vid)
        self.rows.pop(port_id, None)
        self._changing(lambda: self.registry.remove_port(port_id))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def say_the_same_again(self, data: st.DataObject) -> None:
        same = self.rows[data.draw(st.sampled_from(sorted(self.rows)))]
        holding = [claim for claim, _port in self.unverified if self.registry.holds(claim)]
        self.told.clear()
        self.registry.set_port(same)
        assert not self.told
        assert all(map(self.registry.holds, holding))

    # What the switch says of its ports

    def ask(self) -> int:
        self.asked += 1
        return self.asked

    @rule(ofport=st.sampled_from([1, 2, 3]), device=st.sampled_from([*DEVICES, None]))
    def name(self, ofport: int, device: SwitchDevice | None) -> None:
        if self.devices.get(ofport) != device:
            self.doubted.add(ofport)
        if device is None:
            self.devices.pop(ofport, None)
        else:
            self.devices[ofport] = device
        self._changing(lambda: self.registry.set_device(ofport, device))

    @rule(
        devices=st.dictionaries(st.sampled_from([1, 2, 3]), st.sampled_from(DEVICES)),
        gap=st.booleans(),
    )
    def name_all(self, devices: dict[int, SwitchDevice], gap: bool) -> None:
        both = devices.keys() | self.devices.keys()
        changed = {n for n in both if devices.get(n) != self.devices.get(n)}
        self.doubted |= both if gap else changed
        self.devices = dict(devices)
        self._changing(lambda: self.registry.set_devices(devices, gap=gap))

    @rule()
    def answer(self) -> None:
        self.doubted.clear()
        self.registry.answered(self.asked)

    def _changing(self, change: Callable[[], None], *, kept: Endpoint | None = None) -> None:
        before = {e: self.registry.identity(e) for e in self.registry.endpoints()}
        self.told.clear()
        change()
        after = {e: self.registry.identity(e) for e in self.registry.endpoints()}
        for endpoint in before.keys() | after.keys():
            if endpoint not in after or before.get(endpoint) is not after[endpoint]:
                assert endpoint in self.told or before.get(endpoint) is after.get(endpoint) is None
            if endpoint in self.told and endpoint != kept:
                for key in [key for key in self.addresses if key[0] == endpoint]:
                    del self.addresses[key]
                    self.resting[key] = self.now + REST

    # What guests and the switch say

    @rule(ofport=st.sampled_from([1, 2, 3, 4]), address_=st.sampled_from(ALL_ADDRESSES), vid=VIDS)
    def learn(self, ofport: int, address_: GuestAddress, vid: int) -> None:
        endpoint = Endpoint(ofport, vid)
        self.now += 1
        mine = slots_of(address_)
        before = {n: slot for n, slot in self.registry.slots(endpoint).items() if n in mine}
        idle = {n: slot.last_used for n, slot in before.items() if not slot.connections}
        new = self.registry.learn(endpoint, address_, self.now)
        if new is None:
            known = self.registry.identity(endpoint) is not None
            assert not known or not idle or ofport in self.doubted
            return
        assert ofport not in self.doubted
        if not new.new:
            assert self.addresses[endpoint, new.slot] == address_
            return
        assert new.slot in mine
        assert IN_PORT.key_of(endpoint, new.slot) not in RESERVED
        if new.displaced is not None:
            assert before[new.slot].address == new.displaced
            assert idle[new.slot] == min(idle.values()), "the longest idle one gives way"
        else:
            assert new.slot not in before
            if self.resting.get((endpoint, new.slot), 0.0) > self.now:
                free = [n for n in mine if IN_PORT.key_of(endpoint, n) not in RESERVED]
                assert not before
                assert all(self.resting.get((endpoint, n), 0.0) > self.now for n in free)
        self.resting.pop((endpoint, new.slot), None)
        self.addresses[endpoint, new.slot] = address_

    @rule(endpoint=PLACES, placed=st.sampled_from(PLACED))
    def adopt(self, endpoint: Endpoint, placed: tuple[int, GuestAddress]) -> None:
        slot, one = placed
        before = self.registry.slots(endpoint)
        if self.registry.adopt(endpoint, slot, one, self.now):
            assert IN_PORT.key_of(endpoint, slot) not in RESERVED
            assert slot not in before
            assert one not in [known.address for known in before.values()]
            self.addresses[endpoint, slot] = one
            self.resting.pop((endpoint, slot), None)

    @rule(seconds=st.sampled_from([1.0, REST / 2, REST]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # What the proxy does

    @rule(endpoint=PLACES, slot=st.sampled_from([*SLOTS, *SLOTS6]))
    def claim(self, endpoint: Endpoint, slot: int) -> None:
        claim = self.registry.claim(IN_PORT.key_of(endpoint, slot))
        assert (claim is not None) == ((endpoint, slot) in self.addresses)
        if claim is not None:
            assert claim.address == self.addresses[endpoint, slot]
            behind = self.registry.port_at(endpoint)
            assert behind is not None
            assert behind.state is PortState.SERVED
            assert claim.identity.instance_id == behind.instance_id
            assert self.registry.current(claim) is not None
            self.unverified.append((claim, behind))

    @precondition(lambda self: self.unverified)
    @rule(data=st.data())
    def open_connection(self, data: st.DataObject) -> None:
        claim, _port = data.draw(st.sampled_from(self.unverified))
        self.now += 1
        self.registry.opened(claim, self.now)
        self.open.append(claim)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close_connection(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.open))
        self.now += 1
        self.registry.closed(claim, self.now)
        self.open.remove(claim)

    @invariant()
    def a_claim_holds_only_for_the_port_that_it_was_made_for(self) -> None:
        for claim, behind in self.unverified:
            current = self.registry.current(claim)
            certain = claim.endpoint.ofport not in self.doubted
            assert self.registry.holds(claim) == (certain and current is not None)
            if current is not None:
                assert claim not in self.broken, "what broke once never holds again"
                now = self.rows[behind.id]
                assert now == self.registry.port_at(claim.endpoint)
                assert now in (behind, replace(behind, project_id=now.project_id))
                assert behind.project_id in ("", now.project_id)
                assert current is self.registry.identity(claim.endpoint)
                assert current == replace(claim.identity, project_id=now.project_id)
                assert self.registry.slots(claim.endpoint)[claim.slot].address == claim.address
            elif claim not in self.broken:
                self.broken.append(claim)

    @invariant()
    def no_two_addresses_share_a_key(self) -> None:
        keys = [
            IN_PORT.key_of(endpoint, slot)
            for endpoint in self.registry.endpoints()
            for slot in self.registry.slots(endpoint)
        ]
        assert len(keys) == len(set(keys))
        assert not RESERVED & set(keys)

    @invariant()
    def slots_are_as_they_were_given(self) -> None:
        for endpoint in self.registry.endpoints():
            slots = self.registry.slots(endpoint)
            assert all(n in slots_of(slot.address) for n, slot in slots.items())
            given = {n: a for (e, n), a in self.addresses.items() if e == endpoint}
            assert {n: slot.address for n, slot in slots.items()} == given
            addresses = [slot.address for slot in slots.values()]
            assert len(addresses) == len(set(addresses))

    @invariant()
    def connections_are_counted_for_claims_that_hold(self) -> None:
        for endpoint in self.registry.endpoints():
            for number, slot in self.registry.slots(endpoint).items():
                mine = [c for c in self.open if (c.endpoint, c.epoch) == (endpoint, slot.epoch)]
                assert slot.connections == len(mine), number

    @invariant()
    def nobody_is_served_under_a_number_that_is_anothers(self) -> None:
        withheld = {port.id for port, _name in self.registry.misnamed()}
        for endpoint in self.registry.endpoints():
            behind = self.registry.port_at(endpoint)
            assert behind is not None
            device = self.devices.get(endpoint.ofport)
            assert device is None or device.name == behind.name.encode()
            assert behind.id not in withheld
        for row in self.rows.values():
            if row.endpoint is not None and not row.dead and row.id not in withheld:
                assert self.registry.port_at(row.endpoint) is not None

    @invariant()
    def only_ports_that_can_be_served_have_endpoints(self) -> None:
        for endpoint in self.registry.endpoints():
            behind = self.registry.port_at(endpoint)
            assert behind is not None
            assert behind.endpoint == endpoint
            assert behind.state in (PortState.SERVED, PortState.NO_INSTANCE)
        assert {p.id for p in self.registry.ports()} == set(self.rows)


TestPorts = Ports.TestCase
TestPorts.settings = settings(deadline=None, max_examples=examples(26), stateful_step_count=40)


def test_one_version_takes_no_slot_of_the_other(registry: Registry) -> None:
    for number in range(7):
        learned(registry, number, now=number)
    six = registry.learn(HERE, ADDRESSES6[0], 10)
    assert six is not None
    assert (six.slot, six.displaced) == (SLOT6 + 1, None)
    for number, address_ in enumerate(ADDRESSES6):
        registry.learn(HERE, address_, 20 + number)
    assert registry.count_addresses() == {"4": 7, "6": 16}
    new = learned(registry, 7, now=99)
    assert (new.slot, new.displaced) == (0, ADDRESSES[0]), "though IPv6 was idle for less"


def accepted(registry: Registry, found: Learned, now: float = 0.0) -> Learned:
    for change in (1, -1):
        registry.count_connections(HERE, found.slot, found.epoch, change, now)
    return found


def test_an_address_whose_connection_is_expected_does_not_give_way(registry: Registry) -> None:
    first, *others = [learned(registry, number) for number in range(7)]
    assert registry.learn(HERE, ADDRESSES[7], now=EXPECTED * 0.9) is None
    for other in others:
        accepted(registry, other)
    assert registry.learn(HERE, ADDRESSES[7], now=EXPECTED * 0.9) is not None
    assert registry.has_slot(HERE, first), "its connection is still expected"
    assert not registry.has_slot(HERE, others[0])


def test_addresses_give_way_only_so_often(registry: Registry) -> None:
    def made_up(number: int, now: float) -> Learned | None:
        found = registry.learn(HERE, address(mac=f"fa:16:3e:00:{number:02x}:01"), now)
        return accepted(registry, found, now) if found is not None else None

    at_once = len(SLOTS) + DISPLACED_AT_ONCE
    assert all(made_up(number, 100.0) for number in range(at_once))
    assert made_up(200, 100.0) is None
    known = made_up(at_once - 1, 100.0)
    assert known is not None, "one that has a slot is no question of room"
    pause = 1 / DISPLACED_PER_SECOND
    assert made_up(200, 100.0 + 0.9 * pause) is None
    assert made_up(200, 100.0 + pause) is not None
    assert made_up(201, 100.0 + pause) is None
    later = [made_up(number, 1000.0) for number in range(60)]
    assert sum(one is not None for one in later) == DISPLACED_AT_ONCE


def test_no_claim_holds_after_its_port_has_changed() -> None:
    for change in (
        {"instance": OTHER_INSTANCE},
        {"instance": ""},
        {"project": "another"},
        {"dead": True},
        {"fault": "odd"},
        {"ofport": 14},
        {"ofport": None},
    ):
        registry = Registry()
        registry.set_port(port())
        learned(registry, 0)
        claim = claimed(registry)
        registry.set_port(port(**change))  # type: ignore[arg-type]
        assert not registry.holds(claim), change
        registry.set_port(port())
        assert not registry.holds(claim), "the same words are not the same incarnation"
        slot = learned(registry, 0).slot
        assert not registry.holds(claim)
        assert registry.holds(claimed(registry, slot)), change


def test_instance_becomes_verified_without_a_pause_and_never_the_other_way_round() -> None:
    registry, unverified = Registry(), replace(port(), unverified=True)
    registry.set_port(unverified)
    learned(registry, 0)
    claim = claimed(registry)
    assert claim.identity.unverified
    registry.set_port(port())
    current = registry.current(claim)
    assert current is not None
    assert not current.unverified
    registry.set_port(unverified)
    assert not registry.holds(claim)


def test_of_two_rows_with_one_number_the_later_is_served(registry: Registry) -> None:
    registry.set_port(port(name="later", instance=OTHER_INSTANCE))
    learned(registry, 0)
    claim = claimed(registry)
    assert claim.identity.instance_id == OTHER_INSTANCE
    registry.remove_port(PortId("row-of-tap1"))
    assert registry.holds(claim)
    assert {one.name: [*slots] for one, slots in registry} == {"later": [0]}
    registry.set_port(port())
    registry.set_port(port(name="later", instance=OTHER_INSTANCE, project="another"))
    registry.remove_port(PortId("row-of-later"))
    identity = registry.identity(HERE)
    assert identity is not None
    assert identity.instance_id == INSTANCE, "the row that gave way is served again"


def test_flows_follow_a_change_before_connections_end_whichever_subscribed_first(
    registry: Registry,
) -> None:
    heard: list[NotifyPhase] = []
    registry.subscribe(lambda _endpoint: heard.append(NotifyPhase.CONNECTIONS))
    registry.subscribe(lambda _endpoint: heard.append(NotifyPhase.FLOWS), NotifyPhase.FLOWS)
    registry.remove_port(PortId("row-of-tap1"))
    assert heard == [NotifyPhase.FLOWS, NotifyPhase.CONNECTIONS]


def test_patch_port_with_another_mac_is_the_same_after_a_start_of_the_switch() -> None:
    for patch, name, gap in itertools.product((True, False), (b"tap1", b"tap2"), (True, False)):
        registry = Registry()
        registry.set_port(replace(port(), patch=patch))
        registry.set_devices({13: SwitchDevice(b"tap1", GUEST_MAC)}, gap=True)
        learned(registry, 0)
        claim = claimed(registry)
        changed: list[Endpoint] = []
        registry.subscribe(changed.append)
        registry.set_devices({13: SwitchDevice(name, "02:00:00:00:00:01")}, gap=gap)
        same = patch and gap and name == b"tap1"
        assert (changed == []) == same, (patch, name, gap)
        assert (registry.current(claim) is not None) == same, (patch, name, gap)


def test_a_number_that_a_tap_claims_as_well_is_not_a_patch_ports(registry: Registry) -> None:
    registry.set_devices({13: SwitchDevice(b"tap1", GUEST_MAC)}, gap=True)
    registry.set_port(replace(port(), row="another", patch=True))
    learned(registry, 0)
    claim = claimed(registry)
    registry.set_devices({13: SwitchDevice(b"tap1", "02:00:00:00:00:01")}, gap=True)
    assert registry.current(claim) is None


@pytest.fixture
def behind() -> Port:
    """A guest's port that is a VLAN of the same row and ofport as :func:`port`."""
    return replace(port(instance=OTHER_INSTANCE), iface_id="port-behind", vid=100)


def test_a_device_under_a_number_is_that_of_all_its_ports(behind: Port) -> None:
    asked: list[int] = []
    registry = Registry(ask=lambda: asked.append(1) or len(asked))
    ids: list[PortId] = []
    certain: list[Endpoint] = []
    registry.when_replaced(ids.append)
    registry.when_certain(certain.append)
    registry.set_port(port())
    registry.set_port(behind)
    there = Endpoint(13, 100)
    registry.set_devices({13: SwitchDevice(b"tap1")}, gap=True)
    registry.answered(len(asked))
    assert set(certain) == {HERE, there}
    learned(registry, 0, at=there)
    claim = claimed(registry, at=there)
    registry.set_device(13, SwitchDevice(b"tap1", GUEST_MAC))
    assert ids == [port().id, behind.id]
    assert {one.id for one in registry.doubted()} == {port().id, behind.id}
    registry.answered(len(asked))
    assert not registry.holds(claim), "another device may be another guest's"
    registry.set_device(13, SwitchDevice(b"tap2"))
    assert {one.id for one, _name in registry.misnamed()} == {port().id, behind.id}
    assert registry.endpoints() == []


def test_version_grows_with_the_contents_of_the_state_file(registry: Registry) -> None:
    seen = [registry.version]

    def grown() -> bool:
        seen.append(registry.version)
        return seen[-1] > seen[-2]

    learned(registry, 0)
    assert grown()
    registry.adopt(HERE, 3, ADDRESSES[1], 0.0)
    assert grown()
    learned(registry, 0)
    claim = claimed(registry)
    registry.set_port(replace(port(), kind=PortKind.PARENT, parent="tpi-1", segmentation_id=7))
    assert registry.port(PortId("row-of-tap1")) == registry.port_at(HERE)
    assert (grown(), registry.holds(claim)) == (False, True), "it does not have these"
    registry.set_port(port(project="another"))
    assert grown()
    registry.remove_port(PortId("row-of-tap1"))
    assert grown()
    registry.remove_port(PortId("row-of-tap1"))
    assert not grown()


def test_keys_that_another_guest_had_before_a_restart_rest_too(registry: Registry) -> None:
    registry.rest(HERE, [0, 1])
    assert learned(registry, 0).slot == 2


def test_waits_are_bounded_and_the_oldest_goes_first(registry: Registry) -> None:
    for number in range(KEPT + 10):
        registry.note_wait(HERE, number, 1.0)
    kept = [registry.take_wait(HERE, number) for number in range(KEPT + 10)]
    assert kept == [0.0] * 10 + [1.0] * KEPT


def test_a_wait_of_a_guest_that_is_gone_costs_the_next_one_nothing(registry: Registry) -> None:
    registry.note_wait(HERE, 40000, 7.9)
    registry.set_port(port(instance=OTHER_INSTANCE))
    assert registry.take_wait(HERE, 40000) == 0.0


def test_an_eviction_is_no_reason_to_write_the_state(registry: Registry) -> None:
    for number in range(len(ADDRESSES)):
        before = registry.version
        found = registry.learn(HERE, ADDRESSES[number], 10.0 * number)
        assert found is not None
        assert (registry.version > before) == (found.displaced is None)
    assert found.displaced is not None
    assert registry.take_changed() == {HERE}


def test_a_slot_of_another_key_scheme_is_not_restored(registry: Registry) -> None:
    for number in (-1, 6, 8, 500):
        assert not registry.restore(HERE, number, ADDRESSES[0], 0.0), number


def test_changed_endpoints_are_reported_once(registry: Registry) -> None:
    registry.set_port(port(14, name="tap2"))
    assert registry.take_changed() == {Endpoint(13), Endpoint(14)}
    registry.set_port(port(13))
    assert registry.take_changed() == set()
    learned(registry, 0)
    assert registry.take_changed() == {Endpoint(13)}
    registry.adopt(Endpoint(14), 3, ADDRESSES[1], 0.0)
    assert registry.take_changed() == {Endpoint(14)}
    registry.set_port(port(15))
    assert registry.take_changed() == {Endpoint(13), Endpoint(15)}
    registry.remove_port(PortId("row-of-tap2"))
    registry.touch(Endpoint(20))
    assert registry.take_changed() == {Endpoint(14), Endpoint(20)}


def test_port_whose_change_failed_leaves_no_guest_behind(registry: Registry) -> None:
    registry.set_port(port())
    learned(registry, 0)
    claim = claimed(registry)

    def fail(_endpoint: Endpoint) -> None:
        raise ZeroDivisionError("a defect")

    registry.watch(fail)
    changed = port(14, instance=OTHER_INSTANCE)
    with pytest.raises(ZeroDivisionError):
        registry.set_port(changed)
    registry._watchers.remove(fail)
    registry.remove_port(changed.id)
    assert not registry.holds(claim)
    assert (registry.ports(), registry.endpoints()) == ([], [])
