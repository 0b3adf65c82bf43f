"""Frames: taken apart into OpenFlow's fields as Open vSwitch does it, rewritten, and made.

:class:`Frame` is the part of the switch's model (:mod:`tests.flowsim`) that knows Ethernet, 802.1Q,
ARP, IPv4 and TCP; the functions below it make the frames that tests send.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from os_ken.ofproto import ofproto_v1_3 as ofp

IP, TCP, ARP = {"eth_type": 0x0800}, {"eth_type": 0x0800, "ip_proto": 6}, {"eth_type": 0x0806}
FIELDS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "in_port": (32, {}),
    "eth_dst": (48, {}),
    "eth_src": (48, {}),
    "eth_type": (16, {}),
    "vlan_vid": (13, {}),
    "ip_proto": (8, IP),
    "ip_frag": (2, IP),
    "tcp_flags": (12, TCP),
    "arp_op": (16, ARP),
    **dict.fromkeys(("ipv4_src", "ipv4_dst"), (32, IP)),
    **dict.fromkeys(("tcp_src", "tcp_dst"), (16, TCP)),
    **dict.fromkeys(("arp_spa", "arp_tpa"), (32, ARP)),
    **dict.fromkeys(("arp_sha", "arp_tha"), (48, ARP)),
    **{f"reg{number}": (32, {}) for number in range(8)},
}
"""Name → bits and prerequisites (OpenFlow 1.3.5, 7.2.3.7 and 7.2.3.8)."""
NO_ETH_TYPE = 0x05FF
"""What Open vSwitch takes for the type of an 802.3 frame without SNAP."""


class NotModelled(Exception):  # noqa: N818  # a complaint about a message, not a state of ours
    """Something that dfmeta is not known to send, or that a switch would refuse as malformed."""


class Frame:
    """A frame on its way through the tables; ``frame[name]`` is zero for a field it lacks."""

    def __init__(self, in_port: int, data: bytes) -> None:
        self.data, self.meters = bytearray(data), tuple[int, ...]()
        self._metadata = {"in_port": in_port}
        self._dissect()

    def __getitem__(self, name: str) -> int:
        return self._values.get(name, 0)

    def put(self, name: str, value: int, offset: int = 0, bits: int = 0) -> None:
        """Set a field, or *bits* of it from *offset* up."""
        if bits:
            mask = (1 << bits) - 1
            value = self[name] & ~(mask << offset) | (value & mask) << offset
        if name.startswith("reg"):
            self._metadata[name] = value
        else:
            if name not in self._places:
                raise NotModelled(f"{name} is not in {self.data.hex()}")
            if name == "vlan_vid":
                value = value & 0x0FFF | self._number(14) & 0xF000
            at, size = self._places[name]
            for place in self._sums.get(name, ()):  # RFC 1624; words add up modulo 0xffff
                total = self._number(place) + self._number(at, size) - value
                self.data[place : place + 2] = (total % 0xFFFF).to_bytes(2, "big")
            self.data[at : at + size] = value.to_bytes(size, "big")
        self._dissect()

    def tag(self, tag: bytes) -> None:
        """Push a VLAN tag, or pop the outermost when it is empty."""
        self.data[12 : 12 if tag else 16] = tag
        self._dissect()

    def _number(self, at: int, size: int = 2) -> int:
        return int.from_bytes(self.data[at : at + size], "big")

    def _field(self, name: str, at: int, sums: Iterable[int] = ()) -> int:
        size = (FIELDS[name][0] + 7) // 8
        self._places[name], self._values[name] = (at, size), self._number(at, size)
        self._sums[name] = [*sums]
        return self._values[name]

    def _dissect(self) -> None:
        """Read the fields as Open vSwitch's ``miniflow_extract`` does."""
        if len(self.data) < 14:
            raise NotModelled(f"no frame: {self.data.hex()}")
        self._values, self._places = dict(self._metadata), dict[str, tuple[int, int]]()
        self._sums: dict[str, list[int]] = {}
        self._field("eth_dst", 0)
        self._field("eth_src", 6)
        at = 12
        if self._number(12) in (0x8100, 0x88A8) and len(self.data) >= 18:
            self._values["vlan_vid"] = self._field("vlan_vid", 14) & 0x0FFF | ofp.OFPVID_PRESENT
            at = 16
        kind, at = self._number(at), at + 2
        if kind < 0x0600:
            snap = self.data[at : at + 6] == b"\xaa\xaa\x03\0\0\0" and self._number(at + 6) >= 0x600
            kind, at = (self._number(at + 6), at + 8) if snap else (NO_ETH_TYPE, at)
        self._values["eth_type"] = kind
        if kind == 0x0800:
            self._dissect_ipv4(at)
        elif (
            kind == 0x0806 and len(self.data) >= at + 28 and self._number(at, 6) == 0x0001_0800_0604
        ):
            for name, place in {"op": 6, "sha": 8, "spa": 14, "tha": 18, "tpa": 24}.items():
                self._field(f"arp_{name}", at + place)
            self._values["arp_op"] *= self["arp_op"] <= 0xFF

    def _dissect_ipv4(self, at: int) -> None:
        header, total = (self._number(at, 1) & 0x0F) * 4, self._number(at + 2)
        if not 20 <= header <= total <= len(self.data) - at:
            return
        proto, fragment, segment = self._number(at + 9, 1), self._number(at + 6), at + header
        offset = (self._number(segment + 12, 1) >> 4) * 4
        tcp = proto == 6 and 20 <= offset <= total - header and not fragment & 0x1FFF
        sums = [segment + 16] if tcp else []
        self._field("ip_proto", at + 9)
        # 1: a first fragment, 3: a later one (nw_frag in ovs-fields(7)).
        self._values["ip_frag"] = 3 if fragment & 0x1FFF else 1 if fragment & 0x2000 else 0
        self._field("ipv4_src", at + 12, [at + 10, *sums])
        self._field("ipv4_dst", at + 16, [at + 10, *sums])
        if tcp:
            self._values["tcp_flags"] = self._number(segment + 12) & 0x0FFF
        if tcp and not fragment & 0x3FFF:  # Open vSwitch hides the ports of a first fragment
            self._field("tcp_src", segment, sums)
            self._field("tcp_dst", segment + 2, sums)


