"""What happens to the IPv6 frames that a guest sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.arrivals import Arrivals
from dfmeta.flows.key import IN_PORT, SLOT6
from dfmeta.flows.pipeline import CONTROLLER_ID, Purpose
from dfmeta.model import Endpoint
from tests.core.flows.frames import (
    ATOMIC,
    DESTINATION,
    HOP_BY_HOP,
    Frame,
    address6,
    ethernet,
    icmpv6,
    icmpv6_checksum,
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
    GATEWAY_MAC,
    SERVICE6,
    TAP6,
    Host,
    Host6,
    World,
    assert_is_an_answer,
    assert_is_for_the_proxy,
    settle,
    tap_frame,
    untouched,
)
from tests.flowsim import Out

SYN, ACK, FIN, RST = 0x02, 0x10, 0x01, 0x04
LINK_LOCAL, GLOBAL = SERVICE6
NONCE = option(14, b"\1\2\3\4\5\6")


@pytest.fixture
def world() -> Iterator[World]:
    with World(tap=TAP6) as one:
        yield one


def key(ofport: int, slot: int = 1) -> str:
    """The key of an IPv6 slot of a port."""
    return str(IN_PORT.key_of(Endpoint(ofport), SLOT6 + slot))


def advertisement(guest: Host6, target: str = LINK_LOCAL, *, more: bytes = b"") -> bytes:
    """The answer to a solicitation of *guest*: solicited, override, with tap-metadata's MAC."""
    options = link_layer(2, TAP6.mac) + more
    ends = {"dst": guest.ip, "src": target}
    message = neighbour(136, target=target, flags=0x60000000, options=options, **ends)
    packet = ipv6(message, proto=58, **ends)
    return ethernet(packet, dst=guest.mac, src=TAP6.mac, kind=0x86DD)


# Neighbour discovery


@pytest.mark.parametrize("target", SERVICE6)
@pytest.mark.parametrize("unicast", [False, True])
def test_a_solicitation_for_the_service_is_answered_on_its_own_port(
    world: World, target: str, *, unicast: bool
) -> None:
    world.plug(1)
    guest = Host6(1)
    frame = guest.solicit(target, to=target if unicast else "")
    assert world.receive(1, frame) == [Out(1, advertisement(guest, target))]
    assert world.switch.released == []


def test_its_fields_are_those_of_a_solicited_advertisement(world: World) -> None:
    world.plug(1)
    (out,) = world.receive(1, Host6(1).solicit())
    frame = Frame(1, out.frame)
    assert (frame["icmpv6_type"], frame["icmpv6_code"]) == (136, 0)
    assert frame["nd_reserved"] == 0x60000000
    assert frame["nd_options_type"] == 2
    assert mac(frame["ipv6_nd_tll"]) == TAP6.mac
    assert frame["ipv6_nd_sll"] == 0
    assert out.frame[21] == 255
    ends = {"src": LINK_LOCAL, "dst": Host6(1).ip}
    assert icmpv6_checksum(out.frame[54:], **ends) == 0


def test_a_solicitation_from_a_link_local_address_is_answered_to_it(world: World) -> None:
    world.plug(1)
    guest = Host6(1, ip="fe80::f816:3eff:fe00:5")
    assert world.receive(1, guest.solicit()) == [Out(1, advertisement(guest))]


def test_options_behind_the_senders_mac_come_back(world: World) -> None:
    world.plug(1)
    guest = Host6(1)
    frame = guest.solicit(options=link_layer(1, guest.mac) + NONCE)
    assert world.receive(1, frame) == [Out(1, advertisement(guest, more=NONCE))]


@pytest.mark.parametrize("target", SERVICE6)
@pytest.mark.parametrize("options", [b"", NONCE, link_layer(1, Host6(1).mac)])
def test_duplicate_address_detection_is_dropped_and_never_answered(
    world: World, target: str, options: bytes
) -> None:
    world.plug(1)
    assert world.receive(1, Host6(1, ip="::").solicit(target, options=options)) == []
    assert world.switch.released == []


