"""A number of the host should be one port's, as long as anything of it may be under way."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address

import pytest

from dfmeta.identity.host_wide_allocator import RESERVE, SHARE, HostWideAllocator, allocator_of
from dfmeta.identity.key import IN_PORT, PREFIX6, MetaKeys
from dfmeta.identity.registry import REST, Claim, Registry
from dfmeta.identity.slot_allocator import SlotAllocator
from dfmeta.identity.slots import Guest, Learned
from dfmeta.model import Endpoint, MetaIds, Port, PortId
from tests.core.unit.support import OTHER_INSTANCE, address, address6, first_numbers, port

CIDR = IPv4Network("240.0.0.0/28")
FIRST, LAST = 2, 14
"""The numbers of guests' IPv4 addresses."""
SIZE = CIDR.num_addresses
NOWHERE = Endpoint(99)


class Host:
    """A registry with numbers, its clock, and the switch as far as it matters."""

    def __init__(self, cidr: IPv4Network = CIDR, versions: tuple[int, ...] = (4, 6)) -> None:
        self.now = 1000.0
        self.keys = MetaKeys(cidr, PREFIX6, "fa:16:ee:00:00:00")
        self.own: set[IPv4Address | IPv6Address] = set()
        """The host's own addresses."""
        self.numbers = HostWideAllocator(
            self.keys, lambda: self.own, lambda: self.now, versions=versions
        )
        self.registry = Registry(clock=lambda: self.now, allocator=self.numbers)

    def plug(self, ofport: int, *, meta: MetaIds | None = None, instance: str = "") -> Port:
        new = port(ofport, name=f"tap{ofport}", instance=instance or f"i{ofport}")
        new = replace(new, meta=meta or MetaIds())
        self.registry.set_port(new)
        return new

    def unplug(self, ofport: int) -> None:
        self.registry.remove_port(PortId(f"row-of-tap{ofport}"))

    def learn(self, ofport: int, last: int = 1) -> Learned | None:
        """One of the addresses of a port, which is connected a moment later, and then idle."""
        self.now += 1
        found = self.registry.learn(Endpoint(ofport), address(f"10.0.0.{last}"), self.now)
        if found is not None:
            for change in (1, -1):
                self.count(ofport, found, change)
        return found

    def number(self, ofport: int, last: int = 1) -> int:
        found = self.learn(ofport, last)
        assert found is not None
        return found.slot

    def subport(self, parent: int, vid: int) -> Port:
        new = replace(port(parent, name=f"tap{parent}", instance=f"i{parent}-{vid}"), vid=vid)
        self.registry.set_port(new)
        return new

    def learn_tagged(self, parent: int, vid: int) -> bool:
        """Return whether an address of a subport, which is idle a moment later, gets a number."""
        self.now += 1
        endpoint = Endpoint(parent, vid)
        found = self.registry.learn(endpoint, address(), self.now)
        if found is None:
            return False
        for change in (1, -1):
            self.registry.count_connections(endpoint, found.slot, found.epoch, change, self.now)
        return True

    def count(self, ofport: int, found: Learned, change: int) -> None:
        endpoint = Endpoint(ofport)
        self.registry.count_connections(endpoint, found.slot, found.epoch, change, self.now)

    def claim(self, number: int) -> Claim | None:
        return self.registry.claim(self.keys.key_of(NOWHERE, number))

    def sweep(self) -> None:
        """All flows are compared, and stray ones removed."""
        self.numbers.begin_sweep()
        self.numbers.end_sweep()

    def rested(self) -> None:
        self.sweep()
        self.now += REST

    def first(self, ofport: int) -> MetaIds:
        return self.firsts()[f"row-of-tap{ofport}"]

    def firsts(self) -> dict[str, MetaIds]:
        """Row → first numbers, after all ports have got theirs."""
        self.registry.pending_ovsdb_writes()
        return first_numbers(self.registry)

    def again(self) -> Host:
        """The daemon after a restart, before it has read anything."""
        new = Host(self.keys.cidr)
        new.now = self.now
        return new


