"""A guest that floods has its packets dropped for as long as it does, and no other guest."""

from collections.abc import Iterator

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.floods import LONGEST
from dfmeta.flows.pipeline import RATE_OF_VM, RATES, Purpose
from dfmeta.metrics import REGISTRY
from dfmeta.model import Endpoint
from tests.core.flows.world import TAP, TAP6, Host, Host6, World, count_syns, flood, settle, surge

HERE = Endpoint(1)
FIRST, EVERY = RATES[Purpose.SYN], RATES[Purpose.GUEST_SYN]
SYN_FLOOD, SURGE = frozenset({Purpose.SYN}), frozenset({Purpose.GUEST_SYN})
CALM = frozenset[Purpose]()
FLAGS = {"flags": 0x10}


@pytest.fixture
def world() -> Iterator[World]:
    with World(tap=TAP6) as world:
        world.plug(1)
        world.plug(2)
        yield world


def look(world: World, seconds: float = 1.0) -> frozenset[Purpose]:
    """Let time pass, read the counters, and return the floods of port 1."""
    world.now += seconds
    world.floods.look()
    settle()
    return world.floods.of(HERE)


def reaches_controller(world: World, guest: Host) -> bool:
    """Return whether a SYN of an unknown address of *guest* reaches the controller."""
    world.hold_answers()
    outs = world.switch.receive(guest.ofport, guest.other(9999).segment())
    world.let_go([])
    return [out.port for out in outs] == [ofp.OFPP_CONTROLLER]


def dropped(reason: str) -> float:
    """Return the number of packets counted as dropped for *reason*."""
    sample = REGISTRY.get_sample_value("dfmeta_dropped_packets_total", {"reason": reason})
    return sample or 0.0


# First packets


def test_burst_of_a_second_is_no_flood(world: World) -> None:
    flood(world, Host(1), count=FIRST)
    assert world.floods.of(HERE) == CALM
    world.now += 1
    flood(world, Host(1), count=FIRST)
    assert world.floods.of(HERE) == CALM


