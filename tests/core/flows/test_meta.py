"""Guests behind br-meta: whatever they call themselves, none gets what is another's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows import desired
from dfmeta.flows.desired import Guest
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.flows.service import towards_proxy
from dfmeta.model import TAP_MAC, Endpoint
from tests.core.flows.bridges import (
    IP,
    IP6,
    KEYS,
    KNOWN,
    MAC,
    SIZE,
    A,
    B,
    Bridges,
    Left,
    is_answer,
    own_keys,
    requests,
    source_on_tap,
)
from tests.core.flows.frames import (
    Frame,
    arp,
    ethernet,
    icmpv6,
    ipv4,
    ipv6,
    link_layer,
    mac,
    multicast_mac,
    neighbour,
    solicited_node,
    sums_are_right,
    udp,
)
from tests.core.flows.world import BROADCAST, Host, Host6
from tests.harness.meta import (
    CIDR,
    PATCH_INT,
    PATCH_META,
    SERVICE6,
    TAP_META,
    VLAN,
)


@pytest.fixture(scope="module")
def bridges() -> Bridges:
    """Both bridges with the flows of the twins; no test changes them."""
    return Bridges([A, B])


# Known guests


def test_twins_of_one_network_each_get_their_own_answers(bridges: Bridges) -> None:
    for guest in (A, B):
        for host, service, syn in requests(guest.endpoint.ofport):
            (arrived,) = bridges.receive(guest.endpoint.ofport, syn)
            assert source_on_tap(arrived) in own_keys(guest)
            assert sums_are_right(arrived.frame)
            (back,) = bridges.receive(TAP_META, bridges.answer(arrived.frame), bridge="br-meta")
            assert is_answer(back, host, service)
            assert mac(Frame(0, back.frame)["eth_src"]) == TAP_MAC
            assert sums_are_right(back.frame)


def test_the_twins_are_different_clients_of_the_proxy(bridges: Bridges) -> None:
    found = {
        source_on_tap(left)
        for guest in (A, B)
        for _host, _service, syn in requests(guest.endpoint.ofport)
        for left in bridges.receive(guest.endpoint.ofport, syn)
    }
    assert found == own_keys(A) | own_keys(B)
    assert len(found) == 6


@pytest.mark.parametrize("flags", [0x02, 0xC2, 0x10, 0x11, 0x04, 0x18])
def test_all_tcp_of_a_known_address_takes_its_way(bridges: Bridges, flags: int) -> None:
    (left,) = bridges.receive(1, Host(1, IP, MAC).segment(flags=flags))
    assert source_on_tap(left) in own_keys(A)
    assert Frame(0, left.frame)["tcp_flags"] == flags


def test_a_first_syn_goes_to_the_controller_and_then_the_way_that_later_ones_go() -> None:
    bridges = Bridges([replace(A, addresses={})])
    for host, _service, syn in requests(1):
        (held,) = bridges.receive(1, syn)
        assert (held.bridge, held.port) == ("br-int", ofp.OFPP_CONTROLLER)
        assert bridges.receive(1, host.segment(flags=0x10)) == []
    bridges.install("br-int", desired.guest_flows(A, bridges.patch))
    bridges.install("br-meta", bridges.way(A))
    slots = dict(zip(requests(1), A.addresses, strict=True))
    for (_host, _service, syn), slot in slots.items():
        actions = towards_proxy(A.endpoint, slot, tap=bridges.patch)
        assert bridges.release(1, actions, syn) == bridges.receive(1, syn) != []


@pytest.mark.parametrize("bridge", ["br-int", "br-meta"])
def test_with_the_flows_of_one_bridge_gone_nothing_reaches_the_port_and_its_twin_is_served(
    bridge: str,
) -> None:
    bridges = Bridges([A, B])
    arrived = [left for *_, syn in requests(1) for left in bridges.receive(1, syn)]
    if bridge == "br-int":
        bridges.remove("br-int", desired.guest_flows(A, bridges.patch))
    else:
        bridges.remove("br-meta", bridges.way(A))
    for left in arrived:
        assert bridges.receive(TAP_META, bridges.answer(left.frame), bridge="br-meta") == []
    for _host, _service, syn in requests(1):
        for left in bridges.receive(1, syn):
            assert (left.bridge, left.port) == ("br-int", ofp.OFPP_NORMAL)
    for host, service, syn in requests(2):
        (left,) = bridges.receive(2, syn)
        (back,) = bridges.receive(TAP_META, bridges.answer(left.frame), bridge="br-meta")
        assert is_answer(back, host, service)


def test_a_number_that_another_port_gets_serves_that_port_alone() -> None:
    bridges = Bridges([A, B])
    bridges.remove("br-int", desired.guest_flows(A, bridges.patch))
    heir = replace(A, endpoint=Endpoint(3))
    bridges.install("br-int", desired.guest_flows(heir, bridges.patch))
    bridges.install("br-meta", bridges.way(heir))
    for key in own_keys(A):
        (back,) = bridges.receive(TAP_META, bridges.host_frame(key), bridge="br-meta")
        assert (back.bridge, back.port) == ("br-int", 3)


def test_without_ipv6_a_guest_is_served_over_ipv4_alone() -> None:
    bridges = Bridges([replace(A, addresses={7: KNOWN})], ip6=())
    for host, _service, syn in requests(1):
        (left,) = bridges.receive(1, syn)
        if isinstance(host, Host6):
            assert (left.bridge, left.port) == ("br-int", ofp.OFPP_NORMAL)
        else:
            assert source_on_tap(left) in own_keys(A)


# The host


def solicitation(bridges: Bridges, target: str) -> bytes:
    """The host's neighbour solicitation on tap-meta."""
    dst = solicited_node(target)
    src = bridges.keys.gateway(6)
    message = neighbour(
        135, target=target, dst=dst, src=src, options=link_layer(1, bridges.tap.mac)
    )
    packet = ipv6(message, dst=dst, src=src, proto=58)
    return ethernet(packet, dst=multicast_mac(dst), src=bridges.tap.mac, kind=0x86DD)