@pytest.mark.parametrize("options", [b"", NONCE, link_layer(1, "00:00:00:00:00:00")])
@pytest.mark.parametrize("target", SERVICE6)
def test_a_solicitation_without_its_senders_mac_is_answered_by_the_controller(
    world: World, options: bytes, target: str
) -> None:
    world.plug(1)
    guest = Host6(1)
    frame = guest.solicit(target, to=target, options=options)
    (out,) = world.receive(1, frame)
    meter = world.meters.ids(Purpose.SYN)[Endpoint(1)]
    assert out == Out(ofp.OFPP_CONTROLLER, frame, CONTROLLER_ID, (meter,))
    assert world.switch.released == [Out(1, advertisement(guest, target))]


def test_a_flood_of_them_ends_at_the_ports_meter(world: World) -> None:
    world.plug(1)
    world.switch.exhausted = {world.meters.ids(Purpose.SYN)[Endpoint(1)]}
    assert world.receive(1, Host6(1).solicit(options=b"")) == []
    assert world.switch.released == []
    (out,) = world.receive(1, Host6(1).solicit())
    assert out.port == 1


def patched(frame: bytes, at: int, byte: int) -> bytes:
    """A frame with another byte at *at*."""
    return frame[:at] + bytes((byte,)) + frame[at + 1 :]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Host6(1).solicit("fe80::1"), id="for a router"),
        pytest.param(Host6(1).solicit("fe80::1:a9fe:a9fe"), id="in the same group"),
        pytest.param(Host6(1).solicit(TAP6.ip6), id="for the host's own address"),
        pytest.param(Host6(1).solicit(key(1)), id="for its key"),
        pytest.param(Host6(1, ip="::").solicit("fe80::1"), id="DAD of another address"),
        pytest.param(Host6(1).solicit("fe80::1", options=b""), id="for a router, without a MAC"),
        pytest.param(Host6(1).solicit(tags=[5]), id="tagged"),
        pytest.param(Host6(1).solicit(tags=[0]), id="priority-tagged"),
        pytest.param(Host6(1).solicit(options=b"", tags=[5]), id="tagged, without a MAC"),
        pytest.param(patched(Host6(1).solicit(), 55, 1), id="another code"),
        pytest.param(patched(Host6(1).solicit(), 54, 137), id="a redirect"),
        pytest.param(patched(Host6(1).solicit(), 54, 133), id="a router solicitation"),
        pytest.param(Host6(1).solicit()[:76], id="cut short"),
        pytest.param(Host6(1).solicit(options=link_layer(1, Host6(1).mac) * 2), id="two MACs"),
        pytest.param(Host6(1).solicit(headers=[part(1)]), id="a first fragment"),
        pytest.param(Host6(1).solicit(headers=[part(8)]), id="a later fragment"),
    ],
)
def test_all_other_solicitations_are_untouched(world: World, frame: bytes) -> None:
    world.plug(1)
    assert untouched(world, 1, frame)
    world.introduce(Host6(1))
    assert untouched(world, 1, frame)


ROUTER = icmpv6(
    bytes(12) + option(1, b"\xfa\x16\x3e\0\0\5"), dst="ff02::1", src=LINK_LOCAL, kind=134
)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Host6(1, ip=LINK_LOCAL).advertise(), id="an advertisement as the service"),
        pytest.param(Host6(1).advertise(), id="an advertisement of the service"),
        pytest.param(Host6(1).advertise(key(2)), id="an advertisement of a key"),
        pytest.param(Host6(1).advertise(dst=LINK_LOCAL), id="an advertisement to the service"),
        pytest.param(
            Host6(1).packet(
                ipv6(ROUTER, dst="ff02::1", src=LINK_LOCAL, proto=58), mac=multicast_mac("ff02::1")
            ),
            id="a router advertisement as the service",
        ),
    ],
)
def test_forged_advertisements_are_untouched_and_harm_nobodys_requests(
    world: World, frame: bytes
) -> None:
    for ofport in (1, 2):
        world.plug(ofport)
        world.introduce(Host6(ofport))
    assert untouched(world, 1, frame)
    (out,) = world.receive(2, Host6(2).segment())
    assert_is_for_the_proxy(out, Host6(2), key=key(2))
    assert world.receive(2, Host6(2).solicit()) == [Out(2, advertisement(Host6(2)))]


