"""A guest's ARP for a guest next hop: answered for that guest alone, and all else is untouched."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.model import NextHop
from tests.core.flows.frames import Frame, arp, ethernet, mac
from tests.core.flows.world import TAP, TAP6, Host, World, untouched
from tests.flowsim import Out

MAC = "fa:16:3e:dd:00:02"
HOP, BARE = NextHop("10.0.0.2", MAC), NextHop("10.0.0.3")


@pytest.fixture(params=[TAP, replace(TAP, ip="169.254.1.1"), TAP6])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(tap=request.param) as world:
        world.plug(1, next_hops=(HOP, BARE))
        world.plug(2)
        yield world


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


def test_request_is_answered_with_the_dhcp_ports_mac_or_the_services(world: World) -> None:
    guest = Host(1)
    assert answered(world, guest.question(HOP.ip)) == MAC
    assert answered(world, guest.question(BARE.ip)) == world.tap.mac
    assert answered(world, guest.question(METADATA_IP)) == world.tap.mac
    unicast = arp(op=1, sha=guest.mac, spa=guest.ip, tpa=HOP.ip)
    assert answered(world, ethernet(unicast, dst=MAC, src=guest.mac, kind=0x0806)) == MAC
    assert world.introduce(guest).port == world.tap.ofport
    assert answered(world, guest.question(HOP.ip)) == MAC


def test_all_other_arp_is_left_to_the_bridge(world: World) -> None:
    guest = Host(1)
    for name, frame in {
        "a probe for a duplicate": Host(1, ip="0.0.0.0").question(HOP.ip),
        "a reply": guest.question(HOP.ip, op=2),
        "RARP's opcode": guest.question(HOP.ip, op=3),
        "tagged": guest.question(HOP.ip, tags=[7]),
        "another address": guest.question("10.0.0.1"),
    }.items():
        assert untouched(world, 1, frame), name
    for ofport in (2, 3, TAP.ofport - 1):
        assert untouched(world, ofport, Host(ofport).question(HOP.ip)), ofport


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
def test_restarted_app_adopts_flows_of_next_hops_known_or_not(world: World, known: bool) -> None:
    world.introduce(Host(1))
    sent, flows = world.switch.flow_mods, len(world.switch.flows)
    ports = [port if known else replace(port, next_hops=None) for port in world.registry.ports()]
    with world.restarted(ports=ports) as again:
        assert again.reconciler.reconcile() == 0
        assert (again.switch.flow_mods, len(again.switch.flows)) == (sent, flows)
        assert answered(again, Host(1).question(HOP.ip)) == MAC