def question(bridges: Bridges, target: str, op: int = 1) -> bytes:
    """The host's ARP packet on tap-meta."""
    packet = arp(op=op, sha=bridges.tap.mac, spa=bridges.keys.gateway(4), tpa=target)
    return ethernet(packet, dst=BROADCAST, src=bridges.tap.mac, kind=0x0806)


def from_host(bridges: Bridges, frame: bytes) -> list[Left]:
    """Let a frame of the host come in at tap-meta."""
    return bridges.receive(TAP_META, frame, bridge="br-meta")


def test_the_host_learns_the_meta_mac_of_a_meta_ip_and_guests_hear_nothing(
    bridges: Bridges,
) -> None:
    for guest in (A, B):
        for number in guest.addresses:
            key = str(KEYS.key_of(guest.endpoint, number))
            ipv6 = number > SIZE
            frame = solicitation(bridges, key) if ipv6 else question(bridges, key)
            (reply,) = from_host(bridges, frame)
            assert (reply.bridge, reply.port) == ("br-meta", TAP_META)
            seen = Frame(0, reply.frame)
            found = seen["ipv6_nd_tll" if ipv6 else "arp_sha"]
            assert mac(found) == mac(seen["eth_src"]) == KEYS.label(number)
            assert mac(seen["eth_dst"]) == bridges.tap.mac


@pytest.mark.parametrize("target", [str(CIDR[9]), str(CIDR[1]), IP, METADATA_IP])
def test_requests_for_other_addresses_reach_nobody(bridges: Bridges, target: str) -> None:
    assert from_host(bridges, question(bridges, target)) == []
    assert from_host(bridges, question(bridges, str(CIDR[7]), op=2)) == []


@pytest.mark.parametrize("target", ["fd00:a9fe:a9fe:a9fe::9", IP6, SERVICE6[0], "fe80::1"])
def test_solicitations_for_other_addresses_reach_nobody(bridges: Bridges, target: str) -> None:
    assert from_host(bridges, solicitation(bridges, target)) == []


