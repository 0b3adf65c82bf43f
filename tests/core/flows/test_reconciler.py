"""What the app sends to the switch, and what it leaves there."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.reconciler import Remembered
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import Layout, Purpose, Stage, cookie_of, is_ours, purpose_of
from dfmeta.model import Endpoint, GuestAddress
from tests.core.flows.frames import Frame, ends_of
from tests.core.flows.world import (
    SERVICE6,
    TAP,
    TAP6,
    Host,
    Host6,
    World,
    host,
    key_of,
    settle,
    versions,
)
from tests.flowsim import Switch

OUTPUT = 0xC0FFEE
IPV6 = 0x86DD, 0xFFFF
CONTAINERS = Layout().number(Stage.SOURCE)
"""Containers use IPv6 among themselves, whether the service does or not."""


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def picture(switch: Switch) -> set[object]:
    """All flows, without counters."""
    return {(flow.table, flow.priority, flow.cookie, flow.flags, flow.raw) for flow in switch.flows}


def ours(switch: Switch) -> int:
    return sum(is_ours(flow.cookie) for flow in switch.flows)


def busy(world: World) -> None:
    """Three guests, two of them with the same address, one with several, one without instance."""
    for ofport in (1, 2):
        world.plug(ofport)
        world.introduce(Host(ofport))
    world.introduce(Host(2, ip="10.0.0.77"))
    if world.tap.guest_ip6:
        for ofport, service in ((1, 0), (2, 0), (2, 1)):
            world.introduce(Host6(ofport), dst=SERVICE6[service])
    world.plug(3, instance="")


@pytest.mark.parametrize("tap", [TAP, replace(TAP, ip="169.254.1.1"), TAP6])
def test_a_restarted_app_adopts_the_switch_as_it_is_and_sends_nothing(tap: Tap) -> None:
    with World(tap=tap) as world:
        busy(world)
        before, sent = picture(world.switch), world.switch.flow_mods
        assert world.reconciler.reconcile() == 0
        assert (picture(world.switch), world.switch.flow_mods) == (before, sent)
        slots = {n: slot.address for n, slot in world.registry.slots(Endpoint(2)).items()}
        with world.restarted() as again:
            assert again.reconciler.reconcile() == 0
            assert (picture(again.switch), again.switch.flow_mods) == (before, sent)
            adopted = again.registry.slots(Endpoint(2))
            assert {n: slot.address for n, slot in adopted.items()} == slots


def test_a_restarted_app_removes_the_addresses_of_an_instance_that_has_changed() -> None:
    with World() as world:
        busy(world)
        with world.restarted(adopts=lambda one: one.ofport != 1) as again:
            (out,) = again.switch.receive(1, Host(1).segment())
            assert out.port == ofp.OFPP_CONTROLLER
            (out,) = again.switch.receive(2, Host(2).segment())
            assert out.port == TAP.ofport
            settle()
            assert again.registry.slots(Endpoint(1))
            assert 0 not in again.registry.slots(Endpoint(1)), "the key of the guest before rests"


def remembered(world: World) -> list[Remembered]:
    """The addresses in the state file that *world* would leave."""
    return [
        (endpoint, number, slot.address)
        for endpoint in world.registry.endpoints()
        for number, slot in world.registry.slots(endpoint).items()
    ]


def lose_flows(world: World) -> None:
    """Delete all flows, as another program does."""
    world.switch.flows.clear()


def test_flows_that_were_deleted_while_no_app_ran_are_restored_from_the_state() -> None:
    with World(tap=TAP6) as world:
        busy(world)
        before, addresses = picture(world.switch), remembered(world)
        foreign = {flow for flow in before if not is_ours(flow[2])}
        lose_flows(world)
        with world.restarted(remembered=lambda: addresses) as again:
            assert picture(again.switch) == before - foreign
            assert remembered(again) == addresses


def test_the_address_on_the_switch_is_newer_than_the_remembered_one() -> None:
    with World() as world:
        world.plug(1)
        world.introduce(Host(1))
        former = GuestAddress(Host(1).mac, ip_address("10.0.0.99"))
        present = remembered(world)
        with world.restarted(remembered=lambda: [(Endpoint(1), 0, former)]) as again:
            assert remembered(again) == present


def test_ipv6_flows_go_with_the_hosts_ipv6_and_come_back_with_it() -> None:
    with World(tap=TAP6) as world:
        busy(world)
        before = picture(world.switch)
        world.controller.bridge.set_tap(TAP)
        world.reconciler.reconcile()
        of_service = [flow for flow in world.switch.flows if flow.table < CONTAINERS]
        assert not [flow for flow in of_service if flow.match.get("eth_type") == IPV6]
        (out,) = world.receive(1, Host6(1).segment())
        assert out.port == ofp.OFPP_NORMAL
        (out,) = world.switch.receive(1, Host(1).segment())
        assert out.port == TAP.ofport
        world.controller.bridge.set_tap(TAP6)
        world.reconciler.reconcile()
        assert picture(world.switch) == before
        assert world.reconciler.reconcile() == 0


@pytest.mark.parametrize("tap", [TAP, TAP6])
def test_cleaning_up_leaves_the_switch_as_it_was_before(tap: Tap) -> None:
    with World(tap=tap) as world:
        world.foreign(table_id=200, priority=100, match={"in_port": 4}, cookie=OUTPUT)
        world.reconciler.clear()
        before = picture(world.switch)
        world.reconciler.reconcile()
        busy(world)
        flows = ours(world.switch)
        assert world.reconciler.clear() == flows
        assert picture(world.switch) == before


def test_changed_flow_of_ours_is_corrected(world: World) -> None:
    busy(world)
    before = picture(world.switch)
    victim = next(flow for flow in world.switch.flows if flow.table == 201 and flow.priority == 200)
    other = next(flow for flow in world.switch.flows if flow.table == 0 and flow.cookie == 0)
    victim.instructions, victim.raw = other.instructions, (victim.raw[0], other.raw[1])
    assert world.reconciler.reconcile() == 1
    assert picture(world.switch) == before


def test_strays_and_flows_of_an_older_format_or_another_bridge_are_removed(world: World) -> None:
    world.plug(1)
    before = picture(world.switch)
    old = next(flow for flow in world.switch.flows if flow.table == 0 and is_ours(flow.cookie))
    strays = [(old.cookie ^ 0x03000000, 9, 7), (old.cookie, 0, 300)]
    strays.append((cookie_of(Purpose.META_FROM_TAP), 0, 200))
    strays.append((cookie_of(Purpose.META_SOURCE), 80, 200))
    for cookie, table, priority in strays:
        place = {"cookie": cookie, "table_id": table, "priority": priority}
        world.foreign(match={"in_port": 4}, flags=ofp.OFPFF_SEND_FLOW_REM, **place)
    assert world.reconciler.reconcile() == 2, "those in the present tables"
    world.controller.bridge.disconnected(world.link)
    world.connect(world.link)
    assert picture(world.switch) == before, "all tables are read once for each connection"


def test_foreign_flow_in_the_place_of_ours_is_not_deleted(world: World) -> None:
    world.plug(2)
    mine = [flow for flow in world.switch.flows if flow.match.get("in_port") == (2, 0xFFFFFFFF)]
    before = [flow.cookie for flow in mine]
    for flow in mine:
        flow.cookie = OUTPUT
    world.unplug(2)
    assert {purpose_of(flow) for flow in before} >= {Purpose.GUEST_HTTP, Purpose.GUEST_ARP}
    assert [flow for flow in mine if flow in world.switch.flows] == mine


def test_a_removed_hook_makes_the_controller_doubt(world: World) -> None:
    world.plug(1)
    ready, before = [world.controller.bridge.ready], list(world.switch.flows)
    parser = world.link.ofproto_parser
    mod = parser.OFPFlowMod(
        world.link, command=ofp.OFPFC_DELETE, out_port=ofp.OFPP_ANY, out_group=ofp.OFPG_ANY
    )
    world.send(mod)
    ready.append(world.controller.bridge.ready)
    gone = [flow for flow in before if is_ours(flow.cookie) and flow not in world.switch.flows]
    assert world.reconciler.reconcile() == len(gone) > 0
    assert [*ready, world.controller.bridge.ready] == [True, False, True]


def test_a_new_proxy_port_moves_every_flow_that_leads_there(world: World) -> None:
    world.plug(1)
    world.introduce(Host(1))
    world.controller.bridge.set_tap(Tap(TAP.ofport, TAP.mac, 9999))
    world.reconciler.reconcile()
    (out,) = world.switch.receive(1, Host(1).segment())
    assert Frame(0, out.frame)["tcp_dst"] == 9999
    (back,) = world.answered(out)
    assert back.port == 1
    assert world.reconciler.reconcile() == 0


def test_tables_and_priorities_follow_the_layout() -> None:
    with World(layout=Layout(table_base=30, classification_table=2, hook_priority=7)) as world:
        world.plug(1)
        places = {
            (flow.table, flow.priority) for flow in world.switch.flows if is_ours(flow.cookie)
        }
        of_subports = {(33, 200), (33, 100), (33, 0), (34, 100), (34, 0)}
        assert places == {(2, 7), (30, 100), (30, 0), (31, 200), (31, 0), *of_subports}
        assert world.reconciler.reconcile() == 0


# Ports that change hands


@versions
def test_another_instance_on_a_port_starts_without_the_addresses_of_the_first(version: int) -> None:
    with World(tap=TAP6) as world:
        endpoint = world.plug(1)
        guest = host(version)
        released = world.introduce(guest)
        world.plug(1, instance="instance-2")
        assert world.registry.slots(endpoint) == {}
        assert world.answered(released) == []
        later = world.introduce(guest)
        keys = [ends_of(Frame(0, one.frame))["src"] for one in (released, later)]
        assert keys[0] != keys[1], "the key of the guest before rests"
        (back,) = world.answered(later)
        assert back.port == 1


def test_number_of_a_port_that_another_row_takes_over_starts_anew(world: World) -> None:
    world.plug(1)
    released = world.introduce(Host(1))
    world.plug(1, instance="instance-2", row="row-other")
    world.unplug(1)
    assert world.answered(released) == []
    (out,) = world.switch.receive(1, Host(1).segment())
    assert out.port == ofp.OFPP_CONTROLLER


def test_lost_connection_is_taken_up_again_with_the_difference_alone(world: World) -> None:
    busy(world)
    before, sent = picture(world.switch), world.switch.flow_mods
    world.controller.bridge.disconnected(world.link)
    assert not world.controller.bridge.ready
    world.connect(world.link)
    assert world.switch.flow_mods == sent
    assert picture(world.switch) == before
    world.controller.bridge.disconnected(world.link)
    world.unplug(2)
    world.connect(world.link)
    assert {flow.match["in_port"][0] for flow in world.switch.flows if "in_port" in flow.match} == {
        1,
        3,
        TAP.ofport,
    }


def test_a_moved_port_takes_its_flows_along(world: World) -> None:
    world.plug(1)
    world.introduce(Host(1))
    moved = world.plug(5, row="row-1")
    assert world.registry.endpoints() == [moved]
    released = world.introduce(Host(5))
    assert ends_of(Frame(0, released.frame))["src"] == key_of(moved, 4)
    assert all(flow.match.get("in_port") != (1, 0xFFFFFFFF) for flow in world.switch.flows)
