"""What happens to the frames that a guest sends, over either version of IP."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.floods import Arrivals
from dfmeta.flows.pipeline import CONTROLLER_ID, METADATA_IP
from dfmeta.model import Endpoint
from tests.core.flows.frames import (
    ATOMIC,
    DESTINATION,
    HOP_BY_HOP,
    Frame,
    arp,
    ends_of,
    ethernet,
    icmpv6,
    ipv4,
    ipv6,
    link_layer,
    mac,
    multicast_mac,
    neighbour,
    option,
    part,
    routing,
    tcp_checksum,
    udp,
)
from tests.core.flows.world import (
    BROADCAST,
    GATEWAY_MAC,
    SERVICE6,
    TAP,
    TAP6,
    Host,
    Host6,
    World,
    assert_is_an_answer,
    assert_is_for_the_proxy,
    flood,
    host,
    key_of,
    settle,
    tap_frame,
    untouched,
    versions,
)
from tests.flowsim import Out

SYN, ACK, FIN, RST, ECE, CWR = 0x02, 0x10, 0x01, 0x04, 0x40, 0x80
HOST_IP = "169.254.1.1"
LINK_LOCAL, GLOBAL = SERVICE6
NONCE = option(14, b"\1\2\3\4\5\6")
KERNEL, KERNEL6 = (
    Host(TAP.ofport, ip=METADATA_IP, mac=TAP.mac),
    Host6(TAP.ofport, ip=TAP6.ip6, mac=TAP.mac),
)
"""The host itself, on tap-metadata."""
WAYS = ((Host(1), METADATA_IP, 0), (Host6(1), LINK_LOCAL, 0), (Host6(1), GLOBAL, 1))
"""Each address of the service: a guest that asks it, and its place among the slots."""


@pytest.fixture
def world() -> Iterator[World]:
    with World(tap=TAP6) as world:
        yield world


def fragment(which: int, *, dst: str = METADATA_IP, proto: int = 6) -> bytes:
    """A part of a packet; *which* holds the flag for more, and the offset."""
    inside = Host(1).segment(dst=dst)[34:] + b"\0" * 12
    packet = ipv4(inside, dst=dst, src="10.0.0.5", proto=proto, fragment=which)
    return ethernet(packet, dst=GATEWAY_MAC, src=Host(1).mac)


def of_guest(payload: bytes, proto: int, *, dst: str = METADATA_IP) -> bytes:
    """An IPv4 packet of a guest that is no TCP."""
    packet = ipv4(payload, dst=dst, src=Host(1).ip, proto=proto)
    return ethernet(packet, dst=GATEWAY_MAC, src=Host(1).mac)


def of_guest6(payload: bytes, proto: int, *, dst: str = LINK_LOCAL) -> bytes:
    """An IPv6 packet of a guest that is no TCP."""
    return Host6(1).packet(ipv6(payload, dst=dst, src=Host6(1).ip, proto=proto))


def assert_untouched(world: World, frames: Mapping[str, bytes]) -> None:
    """Each frame goes the bridge's own way, before port 1's addresses are known and after."""
    world.plug(1)
    for _ in range(2):
        for name, frame in frames.items():
            assert untouched(world, 1, frame), name
        world.receive(1, Host(1).segment())
        world.receive(1, Host6(1).segment())


# A first SYN


def test_a_syn_of_an_unknown_address_goes_to_the_controller_alone(world: World) -> None:
    world.plug(1)
    world.plug(2)
    for ofport in (1, 2):
        for guest, service, _place in WAYS:
            frame = guest.segment(dst=service)
            expected = Out(ofp.OFPP_CONTROLLER, frame, CONTROLLER_ID)
            assert world.switch.receive(ofport, frame) == [expected]


@versions
def test_a_first_syn_is_one_whatever_flags_beside_syn_and_ack_it_has(version: int) -> None:
    for flags in (SYN, SYN | ECE | CWR, SYN | ECE, SYN | FIN, SYN | 0x100):
        with World(tap=TAP6) as world:
            world.plug(1)
            released = world.introduce(host(version), flags=flags)
            assert released.port == TAP.ofport, flags
            assert Frame(0, released.frame)["tcp_flags"] == flags


@versions
def test_segment_of_an_unknown_connection_goes_on_to_the_host(version: int) -> None:
    """The host has no such connection, and resets it."""
    for flags in (ACK, SYN | ACK, FIN | ACK, 0):
        with World(tap=TAP6) as world:
            world.plug(3)
            guest = host(version, 3)
            released = world.introduce(guest, flags=flags)
            assert_is_for_the_proxy(released, guest, key=key_of(3, version))
            assert Frame(3, released.frame)["tcp_flags"] == flags
            (out,) = world.answered(released)
            assert_is_an_answer(out, guest)


@versions
def test_reset_of_an_unknown_address_is_dropped(world: World, version: int) -> None:
    """It has no answer."""
    world.plug(1)
    for flags in (RST, RST | ACK):
        assert world.receive(1, host(version).segment(flags=flags)) == [], flags


@versions
def test_segment_before_its_instance_is_known_is_not_held(world: World, version: int) -> None:
    """The guest repeats it for longer than a SYN would be held."""
    world.plug(1, instance="")
    (out,) = world.receive(1, host(version).segment(flags=ACK))
    assert out.port == ofp.OFPP_CONTROLLER
    world.plug(1)
    assert world.switch.released == []
    assert world.introduce(host(version), flags=ACK).port == TAP.ofport


def test_a_syn_before_its_instance_is_known_is_released_when_it_is(world: World) -> None:
    world.plug(1, instance="")
    guest = Host(1)
    (out,) = world.receive(1, guest.segment())
    assert out.port == ofp.OFPP_CONTROLLER
    assert world.switch.released == []
    world.now += 3
    world.plug(1)
    (released,) = world.switch.released
    assert_is_for_the_proxy(released, guest, key=key_of(1, 4))
    assert world.registry.take_wait(Endpoint(1), 40000) == 3


@pytest.mark.parametrize("becomes", [None, "instance-2", ""])
def test_first_syn_is_released_as_its_own_guests_alone(world: World, becomes: str | None) -> None:
    world.plug(1)
    held = world.hold_answers()
    world.switch.receive(1, Host(1).segment())
    world.link.deliver(held.pop(0))
    settle()
    assert held
    assert world.switch.released == []
    if becomes is not None:
        world.plug(1, instance=becomes)
    world.let_go(held)
    assert [out.port for out in world.switch.released] == [TAP.ofport] * (becomes is None)


# A known guest


@versions
def test_tcp_of_a_known_guest_goes_to_the_proxy_with_its_key(world: World, version: int) -> None:
    world.plug(3)
    guest = host(version, 3)
    released = world.introduce(guest)
    assert_is_for_the_proxy(released, guest, key=key_of(3, version))
    (later,) = world.switch.receive(3, guest.segment())
    assert (later.port, later.frame) == (released.port, released.frame)
    for flags in (SYN, SYN | ECE | CWR, ACK, FIN | ACK, RST, SYN | ACK):
        (out,) = world.switch.receive(3, guest.segment(flags=flags))
        assert_is_for_the_proxy(out, guest, key=key_of(3, version))
        assert Frame(3, out.frame)["tcp_flags"] == flags


@versions
def test_known_address_is_that_of_one_port_and_service(world: World, version: int) -> None:
    for ofport in (1, 2):
        world.plug(ofport)
    guest = host(version)
    world.introduce(guest)
    other = {4: "10.0.0.6", 6: "fd12:3456::6"}[version]
    others = [(1, host(version, ip=other), {}), (1, host(version, mac="fa:16:3e:00:00:06"), {})]
    others.append((2, guest, {}))
    if version == 6:
        others.append((1, guest, {"dst": GLOBAL}))
    for ofport, sender, ends in others:
        (out,) = world.switch.receive(ofport, sender.segment(**ends))
        assert out.port == ofp.OFPP_CONTROLLER
        assert world.switch.receive(ofport, sender.segment(flags=RST, **ends)) == []


def test_the_longest_idle_address_gives_way_to_an_eighth(world: World) -> None:
    world.plug(1)
    guests = [Host(1, ip=f"10.0.{n}.5") for n in range(8)]
    for guest in guests:
        world.now += 1
        released = world.introduce(guest)
    assert ends_of(Frame(0, released.frame))["src"] == key_of(1, 4)
    (out,) = world.answered(released)
    assert_is_an_answer(out, guests[7])
    (out,) = world.switch.receive(1, guests[0].segment())
    assert out.port == ofp.OFPP_CONTROLLER
    assert world.switch.receive(1, guests[0].segment(flags=RST)) == []


# Answers


def test_an_answer_leaves_on_the_guests_port_alone_with_its_own_addresses(world: World) -> None:
    """Each address of the service has a slot of the guest's, and all are served side by side."""
    world.plug(1)
    arrived = [world.introduce(guest, dst=service) for guest, service, _place in WAYS]
    for (guest, service, place), out in zip(WAYS, arrived, strict=True):
        assert_is_for_the_proxy(out, guest, key=key_of(1, guest.version, place))
        (back,) = world.answered(out)
        assert_is_an_answer(back, guest, service=service)


