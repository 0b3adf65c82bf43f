"""IPv4 and ARP that tests of this tier make up."""

import struct
from ipaddress import IPv4Address

from hypothesis import strategies as st

from dfmeta.flows.integration_bridge import ServedEndpoint, Tap
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.key import IN_PORT, SLOTS
from dfmeta.model import Endpoint, GuestAddress, NextHop
from tests.core.flows.frames import arp, ethernet, ipv4, tcp
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
    of_endpoint,
    overwritten,
    tags,
    tcp_ports,
)
from tests.host.ovs.switch import GUESTS, TAP_PORT

HOST_IP = "169.254.1.1"
IPS = ["10.0.0.5", "10.0.0.6", "0.0.0.0", METADATA_IP, HOST_IP, "255.255.255.255"]
KEYS = [str(IN_PORT.key_of(Endpoint(ofport), slot)) for ofport in GUESTS for slot in SLOTS[:3]]
ips = st.sampled_from(IPS + KEYS) | st.integers(0, 0xFFFFFFFF).map(lambda n: str(IPv4Address(n)))
fragments = st.sampled_from([0, 0, 0, 0x4000, 0x2000, 0x0001, 0x2001, 0x1FFF, 0x8000])


@st.composite
def towards_service(draw: st.DrawFn) -> bytes:
    """TCP that a guest might send to the service, well formed, and what looks much like it."""
    src = draw(st.sampled_from(IPS[:2]))
    dst = draw(st.sampled_from([METADATA_IP, METADATA_IP, HOST_IP]))
    dport = draw(st.sampled_from([80, 80, 443]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), dport=dport)
    packet = ipv4(segment, dst=dst, src=src, fragment=draw(fragments))
    return ethernet(packet, dst=draw(macs), src=draw(st.sampled_from(MACS)), tags=draw(tags))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """TCP that the proxy might send to a key."""
    src = draw(st.sampled_from([METADATA_IP, HOST_IP, "10.0.0.5"]))
    dst, sport = draw(st.sampled_from(KEYS)), draw(st.sampled_from([9775, 9775, 80]))
    segment = tcp(dst=dst, src=src, flags=draw(flag_sets), sport=sport, dport=draw(tcp_ports))
    packet = ipv4(segment, dst=dst, src=src, fragment=draw(fragments))
    return ethernet(packet, dst=draw(macs), src=TAP_MAC)


@st.composite
def any_ip(draw: st.DrawFn) -> bytes:
    """IPv4 with whatever inside, options before it, and lengths that may lie."""
    src, dst = draw(ips), draw(ips)
    inside = draw(st.binary(max_size=40))
    if draw(st.booleans()):
        ports = {"dport": draw(tcp_ports), "sport": draw(tcp_ports)}
        inside = tcp(dst=dst, src=src, flags=draw(flag_sets), **ports)
    proto = draw(st.sampled_from([6, 6, 17, 1, 0, 255]))
    packet = bytearray(ipv4(inside, dst=dst, src=src, proto=proto, fragment=draw(fragments)))
    options = draw(st.sampled_from([0, 0, 1, 10]))
    packet[20:20] = b"\x01" * (4 * options)
    packet[0] = draw(st.sampled_from([0x45 + options, 0x45 + options, 0x65, 0x40, 0x44, 0x4F]))
    length = draw(st.sampled_from([len(packet), len(packet), 0, 20, 39, 0xFFFF]))
    packet[2:4] = struct.pack("!H", length)
    return ethernet(bytes(packet), dst=draw(macs), src=draw(macs), tags=draw(tags))


@st.composite
def any_arp(draw: st.DrawFn) -> bytes:
    """ARP and RARP of all kinds: questions, answers, probes, gratuitous, with odd heads."""
    op = draw(st.sampled_from([1, 1, 1, 2, 0, 3, 255, 256, 257]))
    ends = {"sha": draw(macs), "spa": draw(ips), "tha": draw(macs), "tpa": draw(ips)}
    packet = bytearray(arp(op=op, **ends))
    at = draw(st.none() | st.integers(0, 5))
    if at is not None:
        packet[at] = draw(st.integers(0, 255))
    kind = draw(st.sampled_from([0x0806, 0x0806, 0x0806, 0x8035]))
    return ethernet(bytes(packet), dst=draw(macs), src=draw(macs), kind=kind, tags=draw(tags))


