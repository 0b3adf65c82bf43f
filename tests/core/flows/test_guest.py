"""What happens to the frames that a guest sends."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.key import IN_PORT
from dfmeta.flows.pipeline import CONTROLLER_ID, METADATA_IP, Purpose
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint
from tests.core.flows.frames import (
    Frame,
    address,
    arp,
    ethernet,
    ipv4,
    mac,
)
from tests.core.flows.world import (
    BROADCAST,
    GATEWAY_MAC,
    TAP,
    Host,
    World,
    assert_is_an_answer,
    assert_is_for_the_proxy,
    settle,
    tap_frame,
    untouched,
)
from tests.flowsim import Out

SYN, ACK, FIN, RST, ECE, CWR = 0x02, 0x10, 0x01, 0x04, 0x40, 0x80
HOST_IP = "169.254.1.1"


@pytest.fixture
def world() -> Iterator[World]:
    with World() as one:
        yield one


def fragment(which: int, *, dst: str = METADATA_IP, proto: int = 6) -> bytes:
    """A part of a packet; *which* holds the flag for more, and the offset."""
    part = Host(1).segment(dst=dst)[34:] + b"\0" * 12
    packet = ipv4(part, dst=dst, src="10.0.0.5", proto=proto, fragment=which)
    return ethernet(packet, dst=GATEWAY_MAC, src=Host(1).mac)


# A first SYN


def test_a_syn_of_an_unknown_address_goes_to_the_controller_alone(world: World) -> None:
    world.plug(1)
    guest = Host(1)
    (out,) = world.switch.receive(1, guest.segment())
    assert (out.port, out.controller) == (ofp.OFPP_CONTROLLER, CONTROLLER_ID)
    assert out.frame == guest.segment()


def test_it_goes_there_through_its_ports_meters(world: World) -> None:
    world.plug(1)
    world.plug(2)
    meters = [world.switch.receive(n, Host(n).segment())[0].meters for n in (1, 2)]
    every, first = world.meters.ids(Purpose.GUEST_SYN), world.meters.ids(Purpose.SYN)
    assert meters == [(every[Endpoint(n)], first[Endpoint(n)]) for n in (1, 2)]
    assert len({*every.values(), *first.values()}) == 4


def test_a_flood_that_exhausts_one_ports_meter_leaves_the_others_theirs(world: World) -> None:
    world.plug(1)
    world.plug(2)
    world.switch.exhausted = {world.meters.ids(Purpose.SYN)[Endpoint(1)]}
    assert world.receive(1, Host(1).segment()) == []
    assert world.introduce(Host(2)).port == TAP.ofport


def test_a_flood_of_a_known_address_leaves_its_open_connections_theirs(world: World) -> None:
    world.plug(1)
    guest = Host(1)
    world.introduce(guest)
    world.switch.exhausted = {world.meters.ids(Purpose.GUEST_SYN)[Endpoint(1)]}
    assert world.receive(1, guest.segment()) == []
    (out,) = world.receive(1, guest.segment(flags=ACK))
    assert (out.port, out.meters) == (TAP.ofport, ())


def test_a_first_syn_is_released_to_the_proxy_once_its_flows_stand(world: World) -> None:
    endpoint = world.plug(1)
    guest = Host(1)
    released = world.introduce(guest)
    assert released.port == TAP.ofport
    assert_is_for_the_proxy(released, guest, key=str(IN_PORT.key_of(endpoint, 0)))
    (later,) = world.switch.receive(1, guest.segment())
    assert (later.port, later.frame) == (released.port, released.frame)


@pytest.mark.parametrize("flags", [SYN, SYN | ECE | CWR, SYN | ECE, SYN | FIN, SYN | 0x100])
def test_a_first_syn_is_one_whatever_flags_beside_syn_and_ack_it_has(
    world: World, flags: int
) -> None:
    world.plug(1)
    released = world.introduce(Host(1), flags=flags)
    assert released.port == TAP.ofport
    assert Frame(0, released.frame)["tcp_flags"] == flags


@pytest.mark.parametrize("flags", [ACK, SYN | ACK, RST, FIN | ACK, 0])
def test_what_an_unknown_address_sends_without_a_syn_before_is_dropped(
    world: World, flags: int
) -> None:
    world.plug(1)
    assert world.receive(1, Host(1).segment(flags=flags)) == []


def test_a_syn_before_its_instance_is_known_is_released_when_it_is(world: World) -> None:
    world.plug(1, instance="")
    guest = Host(1)
    (out,) = world.receive(1, guest.segment())
    assert out.port == ofp.OFPP_CONTROLLER
    assert world.switch.released == []
    world.now += 3
    world.plug(1)
    (released,) = world.switch.released
    assert_is_for_the_proxy(released, guest, key=str(IN_PORT.key_of(Endpoint(1), 0)))
    assert world.registry.take_wait(Endpoint(1), 40000) == 3


def test_a_first_syn_is_not_released_before_the_switch_has_confirmed_its_flows(
    world: World,
) -> None:
    world.plug(1)
    held = world.hold_answers()
    world.switch.receive(1, Host(1).segment())
    world.link.deliver(held.pop(0))
    settle()
    assert held
    assert world.switch.released == []
    world.let_go(held)
    (released,) = world.switch.released
    assert released.port == TAP.ofport


@pytest.mark.parametrize("instance", ["instance-2", ""])
def test_a_first_syn_is_not_released_as_the_next_guests(world: World, instance: str) -> None:
    world.plug(1)
    held = world.hold_answers()
    world.switch.receive(1, Host(1).segment())
    world.link.deliver(held.pop(0))
    settle()
    world.plug(1, instance=instance)
    world.let_go(held)
    assert world.switch.released == []


# A known guest


@pytest.mark.parametrize("flags", [SYN, SYN | ECE | CWR, ACK, FIN | ACK, RST, SYN | ACK])
def test_all_tcp_of_a_known_guest_leaves_on_tap_metadata_with_key_mac_and_port(
    world: World, flags: int
) -> None:
    endpoint = world.plug(3)
    guest = Host(3)
    world.introduce(guest)
    (out,) = world.switch.receive(3, guest.segment(flags=flags))
    assert_is_for_the_proxy(out, guest, key=str(IN_PORT.key_of(endpoint, 0)))
    assert Frame(3, out.frame)["tcp_flags"] == flags


def test_another_address_of_a_known_guest_is_not_taken_for_it(world: World) -> None:
    world.plug(1)
    world.introduce(Host(1))
    for other in (Host(1, ip="10.0.0.6"), Host(1, mac="fa:16:3e:00:00:06")):
        (out,) = world.switch.receive(1, other.segment())
        assert out.port == ofp.OFPP_CONTROLLER
        assert world.switch.receive(1, other.segment(flags=ACK)) == []


def test_the_same_address_on_another_port_is_not_taken_for_it(world: World) -> None:
    world.plug(1)
    world.plug(2)
    world.introduce(Host(1))
    (out,) = world.switch.receive(2, Host(2).segment())
    assert out.port == ofp.OFPP_CONTROLLER


def test_the_longest_idle_address_gives_way_to_an_eighth(world: World) -> None:
    endpoint = world.plug(1)
    guests = [Host(1, ip=f"10.0.{n}.5") for n in range(8)]
    for guest in guests:
        world.now += 1
        released = world.introduce(guest)
    assert address(Frame(0, released.frame)["ipv4_src"]) == str(IN_PORT.key_of(endpoint, 0))
    (out,) = world.receive(TAP.ofport, world.answer(released.frame))
    assert_is_an_answer(out, guests[7])
    (out,) = world.switch.receive(1, guests[0].segment())
    assert out.port == ofp.OFPP_CONTROLLER
    assert world.switch.receive(1, guests[0].segment(flags=ACK)) == []


# Answers


def test_an_answer_leaves_on_the_guests_port_alone_with_its_own_addresses(world: World) -> None:
    world.plug(1)
    guest = Host(1)
    (out,) = world.receive(TAP.ofport, world.answer(world.introduce(guest).frame))
    assert_is_an_answer(out, guest)


def test_an_answer_does_not_go_by_the_hosts_neighbour_table(world: World) -> None:
    endpoint = world.plug(1)
    world.introduce(Host(1))
    stale = tap_frame(TAP, str(IN_PORT.key_of(endpoint, 0)))
    (out,) = world.receive(TAP.ofport, b"\x02\xff\xff\xff\xff\xff" + stale[6:])
    assert mac(Frame(0, out.frame)["eth_dst"]) == Host(1).mac


def test_host_ip_is_put_in_on_the_way_in_and_taken_out_on_the_way_back() -> None:
    tap = Tap(TAP.ofport, TAP.mac, TAP.port, ip=HOST_IP)
    with World(tap=tap) as world:
        endpoint = world.plug(1)
        guest = Host(1)
        released = world.introduce(guest)
        assert_is_for_the_proxy(released, guest, key=str(IN_PORT.key_of(endpoint, 0)), tap=tap)
        (later,) = world.switch.receive(1, guest.segment())
        assert (later.port, later.frame) == (released.port, released.frame)
        (out,) = world.receive(TAP.ofport, world.answer(released.frame))
        assert_is_an_answer(out, guest)
        assert untouched(world, 1, guest.segment(dst=HOST_IP))
        forged = tap_frame(tap, str(IN_PORT.key_of(endpoint, 0)), src=METADATA_IP)
        assert world.receive(TAP.ofport, forged) == []


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(tap_frame(TAP, "128.0.0.1", sport=9776), id="another port"),
        pytest.param(tap_frame(TAP, "128.0.0.1", sport=80), id="port 80"),
        pytest.param(tap_frame(TAP, "128.0.0.1", src="10.1.1.1"), id="another source"),
        pytest.param(tap_frame(TAP, "128.0.0.2"), id="nobody's key"),
        pytest.param(tap_frame(TAP, "144.0.0.1"), id="a free slot's key"),
        pytest.param(tap_frame(TAP, "10.0.0.5"), id="the guest's address"),
        pytest.param(
            ethernet(ipv4(b"\0" * 8, dst="128.0.0.1", src=METADATA_IP, proto=17), dst=BROADCAST,
                     src=TAP.mac),
            id="UDP",
        ),
        pytest.param(
            ethernet(ipv4(b"\x08\0\xf7\xff" + b"\0" * 4, dst="128.0.0.1", src=METADATA_IP, proto=1),
                     dst=BROADCAST, src=TAP.mac),
            id="ICMP",
        ),
        pytest.param(
            ethernet(b"\x60" + b"\0" * 39, dst="33:33:00:00:00:02", src=TAP.mac, kind=0x86DD),
            id="IPv6",
        ),
        pytest.param(
            ethernet(ipv4(b"\0" * 24, dst="128.0.0.1", src=METADATA_IP, fragment=0x2000),
                     dst=BROADCAST, src=TAP.mac),
            id="a first fragment",
        ),
        pytest.param(
            ethernet(ipv4(b"\0" * 24, dst="128.0.0.1", src=METADATA_IP, fragment=0x0010),
                     dst=BROADCAST, src=TAP.mac),
            id="a later fragment",
        ),
        pytest.param(
            ethernet(arp(op=1, sha=TAP.mac, spa=METADATA_IP, tpa="10.0.0.5"), dst=BROADCAST,
                     src=TAP.mac, kind=0x0806),
            id="ARP for a guest's address",
        ),
        pytest.param(
            ethernet(arp(op=1, sha=TAP.mac, spa=METADATA_IP, tpa=METADATA_IP), dst=BROADCAST,
                     src=TAP.mac, kind=0x0806),
            id="gratuitous ARP",
        ),
        pytest.param(
            ethernet(arp(op=2, sha=TAP.mac, spa=METADATA_IP, tpa="128.0.0.1"), dst=BROADCAST,
                     src=TAP.mac, kind=0x0806),
            id="an ARP reply",
        ),
        pytest.param(
            ethernet(b"\0" * 46, dst="01:80:c2:00:00:0e", src=TAP.mac, kind=0x88CC), id="LLDP"
        ),
    ],
)  # fmt: skip
def test_whatever_else_tap_metadata_emits_is_dropped(world: World, frame: bytes) -> None:
    world.plug(1)
    world.introduce(Host(1))
    assert world.receive(TAP.ofport, frame) == []


def test_the_host_learns_a_keys_mac_on_tap_metadata_alone(world: World) -> None:
    endpoint = world.plug(1)
    guest = Host(1)
    world.introduce(guest)
    kernel = Host(TAP.ofport, ip=METADATA_IP, mac=TAP.mac)
    (out,) = world.receive(TAP.ofport, kernel.question(str(IN_PORT.key_of(endpoint, 0))))
    answer = arp(
        op=2, sha=guest.mac, spa=str(IN_PORT.key_of(endpoint, 0)), tha=TAP.mac, tpa=METADATA_IP
    )
    assert out == Out(TAP.ofport, ethernet(answer, dst=TAP.mac, src=guest.mac, kind=0x0806))


def test_a_guest_cannot_ask_for_a_keys_mac(world: World) -> None:
    endpoint = world.plug(1)
    guest = Host(1)
    world.introduce(guest)
    assert untouched(world, 1, guest.question(str(IN_PORT.key_of(endpoint, 0))))


# ARP


def test_a_guests_question_for_the_service_is_answered_on_its_own_port(world: World) -> None:
    world.plug(1)
    guest = Host(1)
    answer = arp(op=2, sha=TAP.mac, spa=METADATA_IP, tha=guest.mac, tpa=guest.ip)
    expected = Out(1, ethernet(answer, dst=guest.mac, src=TAP.mac, kind=0x0806))
    assert world.receive(1, guest.question()) == [expected]


def test_a_probe_for_the_service_is_answered_too(world: World) -> None:
    world.plug(1)
    (out,) = world.receive(1, Host(1, ip="0.0.0.0").question())
    assert out.port == 1
    assert address(Frame(1, out.frame)["arp_tpa"]) == "0.0.0.0"


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Host(1).question("10.0.0.1"), id="for another address"),
        pytest.param(Host(1).question(op=2), id="a reply"),
        pytest.param(Host(1).question(op=3), id="RARP's opcode"),
        pytest.param(Host(1).question(op=0x0101), id="an opcode above 255"),
        pytest.param(Host(1).question(tags=[5]), id="tagged"),
        pytest.param(Host(1).question(tags=[0]), id="priority-tagged"),
        pytest.param(Host(1).question()[:-1], id="cut short"),
        pytest.param(Host(1).question()[:18] + b"\x08" + Host(1).question()[19:], id="odd length"),
    ],
)
def test_all_other_arp_is_untouched(world: World, frame: bytes) -> None:
    world.plug(1)
    assert untouched(world, 1, frame)


# What is not ours


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Host(1).segment(dst="10.0.0.1"), id="another address"),
        pytest.param(Host(1).segment(dst="169.254.169.253"), id="its neighbour"),
        pytest.param(Host(1).segment(dst="128.0.0.1"), id="a key, which is the internet's"),
        pytest.param(Host(1).segment(dport=443), id="another port"),
        pytest.param(Host(1).segment(dport=9775), id="the proxy's port"),
        pytest.param(Host(1).segment(tags=[0x0005]), id="tagged"),
        pytest.param(Host(1).segment(tags=[0x0000]), id="priority-tagged"),
        pytest.param(Host(1).segment(tags=[5, 7]), id="tagged twice"),
        pytest.param(
            ethernet(ipv4(b"\x9c\x40\0\x35\0\x08\0\0", dst=METADATA_IP, src="10.0.0.5", proto=17),
                     dst=GATEWAY_MAC, src=Host(1).mac),
            id="DNS",
        ),
        pytest.param(
            ethernet(ipv4(b"\x9c\x40\0\x50\0\x08\0\0", dst=METADATA_IP, src="10.0.0.5", proto=17),
                     dst=GATEWAY_MAC, src=Host(1).mac),
            id="UDP port 80",
        ),
        pytest.param(
            ethernet(ipv4(b"\x08\0\xf7\xff" + b"\0" * 4, dst=METADATA_IP, src="10.0.0.5", proto=1),
                     dst=GATEWAY_MAC, src=Host(1).mac),
            id="ping",
        ),
        pytest.param(fragment(0x2000, dst="169.254.169.253"), id="a fragment to another address"),
        pytest.param(fragment(0x0005, proto=17), id="a fragment of UDP"),
        pytest.param(
            ethernet(b"\x60" + b"\0" * 39, dst="33:33:00:00:00:02", src=Host(1).mac, kind=0x86DD),
            id="IPv6",
        ),
        pytest.param(
            ethernet(b"\0" * 46, dst=BROADCAST, src=Host(1).mac, kind=0x88CC), id="LLDP"
        ),
        pytest.param(Host(1).segment()[:50], id="TCP cut short"),
        pytest.param(
            ethernet(b"\x42\x42\x03" + b"\0" * 43, dst=BROADCAST, src=Host(1).mac, kind=46),
            id="spanning tree",
        ),
    ],
)  # fmt: skip
def test_what_is_not_ours_is_untouched(world: World, frame: bytes) -> None:
    world.plug(1)
    assert untouched(world, 1, frame)
    world.introduce(Host(1))
    assert untouched(world, 1, frame)


@pytest.mark.parametrize("which", [0x2000, 0x2001, 0x0001, 0x1FFF])
@pytest.mark.parametrize("known", [True, False])
def test_fragments_of_tcp_to_the_service_go_nowhere(
    world: World, which: int, *, known: bool
) -> None:
    world.plug(1)
    if known:
        world.introduce(Host(1))
    assert world.receive(1, fragment(which)) == []
    assert untouched(world, 2, fragment(which))


@pytest.mark.parametrize("ofport", [2, 3, 0xFFFFFFFE])
def test_ports_that_are_not_guests_are_untouched(world: World, ofport: int) -> None:
    world.plug(1)
    world.introduce(Host(1))
    stranger = Host(ofport)
    assert untouched(world, ofport, stranger.segment())
    assert untouched(world, ofport, stranger.segment(flags=ACK))
    assert untouched(world, ofport, stranger.question())
    assert untouched(world, ofport, tap_frame(TAP, str(IPv4Address("128.0.0.1"))))


@pytest.mark.parametrize(
    "more", [{"dead": True}, {"fault": "two MACs"}, {"ofport": None}], ids=lambda more: str(more)
)
def test_a_port_that_stops_being_a_guests_is_untouched(
    world: World, more: dict[str, object]
) -> None:
    world.plug(1)
    world.introduce(Host(1))
    world.plug(**{"ofport": 1, "name": "tap1", "row": "row-1", **more})  # type: ignore[arg-type]
    assert untouched(world, 1, Host(1).segment())
    assert untouched(world, 1, Host(1).question())


def test_a_reply_whose_port_is_gone_goes_nowhere(world: World) -> None:
    world.plug(1)
    released = world.introduce(Host(1))
    world.switch.ports.remove(1)
    assert world.receive(TAP.ofport, world.answer(released.frame)) == []
    world.unplug(1)
    assert world.receive(TAP.ofport, world.answer(released.frame)) == []