def test_flood_of_first_packets_is_dropped_on_the_switch(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    assert world.floods.of(HERE) == SYN_FLOOD
    assert not reaches_controller(world, Host(1))
    assert not reaches_controller(world, Host6(1))
    assert world.floods.of(Endpoint(2)) == CALM
    assert reaches_controller(world, Host(2))


def test_packet_in_of_a_flood_that_the_switch_had_queued_is_not_processed(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    released, slots = len(world.switch.released), dict(world.registry.slots(HERE))
    world.learner.packet_in(1, Host(1).other(5000).segment())
    settle()
    assert len(world.switch.released) == released
    assert world.registry.slots(HERE) == slots


def test_known_address_is_served_during_a_flood_of_first_packets(world: World) -> None:
    world.introduce(Host(1))
    flood(world, Host(1), Host(1).other(1).segment(dst="169.254.169.254"), count=1)
    for _ in range(2 * FIRST):
        world.learner.packet_in(1, Host(1).segment())
    assert world.floods.of(HERE) == SYN_FLOOD
    for fields in ({}, FLAGS):
        (out,) = world.receive(1, Host(1).segment(**fields))
        assert out.port == TAP.ofport


def test_flood_ends_when_its_counter_is_calm(world: World) -> None:
    for _ in range(10 * FIRST):  # a debt of ten seconds
        world.floods.admit(HERE)
    assert look(world) == SYN_FLOOD, "the counter has no reading to compare with"
    assert look(world) == CALM
    assert reaches_controller(world, Host(1))


def test_flood_lasts_for_its_debt_and_at_most_its_limit(world: World) -> None:
    for count, seconds in ((3 * FIRST, 3), (100 * FIRST, int(LONGEST))):
        for _ in range(count):
            world.floods.admit(HERE)
        settle()
        for second in range(1, seconds + 1):
            assert world.floods.of(HERE) == SYN_FLOOD, second
            for _ in range(2 * FIRST):  # it goes on
                assert not reaches_controller(world, Host(1))
            look(world)
        assert world.floods.of(HERE) == CALM
        assert reaches_controller(world, Host(1))
        world.now += 200  # the bucket is empty


def test_segments_and_solicitations_count_as_first_packets(world: World) -> None:
    segment, solicitation = Host(1).segment(**FLAGS), Host6(1).solicit(options=b"")
    for number in range(FIRST):
        if number % 2:
            world.receive(1, solicitation)
        else:
            world.learner.packet_in(1, segment)
    assert world.floods.of(HERE) == CALM
    world.receive(1, solicitation)
    assert world.floods.of(HERE) == SYN_FLOOD
    assert world.switch.receive(1, solicitation) == []
    (answer,) = world.switch.receive(1, Host6(1).solicit())
    assert answer.port == 1, "flows answer a solicitation with its sender's MAC"


def test_virtual_machine_has_a_budget_for_all_its_containers(world: World) -> None:
    endpoints = [world.plug(1, vid=vid, iface_id=f"subport-{vid}") for vid in range(1, 11)]
    rate = RATE_OF_VM // 10
    admitted = [world.floods.admit(endpoint) for endpoint in endpoints for _ in range(rate)]
    assert all(admitted)
    assert not world.floods.admit(endpoints[0])
    assert world.floods.of(endpoints[0]) == SYN_FLOOD
    assert world.floods.of(endpoints[1]) == CALM
    assert world.floods.admit(Endpoint(2)), "another virtual machine"


# SYNs of known addresses


def test_surge_of_syns_of_a_known_address_is_dropped(world: World) -> None:
    for host in (Host, Host6):
        world.introduce(host(1))
        world.introduce(host(2))
    surge(world, Host(1))
    assert world.floods.of(HERE) == SURGE
    assert world.receive(1, Host(1).other(1).segment()) == []
    for host in (Host, Host6):
        assert world.receive(1, host(1).segment()) == []
        for ofport, fields in ((1, FLAGS), (2, {}), (2, FLAGS)):
            (out,) = world.receive(ofport, host(ofport).segment(**fields))
            assert out.port == TAP.ofport


def test_syns_at_the_rate_are_no_surge(world: World) -> None:
    surge(world, Host(1), EVERY)
    assert world.floods.of(HERE) == CALM
    count_syns(world, 1, 600)
    count_syns(world, 2, 600)
    look(world)
    count_syns(world, 1, 600)
    count_syns(world, 2, 600)
    assert look(world) == CALM, "the sum exceeds the rate of one port, and no port does"


def test_surge_ends_when_its_counter_is_calm(world: World) -> None:
    surge(world, Host(1), 10 * EVERY)
    look(world)
    count_syns(world, 1, 5 * EVERY)
    assert look(world) == SURGE
    count_syns(world, 1, EVERY)
    assert look(world) == CALM
    assert reaches_controller(world, Host(1))


def test_counters_of_a_port_that_comes_are_no_surge(world: World) -> None:
    """A flow that the daemon finds at its start has a counter of all its time."""
    count_syns(world, 2, 50 * EVERY)
    surge(world, Host(1))
    assert world.floods.of(Endpoint(2)) == CALM


def test_drops_are_counted_by_reason(world: World) -> None:
    before = {reason: dropped(reason) for reason in ("first_syn_rate", "syn_rate")}
    surge(world, Host(2), 20 * EVERY)
    flood(world, Host(1), count=FIRST + 1)
    count_syns(world, 2, 5000)
    look(world)
    for _ in range(7):
        assert not reaches_controller(world, Host(1))
    look(world)
    new = {reason: dropped(reason) - packets for reason, packets in before.items()}
    assert new == {"first_syn_rate": 7, "syn_rate": 5000}


def test_drops_before_the_first_look_are_counted(world: World) -> None:
    before = dropped("first_syn_rate")
    flood(world, Host(1), count=FIRST + 1)
    settle()
    for _ in range(7):
        assert not reaches_controller(world, Host(1))
    assert look(world) == SYN_FLOOD
    assert dropped("first_syn_rate") == before + 7


# The switch


def test_reconcile_keeps_the_flows_of_a_flood(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    assert world.reconciler.reconcile() == 0
    world.switch.flows = [flow for flow in world.switch.flows if flow.match.get("in_port") is None]
    assert world.reconciler.reconcile() > 0
    assert not reaches_controller(world, Host(1))


def test_lost_connection_ends_floods(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    world.controller.bridge.disconnected(world.link)
    settle()
    assert world.floods.of(HERE) == CALM
    world.connect(world.link)
    assert reaches_controller(world, Host(1))


def test_port_that_goes_takes_its_flood_along(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    world.unplug(1)
    look(world)
    assert look(world) == CALM
    world.plug(1, instance="instance-2")
    assert reaches_controller(world, Host(1))


def test_restarted_daemon_lets_the_guest_through_until_it_floods_again(world: World) -> None:
    flood(world, Host(1), count=FIRST + 1)
    with world.restarted() as again:
        assert reaches_controller(again, Host(1))


def test_log_names_port_in_few_lines(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for ofport in range(1, 10):
        world.plug(ofport)
        for _ in range(FIRST + 1):
            world.floods.admit(Endpoint(ofport))
    lines = [record.getMessage() for record in caplog.records if "sends more" in record.message]
    assert lines[0].startswith(f"tap1 sends more than {FIRST} first packets a second")
    assert len(lines) <= 5