@versions
def test_an_answer_does_not_go_by_the_hosts_neighbour_table(world: World, version: int) -> None:
    world.plug(1)
    world.introduce(host(version))
    stale = tap_frame(TAP6, key_of(1, version))
    (out,) = world.receive(TAP.ofport, b"\x02\xff\xff\xff\xff\xff" + stale[6:])
    assert mac(Frame(0, out.frame)["eth_dst"]) == Host(1).mac


def test_host_ip_is_put_in_on_the_way_in_and_taken_out_on_the_way_back() -> None:
    tap = replace(TAP, ip=HOST_IP)
    with World(tap=tap) as world:
        world.plug(1)
        guest = Host(1)
        released = world.introduce(guest)
        assert_is_for_the_proxy(released, guest, key=key_of(1, 4), tap=tap)
        (later,) = world.switch.receive(1, guest.segment())
        assert (later.port, later.frame) == (released.port, released.frame)
        (out,) = world.answered(released)
        assert_is_an_answer(out, guest)
        assert untouched(world, 1, guest.segment(dst=HOST_IP))
        forged = tap_frame(tap, key_of(1, 4), src=METADATA_IP)
        assert world.receive(TAP.ofport, forged) == []


def test_a_proxy_that_has_the_services_own_address_is_reached_and_answers() -> None:
    with World(tap=replace(TAP6, ip6=GLOBAL, guest_ip6=(GLOBAL,))) as world:
        world.plug(1)
        released = world.introduce(Host6(1), dst=GLOBAL)
        assert ends_of(Frame(1, released.frame))["dst"] == GLOBAL
        (out,) = world.answered(released)
        assert_is_an_answer(out, Host6(1), service=GLOBAL)
        assert untouched(world, 1, Host6(1).segment())