def host_noise() -> Iterator[bytes]:
    """What a kernel sends by itself on a device that is up, and what a program might."""
    bridges = Bridges([])
    source, gateway, gateway6 = bridges.tap.mac, bridges.keys.gateway(4), bridges.keys.gateway(6)
    yield ethernet(b"\0" * 46, dst=BROADCAST, src=source, kind=0x88CC)
    for dst in (str(CIDR[-1]), "255.255.255.255", "224.0.0.22", str(CIDR[7]), IP):
        packet = ipv4(udp(b"data", dport=5353), dst=dst, src=gateway, proto=17)
        yield ethernet(packet, dst=BROADCAST, src=source)
        yield ethernet(ipv4(b"\x08\0\xf7\xff\0\0\0\0", dst=dst, src=gateway, proto=1),
                       dst=BROADCAST, src=source)  # fmt: skip
    message = icmpv6(bytes(4), dst="ff02::2", src=gateway6, kind=133)
    yield ethernet(
        ipv6(message, dst="ff02::2", src=gateway6, proto=58),
        dst=multicast_mac("ff02::2"),
        src=source,
        kind=0x86DD,
    )
    for key in (str(CIDR[7]), "fd00:a9fe:a9fe:a9fe::7"):
        good = bridges.host_frame(key)
        for vlan in (VLAN, 0, 1):
            yield good[:12] + b"\x81\x00" + vlan.to_bytes(2, "big") + good[12:]
        yield bridges.host_frame(key, sport=80)
        yield bridges.host_frame(key, src="198.51.100.1" if ":" not in key else "2001:db8::1")
    for key in (str(CIDR[9]), str(CIDR[1]), str(CIDR[-1]), IP, IP6, SERVICE6[0]):
        yield bridges.host_frame(key)


@pytest.mark.parametrize("frame", [*host_noise()], ids=lambda frame: frame.hex()[:60])
def test_what_the_host_sends_besides_answers_reaches_nobody(bridges: Bridges, frame: bytes) -> None:
    assert from_host(bridges, frame) == []


def test_an_answer_does_not_go_by_the_hosts_neighbour_table(bridges: Bridges) -> None:
    good = bridges.host_frame(str(CIDR[7]))
    for wrong in (KEYS.label(17), MAC, BROADCAST):
        (left,) = from_host(bridges, bytes.fromhex(wrong.replace(":", "")) + good[6:])
        assert is_answer(left, Host(1, IP, MAC), METADATA_IP)


# The daemon's own SYN


@pytest.mark.parametrize("version", [4, 6])
def test_the_daemons_own_syn_reaches_the_listener_and_its_answer_the_controller(
    bridges: Bridges, version: int
) -> None:
    host = Host(PATCH_INT, mac=KEYS.probe_label(4))
    syn = host.segment()
    if version == 6:
        syn = Host6(PATCH_INT, mac=KEYS.probe_label(6)).segment()
    (arrived,) = bridges.receive(PATCH_META, syn, bridge="br-meta")
    assert source_on_tap(arrived) == KEYS.probe_key(version)
    (back,) = from_host(bridges, bridges.answer(arrived.frame))
    assert (back.bridge, back.port) == ("br-int", ofp.OFPP_CONTROLLER)
    assert sums_are_right(back.frame)


def test_a_whole_range_of_numbers_leads_each_guest_to_its_own_answers() -> None:
    numbers = [2, SIZE - 2]
    guests = [
        Guest(Endpoint(port), None, {number: KNOWN})
        for port, number in zip((1, 2), numbers, strict=True)
    ]
    bridges = Bridges(guests)
    for guest, number in zip(guests, numbers, strict=True):
        ofport = guest.endpoint.ofport
        (left,) = bridges.receive(ofport, Host(ofport, IP, MAC).segment())
        assert source_on_tap(left) == str(CIDR[number])
        (back,) = from_host(bridges, bridges.answer(left.frame))
        assert is_answer(back, Host(ofport, IP, MAC), METADATA_IP)
