"""A container's port should pass frames with the container's own addresses as source alone."""

from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from dfmeta.flows.integration_bridge import interface_id
from dfmeta.model import Binding
from tests.core.flows.frames import arp, ethernet, icmpv6, ipv4, ipv6, link_layer, neighbour, udp
from tests.core.flows.world import BROADCAST, SERVICE6, TAP6, Host, Host6, World, untouched

MAC, IP = "02:00:00:00:00:05", "10.20.0.5"
OTHER_MAC, OTHER_IP = "02:00:00:00:00:99", "10.20.0.1"
LINK_LOCAL, ROUTED, OTHER6 = "fe80::ff:fe00:5", "2001:db8::ff:fe00:5", "fe80::1"
ALL_NODES = "ff02::1"
CONTAINER, VM = 3, 1


@pytest.fixture
def world() -> Iterator[World]:
    """Provide a container whose source is checked at port 3, and a guest at port 1."""
    with World(tap=TAP6) as world:
        world.plug(VM)
        world.plug(CONTAINER, binding=Binding(MAC, IPv4Address(IP)))
        yield world


def packet4(src: str = IP, mac: str = MAC) -> bytes:
    payload = ipv4(udp(b"x", dport=53), dst="10.20.0.7", src=src, proto=17)
    return ethernet(payload, dst=BROADCAST, src=mac)


def question(*, mac: str = MAC, op: int = 1, sha: str = MAC, spa: str = IP, tpa: str = "") -> bytes:
    packet = arp(op=op, sha=sha, spa=spa, tpa=tpa or "10.20.0.7")
    return ethernet(packet, dst=BROADCAST, src=mac, kind=0x0806)


def packet6(src: str, payload: bytes = b"", *, mac: str = MAC, proto: int = 17) -> bytes:
    data = payload or udp(b"x", dport=53)
    return ethernet(
        ipv6(data, dst=ALL_NODES, src=src, proto=proto), dst=BROADCAST, src=mac, kind=0x86DD
    )


def message(kind: int, src: str, target: str = "::", options: bytes = b"") -> bytes:
    """Make a message of ICMPv6; of neighbour discovery it has a target."""
    if kind in (135, 136):
        body = neighbour(kind, target=target, dst=ALL_NODES, src=src, options=options)
    else:
        body = icmpv6(bytes(16), dst=ALL_NODES, src=src, kind=kind)
    return packet6(src, body, proto=58)


OWN = {
    "IPv4": packet4(),
    "ARP request": question(),
    "ARP reply": question(op=2),
    "ARP probe": question(spa="0.0.0.0", tpa=IP),  # an address of ARP
    "IPv6 of its link": packet6(LINK_LOCAL),
    "IPv6 of a router's prefix": packet6(ROUTED),
    "solicitation": message(135, LINK_LOCAL, OTHER6, link_layer(1, MAC)),
    "duplicate address detection": message(135, "::", LINK_LOCAL),
    "advertisement": message(136, LINK_LOCAL, ROUTED, link_layer(2, MAC)),
    "multicast report": message(143, "::"),
    "router solicitation": message(133, LINK_LOCAL),
}
FORGED = {
    "IPv4 of another": packet4(OTHER_IP),
    "IPv4 with another MAC": packet4(mac=OTHER_MAC),
    "DHCP": packet4("0.0.0.0"),  # an address of IPv4
    "ARP of the gateway": question(op=2, spa=OTHER_IP),
    "ARP with another MAC": question(op=2, sha=OTHER_MAC),
    "ARP from another MAC": question(mac=OTHER_MAC),
    "ARP probe for another": question(spa="0.0.0.0", tpa=OTHER_IP),  # of ARP
    "IPv6 of another": packet6(OTHER6),
    "IPv6 with another MAC": packet6(LINK_LOCAL, mac=OTHER_MAC),
    "advertisement of another": message(136, LINK_LOCAL, OTHER6, link_layer(2, MAC)),
    "detection for another": message(135, "::", OTHER6),
    "router advertisement": message(134, LINK_LOCAL),
    "redirect": message(137, LINK_LOCAL),
    "no address": message(128, "::"),
    "another protocol": ethernet(b"x" * 46, dst=BROADCAST, src=MAC, kind=0x8035),
    "tagged": ethernet(packet4()[14:], dst=BROADCAST, src=MAC, tags=[7]),
    "priority tag": ethernet(packet4()[14:], dst=BROADCAST, src=MAC, tags=[0]),
}


def test_frame_with_its_own_addresses_goes_the_way_of_the_bridge(world: World) -> None:
    for name, frame in OWN.items():
        assert untouched(world, CONTAINER, frame), name


def test_frame_with_other_addresses_goes_nowhere(world: World) -> None:
    for name, frame in FORGED.items():
        assert world.receive(CONTAINER, frame) == [], name
        assert untouched(world, VM, frame), name


def test_service_answers_a_container_as_any_guest(world: World) -> None:
    for guest in (Host(CONTAINER, OTHER_IP, OTHER_MAC), Host6(CONTAINER, mac=OTHER_MAC)):
        world.introduce(guest)
    (answer,) = world.receive(CONTAINER, Host(CONTAINER).request())
    assert answer.port == CONTAINER
    (answer,) = world.receive(CONTAINER, Host6(CONTAINER).solicit(SERVICE6[0]))
    assert answer.port == CONTAINER


def test_flows_of_a_check_are_found_again_and_go_with_the_port(world: World) -> None:
    before, mods = len(world.switch.flows), world.switch.flow_mods
    world.controller.bridge.reconciler.reconcile()
    assert (len(world.switch.flows), world.switch.flow_mods) == (before, mods)
    world.unplug(CONTAINER)
    world.plug(CONTAINER)
    for name, frame in FORGED.items():
        assert untouched(world, CONTAINER, frame), name


def test_another_address_replaces_the_one_before(world: World) -> None:
    world.plug(CONTAINER, binding=Binding(MAC, IPv4Address(OTHER_IP)))
    assert untouched(world, CONTAINER, packet4(OTHER_IP))
    assert world.receive(CONTAINER, packet4()) == []


def test_interface_id_is_that_of_the_mac() -> None:
    assert interface_id("fa:16:3e:00:00:01") == "::f816:3eff:fe00:1"
    assert interface_id(MAC) == "::ff:fe00:5"
