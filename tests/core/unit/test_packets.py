"""A guest's bytes should be read as a whole SYN or solicitation, or refused."""

import contextlib
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from os_ken.lib.packet import ethernet, icmpv6, ipv6, packet, tcp

from dfmeta.errors import PacketError
from dfmeta.identity.key import NEXT_HOP_MAC
from dfmeta.packets import (
    Segment,
    Solicitation,
    Syn,
    parse_segment,
    parse_solicitation,
    parse_syn,
    write_advertisement,
    write_segment,
)
from tests.core.unit.support import (
    GUEST_IP,
    GUEST_IP6,
    GUEST_MAC,
    SERVICE6,
    TAP,
    TAP6,
    address,
    address6,
    solicit,
    syn,
    syn6,
)
from tests.harness.examples import examples

BOUNDED = settings(deadline=None, max_examples=examples(50))
NUMBERS = st.integers(0, 0xFFFFFFFF)
PORTS = st.integers(0, 0xFFFF)
MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
HEAD = 54
"""Length of an Ethernet and an IPv6 header."""


def with_extensions(frame: bytes, *extensions: tuple[int, bytes]) -> bytes:
    """Put extension headers (number, body without its first byte) before a frame's payload."""
    numbers = [number for number, _body in extensions] + [frame[20]]
    inside = b"".join(
        bytes((following,)) + body
        for (_number, body), following in zip(extensions, numbers[1:], strict=True)
    )
    length = struct.unpack_from("!H", frame, 18)[0] + len(inside)
    head = frame[:18] + struct.pack("!HB", length, numbers[0]) + frame[21:HEAD]
    return head + inside + frame[HEAD:]


READERS = ((parse_syn, Syn), (parse_solicitation, Solicitation), (parse_segment, tuple))


@BOUNDED
@given(st.integers(0, 1 << 20), st.integers(0, 255), st.integers(0, 100))
def test_damaged_frame_gives_a_value_or_a_packet_error(place: int, value: int, length: int) -> None:
    extended = with_extensions(syn6(), (0, bytes(7)), (43, bytes(7)))
    for original in (syn(vid=5), syn6(), extended, solicit()):
        frame = bytearray(original)
        frame[place % len(frame)] = value
        for read, kind in READERS:
            with contextlib.suppress(PacketError):
                assert isinstance(read(bytes(frame[:length])), kind)


@BOUNDED
@given(MACS, st.ip_addresses(v=4), PORTS, st.none() | st.integers(0, 4095))
@example(GUEST_MAC, IPv4Address(GUEST_IP), 40000, None)
def test_syn_of_ipv4_is_read(mac: str, ip: IPv4Address, source_port: int, vid: int | None) -> None:
    read = parse_syn(syn(str(ip), mac=mac, source_port=source_port, vid=vid))
    assert read == Syn(
        address(str(ip), mac),
        vid=vid or 0,
        destination=IPv4Address("169.254.169.254"),
        source_port=source_port,
        destination_port=80,
    )


@BOUNDED
@given(MACS, st.ip_addresses(v=6, network="2000::/3"), st.sampled_from(SERVICE6), PORTS)
def test_syn_over_ipv6_is_read(mac: str, ip: IPv6Address, service: str, source_port: int) -> None:
    read = parse_syn(syn6(str(ip), mac=mac, service=service, source_port=source_port))
    assert read == Syn(
        address6(str(ip), mac, service),
        vid=0,
        destination=IPv6Address(service),
        source_port=source_port,
        destination_port=80,
    )


def test_a_source_that_no_answer_can_be_sent_to_is_refused() -> None:
    for source in ("::", "::1", "ff02::1", "::ffff:10.0.0.1"):
        with pytest.raises(PacketError, match="is not the address of one host"):
            parse_syn(syn6(source))
        with pytest.raises(PacketError, match="is not the address of one host"):
            parse_solicitation(solicit(source=source))


def test_extension_headers_that_the_switch_skips_are_skipped_and_no_others() -> None:
    for kind in (0, 43, 60):
        for units in (0, 2):
            body = bytes((units,)) + bytes(6 + 8 * units)
            frame = with_extensions(syn6(), (kind, body), (60, b"\0" + bytes(6)))
            assert parse_syn(frame) == parse_syn(syn6()), (kind, units)
    for kind, body, cause in (
        (43, b"\0\0\1" + bytes(4), "segments left"),
        (44, bytes(7), "next header 44"),
        (51, bytes(7), "next header 51"),
        (59, bytes(7), "next header 59"),
    ):
        with pytest.raises(PacketError, match=cause):
            parse_syn(with_extensions(syn6(), (kind, body)))


def test_a_cut_or_another_version_is_refused() -> None:
    frame = bytearray(syn6())
    with pytest.raises(PacketError, match="fewer than"):
        parse_syn(bytes(frame[:-1]))
    with pytest.raises(PacketError, match="fewer than"):
        parse_syn(bytes(frame[:30]))
    frame[14] = 0x45
    with pytest.raises(PacketError, match="version 4 is not 6"):
        parse_syn(bytes(frame))


