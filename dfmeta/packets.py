"""Frames ↔ values, pure. A guest writes the frames for :func:`parse_syn`: they are untrusted.

The parser covers only the fields that the controller needs: Ethernet II with an optional 802.1Q
tag, IPv4 (RFC 791) and the fixed part of TCP (RFC 9293, 3.1). This module also writes the daemon's
own probe.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from dfmeta.exceptions import PacketError
from dfmeta.model import GuestAddress

ETH_TYPE_IPV4 = 0x0800
ETH_TYPE_VLAN = 0x8100
PROTO_TCP = 6
FLAG_SYN = 0x02
FLAG_RST = 0x04
FLAG_ACK = 0x10

_ETH = struct.Struct("!6s6sH")
_TAG = struct.Struct("!HH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIBB")
_TCP_WHOLE = struct.Struct("!HHIIBBHHH")
_VID_MASK = 0x0FFF
_TTL = 64
_WINDOW = 1024
_DONT_FRAGMENT = 0x4000
_FRAGMENT_MASK = 0x3FFF
"""Flag more-fragments and the offset; both are 0 in an unfragmented packet."""


@dataclass(frozen=True, slots=True)
class Syn:
    """The first segment of a connection, as the guest sent it."""

    address: GuestAddress
    vid: int
    destination: IPv4Address
    source_port: int
    destination_port: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment without data and options, or the fixed header of any segment."""

    source: IPv4Address
    destination: IPv4Address
    source_port: int
    destination_port: int
    sequence: int
    acknowledgement: int
    flags: int


def write_segment(segment: Segment, *, source_mac: str, destination_mac: str) -> bytes:
    """Return *segment* as an untagged frame with complete checksums, without preamble and FCS."""
    source, destination = segment.source.packed, segment.destination.packed
    header = bytearray(
        _IPV4.pack(
            0x45,
            0,
            _IPV4.size + _TCP_WHOLE.size,
            0,
            _DONT_FRAGMENT,
            _TTL,
            PROTO_TCP,
            0,
            source,
            destination,
        )
    )
    header[10:12] = _checksum(bytes(header)).to_bytes(2, "big")
    body = bytearray(
        _TCP_WHOLE.pack(
            segment.source_port,
            segment.destination_port,
            segment.sequence,
            segment.acknowledgement,
            _TCP_WHOLE.size // 4 << 4,
            segment.flags,
            _WINDOW,
            0,
            0,
        )
    )
    body[16:18] = _checksum(_pseudo(source, destination, len(body)) + bytes(body)).to_bytes(
        2, "big"
    )
    macs = bytes.fromhex(destination_mac.replace(":", "") + source_mac.replace(":", ""))
    return macs + ETH_TYPE_IPV4.to_bytes(2, "big") + bytes(header) + bytes(body)


def parse_segment(frame: bytes) -> tuple[Segment, bool]:
    """Parse a frame that the host's own TCP sent; return it and whether its checksum is correct.

    :raises PacketError: if it is not a complete, unfragmented IPv4 TCP segment.
    """
    _source, _vid, payload = _ethernet(frame)
    (source, destination), segment = _ipv4(payload)
    source_port, destination_port, seq, ack, _offset, flags = _unpack(_TCP, segment, "TCP")
    length = int.from_bytes(payload[2:4], "big") - (payload[0] & 0x0F) * 4
    # A short frame is padded after the packet (IEEE 802.3).
    whole = segment[:length]
    right = _checksum(_pseudo(source.packed, destination.packed, len(whole)) + whole) == 0
    return (
        Segment(source, destination, source_port, destination_port, seq, ack, flags),
        right,
    )


def parse_syn(frame: bytes) -> Syn:
    """Parse a frame that the switch has classified as a SYN.

    :param frame: the frame from its destination MAC on, without FCS.
    :raises PacketError: if it is not a complete, unfragmented IPv4 TCP SYN. Bytes after the fixed
        TCP header (options, TCP Fast Open data) are ignored.
    """
    source, vid, payload = _ethernet(frame)
    ip, segment = _ipv4(payload)
    source_port, destination_port, _seq, _ack, _offset, flags = _unpack(_TCP, segment, "TCP")
    if flags & (FLAG_SYN | FLAG_ACK) != FLAG_SYN:
        raise PacketError(layer="TCP", cause=f"flags {flags:#04x} are not those of a first SYN")
    return Syn(
        GuestAddress(source, ip[0]),
        vid=vid,
        destination=ip[1],
        source_port=source_port,
        destination_port=destination_port,
    )


def _ethernet(frame: bytes) -> tuple[str, int, bytes]:
    _destination, source, eth_type = _unpack(_ETH, frame, "Ethernet")
    payload, vid = frame[_ETH.size :], 0
    if eth_type == ETH_TYPE_VLAN:
        tci, eth_type = _unpack(_TAG, payload, "802.1Q")
        payload, vid = payload[_TAG.size :], tci & _VID_MASK
    if eth_type != ETH_TYPE_IPV4:
        raise PacketError(layer="Ethernet", cause=f"type {eth_type:#06x} is not IPv4")
    return source.hex(":"), vid, payload


def _ipv4(packet: bytes) -> tuple[tuple[IPv4Address, IPv4Address], bytes]:
    first, _tos, _length, _ident, fragment, _ttl, proto, _sum, source, destination = _unpack(
        _IPV4, packet, "IPv4"
    )
    header = (first & 0x0F) * 4
    if first >> 4 != 4 or header < _IPV4.size:
        raise PacketError(layer="IPv4", cause=f"first octet {first:#04x} is not that of a header")
    if proto != PROTO_TCP or fragment & _FRAGMENT_MASK:
        raise PacketError(layer="IPv4", cause="it is not a whole TCP segment")
    return (IPv4Address(source), IPv4Address(destination)), packet[header:]


def _pseudo(source: bytes, destination: bytes, length: int) -> bytes:
    """Return TCP's pseudo header (RFC 9293, 3.1)."""
    return source + destination + bytes((0, PROTO_TCP)) + length.to_bytes(2, "big")


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); 0 for data that includes its correct checksum."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _unpack(form: struct.Struct, data: bytes, layer: str) -> tuple[Any, ...]:
    if len(data) < form.size:
        raise PacketError(layer=layer, cause=f"{len(data)} bytes are fewer than its {form.size}")
    return form.unpack_from(data)