@pytest.mark.parametrize("headers", [[HOP_BY_HOP], [DESTINATION], [routing(0)], [HOP_BY_HOP] * 9])
def test_extension_headers_are_passed_over(world: World, headers: list[tuple[int, bytes]]) -> None:
    world.plug(1)
    released = world.introduce(Host6(1), headers=headers)
    assert (released.port, ends_of(Frame(1, released.frame))["src"]) == (TAP.ofport, key_of(1, 6))
    (out,) = world.receive(1, Host6(1).segment(flags=ACK, headers=headers))
    assert out.port == TAP.ofport


def noise() -> Iterator[tuple[str, bytes]]:
    """What the host might send besides answers: name, frame."""
    for version, key, source, others in (
        (4, "128.0.0.1", "10.1.1.1", ("128.0.0.2", "144.0.0.1", "10.0.0.5")),
        (6, key_of(1, 6), LINK_LOCAL, (key_of(2, 6), key_of(1, 6, 1), Host6(1).ip, "ff02::1")),
    ):
        yield f"{version}: another port", tap_frame(TAP6, key, sport=9776)
        yield f"{version}: port 80", tap_frame(TAP6, key, sport=80)
        yield f"{version}: another source", tap_frame(TAP6, key, src=source)
        for other in others:
            yield f"{version}: to {other}", tap_frame(TAP6, other)
    ends = {"dst": "128.0.0.1", "src": METADATA_IP}
    for name, packet in {
        "UDP": ipv4(b"\0" * 8, proto=17, **ends),
        "ICMP": ipv4(b"\x08\0\xf7\xff" + b"\0" * 4, proto=1, **ends),
        "a first fragment": ipv4(b"\0" * 24, fragment=0x2000, **ends),
        "a later fragment": ipv4(b"\0" * 24, fragment=0x0010, **ends),
    }.items():
        yield name, ethernet(packet, dst=BROADCAST, src=TAP.mac)
    yield "ARP for a guest's address", KERNEL.question("10.0.0.5")
    yield "gratuitous ARP", KERNEL.question(METADATA_IP)
    yield "an ARP reply", KERNEL.question("128.0.0.1", op=2)
    yield "LLDP", ethernet(b"\0" * 46, dst="01:80:c2:00:00:0e", src=TAP.mac, kind=0x88CC)
    yield "a solicitation for an unknown key", KERNEL6.solicit(key_of(2, 6))
    yield "a solicitation for a guest", KERNEL6.solicit(Host6(1).ip)
    yield "DAD", Host6(TAP.ofport, ip="::").solicit(Host6(1).ip)
    yield "an advertisement", KERNEL6.advertise(TAP6.ip6)
    yield "an advertisement of a key", KERNEL6.advertise(key_of(1, 6))
    ends = {"dst": key_of(1, 6), "src": TAP6.ip6}
    yield "UDP over IPv6", KERNEL6.packet(ipv6(udp(b"", dport=9), proto=17, **ends))
    answer = tap_frame(TAP6, key_of(1, 6))[54:]
    for which in (0x0001, 0x0008):
        yield f"fragment {which}", KERNEL6.packet(ipv6(answer, headers=[part(which)], **ends))
    for kind, length, group, headers in (
        (133, 4, "ff02::2", []),
        (143, 8, "ff02::16", [HOP_BY_HOP]),
    ):
        ends = {"dst": group, "src": TAP6.ip6}
        message = icmpv6(bytes(length), kind=kind, **ends)
        yield f"ICMPv6 {kind}", KERNEL6.packet(ipv6(message, proto=58, headers=headers, **ends))


