"""Frames ↔ values, pure. Everything read here was written by a guest and is a claim.

Only what the controller needs of a first SYN is read: Ethernet II with an optional 802.1Q tag,
IPv4 (RFC 791) and the fixed part of TCP (RFC 9293, 3.1).
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
FLAG_ACK = 0x10

_ETH = struct.Struct("!6s6sH")
_TAG = struct.Struct("!HH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_TCP = struct.Struct("!HHIIBB")
_VID_MASK = 0x0FFF
_FRAGMENT_MASK = 0x3FFF
"""More-fragments and the offset; a whole packet has neither."""


@dataclass(frozen=True, slots=True)
class Syn:
    """The first segment of a connection, as the guest sent it."""

    address: GuestAddress
    vid: int
    destination: IPv4Address
    source_port: int
    destination_port: int


def parse_syn(frame: bytes) -> Syn:
    """Read a frame that the switch says is a SYN.

    :param frame: the frame from its destination MAC on, without FCS.
    :raises PacketError: when it is anything else than a whole, unfragmented IPv4 TCP SYN. Bytes
        behind the fixed TCP header (options, TCP Fast Open data) are not looked at.
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


def _unpack(form: struct.Struct, data: bytes, layer: str) -> tuple[Any, ...]:
    if len(data) < form.size:
        raise PacketError(layer=layer, cause=f"{len(data)} bytes are fewer than its {form.size}")
    return form.unpack_from(data)
