"""Frames of tagged subports: endpoints with a VLAN id behind the port of a virtual machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.flow import TAGGED
from dfmeta.flows.key import IN_PORT
from dfmeta.flows.pipeline import CONTROLLER_ID, Purpose
from dfmeta.model import Endpoint
from tests.core.flows.frames import Frame, address, address6, mac, tagged
from tests.core.flows.world import (
    SERVICE6,
    TAP,
    TAP6,
    Host,
    Host6,
    World,
    reply_to,
    untouched,
)

ACK = 0x10
VIDS = (100, 200)
VERSIONS = (4, 6)


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a virtual machine at port 1 with subports of VIDs 100 and 200."""
    with World(tap=TAP6) as one:
        one.plug(1)
        for vid in VIDS:
            one.plug(1, vid=vid, instance=f"container-{vid}", iface_id=f"subport-{vid}")
        yield one


def host(version: int, ofport: int = 1) -> Host | Host6:
    """A guest's network stack, with the same addresses each time."""
    return Host(ofport) if version == 4 else Host6(ofport)


def key_in(frame: bytes) -> str:
    """The source address of a frame for the proxy."""
    read = Frame(0, frame)
    return address(read["ipv4_src"]) if read["ipv4_src"] else address6(read["ipv6_src"])


def keys_of(endpoint: Endpoint, version: int) -> str:
    """The first key of an endpoint."""
    return str(IN_PORT.key_of(endpoint, IN_PORT.slots(version)[0]))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_controller_gets_a_first_syn_with_its_tag(world: World, version: int) -> None:
    frame = host(version).segment(tags=[0xE000 | 100])
    (out,) = world.switch.receive(1, frame)
    assert (out.port, out.controller) == (ofp.OFPP_CONTROLLER, CONTROLLER_ID)
    assert out.frame == host(version).segment(tags=[100])
    meters = [world.meters.ids(purpose) for purpose in (Purpose.GUEST_SYN, Purpose.SYN)]
    assert out.meters == tuple(one[Endpoint(1, 100)] for one in meters)