def address(value: int) -> str:
    """Write an IPv4 address as text."""
    return str(IPv4Address(value))


def mac(value: int) -> str:
    """Write a MAC as text."""
    return value.to_bytes(6, "big").hex(":")


def ethernet(
    payload: bytes, *, dst: str, src: str, kind: int = 0x0800, tags: Iterable[int] = ()
) -> bytes:
    """Make an Ethernet II frame; each of *tags* is the TCI of an 802.1Q tag, outermost first."""
    head = bytes.fromhex((dst + src).replace(":", ""))
    for tci in tags:
        head += struct.pack("!HH", 0x8100, tci)
    return head + struct.pack("!H", kind) + payload


def tagged(frame: bytes, tci: int, *, tpid: int = 0x8100) -> bytes:
    """Put a tag of 802.1Q, or of 802.1ad, outside of those that a frame has."""
    return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]


def ipv4(payload: bytes, *, dst: str, src: str, proto: int = 6, fragment: int = 0) -> bytes:
    """Make an IPv4 packet; *fragment* holds the flags and the offset, in units of 8 bytes."""
    addresses = IPv4Address(src).packed + IPv4Address(dst).packed
    length = 20 + len(payload)
    head = struct.pack("!BBHHHBBH", 0x45, 0, length, 7, fragment, 64, proto, 0) + addresses
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + payload


def tcp(
    *,
    dst: str,
    src: str,
    dport: int = 80,
    sport: int = 40000,
    flags: int = 2,
    seq: int = 1,
    ack: int = 0,
    data: bytes = b"",
) -> bytes:
    """Make a TCP segment without options, its checksum that of those addresses."""
    words = sport, dport, seq, ack, 5 << 12 | flags, 64240, 0, 0
    segment = struct.pack("!HHIIHHHH", *words) + data
    total = tcp_checksum(segment, dst=dst, src=src)
    return segment[:16] + total.to_bytes(2, "big") + segment[18:]


def tcp_checksum(segment: bytes, *, dst: str, src: str) -> int:
    """Sum a TCP segment and its pseudo header (RFC 9293, 3.1); 0 when it holds a right sum."""
    addresses = IPv4Address(src).packed + IPv4Address(dst).packed
    return checksum(addresses + struct.pack("!HH", 6, len(segment)) + segment)


def udp(data: bytes, *, dport: int, sport: int = 40000) -> bytes:
    """Make a UDP datagram without a checksum (RFC 768)."""
    return struct.pack("!HHHH", sport, dport, 8 + len(data), 0) + data


def checksum(data: bytes) -> int:
    """Internet checksum (RFC 1071); 0 over data that hold a right one."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total = sum(words) % 0xFFFF
    return 0xFFFF - total if total else 0 if any(words) else 0xFFFF


def arp(*, op: int, sha: str, spa: str, tpa: str, tha: str = "00:00:00:00:00:00") -> bytes:
    """Make an ARP packet (RFC 826) for IPv4 over Ethernet."""
    macs = [bytes.fromhex(one.replace(":", "")) for one in (sha, tha)]
    ips = [IPv4Address(one).packed for one in (spa, tpa)]
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, op, macs[0], ips[0], macs[1], ips[1])