@pytest.fixture
def host() -> Host:
    return Host()


def ids(number: int) -> MetaIds:
    return MetaIds(str(CIDR[number]), f"fa:16:ee:00:00:{number:02x}", str(PREFIX6[number]))


def test_each_scheme_has_its_choice(host: Host) -> None:
    assert not isinstance(allocator_of(IN_PORT, tuple), HostWideAllocator)
    assert isinstance(allocator_of(host.keys, tuple), HostWideAllocator)
    assert isinstance(Registry(keys=host.keys).allocator, HostWideAllocator), "not even by mistake"


# First numbers


def test_each_port_has_a_first_number_before_its_guest_is_known(host: Host) -> None:
    host.registry.set_port(port(1, name="tap1", instance=""))
    host.plug(2)
    assert host.firsts() == {"row-of-tap1": ids(2), "row-of-tap2": ids(3)}
    assert host.registry.pending_ovsdb_writes() == host.firsts()
    assert host.registry.ports_without_number() == []
    assert (host.number(2), host.keys.parse(CIDR[2])) == (3, (Endpoint(1), 2))
    assert host.claim(2) is None


def test_without_ipv6_there_are_no_numbers_for_it() -> None:
    host = Host(versions=(4,))
    host.plug(1)
    assert host.first(1) == ids(2)._replace(ip6="")
    assert set(host.keys.owners) == {2}


def test_an_ip_of_neutrons_is_kept_and_gets_the_mac_of_its_number(host: Host) -> None:
    host.plug(1, meta=MetaIds(str(CIDR[9]), "fa:16:ee:12:34:56"))
    assert host.first(1)[:2] == ids(9)[:2]
    assert set(host.registry.pending_ovsdb_writes()) == {"row-of-tap1"}


def test_a_meta_ip_out_of_the_guests_range_is_not_believed() -> None:
    outside = "", "x", *(str(CIDR[0] + number) for number in (0, 1, 15, 16)), "10.0.0.5"
    for meta in (
        *(MetaIds(text, ip6=str(CIDR[9])) for text in (*outside, str(PREFIX6[9]))),
        *(MetaIds(ip6=str(PREFIX6[number])) for number in (0, 1, SIZE - 1, SIZE)),
    ):
        host = Host()
        host.plug(1, meta=meta)
        assert host.first(1) == ids(2), meta


def test_a_key_that_the_host_itself_has_is_never_given(host: Host) -> None:
    host.own = {CIDR[2], CIDR[9], PREFIX6[3], IPv4Address("10.0.0.1")}
    host.plug(1, meta=ids(9))
    assert host.first(1) == MetaIds(str(CIDR[3]), "fa:16:ee:00:00:03", str(PREFIX6[9]))
    host.own.add(CIDR[3])
    assert host.number(1) == 4, "though its first number is another one"


def test_a_vlan_behind_a_port_for_which_no_number_is_left_is_named() -> None:
    host = Host(IPv4Network("240.0.0.0/29"), versions=(4,))
    used, idle = host.subport(1, 7), host.subport(2, 8)
    assert host.learn_tagged(1, 7)
    last = [host.plug(ofport) for ofport in range(3, 6)][-1]
    assert host.registry.ports_without_number() == [idle], "one number is left for ports"
    assert not host.learn_tagged(2, 8)
    host.registry.remove_port(last.id)
    assert host.registry.ports_without_number() == []
    assert host.learn_tagged(2, 8)
    host.registry.remove_port(used.id)
    assert host.registry.ports_without_number() == []