@pytest.mark.parametrize("version", VERSIONS)
def test_containers_with_the_same_addresses_have_keys_of_their_own(
    world: World, version: int
) -> None:
    guest = host(version)
    for vid in (0, *VIDS):
        tags = [vid] if vid else []
        released = world.introduce(guest, tags=tags)
        (later,) = world.receive(1, guest.segment(flags=ACK, tags=tags))
        for out in (released, later):
            assert out.port == TAP.ofport
            assert Frame(0, out.frame)["vlan_vid"] == 0
            assert key_in(out.frame) == keys_of(Endpoint(1, vid), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_leaves_with_the_tag_of_its_key(world: World, version: int) -> None:
    guest = host(version)
    for vid in (0, *VIDS):
        released = world.introduce(guest, tags=[vid] if vid else [])
        (out,) = world.receive(TAP.ofport, reply_to(released.frame, world.tap))
        frame = Frame(0, out.frame)
        assert out.port == 1
        assert frame["vlan_vid"] == (TAGGED | vid if vid else 0)
        assert mac(frame["eth_dst"]) == guest.mac
        ends = address(frame["ipv4_dst"]) if version == 4 else address6(frame["ipv6_dst"])
        assert (ends, frame["tcp_src"]) == (guest.ip, 80)


@pytest.mark.parametrize("vid", [1, 255, 256, 300, 4094])
@pytest.mark.parametrize("version", VERSIONS)
def test_every_vid_is_served(vid: int, version: int) -> None:
    with World(tap=TAP6) as world:
        endpoint = world.plug(1, vid=vid)
        released = world.introduce(host(version), tags=[vid])
        assert key_in(released.frame) == keys_of(endpoint, version)
        (out,) = world.receive(TAP.ofport, reply_to(released.frame, world.tap))
        assert Frame(0, out.frame)["vlan_vid"] == TAGGED | vid
        # The virtual machine itself has no entry here, and is untouched.
        assert untouched(world, 1, host(version).segment())


def test_the_answer_to_arp_keeps_the_tag(world: World) -> None:
    (out,) = world.receive(1, Host(1).question(tags=[100]))
    frame = Frame(0, out.frame)
    assert (out.port, frame["vlan_vid"]) == (1, TAGGED | 100)
    assert mac(frame["arp_sha"]) == TAP.mac


def test_the_answer_to_a_solicitation_keeps_the_tag(world: World) -> None:
    (out,) = world.receive(1, Host6(1).solicit(tags=[200]))
    frame = Frame(0, out.frame)
    assert (out.port, frame["vlan_vid"]) == (1, TAGGED | 200)
    assert mac(frame["ipv6_nd_tll"]) == TAP.mac


def test_so_does_the_controllers_answer_to_one_without_a_mac(world: World) -> None:
    frame = Host6(1).solicit(to=SERVICE6[0], options=b"", tags=[200])
    (out,) = world.receive(1, frame)
    assert out.meters == (world.meters.ids(Purpose.SYN)[Endpoint(1, 200)],)
    (answer,) = world.switch.released
    read = Frame(0, answer.frame)
    assert (answer.port, read["vlan_vid"]) == (1, TAGGED | 200)
    assert mac(read["ipv6_nd_tll"]) == TAP.mac


@pytest.mark.parametrize("tci", [101, 1, 4095, 0, 0xE000])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_tag_without_a_subport_is_untouched(world: World, version: int, tci: int) -> None:
    guest = host(version)
    for vid in (0, *VIDS):
        world.introduce(guest, tags=[vid] if vid else [])
    for flags in (2, ACK):
        assert untouched(world, 1, guest.segment(flags=flags, tags=[tci]))
    assert untouched(world, 1, Host(1).question(tags=[tci]))
    assert untouched(world, 1, Host6(1).solicit(tags=[tci]))
    # Another virtual machine has no subport with that VLAN id.
    assert untouched(world, 2, guest.segment(tags=[100]))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tag_of_a_provider_counts_as_one_of_8021q(world: World, version: int) -> None:
    frame = tagged(host(version).segment(), 100, tpid=0x88A8)
    (out,) = world.receive(1, frame)
    assert out.frame == host(version).segment(tags=[100])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_flood_of_one_container_leaves_its_siblings_theirs(world: World, version: int) -> None:
    world.switch.exhausted = {
        world.meters.ids(purpose)[Endpoint(1, 100)] for purpose in (Purpose.SYN, Purpose.GUEST_SYN)
    }
    assert world.receive(1, host(version).segment(tags=[100])) == []
    for tags in ([200], []):
        assert world.introduce(host(version), tags=tags).port == TAP.ofport


@pytest.mark.parametrize("version", VERSIONS)
def test_another_mac_than_that_of_its_entry_is_not_served(version: int) -> None:
    with World(tap=TAP6) as world:
        guest = host(version)
        endpoint = world.plug(1, vid=100, mac="fa:16:3e:00:00:77")
        assert world.receive(1, guest.segment(tags=[100])) == []
        guest.mac = "fa:16:3e:00:00:77"
        assert world.introduce(guest, tags=[100]).port == TAP.ofport
        # The address is forgotten when the entry's MAC changes.
        world.plug(1, vid=100, mac="fa:16:3e:00:00:78")
        assert world.registry.slots(endpoint) == {}
        assert world.receive(1, guest.segment(flags=ACK, tags=[100])) == []


def test_the_mac_of_an_untagged_port_decides_nothing(world: World) -> None:
    world.plug(2, mac="fa:16:3e:00:00:77")
    assert world.introduce(Host(2)).port == TAP.ofport


@pytest.mark.parametrize("version", VERSIONS)
def test_a_subport_that_is_removed_has_no_flows_and_its_siblings_keep_theirs(
    world: World, version: int
) -> None:
    guest = host(version)
    released = {vid: world.introduce(guest, tags=[vid]) for vid in VIDS}
    world.unplug(1, 100)
    assert untouched(world, 1, guest.segment(tags=[100]))
    assert world.receive(TAP.ofport, reply_to(released[100].frame, world.tap)) == []
    (out,) = world.receive(1, guest.segment(flags=ACK, tags=[200]))
    assert key_in(out.frame) == keys_of(Endpoint(1, 200), version)


def test_a_reconcile_puts_lost_flows_back_and_removes_stray_ones(world: World) -> None:
    for vid in VIDS:
        world.introduce(Host(1), tags=[vid])
    flows = {(one.place[0], one.place[1], str(one.match)) for one in world.switch.flows}
    world.switch.flows = [one for one in world.switch.flows if one.priority == 0]
    assert world.reconciler.reconcile() > 0
    assert {(one.place[0], one.place[1], str(one.match)) for one in world.switch.flows} == flows
    assert world.reconciler.reconcile() == 0
    stray = {"in_port": 1, "vlan_vid": TAGGED | 300, "eth_type": 0x0806, "arp_op": 1}
    own = next(one for one in world.switch.flows if one.match.get("arp_op"))
    world.foreign(match=stray, priority=own.priority, cookie=own.cookie)
    assert world.reconciler.reconcile() == 1
    assert untouched(world, 1, Host(1).question(tags=[300]))


def test_addresses_of_an_earlier_run_are_adopted_with_their_tags() -> None:
    with World() as before:
        before.plug(1, vid=100)
        before.introduce(Host(1), tags=[100])
        kept = before.switch
    with World() as world:
        world.switch.flows, world.switch.meters = kept.flows, kept.meters
        world.reconciler.adopted = False
        world.plug(1, vid=100)
        world.reconciler.reconcile()
        assert world.reconciler.reconcile() == 0
        (slot,) = world.registry.slots(Endpoint(1, 100)).values()
        assert slot.address.mac == Host(1).mac


def test_an_address_with_another_mac_than_the_entry_is_not_adopted() -> None:
    with World() as world:
        world.plug(1, vid=100)
        world.introduce(Host(1), tags=[100])
        held = world.switch.flows
        world.plug(1, vid=100, mac="fa:16:3e:00:00:77")
        world.switch.flows, world.reconciler.adopted = held, False
        world.reconciler.reconcile()
        assert world.registry.slots(Endpoint(1, 100)) == {}
        assert world.receive(1, Host(1).segment(flags=ACK, tags=[100])) == []


def test_every_subport_has_meters_of_its_own(world: World) -> None:
    for vid in range(1, 60):
        world.plug(1, vid=vid)
    ids = [
        number
        for purpose in (Purpose.SYN, Purpose.GUEST_SYN)
        for number in world.meters.ids(purpose).values()
    ]
    assert len(ids) == len(set(ids)) == 2 * 62
    world.unplug(1, 7)
    assert Endpoint(1, 7) not in world.meters.ids(Purpose.SYN)
