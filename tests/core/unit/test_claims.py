"""A worker's mirror should say of every claim what the registry says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import product

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dfmeta.identity.host_wide_allocator import HostWideAllocator
from dfmeta.identity.key import IN_PORT, PREFIX6, SLOTS, SLOTS6, Keys, MetaKeys
from dfmeta.identity.numbering import SwitchDevice
from dfmeta.identity.registry import REST, Claim, Registry
from dfmeta.model import Endpoint, GuestAddress, PortId
from dfmeta.proxy.claims import Mirror, endpoint_state
from tests.core.unit.support import OTHER_INSTANCE, address, port

HERE = Endpoint(13)


class World:
    """A registry and a mirror that is told of each change at once."""

    def __init__(self) -> None:
        self.asked = 0
        self.registry = Registry(ask=self._ask)
        self.counted: Counter[tuple[Endpoint, int]] = Counter()
        self.mirror = Mirror(self._count)
        self.gone: list[Endpoint] = []
        self.mirror.subscribe(self.gone.append)
        self.dirty: set[Endpoint] = set()
        self.registry.watch(self.dirty.add)

    def _ask(self) -> int:
        self.asked += 1
        return self.asked

    def _count(self, claim: Claim, change: int) -> None:
        self.counted[claim.endpoint, claim.slot] += change

    def learn(self, ip: str = "10.0.0.5", ofport: int = 13) -> int:
        learned = self.registry.learn(Endpoint(ofport), address(ip=ip), 0)
        assert learned is not None
        return learned.slot

    def tell(self) -> None:
        messages = [endpoint_state(self.registry, endpoint) for endpoint in self.dirty]
        self.dirty.clear()
        self.mirror.learn(json.loads(json.dumps(messages)))


@pytest.fixture
def world() -> World:
    mirrored = World()
    mirrored.registry.set_port(port())
    mirrored.learn()
    mirrored.tell()
    return mirrored


def test_a_key_of_ipv6_is_claimed_with_the_address_that_the_guest_uses(world: World) -> None:
    guest_address, service = IPv6Address("fd00::5"), IPv6Address("fe80::a9fe:a9fe")
    for registry in (world.registry, Registry(keys=Keys(IPv6Network("fd00:1::/64")))):
        if registry is not world.registry:
            registry.set_port(port())
        learned = registry.learn(HERE, GuestAddress("fa:16:3e:00:00:01", guest_address, service), 0)
        assert learned is not None
        assert learned.slot == SLOTS6[0]
        mirror = Mirror(world._count, keys=registry.keys)
        mirror.learn(json.loads(json.dumps([endpoint_state(registry, HERE)])))
        claim = mirror.claim(registry.keys.key_of(HERE, learned.slot))
        assert claim is not None
        assert claim == registry.claim(registry.keys.key_of(HERE, learned.slot))
        assert (claim.caller, claim.address) == (
            HERE,
            GuestAddress("fa:16:3e:00:00:01", guest_address, service),
        )
    assert mirror.claim(IN_PORT.key_of(HERE, SLOTS6[0])) is None, "a key of another prefix"


def test_a_claim_ends_with_its_guest(world: World) -> None:
    claim = world.mirror.claim(IN_PORT.key_of(HERE, 0))
    assert claim is not None
    world.registry.set_port(port(instance=OTHER_INSTANCE))
    world.tell()
    assert not world.mirror.holds(claim)
    assert world.gone == [HERE]
    world.registry.remove_port(PortId("row-of-tap1"))
    world.tell()
    assert world.mirror.claim(IN_PORT.key_of(HERE, 0)) is None


def test_claims_see_a_project_or_name_that_arrives_later() -> None:
    world = World()
    world.registry.set_port(port(project=""))
    world.learn()
    world.tell()
    claim = world.mirror.claim(IN_PORT.key_of(HERE, 0))
    assert claim is not None
    for fields in ({"project_id": "p2"}, {"project_id": "p2", "instance_name": "web1"}):
        world.registry.set_port(replace(port(), **fields))
        world.tell()
        assert world.mirror.current(claim) == replace(claim.identity, **fields)


def test_news_in_the_pipe_count_before_an_answer(world: World) -> None:
    mirror = world.mirror = Mirror(world._count, world.tell)
    mirror.subscribe(world.gone.append)
    world.registry.touch(HERE)
    claim = mirror.claim(IN_PORT.key_of(HERE, 0))
    assert claim == world.registry.claim(IN_PORT.key_of(HERE, 0))
    assert claim is not None
    assert mirror.certain(HERE)
    world.learn("10.0.0.6")
    assert (mirror.holds(claim), world.gone) == (True, [])
    world.registry.set_devices({13: SwitchDevice(b"tap1")}, gap=True)
    assert (mirror.holds(claim), mirror.certain(HERE), world.gone) == (False, False, [])
    world.registry.answered(world.asked)
    assert (mirror.holds(claim), mirror.certain(HERE), world.gone) == (True, True, [])
    for change in (1, 1, -1):
        (mirror.opened if change > 0 else mirror.closed)(claim, 0)
    assert world.counted == {(HERE, 0): 1}
    world.registry.set_port(port(instance=OTHER_INSTANCE))
    assert not mirror.holds(claim)
    assert mirror.claim(IN_PORT.key_of(HERE, 0)) is None


def test_wait_of_a_syn_is_taken_once(world: World) -> None:
    world.registry.note_wait(HERE, 1234, 2.5)
    world.tell()
    assert world.registry.take_wait(HERE, 1234) == 0.0, "the workers have it"
    world.learn("10.0.0.7")
    world.tell()
    assert [world.mirror.take_wait(HERE, 1234) for _ in range(2)] == [2.5, 0.0]
    assert world.mirror.take_wait(Endpoint(14), 1234) == 0.0


def test_waits_of_other_workers_are_bounded(world: World) -> None:
    for source_port in range(1000):
        world.registry.note_wait(HERE, source_port, 1.0)
        world.tell()
    assert world.mirror.take_wait(HERE, 0) == 0.0
    assert world.mirror.take_wait(HERE, 999) == 1.0


def agree(
    world: World | OfTheHost, keys: Iterable[IPv4Address | IPv6Address], unverified: set[Claim]
) -> None:
    """Both say the same of these keys, and of all claims that there were."""
    for key in keys:
        claim = world.registry.claim(key)
        assert world.mirror.claim(key) == claim
        if claim is not None:
            unverified.add(claim)
    for claim in unverified:
        assert world.mirror.current(claim) == world.registry.current(claim)
        assert world.mirror.holds(claim) == world.registry.holds(claim)


class Following(RuleBasedStateMachine):
    """Whatever happens to ports and addresses, both say the same of every key."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.unverified: set[Claim] = set()

    @rule(
        ofport=st.integers(1, 3),
        name=st.sampled_from("ab"),
        instance=st.sampled_from(["", "one", "two"]),
        project=st.sampled_from(["", "p"]),
    )
    def set_port(self, ofport: int, name: str, instance: str, project: str) -> None:
        self.world.registry.set_port(port(ofport, name=name, instance=instance, project=project))

    @rule(name=st.sampled_from("ab"))
    def remove_port(self, name: str) -> None:
        self.world.registry.remove_port(PortId(f"row-of-{name}"))

    @rule(ofport=st.integers(1, 3), ip=st.integers(1, 12))
    def learn(self, ofport: int, ip: int) -> None:
        self.world.registry.learn(Endpoint(ofport), address(ip=f"10.0.0.{ip}"), 0)

    @rule(
        ofport=st.integers(1, 3),
        device=st.sampled_from([None, SwitchDevice(b"a"), SwitchDevice(b"b")]),
    )
    def give(self, ofport: int, device: SwitchDevice | None) -> None:
        self.world.registry.set_device(ofport, device)

    @rule()
    def list_anew(self) -> None:
        self.world.registry.set_devices({1: SwitchDevice(b"a")}, gap=True)

    @rule()
    def answer(self) -> None:
        self.world.registry.answered(self.world.asked)

    @invariant()
    def both_say_the_same(self) -> None:
        registry, mirror = self.world.registry, self.world.mirror
        self.world.tell()
        places = product(map(Endpoint, range(1, 4)), SLOTS)
        agree(self.world, (IN_PORT.key_of(*place) for place in places), self.unverified)
        for claim in self.unverified:
            if registry.current(claim) is not None:
                assert mirror.certain(claim.endpoint) == registry.certain(claim.endpoint)


