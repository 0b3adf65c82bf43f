"""A guest's ARP for a guest next hop: answered for that guest alone, and all else is untouched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.flows.service import Tap
from dfmeta.model import NextHop
from tests.core.flows.frames import Frame, arp, ethernet, mac
from tests.core.flows.world import BROADCAST, TAP, TAP6, Host, Link, World, memory_of
from tests.flowsim import Out

MAC = "fa:16:3e:dd:00:02"
HOP, BARE = NextHop("10.0.0.2", MAC), NextHop("10.0.0.3")


@pytest.fixture(params=[TAP, replace(TAP, ip="169.254.1.1"), TAP6])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    tap: Tap = request.param
    with World(tap=tap) as one:
        one.plug(1, next_hops=(HOP, BARE))
        one.plug(2)
        yield one


def answered(world: World, frame: bytes, ofport: int = 1) -> str:
    """The MAC in the answer to *frame*; empty if it goes the bridge's own way."""
    outs = world.receive(ofport, frame)
    if outs == [Out(ofp.OFPP_NORMAL, frame)]:
        return ""
    (out,) = outs
    assert out.port == ofport
    answer, asked = Frame(ofport, out.frame), Frame(ofport, frame)
    assert answer["arp_op"] == 2
    assert answer["eth_dst"] == asked["eth_src"]
    assert (answer["arp_tha"], answer["arp_tpa"]) == (asked["arp_sha"], asked["arp_spa"])
    assert answer["arp_spa"] == asked["arp_tpa"]
    assert answer["eth_src"] == answer["arp_sha"]
    return mac(answer["arp_sha"])


def test_it_is_answered_with_the_dhcp_ports_mac_or_the_services(world: World) -> None:
    guest = Host(1)
    assert answered(world, guest.question(HOP.ip)) == MAC
    assert answered(world, guest.question(BARE.ip)) == world.tap.mac
    assert answered(world, guest.question(METADATA_IP)) == world.tap.mac


def test_a_request_to_one_host_is_answered_too(world: World) -> None:
    guest = Host(1)
    packet = arp(op=1, sha=guest.mac, spa=guest.ip, tpa=HOP.ip)
    assert answered(world, ethernet(packet, dst=MAC, src=guest.mac, kind=0x0806)) == MAC


@pytest.mark.parametrize("ofport", [2, 3, TAP.ofport - 1])
def test_other_ports_are_not_answered(world: World, ofport: int) -> None:
    assert answered(world, Host(ofport).question(HOP.ip), ofport) == ""


def test_a_probe_for_a_duplicate_is_left_to_the_bridge(world: World) -> None:
    packet = arp(op=1, sha=Host(1).mac, spa="0.0.0.0", tpa=HOP.ip)
    assert answered(world, ethernet(packet, dst=BROADCAST, src=Host(1).mac, kind=0x0806)) == ""


@pytest.mark.parametrize(("op", "tags"), [(2, []), (3, []), (1, [7])])
def test_only_untagged_requests_are_answered(world: World, op: int, tags: list[int]) -> None:
    frame = Host(1).question(HOP.ip, op=op, tags=tags)
    assert world.receive(1, frame) == [Out(ofp.OFPP_NORMAL, frame)]


def test_other_addresses_are_not_answered(world: World) -> None:
    assert answered(world, Host(1).question("10.0.0.1")) == ""


def test_the_first_syn_follows_and_is_served(world: World) -> None:
    assert world.introduce(Host(1)).port == world.tap.ofport
    assert answered(world, Host(1).question(HOP.ip)) == MAC


def test_the_announcement_of_a_guest_that_uses_the_address_is_not_answered(world: World) -> None:
    guest = Host(1, ip=HOP.ip)
    world.introduce(guest)
    assert answered(world, guest.question(HOP.ip)) == ""
    assert answered(world, guest.question(BARE.ip)) == world.tap.mac


def test_flows_follow_the_port(world: World) -> None:
    sent = world.switch.flow_mods
    world.plug(1, next_hops=(HOP, BARE))
    assert world.switch.flow_mods == sent
    world.plug(1, next_hops=(BARE,))
    assert world.switch.flow_mods == sent + 1
    assert answered(world, Host(1).question(HOP.ip)) == ""
    world.plug(1, next_hops=(NextHop(BARE.ip, MAC),))
    assert world.switch.flow_mods == sent + 2
    assert answered(world, Host(1).question(BARE.ip)) == MAC
    world.unplug(1)
    assert answered(world, Host(1).question(BARE.ip)) == ""


@pytest.mark.parametrize("known", [True, False])
def test_a_restarted_app_sends_nothing_whether_or_not_it_knows_them_already(
    world: World, known: bool
) -> None:
    world.introduce(Host(1))
    sent, flows = world.switch.flow_mods, len(world.switch.flows)
    again = World.__new__(World)
    super(World, again).__init__(tap=world.tap, meters=memory_of(world.meters))
    for port in world.registry.ports():
        unknown = port if known else replace(port, next_hops=None)
        again.registry.set_port(unknown)
    again.switch = world.switch
    world.channel.detach(world.link)
    link = Link(world.switch.feed)
    world.switch._deliver = link.deliver
    again.connect(link)
    assert again.reconciler.reconcile() == 0
    assert (world.switch.flow_mods, len(world.switch.flows)) == (sent, flows)
    assert answered(world, Host(1).question(HOP.ip)) == MAC
    again.channel.detach(link)
