"""Frames ↔ values, pure. A guest writes the frames for :func:`parse_syn` and
:func:`parse_solicitation`: they are untrusted.

The parsers cover only the fields that the controller needs: Ethernet II with at most one VLAN tag,
IPv4 (RFC 791), IPv6 (RFC 8200) with the extension headers that Open vSwitch skips and Linux
accepts, the fixed part of TCP (RFC 9293, 3.1), and neighbour solicitations (RFC 4861, 4.3). This
module also writes the daemon's own probe and neighbour advertisements.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from os_ken.lib.packet import ether_types as ether
from os_ken.lib.packet import ethernet, icmpv6, in_proto, ipv4, ipv6, packet, tcp, vlan

from dfmeta.errors import PacketError
from dfmeta.model import GuestAddress

_ETH = struct.Struct("!6s6sH")
_TAG = struct.Struct("!HH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")
_EXTENSION = struct.Struct("!BBxB4x")
"""Next header, length in units of 8 bytes without the first one, and the fourth byte: in a routing
header (RFC 8200, 4.4) the number of segments left."""
_TCP = struct.Struct("!HHIIBB")
_ND = struct.Struct("!BBHI16s")
"""Type, code, checksum, flags and target of a solicitation or an advertisement."""
_VID_MASK = 0x0FFF
_ND_HOP_LIMIT = 255
_FRAGMENT_MASK = 0x3FFF
"""Flag more-fragments and the offset; both are 0 in an unfragmented packet."""
_SKIPPED = (in_proto.IPPROTO_HOPOPTS, in_proto.IPPROTO_ROUTING, in_proto.IPPROTO_DSTOPTS)
"""Extension headers."""
_SOLICITED_OVERRIDE = 3

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Syn:
    """The first segment of an address, as the guest sent it: that of a connection, as a rule."""

    address: GuestAddress
    vid: int
    destination: Address
    source_port: int
    destination_port: int
    opens: bool = True
    """Whether it opens a connection; else it belongs to one that is not known here."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment without data and options, or the fixed header of any segment.

    Both addresses are of the same version.
    """

    source: Address
    destination: Address
    source_port: int
    destination_port: int
    sequence: int
    acknowledgement: int
    flags: int


@dataclass(frozen=True, slots=True)
class Solicitation:
    """A neighbour solicitation, as the guest sent it."""

    mac: str
    """Source address of the frame."""
    vid: int
    source: IPv6Address
    target: IPv6Address


def write_segment(segment: Segment, *, source_mac: str, destination_mac: str) -> bytes:
    """Return *segment* as an untagged frame with complete checksums, without preamble and FCS."""
    kind = ether.ETH_TYPE_IPV6 if segment.source.version == 6 else ether.ETH_TYPE_IP
    ends = {"src": str(segment.source), "dst": str(segment.destination)}
    return _written(
        ethernet.ethernet(destination_mac, source_mac, kind),
        ipv6.ipv6(nxt=in_proto.IPPROTO_TCP, **ends)
        if segment.source.version == 6
        else ipv4.ipv4(proto=in_proto.IPPROTO_TCP, **ends),
        tcp.tcp(
            segment.source_port,
            segment.destination_port,
            segment.sequence,
            segment.acknowledgement,
            bits=segment.flags,
        ),
    )


def write_advertisement(solicitation: Solicitation, mac: str) -> bytes:
    """Return the answer "the target is at *mac*" to a solicitation, as a frame with its VLAN tag.

    It is complete (RFC 4861, 4.4 and 7.2.4): solicited, override, with the target's link-layer
    address.
    """
    vid, target = solicitation.vid, str(solicitation.target)
    answer = icmpv6.nd_neighbor(_SOLICITED_OVERRIDE, target, icmpv6.nd_option_tla(hw_src=mac))
    return _written(
        ethernet.ethernet(
            solicitation.mac, mac, ether.ETH_TYPE_8021Q if vid else ether.ETH_TYPE_IPV6
        ),
        *([vlan.vlan(vid=vid, ethertype=ether.ETH_TYPE_IPV6)] if vid else []),
        ipv6.ipv6(
            nxt=in_proto.IPPROTO_ICMPV6,
            hop_limit=_ND_HOP_LIMIT,
            src=target,
            dst=str(solicitation.source),
        ),
        icmpv6.icmpv6(icmpv6.ND_NEIGHBOR_ADVERT, data=answer),
    )


def _written(*layers: Any) -> bytes:
    frame = packet.Packet(protocols=layers)
    frame.serialize()
    return bytes(frame.data)


def parse_segment(frame: bytes) -> tuple[Segment, bool]:
    """Parse a frame that the host's own TCP sent; return it and whether its checksum is correct.

    :raises PacketError: if it is not a complete, unfragmented TCP segment.
    """
    _source, _vid, kind, payload = _ethernet(frame)
    # A short frame is padded after the packet (IEEE 802.3).
    source: Address
    destination: Address
    if kind == ether.ETH_TYPE_IPV6:
        source, destination, whole = _ipv6(payload, in_proto.IPPROTO_TCP)
    else:
        source, destination, rest = _ipv4(payload)
        whole = rest[: int.from_bytes(payload[2:4], "big") - (payload[0] & 0x0F) * 4]
    source_port, destination_port, seq, ack, _offset, flags = _unpack(_TCP, whole, "TCP")
    pseudo = _pseudo(source.packed, destination.packed, in_proto.IPPROTO_TCP, len(whole))
    return (
        Segment(source, destination, source_port, destination_port, seq, ack, flags),
        _checksum(pseudo + whole) == 0,
    )


def parse_syn(frame: bytes) -> Syn:
    """Parse a frame that the switch has classified as the first one of an address.

    :param frame: the frame from its destination MAC on, without FCS.
    :raises PacketError: if it is not a complete, unfragmented TCP segment, or cannot be answered:
        it is a reset, or its IPv6 source is unspecified, loopback, multicast or IPv4-mapped. Bytes
        after the fixed TCP header (options, data) are ignored.
    """
    mac, vid, kind, payload = _ethernet(frame)
    destination: Address
    if kind == ether.ETH_TYPE_IPV6:
        source, destination, segment = _ipv6(payload, in_proto.IPPROTO_TCP)
        if not _can_answer(source):
            raise PacketError(layer="IPv6", cause=f"{source} is not the address of one host")
        address = GuestAddress(mac, source, destination)
    else:
        source4, destination, segment = _ipv4(payload)
        address = GuestAddress(mac, source4)
    source_port, destination_port, _seq, _ack, _offset, flags = _unpack(_TCP, segment, "TCP")
    if flags & tcp.TCP_RST:
        raise PacketError(layer="TCP", cause=f"flags {flags:#04x} are those of a reset")
    return Syn(
        address,
        vid=vid,
        destination=destination,
        source_port=source_port,
        destination_port=destination_port,
        opens=flags & (tcp.TCP_SYN | tcp.TCP_ACK) == tcp.TCP_SYN,
    )


def parse_solicitation(frame: bytes) -> Solicitation:
    """Parse a frame that the switch has classified as a neighbour solicitation.

    :param frame: the frame from its destination MAC on, without FCS.
    :raises PacketError: if it is not a valid solicitation (RFC 4861, 7.1.1), or is one for
        duplicate address detection, from the unspecified address.
    """
    mac, vid, kind, payload = _ethernet(frame)
    if kind != ether.ETH_TYPE_IPV6:
        raise PacketError(layer="Ethernet", cause=f"type {kind:#06x} is not IPv6")
    source, destination, message = _ipv6(payload, in_proto.IPPROTO_ICMPV6)
    what, code, _sum, _reserved, target = _unpack(_ND, message, "ICMPv6")
    if (what, code) != (icmpv6.ND_NEIGHBOR_SOLICIT, 0):
        raise PacketError(layer="ICMPv6", cause=f"type {what}, code {code} is not a solicitation")
    if payload[7] != _ND_HOP_LIMIT:
        raise PacketError(layer="IPv6", cause=f"hop limit {payload[7]}: a router has forwarded it")
    pseudo = _pseudo(source.packed, destination.packed, in_proto.IPPROTO_ICMPV6, len(message))
    if _checksum(pseudo + message):
        raise PacketError(layer="ICMPv6", cause="the checksum is wrong")
    if not _can_answer(source):
        raise PacketError(layer="IPv6", cause=f"{source} is not the address of one host")
    return Solicitation(mac, vid, source, IPv6Address(target))


def _can_answer(source: IPv6Address) -> bool:
    """Return whether *source* is an address that an answer can be sent to."""
    return not (
        source.is_unspecified or source.is_loopback or source.is_multicast or source.ipv4_mapped
    )


def _ethernet(frame: bytes) -> tuple[str, int, int, bytes]:
    """Return source MAC, VLAN id, type and payload of a frame."""
    _destination, source, eth_type = _unpack(_ETH, frame, "Ethernet")
    payload, vid = frame[_ETH.size :], 0
    # Open vSwitch matches a service tag (IEEE 802.1Q, 9.5) as an 802.1Q tag.
    if eth_type in (ether.ETH_TYPE_8021Q, ether.ETH_TYPE_8021AD):
        tci, eth_type = _unpack(_TAG, payload, "802.1Q")
        payload, vid = payload[_TAG.size :], tci & _VID_MASK
    if eth_type not in (ether.ETH_TYPE_IP, ether.ETH_TYPE_IPV6):
        raise PacketError(layer="Ethernet", cause=f"type {eth_type:#06x} is not IPv4 or IPv6")
    return source.hex(":"), vid, eth_type, payload


def _ipv4(packet: bytes) -> tuple[IPv4Address, IPv4Address, bytes]:
    first, _tos, _length, _ident, fragment, _ttl, proto, _sum, source, destination = _unpack(
        _IPV4, packet, "IPv4"
    )
    header = (first & 0x0F) * 4
    if first >> 4 != 4 or header < _IPV4.size:
        raise PacketError(layer="IPv4", cause=f"first octet {first:#04x} is not that of a header")
    if proto != in_proto.IPPROTO_TCP or fragment & _FRAGMENT_MASK:
        raise PacketError(layer="IPv4", cause="it is not a whole TCP segment")
    return IPv4Address(source), IPv4Address(destination), packet[header:]


def _ipv6(packet: bytes, wanted: int) -> tuple[IPv6Address, IPv6Address, bytes]:
    """Return source, destination and the payload of the protocol *wanted*, without padding."""
    first, length, proto, _limit, source, destination = _unpack(_IPV6, packet, "IPv6")
    if first >> 28 != 6:
        raise PacketError(layer="IPv6", cause=f"version {first >> 28} is not 6")
    rest = packet[_IPV6.size : _IPV6.size + length]
    if len(rest) < length:
        raise PacketError(layer="IPv6", cause=f"{len(rest)} bytes are fewer than its {length}")
    while proto in _SKIPPED:
        following, units, left = _unpack(_EXTENSION, rest, "IPv6 extension header")
        if proto == in_proto.IPPROTO_ROUTING and left:
            raise PacketError(layer="IPv6", cause="its routing header has segments left")
        proto, rest = following, rest[(units + 1) * 8 :]
    if proto != wanted:
        raise PacketError(layer="IPv6", cause=f"next header {proto} is not {wanted}")
    return IPv6Address(source), IPv6Address(destination), rest


def _pseudo(source: bytes, destination: bytes, proto: int, length: int) -> bytes:
    """Return the pseudo header of TCP (RFC 9293, 3.1) or of IPv6 (RFC 8200, 8.1).

    The two differ in zero bytes, which a checksum does not count.
    """
    return source + destination + bytes((0, proto)) + length.to_bytes(2, "big")


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