TestFollowing = Following.TestCase


def meta() -> MetaKeys:
    return MetaKeys(IPv4Network("240.0.0.0/28"), PREFIX6, "fa:16:ee:00:00:00")


class OfTheHost:
    """A registry whose numbers are unique on the host, and a mirror with a scheme of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.keys = meta()
        allocator = HostWideAllocator(self.keys, tuple, self.clock)
        self.registry = Registry(clock=self.clock, allocator=allocator)
        self.dirty: dict[Endpoint, None] = {}
        self.registry.watch(lambda endpoint: self.dirty.setdefault(endpoint))
        self.mirror = Mirror(lambda _claim, _change: None, self.tell, keys=meta())

    def clock(self) -> float:
        return self.now

    def key(self, number: int) -> IPv4Address | IPv6Address:
        return self.keys.key_of(HERE, number)

    def tell(self, *, backwards: bool = False, most: int = 99) -> None:
        endpoints = sorted(self.dirty, reverse=backwards) if backwards else list(self.dirty)
        for endpoint in endpoints[:most]:
            del self.dirty[endpoint]
            self.mirror.learn(json.loads(json.dumps([endpoint_state(self.registry, endpoint)])))

    def learn(self, ofport: int, last: int = 1) -> int:
        learned = self.registry.learn(Endpoint(ofport), address(f"10.0.0.{last}"), self.now)
        assert learned is not None
        return learned.slot

    def rested(self) -> None:
        self.registry.allocator.begin_sweep()
        self.registry.allocator.end_sweep()
        self.now += REST


class FollowingOfTheHost(RuleBasedStateMachine):
    """Whatever happens, and whatever is told first, both say the same of every number."""

    def __init__(self) -> None:
        super().__init__()
        self.world = OfTheHost()
        self.unverified: set[Claim] = set()

    @rule(ofport=st.integers(1, 3), name=st.sampled_from("ab"), instance=st.sampled_from("xyz"))
    def set_port(self, ofport: int, name: str, instance: str) -> None:
        self.world.registry.set_port(port(ofport, name=name, instance=instance))

    @rule(name=st.sampled_from("ab"))
    def remove_port(self, name: str) -> None:
        self.world.registry.remove_port(PortId(f"row-of-{name}"))

    @rule(ofport=st.integers(1, 3), ips=st.lists(st.integers(1, 12), max_size=8))
    def learn(self, ofport: int, ips: list[int]) -> None:
        for ip in ips:
            self.world.now += 1
            self.world.registry.learn(Endpoint(ofport), address(f"10.0.0.{ip}"), self.world.now)

    @rule()
    def rest(self) -> None:
        self.world.rested()

    @rule(backwards=st.booleans(), most=st.integers(0, 3))
    def tell_some(self, backwards: bool, most: int) -> None:
        self.world.tell(backwards=backwards, most=most)

    @rule()
    def ask(self) -> None:
        registry, mirror = self.world.registry, self.world.mirror
        agree(self.world, map(self.world.key, self.world.keys.slots(4)), self.unverified)
        used = {
            number: endpoint
            for endpoint in registry.endpoints()
            for number in registry.slots(endpoint)
        }
        assert isinstance(mirror.keys, MetaKeys)
        assert mirror.keys.owners == used


TestFollowingOfTheHost = FollowingOfTheHost.TestCase