@st.composite
def any_ethernet(draw: st.DrawFn) -> bytes:
    """Other protocols, 802.3 with LLC and SNAP, and IPv4 or ARP in such a frame."""
    kind = draw(st.sampled_from([0x86DD, 0x88CC, 0x8847, 0x0800, 0x0806, 46, 0, 0x05FF, 0x0600]))
    heads = ["", "424203", "aaaa030000000800", "aaaa030000000806", "aaaa0300000c0800"]
    llc = bytes.fromhex(draw(st.sampled_from([*heads, "aaaa03000000002e"])))
    payload = draw(towards_service())[14:] if draw(st.booleans()) else draw(st.binary(max_size=60))
    return ethernet(llc + payload, dst=draw(macs), src=draw(macs), kind=kind, tags=draw(tags))


any_frame = st.one_of(
    towards_service(),
    answers(),
    any_ip(),
    any_arp(),
    any_ethernet(),
    mangled(towards_service() | answers() | any_arp()),
)
frames = st.lists(st.tuples(st.sampled_from(IN_PORTS), any_frame), min_size=20, max_size=40)
HOPS = ["10.0.0.2", "192.0.2.2", "10.0.0.5", "1.0.0.1", METADATA_IP]
next_hops = st.builds(NextHop, st.sampled_from(HOPS), st.sampled_from(["", MACS[1]]))
addresses = st.builds(
    GuestAddress, st.sampled_from(MACS[:2]), st.sampled_from([IPv4Address(ip) for ip in IPS[:3]])
)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Which guests there are, and which of their addresses in which slots."""
    guests = []
    for endpoint in draw(endpoints()):
        known = draw(st.lists(addresses, unique=True, max_size=5))
        slots = draw(st.permutations(SLOTS))
        given = dict(zip(slots, known, strict=False))
        hops = tuple(draw(st.lists(next_hops, unique_by=lambda hop: hop.ip, max_size=3)))
        only = draw(st.sampled_from(["", *MACS[:1]])) if endpoint.vid else ""
        guests.append(ServedEndpoint(endpoint, given, hops, only, floods=draw(floods)))
    tap = Tap(TAP_PORT, TAP_MAC, 9775, ip=draw(st.sampled_from([METADATA_IP, HOST_IP])))
    return State(tap, tuple(guests))


@st.composite
def likely(draw: st.DrawFn, state: State) -> tuple[int, bytes]:
    """A frame that the flows of *state* are about, now and then with a byte overwritten."""
    guest = draw(st.sampled_from(state.guests))
    anyone = st.tuples(st.sampled_from(SLOTS), addresses)
    known = list(guest.addresses.items())
    slot, who = draw(st.sampled_from(known) | anyone if known else anyone)
    ip, key, tap = str(who.ip), str(IN_PORT.key_of(guest.endpoint, slot)), state.tap
    flags, kind = draw(flag_sets), draw(st.integers(0, 3))
    request = key if kind == 3 else METADATA_IP
    if kind == 2:
        request = draw(st.sampled_from([METADATA_IP, *HOPS]))
    if kind == 0:
        packet = ipv4(tcp(dst=request, src=ip, flags=flags), dst=request, src=ip)
        frame = ethernet(packet, dst=draw(macs), src=who.mac)
    elif kind == 1:
        packet = ipv4(tcp(dst=key, src=tap.ip, sport=tap.port, flags=flags), dst=key, src=tap.ip)
        frame = ethernet(packet, dst=draw(macs), src=tap.mac)
    else:
        packet = arp(op=1, sha=who.mac, spa=ip, tha=draw(macs), tpa=request)
        frame = ethernet(packet, dst=draw(macs), src=draw(macs), kind=0x0806)
    if kind % 2:
        return TAP_PORT, draw(overwritten(frame))
    frame = draw(of_endpoint(guest.endpoint, draw(overwritten(frame))))
    return guest.endpoint.ofport, frame