def test_the_host_learns_a_keys_mac_on_tap_metadata_alone(world: World) -> None:
    world.plug(1)
    guest = Host6(1)
    world.introduce(guest)
    kernel = Host6(TAP6.ofport, ip=TAP6.ip6, mac=TAP6.mac)
    (out,) = world.receive(TAP6.ofport, kernel.solicit(key(1)))
    ends = {"dst": TAP6.ip6, "src": key(1)}
    options = link_layer(2, guest.mac)
    message = neighbour(136, target=key(1), flags=0x60000000, options=options, **ends)
    packet = ipv6(message, proto=58, **ends)
    expected = ethernet(packet, dst=TAP6.mac, src=guest.mac, kind=0x86DD)
    assert out == Out(TAP6.ofport, expected)


# A first SYN


@pytest.mark.parametrize("service", SERVICE6)
def test_a_syn_of_an_unknown_address_goes_to_the_controller_alone(
    world: World, service: str
) -> None:
    world.plug(1)
    frame = Host6(1).segment(dst=service)
    every, first = (world.meters.ids(one)[Endpoint(1)] for one in (Purpose.GUEST_SYN, Purpose.SYN))
    expected = Out(ofp.OFPP_CONTROLLER, frame, CONTROLLER_ID, (every, first))
    assert world.switch.receive(1, frame) == [expected]


def test_a_first_syn_is_released_to_the_proxy_once_its_flows_stand(world: World) -> None:
    world.plug(1)
    guest = Host6(1)
    released = world.introduce(guest)
    assert_is_for_the_proxy(released, guest, key=key(1))
    (later,) = world.switch.receive(1, guest.segment())
    assert (later.port, later.frame) == (released.port, released.frame)


@pytest.mark.parametrize("flags", [ACK, SYN | ACK, RST, FIN | ACK, 0])
def test_what_an_unknown_address_sends_without_a_syn_before_is_dropped(
    world: World, flags: int
) -> None:
    world.plug(1)
    assert world.receive(1, Host6(1).segment(flags=flags)) == []


# A known guest


@pytest.mark.parametrize("flags", [SYN, ACK, FIN | ACK, RST, SYN | ACK])
def test_all_tcp_of_a_known_guest_leaves_on_tap_metadata_with_key_mac_and_port(
    world: World, flags: int
) -> None:
    world.plug(3)
    guest = Host6(3)
    world.introduce(guest)
    (out,) = world.switch.receive(3, guest.segment(flags=flags))
    assert_is_for_the_proxy(out, guest, key=key(3))
    assert Frame(3, out.frame)["tcp_flags"] == flags


def test_each_address_of_the_service_has_a_slot_and_the_answer_comes_from_it(
    world: World,
) -> None:
    world.plug(1)
    guest = Host6(1)
    arrived = {dst: world.introduce(guest, dst=dst) for dst in SERVICE6}
    for slot, (service, out) in enumerate(arrived.items(), 1):
        assert_is_for_the_proxy(out, guest, key=key(1, slot))
        (back,) = world.receive(TAP6.ofport, world.answer(out.frame))
        assert_is_an_answer(back, guest, service=service)


def test_an_address_known_for_one_service_is_not_known_for_the_other(world: World) -> None:
    world.plug(1)
    guest = Host6(1)
    world.introduce(guest)
    (out,) = world.switch.receive(1, guest.segment(dst=GLOBAL))
    assert out.port == ofp.OFPP_CONTROLLER
    assert world.switch.receive(1, guest.segment(dst=GLOBAL, flags=ACK)) == []


def test_both_versions_of_one_guest_are_served_side_by_side(world: World) -> None:
    world.plug(1)
    old, new = Host(1), Host6(1)
    arrived = [world.introduce(old), world.introduce(new)]
    assert_is_for_the_proxy(arrived[1], new, key=key(1))
    backs = [world.receive(TAP6.ofport, world.answer(out.frame)) for out in arrived]
    for (back,), guest in zip(backs, (old, new), strict=True):
        assert_is_an_answer(back, guest)


