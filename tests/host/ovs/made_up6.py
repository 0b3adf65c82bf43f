"""IPv6 and neighbour discovery that tests of this tier make up."""

import struct
from ipaddress import IPv4Address, IPv6Address

from hypothesis import strategies as st

from dfmeta.flows.integration_bridge import ServedEndpoint, Tap
from dfmeta.identity.key import IN_PORT, SLOT6, SLOTS, SLOTS6
from dfmeta.model import Endpoint, GuestAddress
from tests.core.flows.frames import (
    ATOMIC,
    AUTHENTICATION,
    DESTINATION,
    HOP_BY_HOP,
    Frame,
    ethernet,
    icmpv6,
    ipv6,
    link_layer,
    neighbour,
    option,
    part,
    routing,
    solicited_node,
    tcp,
    udp,
)
from tests.core.flows.world import SERVICE6
from tests.host.ovs.made_up import (
    IN_PORTS,
    MACS,
    TAP_MAC,
    State,
    endpoints,
    flag_sets,
    floods,
    macs,
    mangled,
    octets,
    of_endpoint,
    overwritten,
    tags,
    tcp_ports,
)
from tests.host.ovs.switch import GUESTS, TAP_PORT

HOST_IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"


GUEST_IPS = ["fd12:3456::5", "fe80::f816:3eff:fe00:5"]
IPS = [*GUEST_IPS, *SERVICE6, HOST_IP6, "::", "::1", "ff02::1", solicited_node(SERVICE6[0])]
KEYS = [str(IN_PORT.key_of(Endpoint(ofport), slot)) for ofport in GUESTS for slot in SLOTS6[:3]]
HEADERS = [
    HOP_BY_HOP,
    DESTINATION,
    AUTHENTICATION,
    ATOMIC,
    routing(0),
    routing(1),
    part(0x0001),
    part(0x0002),
    part(0x0008),
    part(0x0009),
    part(0xFFF9),
]
NONCE = option(14, b"\x00\x01\x02\x03\x04\x05")

ips = st.sampled_from(IPS + KEYS) | st.binary(min_size=16, max_size=16).map(
    lambda raw: str(IPv6Address(raw))
)
headers: st.SearchStrategy[list[tuple[int, bytes]]] = (
    st.just([]) | st.just([]) | st.lists(st.sampled_from(HEADERS), min_size=1, max_size=3)
)


@st.composite
def towards_service(draw: st.DrawFn) -> bytes:
    """TCP that a guest might send to the service, and what looks much like it."""
    src = draw(st.sampled_from(GUEST_IPS))
    dst = draw(st.sampled_from([*SERVICE6, *SERVICE6, HOST_IP6]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), dport=draw(st.sampled_from([80, 80, 9])))
    packet = ipv6(segment, dst=dst, src=src, headers=draw(headers))
    head = {"dst": draw(macs), "src": draw(st.sampled_from(MACS)), "tags": draw(tags)}
    return ethernet(packet, kind=0x86DD, **head)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """TCP that the proxy might send to a key."""
    src = draw(st.sampled_from([HOST_IP6, SERVICE6[0], GUEST_IPS[0]]))
    dst, sport = draw(st.sampled_from(KEYS)), draw(st.sampled_from([9775, 9775, 80]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), sport=sport, dport=draw(tcp_ports))
    packet = ipv6(segment, dst=dst, src=src, headers=draw(headers))
    return ethernet(packet, dst=draw(macs), src=TAP_MAC, kind=0x86DD)


@st.composite
def any_ip(draw: st.DrawFn) -> bytes:
    """IPv6 with whatever inside, and lengths and chains of headers that may lie."""
    src, dst = draw(ips), draw(ips)
    choices = [
        st.binary(max_size=60),
        st.just(tcp(dst=dst, src=src, flags=draw(flag_sets), dport=draw(tcp_ports))),
        st.just(udp(b"", dport=80)),
        st.just(icmpv6(b"\0" * 4, dst=dst, src=src, kind=draw(octets), code=draw(octets))),
    ]
    proto = draw(st.sampled_from([6, 6, 17, 58, 0, 43, 44, 51, 59, 60, 255]))
    inside = draw(st.one_of(choices))
    packet = bytearray(ipv6(inside, dst=dst, src=src, proto=proto, headers=draw(headers)))
    own = len(packet) - 40
    packet[4:6] = struct.pack("!H", draw(st.sampled_from([own, own, 0, 8, 19, own + 1, 0xFFFF])))
    packet[0] = draw(st.sampled_from([0x60, 0x60, 0x6F, 0x45, 0x00]))
    head = {"dst": draw(macs), "src": draw(macs), "tags": draw(tags)}
    return ethernet(bytes(packet), kind=0x86DD, **head)


@st.composite
def option_lists(draw: st.DrawFn, mac: str) -> bytes:
    """Options of neighbour discovery.

    A long option in front of the one with the MAC, and both kinds of it at once, are left out: what
    leaves then has fields that Open vSwitch itself does not find again.
    """
    own = link_layer(1, mac)
    long = option(3, b"\1" * 30)
    return draw(
        st.sampled_from(
            [
                own,
                own,
                own,
                b"",
                own + NONCE,
                NONCE + own,
                own + long,
                own + own,
                NONCE,
                long,
                link_layer(2, mac),
                link_layer(1, "00:00:00:00:00:00"),
                link_layer(1, "00:00:00:00:00:00") + own,
                b"\1\0" + own,
                own[:7],
                own + b"\1\2\3",
            ]
        )
    )