def test_subports_of_one_parent_have_a_quarter_and_leave_the_numbers_of_ports() -> None:
    host = Host(IPv4Network("240.0.0.0/26"), versions=(4,))
    numbers = len(host.keys.slots(4))
    subports = [host.subport(1, vid) for vid in range(1, 101)]
    served = [vid for vid in range(1, 101) if host.learn_tagged(1, vid)]
    assert len(served) == numbers // SHARE
    assert host.registry.ports_without_number() == subports[len(served) :]
    for parent in range(2, 9):
        for vid in range(1, 20):
            host.subport(parent, vid)
            host.learn_tagged(parent, vid)
    assert host.registry.count_addresses()["4"] == numbers - numbers // RESERVE
    ports = [host.plug(ofport) for ofport in range(100, 100 + numbers // RESERVE)]
    assert {port.id for port in ports}.isdisjoint(
        port.id for port in host.registry.ports_without_number()
    )


def test_a_number_of_a_subport_counts_for_its_parent_while_it_rests() -> None:
    host = Host(IPv4Network("240.0.0.0/29"), versions=(4,))
    gone = host.subport(1, 7)
    host.subport(1, 8)
    assert host.learn_tagged(1, 7)
    host.registry.remove_port(gone.id)
    assert not host.learn_tagged(1, 8)
    host.rested()
    assert host.learn_tagged(1, 8)


# Further numbers


def test_a_guest_has_eight_ipv4_addresses_and_its_longest_idle_one_gives_way(host: Host) -> None:
    host.plug(1)
    assert [host.number(1, last) for last in range(8)] == [2, 3, 4, 5, 6, 7, 8, 9]
    found = host.learn(1, 8)
    assert found is not None
    assert (found.slot, found.displaced) == (2, address("10.0.0.0"))
    host.plug(2)
    assert host.number(2) == 10


def test_one_version_takes_no_number_of_the_other(host: Host) -> None:
    host.plug(1)
    for last in range(8):
        host.learn(1, last)
    found = host.registry.learn(Endpoint(1), address6(), host.now)
    assert found is not None
    assert (found.slot, found.displaced) == (SIZE + 2, None)
    assert host.registry.count_addresses() == {"4": 8, "6": 1}


@pytest.mark.parametrize(("cidr", "left"), [("240.0.0.0/29", 1), ("240.0.0.0/25", 125 // RESERVE)])
def test_a_share_of_the_numbers_is_left_for_new_ports(cidr: str, left: int) -> None:
    host = Host(IPv4Network(cidr))
    guests = len(host.keys.slots(4))
    ports = range(1, guests // 8 + 2)
    for ofport in ports:
        host.plug(ofport)
    host.registry.pending_ovsdb_writes()
    given = {host.number(ofport, last) for last in range(20) for ofport in ports}
    assert guests - len(given) == left
    for ofport in range(100, 100 + left):
        host.plug(ofport)
    assert host.registry.ports_without_number() == []
    host.plug(98)
    assert host.registry.ports_without_number() == [port(98, name="tap98", instance="i98")]


# Rest


def test_a_number_rests_from_the_end_of_a_sweep_that_began_after_its_guest_had_left(
    host: Host,
) -> None:
    host.plug(1)
    number = host.number(1)
    host.numbers.begin_sweep()
    host.unplug(1)
    assert host.numbers.resting() == [number]
    host.numbers.end_sweep()
    host.now += 2 * REST
    assert host.numbers.resting() == [number], "its flows may still be on the switch"
    host.numbers.begin_sweep()
    host.now += 5
    host.numbers.end_sweep()
    host.now += REST - 1
    assert host.numbers.resting() == [number], "frames of such flows may be under way"
    host.now += 1
    assert host.numbers.resting() == []


def test_the_next_guest_of_a_port_gets_another_number_while_the_first_one_rests(host: Host) -> None:
    host.plug(1)
    assert host.number(1) == 2
    host.plug(1, instance=OTHER_INSTANCE)
    assert host.first(1) == ids(2)
    assert host.number(1) == 3
    host.rested()
    assert [host.number(1, last) for last in (1, 2)] == [3, 2]


def test_the_next_guest_waits_where_every_other_number_is_taken(host: Host) -> None:
    for ofport in range(1, 14):
        host.plug(ofport)
    host.registry.pending_ovsdb_writes()
    assert host.number(1) == 2
    host.plug(1, instance=OTHER_INSTANCE)
    assert host.learn(1) is None
    assert host.registry.ports_without_number() == [], "it has a number, which rests"
    host.rested()
    assert host.number(1) == 2


def test_a_number_that_was_not_used_need_not_rest(host: Host) -> None:
    for ofport in range(1, 14):
        host.plug(ofport)
    host.registry.pending_ovsdb_writes()
    host.number(3)
    host.unplug(3)
    host.plug(20)
    assert len(host.registry.ports_without_number()) == 1
    host.unplug(5)
    assert (host.registry.ports_without_number(), host.first(20).ip) == ([], str(CIDR[6]))


def test_a_row_that_comes_back_has_its_number_though_that_rests(host: Host) -> None:
    host.plug(1)
    host.number(1)
    host.unplug(1)
    host.plug(2, meta=ids(2))
    host.plug(1, meta=ids(2))
    assert (host.first(1).ip, host.first(2).ip) == (str(CIDR[2]), str(CIDR[3]))
    assert host.number(1) == 4, "the number still rests"
    host.rested()
    host.unplug(1)
    assert host.number(2) == 3


def test_numbers_are_given_in_turn_so_that_each_rests_long(host: Host) -> None:
    for _ in range(3):
        host.plug(1)
        host.registry.pending_ovsdb_writes()
        host.unplug(1)
    host.plug(1)
    assert host.first(1) == ids(5)


# After a restart


def test_a_number_on_the_switch_is_adopted_once(host: Host) -> None:
    host.plug(1, meta=ids(2))
    host.plug(2)
    one, other = address("10.0.0.1"), address("10.0.0.2")
    assert host.registry.adopt(Endpoint(1), 2, one, host.now)
    assert host.registry.adopt(Endpoint(1), 5, other, host.now)
    assert not host.registry.adopt(Endpoint(1), 5, address("10.0.0.3"), host.now)
    assert not host.registry.adopt(Endpoint(1), 6, one, host.now)
    assert host.registry.slots(Endpoint(1)).keys() == {2, 5}
    assert host.keys.owners[5] == Endpoint(1)
    assert host.numbers.resting() == [6]


def test_only_numbers_that_a_guest_may_have_are_adopted(host: Host) -> None:
    host.own = {CIDR[LAST]}
    host.plug(1)
    for number in (0, 1, LAST, 15, 16, 17, 31, 32, 99, SIZE + 2):
        assert not host.registry.adopt(Endpoint(1), number, address(), host.now), number
    assert host.registry.slots(Endpoint(1)) == {}
    adopted = [
        host.registry.adopt(Endpoint(1), number, address(f"10.0.0.{number}"), host.now)
        for number in range(FIRST, LAST)
    ]
    assert adopted == [True] * 8 + [False] * 4


def test_two_flows_with_one_number_leave_it_to_neither(host: Host) -> None:
    for ofport in (1, 2):
        host.plug(ofport)
    assert host.registry.adopt(Endpoint(1), 5, address(), host.now)
    claim = host.claim(5)
    assert claim is not None
    told: list[Endpoint] = []
    host.registry.subscribe(told.append)
    assert not host.registry.adopt(Endpoint(2), 5, address(), host.now)
    assert not host.registry.holds(claim)
    assert (host.claim(5), host.numbers.resting(), told) == (None, [5], [Endpoint(1)])
    assert not host.registry.adopt(Endpoint(1), 5, address(), host.now), "as long as it rests"


def test_a_remembered_number_that_another_guest_has_is_not_restored(host: Host) -> None:
    for ofport in (1, 2):
        host.plug(ofport)
    assert host.registry.adopt(Endpoint(1), 5, address(), host.now)
    claim = host.claim(5)
    assert claim is not None
    assert not host.registry.restore(Endpoint(2), 5, address(), host.now)
    assert host.registry.holds(claim), "the guest that has it keeps it"


def test_a_flow_of_another_endpoint_with_a_ports_first_number_makes_that_rest(host: Host) -> None:
    for ofport in (1, 2):
        host.plug(ofport, meta=ids(ofport + 4))
    host.registry.quarantine(Endpoint(2), 5)
    host.registry.quarantine(Endpoint(2), 6)
    assert (host.first(1), host.numbers.resting()) == (ids(5), [5])
    assert (host.number(1), host.number(2)) == (2, 6)
    host.rested()
    assert host.number(1, 2) == 5


def test_a_flow_of_an_endpoint_without_a_guest_makes_its_number_rest(host: Host) -> None:
    assert not host.registry.adopt(Endpoint(1), 5, address(), host.now)
    host.registry.rest(Endpoint(1), [6, 7, 99])
    assert host.numbers.resting() == [5, 6, 7]


def test_numbers_of_a_guest_whose_flows_are_lost_are_kept_for_it(host: Host) -> None:
    host.plug(1, meta=ids(2))
    host.plug(2)
    host.numbers.expect(Endpoint(1), [2, 3, 0])
    host.sweep()
    assert (host.first(2)[0], host.number(2)) == (str(CIDR[4]), 4)
    assert not host.registry.adopt(Endpoint(2), 3, address("10.0.0.9"), host.now)
    host = host.again()
    host.plug(1, meta=ids(2))
    host.numbers.expect(Endpoint(1), [2, 3])
    host.sweep()
    assert [host.number(1, last) for last in (1, 2, 3)] == [2, 3, 4]


def test_numbers_that_are_kept_rest_when_their_guest_leaves(host: Host) -> None:
    host.plug(1, meta=ids(2))
    host.numbers.expect(Endpoint(1), [2, 3])
    assert sorted(host.numbers.resting()) == [2, 3], "after another restart they would rest"
    host.plug(1, instance=OTHER_INSTANCE)
    assert host.number(1) == 4
    host.rested()
    assert host.numbers.resting() == []
    assert [host.number(1, last) for last in (1, 2, 3)] == [4, 2, 5]


def test_numbers_that_are_kept_and_not_used_are_free_in_the_end(host: Host) -> None:
    host.plug(1, meta=ids(2))
    host.numbers.expect(Endpoint(1), [2, 3])
    host.now += 10 * REST
    assert sorted(host.numbers.resting()) == [2, 3]
    host.rested()
    assert host.numbers.resting() == []
    host.plug(2, meta=ids(3))
    assert (host.first(1), host.first(2)) == (ids(2), ids(3))


# Keys that contain their endpoint need no number of the host

HERE = Endpoint(13)


def test_there_are_no_numbers_of_the_host() -> None:
    registry = Registry()
    registry.set_port(port())
    registry.learn(HERE, address(), 0.0)
    assert not isinstance(registry.allocator, HostWideAllocator)
    assert (registry.pending_ovsdb_writes(), registry.ports_without_number()) == ({}, [])
    assert registry.port_at(HERE) == port()
    assert port().meta == MetaIds()


def test_a_flow_with_the_key_of_another_endpoint_concerns_no_guest() -> None:
    registry = Registry()
    registry.set_port(port())
    learned = registry.learn(HERE, address(), 0.0)
    assert learned is not None
    registry.quarantine(Endpoint(14), learned.slot)
    assert registry.has_slot(HERE, learned)


def test_a_slot_rests_at_its_endpoint_alone() -> None:
    now = 0.0
    slots = SlotAllocator(IN_PORT, tuple, lambda: now)
    here, there = (
        Guest(port(endpoint.ofport), endpoint, None) for endpoint in (HERE, Endpoint(14))
    )
    slots.rest(None, [0, 1])
    slots.expect(HERE, [0])
    assert slots.pick(here, 4) == 0
    slots.drop(here, 0)
    assert (slots.pick(here, 4), slots.pick(there, 4)) == (1, 0)
    assert slots.resting() == []
    slots.begin_sweep()
    slots.end_sweep()
    assert slots.pick(here, 4) == 1, "a sweep changes nothing"
    now = REST
    assert slots.pick(here, 4) == 0