def test_whatever_else_tap_metadata_emits_is_dropped(world: World) -> None:
    world.plug(1)
    world.introduce(Host(1))
    world.introduce(Host6(1))
    for name, frame in noise():
        assert world.receive(TAP.ofport, frame) == [], name


def test_the_host_learns_a_keys_mac_on_tap_metadata_alone(world: World) -> None:
    world.plug(1)
    guest, key, key6 = Host(1), key_of(1, 4), key_of(1, 6)
    world.introduce(guest)
    world.introduce(Host6(1))
    answer = arp(op=2, sha=guest.mac, spa=key, tha=TAP.mac, tpa=METADATA_IP)
    expected = ethernet(answer, dst=TAP.mac, src=guest.mac, kind=0x0806)
    assert world.receive(TAP.ofport, KERNEL.question(key)) == [Out(TAP.ofport, expected)]
    ends = {"dst": TAP6.ip6, "src": key6}
    options = link_layer(2, guest.mac)
    message = neighbour(136, target=key6, flags=0x60000000, options=options, **ends)
    packet = ipv6(message, proto=58, **ends)
    expected = ethernet(packet, dst=TAP.mac, src=guest.mac, kind=0x86DD)
    assert world.receive(TAP.ofport, KERNEL6.solicit(key6)) == [Out(TAP.ofport, expected)]