@st.composite
def neighbours(draw: st.DrawFn) -> bytes:
    """Neighbour discovery of all kinds, with options, codes and checksums of all kinds."""
    mac, src = draw(macs), draw(ips)
    target = draw(st.sampled_from([*SERVICE6, *KEYS, *IPS]))
    dst = draw(st.sampled_from([target, solicited_node(target)]))
    kind = draw(st.sampled_from([135, 135, 135, 136, 133, 134, 137]))
    fields = {"target": target, "dst": dst, "src": src, "flags": draw(st.integers(0, 2**32 - 1))}
    message = bytearray(neighbour(kind, options=draw(option_lists(mac)), **fields))
    message[1] = draw(st.sampled_from([0, 0, 0, 0, 1]))
    message = message[: draw(st.sampled_from([len(message)] * 4 + [4, 8, 23]))]
    packet = ipv6(bytes(message), dst=dst, src=src, proto=58, headers=draw(headers))
    return ethernet(packet, dst=draw(macs), src=draw(macs), kind=0x86DD, tags=draw(tags))


others = octets.filter(lambda byte: byte != 2)
"""Bytes that turn no option into one with the target's MAC; see :func:`option_lists`."""
changed = mangled(towards_service() | answers() | neighbours(), others)
any_frame = st.one_of(towards_service(), answers(), any_ip(), neighbours(), changed)


def sender(ofport: int, frame: bytes) -> tuple[int, bytes]:
    """Have a solicitation without its sender's MAC come from a guest, and not from the host.

    Linux has its MAC in each of them. Open vSwitch would write the type of the answer's option into
    an option of another length, or behind the end of the packet.
    """
    seen = Frame(ofport, frame)
    bare = seen["icmpv6_type"] == 135 and not seen["icmpv6_code"] and not seen["ipv6_nd_sll"]
    return GUESTS[0] if bare and ofport == TAP_PORT else ofport, frame


frames = st.lists(st.builds(sender, st.sampled_from(IN_PORTS), any_frame), min_size=20, max_size=40)
addresses = st.builds(
    GuestAddress,
    st.sampled_from(MACS[:2]),
    st.sampled_from([IPv6Address(ip) for ip in GUEST_IPS]),
    st.sampled_from([IPv6Address(ip) for ip in SERVICE6]),
)
OLD = GuestAddress(MACS[0], IPv4Address("10.0.0.5"))


@st.composite
def states(draw: st.DrawFn) -> State:
    """Which guests there are, and which of their addresses in which slots."""
    taps = [(HOST_IP6, SERVICE6), (HOST_IP6, SERVICE6[:1]), (SERVICE6[1], SERVICE6[1:])]
    ip6, guest_ip6 = draw(st.sampled_from(taps))
    guests = []
    for endpoint in draw(endpoints()):
        served = [address for address in draw(st.lists(addresses, unique=True, max_size=5))
                  if str(address.service) in guest_ip6]  # fmt: skip
        given = dict(zip(draw(st.permutations(SLOTS6)), served, strict=False))
        known = given | draw(st.sampled_from([{}, {SLOTS[0]: OLD}]))
        guests.append(ServedEndpoint(endpoint, known, floods=draw(floods)))
    return State(Tap(TAP_PORT, TAP_MAC, 9775, ip6=ip6, guest_ip6=guest_ip6), tuple(guests))


@st.composite
def likely(draw: st.DrawFn, state: State) -> tuple[int, bytes]:
    """A frame that the flows of *state* are about, now and then with a byte overwritten."""
    guest, tap = draw(st.sampled_from(state.guests)), state.tap
    known = [(slot, address) for slot, address in guest.addresses.items() if slot > SLOT6]
    anyone = st.tuples(st.sampled_from(SLOTS6), addresses)
    slot, who = draw(st.sampled_from(known) | anyone if known else anyone)
    ip, key = str(who.ip), str(IN_PORT.key_of(guest.endpoint, slot))
    flags, kind = draw(flag_sets), draw(st.integers(0, 3))
    if kind == 0:
        packet = ipv6(tcp(dst=str(who.service), src=ip, flags=flags), dst=str(who.service), src=ip)
    elif kind == 1:
        segment = tcp(dst=key, src=tap.ip6, sport=tap.port, flags=flags)
        packet = ipv6(segment, dst=key, src=tap.ip6)
    else:
        src, target = (ip, str(who.service)) if kind == 2 else (tap.ip6, key)
        src = draw(st.sampled_from([src, src, src, "::"]))
        dst = draw(st.sampled_from([target, solicited_node(target)]))
        ends = {"target": target, "dst": dst, "src": src}
        message = neighbour(135, options=draw(option_lists(who.mac)), **ends)
        packet = ipv6(message, dst=dst, src=src, proto=58)
    frame = draw(overwritten(ethernet(packet, dst=draw(macs), src=who.mac, kind=0x86DD), others))
    if kind % 2:
        return sender(TAP_PORT, frame)
    return guest.endpoint.ofport, draw(of_endpoint(guest.endpoint, frame))
