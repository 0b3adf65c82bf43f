"""Frames of tagged subports: endpoints with a VLAN id behind the port of a virtual machine."""

from collections.abc import Iterator

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.openflow import TAGGED
from dfmeta.flows.pipeline import CONTROLLER_ID
from dfmeta.model import Endpoint
from tests.core.flows.frames import Frame, ends_of, mac, tagged
from tests.core.flows.world import (
    SERVICE6,
    TAP,
    TAP6,
    Host,
    Host6,
    World,
    flood,
    host,
    key_of,
    untouched,
    versions,
)
from tests.flowsim import Out

ACK, RST = 0x10, 0x04
VIDS = (100, 200)
OTHER_MAC = "fa:16:3e:00:00:77"


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a virtual machine at port 1 with subports of VIDs 100 and 200."""
    with World(tap=TAP6) as world:
        world.plug(1)
        for vid in VIDS:
            world.plug(1, vid=vid, instance=f"container-{vid}", iface_id=f"subport-{vid}")
        yield world


def tags_of(vid: int) -> list[int]:
    """The tags of a subport's frames, or of the virtual machine's own."""
    return [vid] if vid else []


def assert_has_key(out: Out, vid: int, version: int) -> None:
    """A frame is for the proxy, untagged, with the key of a subport of port 1."""
    frame = Frame(0, out.frame)
    assert (out.port, frame["vlan_vid"]) == (TAP.ofport, 0)
    assert ends_of(frame)["src"] == key_of(Endpoint(1, vid), version)


@versions
def test_the_controller_gets_a_first_syn_with_its_tag(world: World, version: int) -> None:
    guest = host(version)
    expected = guest.segment(tags=[100])
    for frame in (
        guest.segment(tags=[0xE000 | 100]),
        tagged(guest.segment(), 100, tpid=0x88A8),  # a provider's counts as one of 802.1Q
    ):
        out = Out(ofp.OFPP_CONTROLLER, expected, CONTROLLER_ID)
        assert world.switch.receive(1, frame) == [out]


@versions
def test_containers_with_equal_addresses_have_keys_of_their_own(world: World, version: int) -> None:
    guest = host(version)
    for vid in (0, *VIDS):
        released = world.introduce(guest, tags=tags_of(vid))
        assert_has_key(released, vid, version)
        (later,) = world.receive(1, guest.segment(flags=ACK, tags=tags_of(vid)))
        assert_has_key(later, vid, version)
        (out,) = world.answered(released)
        frame = Frame(0, out.frame)
        assert (out.port, frame["vlan_vid"]) == (1, TAGGED | vid if vid else 0)
        assert mac(frame["eth_dst"]) == guest.mac
        assert (ends_of(frame)["dst"], frame["tcp_src"]) == (guest.ip, 80)


@versions
def test_every_vid_is_served(version: int) -> None:
    for vid in (1, 255, 256, 300, 4094):
        with World(tap=TAP6) as world:
            world.plug(1, vid=vid)
            released = world.introduce(host(version), tags=[vid])
            assert_has_key(released, vid, version)
            (out,) = world.answered(released)
            assert Frame(0, out.frame)["vlan_vid"] == TAGGED | vid
            # The virtual machine itself has no entry here, and is untouched.
            assert untouched(world, 1, host(version).segment())


def test_the_answer_to_arp_and_to_solicitations_keeps_the_tag(world: World) -> None:
    (out,) = world.receive(1, Host(1).question(tags=[100]))
    frame = Frame(0, out.frame)
    assert (out.port, frame["vlan_vid"]) == (1, TAGGED | 100)
    assert mac(frame["arp_sha"]) == TAP.mac
    (by_flow,) = world.receive(1, Host6(1).solicit(tags=[200]))
    world.receive(1, Host6(1).solicit(to=SERVICE6[0], options=b"", tags=[200]))
    for out in (by_flow, *world.switch.released):
        frame = Frame(0, out.frame)
        assert (out.port, frame["vlan_vid"]) == (1, TAGGED | 200)
        assert mac(frame["ipv6_nd_tll"]) == TAP.mac
    assert len(world.switch.released) == 1


@versions
def test_a_tag_without_a_subport_is_untouched(world: World, version: int) -> None:
    guest = host(version)
    for vid in (0, *VIDS):
        world.introduce(guest, tags=tags_of(vid))
    for tci in (101, 1, 4095, 0, 0xE000):
        for flags in (2, ACK):
            assert untouched(world, 1, guest.segment(flags=flags, tags=[tci])), tci
        assert untouched(world, 1, guest.request(tags=[tci])), tci
    # Another virtual machine has no subport with that VLAN id.
    assert untouched(world, 2, guest.segment(tags=[100]))


@versions
def test_a_flood_of_one_container_leaves_its_siblings_theirs(world: World, version: int) -> None:
    flood(world, host(version), tags=[100])
    assert world.receive(1, host(version).segment(tags=[100])) == []
    for vid in (200, 0):
        assert world.introduce(host(version), tags=tags_of(vid)).port == TAP.ofport


@versions
def test_another_mac_than_that_of_its_entry_is_not_served(version: int) -> None:
    with World(tap=TAP6) as world:
        guest = host(version)
        endpoint = world.plug(1, vid=100, mac=OTHER_MAC)
        assert world.receive(1, guest.segment(tags=[100])) == []
        guest.mac = OTHER_MAC
        assert world.introduce(guest, tags=[100]).port == TAP.ofport
        # The address is forgotten when the entry's MAC changes.
        world.plug(1, vid=100, mac="fa:16:3e:00:00:78")
        assert world.registry.slots(endpoint) == {}
        assert world.receive(1, guest.segment(flags=RST, tags=[100])) == []


def test_the_mac_of_an_untagged_port_decides_nothing(world: World) -> None:
    world.plug(2, mac=OTHER_MAC)
    assert world.introduce(Host(2)).port == TAP.ofport


@versions
def test_removed_subport_has_no_flows_and_siblings_keep_theirs(world: World, version: int) -> None:
    guest = host(version)
    released = {vid: world.introduce(guest, tags=[vid]) for vid in VIDS}
    world.unplug(1, 100)
    assert untouched(world, 1, guest.segment(tags=[100]))
    assert world.answered(released[100]) == []
    (out,) = world.receive(1, guest.segment(flags=ACK, tags=[200]))
    assert_has_key(out, 200, version)


def test_a_reconcile_puts_lost_flows_back_and_removes_stray_ones(world: World) -> None:
    for vid in VIDS:
        world.introduce(Host(1), tags=[vid])
    flows = {(flow.place[0], flow.place[1], str(flow.match)) for flow in world.switch.flows}
    world.switch.flows = [flow for flow in world.switch.flows if flow.priority == 0]
    assert world.reconciler.reconcile() > 0
    assert {(flow.place[0], flow.place[1], str(flow.match)) for flow in world.switch.flows} == flows
    stray = {"in_port": 1, "vlan_vid": TAGGED | 300, "eth_type": 0x0806, "arp_op": 1}
    own = next(flow for flow in world.switch.flows if flow.match.get("arp_op"))
    world.foreign(match=stray, priority=own.priority, cookie=own.cookie)
    assert world.reconciler.reconcile() == 1
    assert untouched(world, 1, Host(1).question(tags=[300]))


@pytest.mark.parametrize("entry_mac", ["", OTHER_MAC])
def test_address_of_an_earlier_run_is_adopted_if_its_mac_is_the_entrys(entry_mac: str) -> None:
    with World() as before:
        before.plug(1, vid=100)
        before.introduce(Host(1), tags=[100])
        held = before.switch.flows
        before.plug(1, vid=100, mac=entry_mac)
        before.switch.flows = held
        with before.restarted() as world:
            slots = world.registry.slots(Endpoint(1, 100)).values()
            served = world.receive(1, Host(1).segment(flags=ACK, tags=[100]))
            assert len(served) == len(slots) == (not entry_mac)