@pytest.mark.parametrize("headers", [[HOP_BY_HOP], [DESTINATION], [routing(0)], [HOP_BY_HOP] * 9])
def test_a_segment_behind_extension_headers_is_served(
    world: World, headers: list[tuple[int, bytes]]
) -> None:
    world.plug(1)
    released = world.introduce(Host6(1), headers=headers)
    frame = Frame(1, released.frame)
    assert (released.port, address6(frame["ipv6_src"])) == (TAP6.ofport, key(1))
    (out,) = world.receive(1, Host6(1).segment(flags=ACK, headers=headers))
    assert out.port == TAP6.ofport


def test_a_proxy_that_has_the_services_own_address_is_reached_and_answers() -> None:
    with World(tap=replace(TAP6, ip6=GLOBAL, guest_ip6=(GLOBAL,))) as world:
        world.plug(1)
        released = world.introduce(Host6(1), dst=GLOBAL)
        assert address6(Frame(1, released.frame)["ipv6_dst"]) == GLOBAL
        (out,) = world.receive(TAP6.ofport, world.answer(released.frame))
        assert_is_an_answer(out, Host6(1), service=GLOBAL)
        assert untouched(world, 1, Host6(1).segment())


def test_without_ipv6_every_frame_of_it_is_untouched() -> None:
    with World() as world:
        world.plug(1)
        for frame in (Host6(1).segment(), Host6(1).solicit(), Host6(1).solicit(options=b"")):
            assert untouched(world, 1, frame)


# What is not ours


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Host6(1).segment(dst="fd00::1"), id="another address"),
        pytest.param(Host6(1).segment(dst="fe80::a9fe:a9fd"), id="its neighbour"),
        pytest.param(Host6(1).segment(dst=key(1)), id="a key"),
        pytest.param(Host6(1).segment(dst=TAP6.ip6), id="the host's own address"),
        pytest.param(Host6(1).segment(dport=443), id="another port"),
        pytest.param(Host6(1).segment(dport=9775), id="the proxy's port"),
        pytest.param(Host6(1).segment(tags=[5]), id="tagged"),
        pytest.param(Host6(1).segment(tags=[0]), id="priority-tagged"),
        pytest.param(
            Host6(1).packet(ipv6(udp(b"", dport=80), dst=LINK_LOCAL, src=Host6(1).ip, proto=17)),
            id="UDP",
        ),
        pytest.param(
            Host6(1).packet(
                ipv6(
                    icmpv6(bytes(4), dst=LINK_LOCAL, src=Host6(1).ip, kind=128),
                    dst=LINK_LOCAL,
                    src=Host6(1).ip,
                    proto=58,
                )
            ),
            id="ping",
        ),
        pytest.param(
            Host6(1).packet(ipv6(b"", dst=LINK_LOCAL, src=Host6(1).ip, proto=59)),
            id="no next header",
        ),
        pytest.param(Host6(1).segment()[:70], id="TCP cut short"),
        pytest.param(
            ethernet(Host6(1).segment()[14:], dst=GATEWAY_MAC, src=Host6(1).mac, kind=0x0800),
            id="IPv6 by another type",
        ),
        # Open vSwitch does not see which protocol a later fragment is of: it may be UDP's.
        pytest.param(Host6(1).segment(headers=[part(0x0008)]), id="a last fragment"),
        pytest.param(Host6(1).segment(headers=[part(0x0009)]), id="a later fragment"),
    ],
)
def test_what_is_not_ours_is_untouched(world: World, frame: bytes) -> None:
    world.plug(1)
    assert untouched(world, 1, frame)
    world.introduce(Host6(1))
    assert untouched(world, 1, frame)


@pytest.mark.parametrize("known", [True, False])
def test_a_first_fragment_of_tcp_to_the_service_goes_nowhere(world: World, *, known: bool) -> None:
    world.plug(1)
    if known:
        world.introduce(Host6(1))
    frame = Host6(1).segment(headers=[part(0x0001)])
    assert world.receive(1, frame) == []
    assert untouched(world, 2, frame)


def test_an_atomic_fragment_is_no_fragment_to_the_flows(world: World) -> None:
    """It arrives, and its checksum is wrong: Open vSwitch does not adjust it."""
    world.plug(1)
    world.introduce(Host6(1))
    (out,) = world.receive(1, Host6(1).segment(headers=[ATOMIC]))
    assert out.port == TAP6.ofport
    assert tcp_checksum(out.frame[62:], src=key(1), dst=TAP6.ip6) != 0