# ARP


def test_a_guests_question_for_the_service_is_answered_on_its_own_port(world: World) -> None:
    world.plug(1)
    for ip in ("10.0.0.5", "0.0.0.0"):
        guest = Host(1, ip=ip)
        answer = arp(op=2, sha=TAP.mac, spa=METADATA_IP, tha=guest.mac, tpa=guest.ip)
        expected = Out(1, ethernet(answer, dst=guest.mac, src=TAP.mac, kind=0x0806))
        assert world.receive(1, guest.question()) == [expected]


def test_all_other_arp_is_untouched(world: World) -> None:
    guest = Host(1)
    frame = guest.question()
    frames = {
        "for another address": guest.question("10.0.0.1"),
        "for its key": guest.question(key_of(1, 4)),
        "a reply": guest.question(op=2),
        "RARP's opcode": guest.question(op=3),
        "an opcode above 255": guest.question(op=0x0101),
        "tagged": guest.question(tags=[5]),
        "priority-tagged": guest.question(tags=[0]),
        "cut short": frame[:-1],
        "odd length": patched(frame, 18, 8),
    }
    assert_untouched(world, frames)


# Neighbour discovery


def advertisement(guest: Host6, target: str = LINK_LOCAL, *, more: bytes = b"") -> bytes:
    """The answer to a solicitation of *guest*: solicited, override, with tap-metadata's MAC."""
    options = link_layer(2, TAP6.mac) + more
    ends = {"dst": guest.ip, "src": target}
    message = neighbour(136, target=target, flags=0x60000000, options=options, **ends)
    packet = ipv6(message, proto=58, **ends)
    return ethernet(packet, dst=guest.mac, src=TAP6.mac, kind=0x86DD)


def patched(frame: bytes, at: int, byte: int) -> bytes:
    """A frame with another byte at *at*."""
    return frame[:at] + bytes((byte,)) + frame[at + 1 :]


def test_a_solicitation_for_the_service_is_answered_on_its_own_port(world: World) -> None:
    """By flows, whether it is multicast or not; options behind the sender's MAC come back."""
    world.plug(1)
    for guest in (Host6(1), Host6(1, ip="fe80::f816:3eff:fe00:5")):
        for target in SERVICE6:
            for to in ("", target):
                expected = [Out(1, advertisement(guest, target))]
                assert world.receive(1, guest.solicit(target, to=to)) == expected
        frame = guest.solicit(options=link_layer(1, guest.mac) + NONCE)
        assert world.receive(1, frame) == [Out(1, advertisement(guest, more=NONCE))]
    assert world.switch.released == []


def test_duplicate_address_detection_is_dropped_and_never_answered(world: World) -> None:
    world.plug(1)
    for target in SERVICE6:
        for options in (b"", NONCE, link_layer(1, Host6(1).mac)):
            assert world.receive(1, Host6(1, ip="::").solicit(target, options=options)) == []
    assert world.switch.released == []


def test_a_solicitation_without_its_senders_mac_is_answered_by_the_controller(world: World) -> None:
    world.plug(1)
    guest = Host6(1)
    for options in (b"", NONCE, link_layer(1, "00:00:00:00:00:00")):
        for target in SERVICE6:
            frame = guest.solicit(target, to=target, options=options)
            assert world.receive(1, frame) == [Out(ofp.OFPP_CONTROLLER, frame, CONTROLLER_ID)]
            assert world.switch.released.pop() == Out(1, advertisement(guest, target))
    flood(world, guest, guest.solicit(options=b""))
    world.switch.released.clear()
    assert world.receive(1, guest.solicit(options=b"")) == []
    assert world.switch.released == []
    (out,) = world.receive(1, guest.solicit())
    assert out.port == 1


