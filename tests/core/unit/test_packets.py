"""A guest's bytes should be read as a whole first SYN, or refused; nothing else can happen."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import PacketError
from dfmeta.packets import Syn, parse_syn
from tests.core.unit.support import GUEST_IP, GUEST_MAC, address, syn
from tests.harness.examples import examples

MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
IPS = st.integers(0, 0xFFFFFFFF).map(lambda number: str(IPv4Address(number)))
BOUNDED = settings(deadline=None, max_examples=examples(50))


@BOUNDED
@given(st.binary(max_size=80))
def test_any_bytes_give_a_syn_or_a_packet_error(frame: bytes) -> None:
    try:
        assert isinstance(parse_syn(frame), Syn)
    except PacketError:
        return


@BOUNDED
@given(st.integers(0, 1 << 20), st.integers(0, 255), st.integers(0, 60))
def test_a_damaged_syn_gives_a_syn_or_a_packet_error(place: int, value: int, length: int) -> None:
    frame = bytearray(syn(vid=5))
    frame[place % len(frame)] = value
    try:
        assert isinstance(parse_syn(bytes(frame[:length])), Syn)
    except PacketError:
        return


@BOUNDED
@given(MACS, IPS, st.integers(0, 65535), st.one_of(st.none(), st.integers(0, 4095)))
@example(GUEST_MAC, GUEST_IP, 40000, None)
def test_a_built_syn_reads_as_what_it_was_built_of(
    mac: str, ip: str, source_port: int, vid: int | None
) -> None:
    read = parse_syn(syn(ip, mac=mac, source_port=source_port, vid=vid))
    assert read == Syn(
        address(ip, mac),
        vid=vid or 0,
        destination=IPv4Address("169.254.169.254"),
        source_port=source_port,
        destination_port=80,
    )


def test_first_syn_is_told_by_its_flags() -> None:
    for bits in (0x02, 0x02 | 0xC0):
        assert parse_syn(syn(bits=bits)).source_port == 40000, "ECN (RFC 3168)"
    for bits in (0x00, 0x12, 0x10, 0x04, 0x01, 0xD2):
        with pytest.raises(PacketError, match="not those of a first SYN"):
            parse_syn(syn(bits=bits))


def test_fragment_or_other_protocol_is_refused() -> None:
    for of_ip in ({"flags": 1}, {"offset": 1}, {"proto": 17}, {"proto": 1}, {"proto": 0}):
        with pytest.raises(PacketError, match="not a whole TCP segment"):
            parse_syn(syn(**of_ip))


def test_a_syn_that_must_not_be_fragmented_is_whole() -> None:
    assert parse_syn(syn(flags=2)).address == address()


def test_ip_options_are_stepped_over() -> None:
    assert parse_syn(syn(header_length=6, option=b"\x01\x01\x01\x00")).source_port == 40000


def test_wrong_version_or_header_length_is_refused() -> None:
    frame = bytearray(syn())
    for first in (0x55, 0x65, 0x44, 0x40):
        frame[14] = first
        with pytest.raises(PacketError, match=f"first octet {first:#04x}"):
            parse_syn(bytes(frame))


def test_other_ethertype_is_refused() -> None:
    for eth_type in (0x0806, 0x8847, 0x05DC):
        frame = bytearray(syn())
        frame[12:14] = eth_type.to_bytes(2, "big")
        with pytest.raises(PacketError, match=f"type {eth_type:#06x} is not IPv4 or IPv6"):
            parse_syn(bytes(frame))


def test_a_service_tag_counts_as_one_of_8021q() -> None:
    frame = bytearray(syn(vid=5))
    frame[12:14] = b"\x88\xa8"
    assert parse_syn(bytes(frame)) == parse_syn(syn(vid=5))


def test_a_second_tag_is_refused() -> None:
    frame = syn(vid=5)
    with pytest.raises(PacketError, match="not IPv4"):
        parse_syn(frame[:12] + frame[12:16] + frame[12:])


def test_each_cut_of_a_syn_names_the_layer_that_is_cut() -> None:
    frame = syn(vid=5)
    layers = []
    for length in (0, 13, 14, 17, 18, 37, 38, 51):
        with pytest.raises(PacketError) as caught:
            parse_syn(frame[:length])
        layers.append(caught.value.fields["layer"])
    expected = ["Ethernet"] * 2 + ["802.1Q"] * 2 + ["IPv4"] * 2 + ["TCP"] * 2
    assert layers == expected