@pytest.mark.parametrize("ofport", [2, 3, 0xFFFFFFFE])
def test_ports_that_are_not_guests_are_untouched(world: World, ofport: int) -> None:
    world.plug(1)
    world.introduce(Host6(1))
    stranger = Host6(ofport)
    for frame in (
        stranger.segment(),
        stranger.segment(flags=ACK),
        stranger.solicit(),
        stranger.solicit(options=b""),
        tap_frame(TAP6, key(1)),
    ):
        assert untouched(world, ofport, frame)


def test_a_port_that_stops_being_a_guests_is_untouched(world: World) -> None:
    world.plug(1)
    released = world.introduce(Host6(1))
    world.unplug(1)
    assert untouched(world, 1, Host6(1).segment())
    assert untouched(world, 1, Host6(1).solicit())
    assert world.receive(TAP6.ofport, world.answer(released.frame)) == []
    settle()


# From the host

KERNEL = Host6(TAP6.ofport, ip=TAP6.ip6, mac=TAP6.mac)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(tap_frame(TAP6, key(1), sport=9776), id="another port"),
        pytest.param(tap_frame(TAP6, key(1), sport=80), id="port 80"),
        pytest.param(tap_frame(TAP6, key(1), src=LINK_LOCAL), id="the service's address"),
        pytest.param(tap_frame(TAP6, key(1), src="fd00::1"), id="another source"),
        pytest.param(tap_frame(TAP6, key(2)), id="nobody's key"),
        pytest.param(tap_frame(TAP6, key(1, 2)), id="a free slot's key"),
        pytest.param(tap_frame(TAP6, Host6(1).ip), id="the guest's address"),
        pytest.param(tap_frame(TAP6, "ff02::1"), id="all nodes"),
        pytest.param(KERNEL.solicit(key(2)), id="a solicitation for nobody's key"),
        pytest.param(KERNEL.solicit(Host6(1).ip), id="a solicitation for a guest"),
        pytest.param(Host6(TAP6.ofport, ip="::").solicit(Host6(1).ip), id="DAD"),
        pytest.param(KERNEL.advertise(TAP6.ip6), id="an advertisement"),
        pytest.param(KERNEL.advertise(key(1)), id="an advertisement of a key"),
        pytest.param(
            KERNEL.packet(ipv6(udp(b"", dport=9), dst=key(1), src=TAP6.ip6, proto=17)), id="UDP"
        ),
        pytest.param(
            KERNEL.packet(
                ipv6(
                    icmpv6(bytes(4), dst="ff02::2", src=TAP6.ip6, kind=133),
                    dst="ff02::2",
                    src=TAP6.ip6,
                    proto=58,
                )
            ),
            id="a router solicitation",
        ),
        pytest.param(
            KERNEL.packet(
                ipv6(
                    icmpv6(bytes(8), dst="ff02::16", src=TAP6.ip6, kind=143),
                    dst="ff02::16",
                    src=TAP6.ip6,
                    proto=58,
                    headers=[HOP_BY_HOP],
                )
            ),
            id="a report of MLD",
        ),
    ],
)
def test_whatever_else_tap_metadata_emits_is_dropped(world: World, frame: bytes) -> None:
    world.plug(1)
    world.introduce(Host6(1))
    assert world.receive(TAP6.ofport, frame) == []


def test_an_answer_of_several_fragments_is_dropped(world: World) -> None:
    world.plug(1)
    released = world.introduce(Host6(1))
    answer = world.answer(released.frame)
    inside, ends = answer[54:], {"dst": key(1), "src": TAP6.ip6}
    for which in (0x0001, 0x0008):
        packet = ipv6(inside, headers=[part(which)], **ends)
        frame = ethernet(packet, dst=GATEWAY_MAC, src=TAP6.mac, kind=0x86DD)
        assert world.receive(TAP6.ofport, frame) == []


def test_the_syns_of_a_port_are_counted_over_both_versions() -> None:
    with World(tap=TAP6) as world:
        world.plug(1)
        world.introduce(Host(1))
        world.introduce(Host6(1))
        assert Arrivals(world.channel).read() == {Endpoint(1): 2}