def test_all_other_solicitations_are_untouched(world: World) -> None:
    guest = Host6(1)
    frames = {
        "for a router": guest.solicit("fe80::1"),
        "in the same group": guest.solicit("fe80::1:a9fe:a9fe"),
        "for the host's own address": guest.solicit(TAP6.ip6),
        "for its key": guest.solicit(key_of(1, 6)),
        "DAD of another address": Host6(1, ip="::").solicit("fe80::1"),
        "for a router, without a MAC": guest.solicit("fe80::1", options=b""),
        "tagged": guest.solicit(tags=[5]),
        "priority-tagged": guest.solicit(tags=[0]),
        "tagged, without a MAC": guest.solicit(options=b"", tags=[5]),
        "another code": patched(guest.solicit(), 55, 1),
        "a redirect": patched(guest.solicit(), 54, 137),
        "a router solicitation": patched(guest.solicit(), 54, 133),
        "cut short": guest.solicit()[:76],
        "two MACs": guest.solicit(options=link_layer(1, guest.mac) * 2),
        "a first fragment": guest.solicit(headers=[part(1)]),
        "a later fragment": guest.solicit(headers=[part(8)]),
    }
    assert_untouched(world, frames)


def test_forged_advertisements_are_untouched_and_change_nothing_for_others(world: World) -> None:
    for ofport in (1, 2):
        world.plug(ofport)
        world.introduce(Host6(ofport))
    router = icmpv6(
        bytes(12) + option(1, b"\xfa\x16\x3e\0\0\5"), dst="ff02::1", src=LINK_LOCAL, kind=134
    )
    packet = ipv6(router, dst="ff02::1", src=LINK_LOCAL, proto=58)
    for frame in (
        Host6(1, ip=LINK_LOCAL).advertise(),
        Host6(1).advertise(),
        Host6(1).advertise(key_of(2, 6)),
        Host6(1).advertise(dst=LINK_LOCAL),
        Host6(1).packet(packet, mac=multicast_mac("ff02::1")),
    ):
        assert untouched(world, 1, frame)
        (out,) = world.receive(2, Host6(2).segment())
        assert_is_for_the_proxy(out, Host6(2), key=key_of(2, 6))
        assert world.receive(2, Host6(2).solicit()) == [Out(2, advertisement(Host6(2)))]


# What is not ours


def test_other_traffic_is_untouched(world: World) -> None:
    guest, guest6 = Host(1), Host6(1)
    frames = {
        "another address": guest.segment(dst="10.0.0.1"),
        "its neighbour": guest.segment(dst="169.254.169.253"),
        "a key, which is the internet's": guest.segment(dst="128.0.0.1"),
        "DNS": of_guest(udp(b"", dport=53), 17),
        "UDP port 80": of_guest(udp(b"", dport=80), 17),
        "ping": of_guest(b"\x08\0\xf7\xff" + b"\0" * 4, 1),
        "a fragment to another address": fragment(0x2000, dst="169.254.169.253"),
        "a fragment of UDP": fragment(0x0005, proto=17),
        "TCP cut short": guest.segment()[:50],
        "LLDP": ethernet(b"\0" * 46, dst=BROADCAST, src=guest.mac, kind=0x88CC),
        "spanning tree": ethernet(
            b"\x42\x42\x03" + b"\0" * 43, dst=BROADCAST, src=guest.mac, kind=46
        ),
        "another address of IPv6": guest6.segment(dst="fd00::1"),
        "its neighbour of IPv6": guest6.segment(dst="fe80::a9fe:a9fd"),
        "a key of IPv6": guest6.segment(dst=key_of(1, 6)),
        "the host's own address": guest6.segment(dst=TAP6.ip6),
        "UDP over IPv6": of_guest6(udp(b"", dport=80), 17),
        "ping over IPv6": of_guest6(icmpv6(bytes(4), dst=LINK_LOCAL, src=guest6.ip, kind=128), 58),
        "no next header": of_guest6(b"", 59),
        "TCP over IPv6 cut short": guest6.segment()[:70],
        "IPv6 by another type": ethernet(
            guest6.segment()[14:], dst=GATEWAY_MAC, src=guest6.mac, kind=0x0800
        ),
        # Open vSwitch does not see which protocol a later fragment is of: it may be UDP's.
        "a last fragment": guest6.segment(headers=[part(0x0008)]),
        "a later fragment": guest6.segment(headers=[part(0x0009)]),
    }
    for host_ in (guest, guest6):
        for dport in (443, 9775):
            frames[f"{host_.ip}, port {dport}"] = host_.segment(dport=dport)
        for tags in ([5], [0], [5, 7]):
            frames[f"{host_.ip}, tags {tags}"] = host_.segment(tags=tags)
    assert_untouched(world, frames)