@pytest.mark.parametrize("option", [False, True])
def test_a_solicitation_is_read_as_it_was_built(option: bool) -> None:
    read = parse_solicitation(solicit(option=option))
    service = IPv6Address(SERVICE6[0])
    assert read == Solicitation(GUEST_MAC, 0, IPv6Address(GUEST_IP6), service)


def test_a_solicitation_that_hosts_must_drop_is_refused() -> None:
    frame = bytearray(solicit())
    frame[21] = 254
    with pytest.raises(PacketError, match="hop limit 254"):
        parse_solicitation(bytes(frame))
    frame = bytearray(solicit())
    frame[-1] ^= 1
    with pytest.raises(PacketError, match="checksum"):
        parse_solicitation(bytes(frame))
    with pytest.raises(PacketError, match="type 136"):
        parse_solicitation(solicit(kind=136))
    with pytest.raises(PacketError, match="not IPv6"):
        parse_solicitation(solicit().replace(b"\x86\xdd", b"\x08\x00", 1))


def test_an_advertisement_is_whole() -> None:
    frame = write_advertisement(parse_solicitation(solicit(option=False)), TAP.mac)
    eth, ip, message = packet.Packet(frame).protocols[:3]
    assert isinstance(eth, ethernet.ethernet)
    assert (eth.src, eth.dst) == (TAP.mac, GUEST_MAC)
    assert isinstance(ip, ipv6.ipv6)
    assert (ip.src, ip.dst, ip.hop_limit) == (SERVICE6[0], GUEST_IP6, 255)
    assert isinstance(message, icmpv6.icmpv6)
    assert (message.type_, message.code) == (icmpv6.ND_NEIGHBOR_ADVERT, 0)
    assert (message.data.res, message.data.dst) == (0b011, SERVICE6[0])
    assert message.data.option.hw_src == TAP.mac
    again = packet.Packet()
    for layer in (eth, ip, message):
        message.csum = 0
        again.add_protocol(layer)
    again.serialize()
    assert bytes(again.data) == frame


@settings(deadline=None, max_examples=examples(30))
@given(
    source=st.ip_addresses(),
    ports=st.tuples(PORTS, PORTS),
    numbers=st.tuples(NUMBERS, NUMBERS),
    flags=st.integers(0, 63),
    padding=st.integers(0, 6),
)
def test_segment_reads_as_it_was_written_and_as_os_ken_reads_it(
    source: IPv4Address | IPv6Address,
    ports: tuple[int, int],
    numbers: tuple[int, int],
    flags: int,
    padding: int,
) -> None:
    destination = ip_address(TAP.ip if source.version == 4 else TAP6.ip6)
    segment = Segment(source, destination, *ports, *numbers, flags)
    frame = write_segment(segment, source_mac=NEXT_HOP_MAC, destination_mac=TAP.mac)
    assert parse_segment(frame + bytes(padding)) == (segment, True)
    eth, ip, read = packet.Packet(frame).protocols[:3]
    assert isinstance(read, tcp.tcp)
    assert (eth.src, eth.dst) == (NEXT_HOP_MAC, TAP.mac)
    assert (read.src_port, read.seq, read.bits) == (ports[0], numbers[0], flags)
    again, read.csum = packet.Packet(), 0
    if source.version == 4:
        ip.csum = 0
    for layer in (eth, ip, read):
        again.add_protocol(layer)
    again.serialize()
    assert bytes(again.data[: len(frame)]) == frame, "with both checksums"


def test_flags_tell_whether_a_segment_opens_a_connection() -> None:
    for bits in (0x02, 0x02 | 0xC0):
        assert parse_syn(syn(bits=bits)).opens, "ECN (RFC 3168)"
    for bits in (0x00, 0x12, 0x10, 0x01, 0xD2):
        assert not parse_syn(syn(bits=bits)).opens
    for bits in (0x04, 0x14, 0x06):
        with pytest.raises(PacketError, match="are those of a reset"):
            parse_syn(syn(bits=bits))


def test_fragment_or_other_protocol_is_refused() -> None:
    for of_ip in ({"flags": 1}, {"offset": 1}, {"proto": 17}, {"proto": 1}, {"proto": 0}):
        with pytest.raises(PacketError, match="not a whole TCP segment"):
            parse_syn(syn(**of_ip))


def test_ip_options_are_stepped_over() -> None:
    assert parse_syn(syn(header_length=6, option=b"\x01\x01\x01\x00")).source_port == 40000


def test_wrong_version_or_header_length_is_refused() -> None:
    frame = bytearray(syn())
    for first in (0x55, 0x65, 0x44, 0x40):
        frame[14] = first
        with pytest.raises(PacketError, match=f"first octet {first:#04x}"):
            parse_syn(bytes(frame))


def test_a_service_tag_counts_as_one_of_8021q() -> None:
    frame = bytearray(syn(vid=5))
    frame[12:14] = b"\x88\xa8"
    assert parse_syn(bytes(frame)) == parse_syn(syn(vid=5))


def test_a_second_tag_is_refused() -> None:
    frame = syn(vid=5)
    with pytest.raises(PacketError, match="not IPv4"):
        parse_syn(frame[:12] + frame[12:16] + frame[12:])