def test_without_ipv6_every_frame_of_it_is_untouched() -> None:
    with World() as world:
        world.plug(1)
        for frame in (Host6(1).segment(), Host6(1).solicit(), Host6(1).solicit(options=b"")):
            assert untouched(world, 1, frame)


@pytest.mark.parametrize("known", [True, False])
def test_fragments_of_tcp_to_the_service_go_nowhere(world: World, known: bool) -> None:
    world.plug(1)
    if known:
        world.introduce(Host(1))
        world.introduce(Host6(1))
    frames = [fragment(which) for which in (0x2000, 0x2001, 0x0001, 0x1FFF)]
    for frame in (*frames, Host6(1).segment(headers=[part(0x0001)])):
        assert world.receive(1, frame) == [], frame.hex()
        assert untouched(world, 2, frame)


def test_an_atomic_fragment_is_no_fragment_to_the_flows(world: World) -> None:
    """It arrives, and its checksum is wrong: Open vSwitch does not adjust it."""
    world.plug(1)
    world.introduce(Host6(1))
    (out,) = world.receive(1, Host6(1).segment(headers=[ATOMIC]))
    assert out.port == TAP6.ofport
    assert tcp_checksum(out.frame[62:], src=key_of(1, 6), dst=TAP6.ip6) != 0


@versions
def test_ports_that_are_not_guests_are_untouched(world: World, version: int) -> None:
    world.plug(1)
    world.introduce(host(version))
    for ofport in (2, 3, 0xFFFFFFFE):
        stranger = host(version, ofport)
        for frame in (
            stranger.segment(),
            stranger.segment(flags=ACK),
            stranger.request(),
            Host6(ofport).solicit(options=b""),
            tap_frame(TAP6, key_of(1, version)),
        ):
            assert untouched(world, ofport, frame)


@pytest.mark.parametrize(
    "more", [{"dead": True}, {"fault": "two MACs"}, {"ofport": None}, None], ids=str
)
@versions
def test_a_port_that_stops_being_a_guests_is_untouched(
    world: World, version: int, more: dict[str, object] | None
) -> None:
    world.plug(1)
    released = world.introduce(host(version))
    if more is None:
        world.unplug(1)
    else:
        same = {"ofport": 1, "name": "tap1", "row": "row-1"}
        world.plug(**same | more)  # type: ignore[arg-type]
    assert untouched(world, 1, host(version).segment())
    assert untouched(world, 1, host(version).request())
    assert world.answered(released) == []


def test_the_syns_of_a_port_are_counted_over_both_versions(world: World) -> None:
    world.plug(1)
    world.introduce(Host(1))
    world.introduce(Host6(1))
    assert Arrivals(world.channel).read() == {Endpoint(1): 2}
