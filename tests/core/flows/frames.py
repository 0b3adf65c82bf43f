"""Frames: taken apart into OpenFlow's fields as Open vSwitch does it, rewritten, and made.

:class:`Frame` is the part of the switch's model (:mod:`tests.flowsim`) that knows Ethernet, 802.1Q,
ARP, IPv4, IPv6, TCP and neighbour discovery; the functions below it make the frames that tests
send.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

from os_ken.ofproto import ofproto_v1_3 as ofp

IPV4, IPV6, ARP = {"eth_type": 0x0800}, {"eth_type": 0x86DD}, {"eth_type": 0x0806}
IP = (IPV4, IPV6)
TCP = tuple(one | {"ip_proto": 6} for one in IP)
ICMPV6 = IPV6 | {"ip_proto": 58}
SOLICITATION, ADVERTISEMENT = (
    ICMPV6 | {"icmpv6_type": kind, "icmpv6_code": 0} for kind in (135, 136)
)
ND = (SOLICITATION, ADVERTISEMENT)
FIELDS: Mapping[str, tuple[int, tuple[Mapping[str, int], ...]]] = {
    "in_port": (32, ()),
    "eth_dst": (48, ()),
    "eth_src": (48, ()),
    "eth_type": (16, ()),
    "vlan_vid": (13, ()),
    "ip_proto": (8, IP),
    "ip_frag": (2, IP),
    "tcp_flags": (12, TCP),
    "arp_op": (16, (ARP,)),
    **dict.fromkeys(("ipv4_src", "ipv4_dst"), (32, (IPV4,))),
    **dict.fromkeys(("ipv6_src", "ipv6_dst"), (128, (IPV6,))),
    **dict.fromkeys(("tcp_src", "tcp_dst"), (16, TCP)),
    **dict.fromkeys(("arp_spa", "arp_tpa"), (32, (ARP,))),
    **dict.fromkeys(("arp_sha", "arp_tha"), (48, (ARP,))),
    **dict.fromkeys(("icmpv6_type", "icmpv6_code"), (8, (ICMPV6,))),
    "ipv6_nd_target": (128, ND),
    "ipv6_nd_sll": (48, (SOLICITATION,)),
    "ipv6_nd_tll": (48, (ADVERTISEMENT,)),
    "nd_reserved": (32, ND),
    "nd_options_type": (8, ND),
    **{f"reg{number}": (32, ()) for number in range(16)},
}
"""Name → bits and prerequisites, one of which has to hold (OpenFlow 1.3.5, 7.2.3.7 and 7.2.3.8)."""
_ND_EXTENSIONS = {"nd_reserved", "nd_options_type"}
_ND_FIELDS = {"ipv6_nd_target", "ipv6_nd_sll", "ipv6_nd_tll"} | _ND_EXTENSIONS
_LINK_LAYER = {1: "ipv6_nd_sll", 2: "ipv6_nd_tll"}
"""Type of an option of neighbour discovery → its field (RFC 4861, 4.6.1)."""
_AH, _FRAGMENT = 51, 44
_EXTENSIONS = {0, 43, 60, _AH, _FRAGMENT}
NO_ETH_TYPE = 0x05FF
"""What Open vSwitch takes for the type of an 802.3 frame without SNAP."""


class NotModelled(Exception):  # noqa: N818  # a complaint about a message, not a state of ours
    """Something that dfmeta is not known to send, or that a switch would refuse as malformed."""


class Frame:
    """A frame on its way through the tables; ``frame[name]`` is zero for a field it lacks."""

    def __init__(self, in_port: int, data: bytes) -> None:
        self.data = bytearray(data)
        self._metadata = {"in_port": in_port}
        # Fields of neighbour discovery that were set, and what was in the bytes before.
        self._nd, self._nd_before = dict[str, int](), dict[str, int]()
        self._dissect()

    def __getitem__(self, name: str) -> int:
        return self._nd.get(name, self._values.get(name, 0))

    def has(self, name: str) -> bool:
        """Whether the bytes have a field, whatever its value."""
        return name in self._values

    def put(self, name: str, value: int, offset: int = 0, bits: int = 0) -> None:
        """Set a field, or *bits* of it from *offset* up."""
        if bits:
            mask = (1 << bits) - 1
            value = self[name] & ~(mask << offset) | (value & mask) << offset
        if name.startswith("reg"):
            self._metadata[name] = value
        elif name in _ND_FIELDS:
            self._nd_before.setdefault(name, self[name])
            self._nd[name] = value
        else:
            if name not in self._places:
                raise NotModelled(f"{name} is not in {self.data.hex()}")
            if name == "vlan_vid":
                value = value & 0x0FFF | self._number(14) & 0xF000
            at, size = self._places[name]
            for place in self._sums.get(name, ()):
                self._adjust(place, at, size, value)
            self.data[at : at + size] = value.to_bytes(size, "big")
        self._dissect()

    def commit(self) -> None:
        """Write what was set in neighbour discovery, as Open vSwitch does before an output.

        Until then the fields keep the values of the flow: a source link-layer option that is turned
        into the target's is still in nd_sll.
        """
        changed = {name for name, value in self._nd.items() if value != self._nd_before[name]}
        start, end = self._icmpv6
        if changed and end - start >= 24:
            if changed & _ND_EXTENSIONS:
                self._write_nd_extensions(start, end)
            if changed - _ND_EXTENSIONS:
                self._write_nd(start, end)
        self._nd_before.update(self._nd)
        self._dissect()

    def _write_nd_extensions(self, start: int, end: int) -> None:
        """As ``packet_set_nd_ext``: the type is that of the first option, whichever it is."""
        if end - start == 24:
            raise NotModelled(f"the type of an option that is not in {self.data.hex()}")
        if "nd_reserved" in self._nd:
            self.data[start + 4 : start + 8] = self._nd["nd_reserved"].to_bytes(4, "big")
        if "nd_options_type" in self._nd:
            self.data[start + 24] = self._nd["nd_options_type"]
        header = self._ipv6
        words = self.data[header + 4 : header + 6] + bytes((0, self.data[header + 6]))
        self.data[start + 2 : start + 4] = bytes(2)
        total = checksum(bytes(self.data[header + 8 : header + 40] + words + self.data[start:end]))
        self.data[start + 2 : start + 4] = total.to_bytes(2, "big")

    def _write_nd(self, start: int, end: int) -> None:
        """As ``packet_set_nd``: the first option with a link-layer address gets it."""
        places = {"ipv6_nd_target": (start + 8, 16)}
        for at, kind, size in self._options(start + 24, end):
            if kind in _LINK_LAYER and size == 8:
                places[_LINK_LAYER[kind]] = at + 2, 6
                break
        for name, (at, size) in places.items():
            if name in self._nd:
                self._adjust(start + 2, at, size, self._nd[name])
                self.data[at : at + size] = self._nd[name].to_bytes(size, "big")

    def _adjust(self, place: int, at: int, size: int, value: int) -> None:
        """Have the checksum at *place* cover *value* at *at* (RFC 1624)."""
        change = self._number(at, size) - value  # words add up modulo 0xffff
        if change:
            shift = 8 * (size % 2 and not (at - place) % 2)
            total = (self._number(place) + (change << shift)) % 0xFFFF
            self.data[place : place + 2] = total.to_bytes(2, "big")

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
        self._ipv6, self._icmpv6 = 0, (0, 0)
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
        elif kind == 0x86DD:
            self._dissect_ipv6(at)
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

    def _dissect_ipv6(self, at: int) -> None:
        end = at + 40 + self._number(at + 4)
        if len(self.data) < at + 40 or end > len(self.data):
            return
        self._ipv6 = at
        proto, fragment, summed, start = self._number(at + 6, 1), 0, True, at + 40
        self._field("ipv6_src", at + 8)
        self._field("ipv6_dst", at + 24)
        while proto in _EXTENSIONS:
            if end - start < 8:
                return
            following, size = self._number(start, 1), (self._number(start + 1, 1) + 1) * 8
            if proto == _AH:
                size = (self._number(start + 1, 1) + 2) * 4
            elif proto == _FRAGMENT:
                size, which = 8, self._number(start + 2)
                # 1: a first fragment, 3: a later one. The reserved bits make it a first one too.
                fragment |= 3 if which & 0xFFF8 else 1 if which else 0
                following = _FRAGMENT if which & 0xFFF8 else following
                summed = summed and which & 0xFFF9 == 1
            elif proto == 43:
                summed = summed and not self._number(start + 3, 1)
            if size > end - start:
                return
            proto, start = following, start + size
            if fragment == 3:
                break
        self._values["ip_proto"], self._values["ip_frag"] = proto, fragment
        # Open vSwitch leaves the checksum of a packet that is still to be routed by its source, and
        # of one with a fragment header that is not the first of several: as in an atomic fragment.
        sums = {6: [start + 16], 58: [start + 2]}.get(proto, []) if summed else []
        least = {6: 20, 58: 8}.get(proto, 0)
        if fragment != 3 and end - start >= least:
            self._sums["ipv6_src"] = self._sums["ipv6_dst"] = sums
            if proto == 6:
                self._dissect_tcp6(start, end, hidden=bool(fragment))
            elif proto == 58 and not fragment:
                self._dissect_icmpv6(start, end)

    def _dissect_tcp6(self, start: int, end: int, *, hidden: bool) -> None:
        if 20 <= (self._number(start + 12, 1) >> 4) * 4 <= end - start:
            self._values["tcp_flags"] = self._number(start + 12) & 0x0FFF
            if not hidden:
                self._field("tcp_src", start, [start + 16])
                self._field("tcp_dst", start + 2, [start + 16])

    def _dissect_icmpv6(self, start: int, end: int) -> None:
        """Read a message, and of neighbour discovery the first link-layer option of each kind."""
        self._icmpv6 = start, end
        kind = self._field("icmpv6_type", start, [start + 2])
        code = self._field("icmpv6_code", start + 1, [start + 2])
        if kind not in (135, 136) or code:
            return
        self._values["nd_reserved"] = self._number(start + 4, 4)
        if end - start < 24:
            return
        found = {"ipv6_nd_target": self._number(start + 8, 16)}
        for at, option, size in self._options(start + 24, end):
            if option in _LINK_LAYER and size == 8:
                self._values.setdefault("nd_options_type", option)
                if found.get(_LINK_LAYER[option]):
                    found.clear()
                    break
                found[_LINK_LAYER[option]] = self._number(at + 2, 6)
        self._values |= found

    def _options(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield offset, type and size of each option of a message of neighbour discovery."""
        while end - at >= 8:
            size = self._number(at + 1, 1) * 8
            if not size or size > end - at:
                return
            yield at, self._number(at, 1), size
            at += size


def mac(value: int) -> str:
    """Write a MAC as text."""
    return value.to_bytes(6, "big").hex(":")


def ends_of(frame: Frame) -> dict[str, str]:
    """Write the two addresses of an IP packet as text."""
    write, name = (IPv6Address, "ipv6") if frame["eth_type"] == 0x86DD else (IPv4Address, "ipv4")
    return {end: str(write(frame[f"{name}_{end}"])) for end in ("src", "dst")}


def sums_are_right(frame: bytes) -> bool:
    """Whether an untagged TCP frame's checksums are right."""
    seen = Frame(0, frame)
    if seen["eth_type"] == 0x86DD:
        return tcp_checksum(frame[54:], **ends_of(seen)) == 0
    return checksum(frame[14:34]) == 0 and tcp_checksum(frame[34:], **ends_of(seen)) == 0


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
    return checksum(_pseudo(dst, src, 6, len(segment)) + segment)


def _pseudo(dst: str, src: str, proto: int, length: int) -> bytes:
    """The pseudo header of either version of IP: zeros add nothing (RFC 8200, 8.1)."""
    addresses = ip_address(src).packed + ip_address(dst).packed
    return addresses + struct.pack("!HH", proto, length)


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


HOP_BY_HOP = 0, b"\0\x01\x04" + bytes(4)
"""An extension header with a padding option, as :func:`ipv6` takes it (RFC 8200, 4.3)."""
DESTINATION = 60, HOP_BY_HOP[1]
AUTHENTICATION = _AH, b"\x01" + bytes(10)
ATOMIC = _FRAGMENT, bytes(7)
"""The header of a packet that is its only fragment (RFC 6946)."""


def routing(left: int) -> tuple[int, bytes]:
    """A routing header with *left* segments left."""
    return 43, bytes((0, 4, left)) + bytes(4)


def part(which: int) -> tuple[int, bytes]:
    """A fragment header: the offset in units of 8 bytes, shifted by 3, and the flag for more."""
    return _FRAGMENT, struct.pack("!BHI", 0, which, 7)


def ipv6(
    payload: bytes,
    *,
    dst: str,
    src: str,
    proto: int = 6,
    hops: int = 255,
    headers: Iterable[tuple[int, bytes]] = (),
) -> bytes:
    """Make an IPv6 packet; each of *headers* has a number, and its bytes but for the first."""
    chain = [*headers, (proto, b"")]
    following = [number for number, _body in chain]
    pairs = zip(following[1:], chain, strict=False)
    inside = b"".join(bytes((number,)) + body for number, (_own, body) in pairs) + payload
    head = struct.pack("!IHBB", 6 << 28, len(inside), following[0], hops)
    return head + IPv6Address(src).packed + IPv6Address(dst).packed + inside


def icmpv6(body: bytes, *, dst: str, src: str, kind: int, code: int = 0) -> bytes:
    """Make an ICMPv6 message (RFC 4443, 2.1); *body* is what stands behind the checksum."""
    message = bytes((kind, code, 0, 0)) + body
    total = icmpv6_checksum(message, dst=dst, src=src)
    return message[:2] + total.to_bytes(2, "big") + message[4:]


def icmpv6_checksum(message: bytes, *, dst: str, src: str) -> int:
    """Sum an ICMPv6 message and its pseudo header; 0 when it holds a right sum."""
    return checksum(_pseudo(dst, src, 58, len(message)) + message)


def option(kind: int, data: bytes) -> bytes:
    """An option of neighbour discovery; *data* fill whole units of 8 bytes (RFC 4861, 4.6)."""
    return bytes((kind, (len(data) + 2) // 8)) + data


def link_layer(kind: int, address: str) -> bytes:
    """The option with the source's (1) or the target's (2) MAC."""
    return option(kind, bytes.fromhex(address.replace(":", "")))


def neighbour(
    kind: int, *, target: str, dst: str, src: str, flags: int = 0, options: bytes = b""
) -> bytes:
    """Make a solicitation (135) or an advertisement (136) (RFC 4861, 4.3 and 4.4)."""
    body = flags.to_bytes(4, "big") + IPv6Address(target).packed + options
    return icmpv6(body, dst=dst, src=src, kind=kind)


def solicited_node(target: str) -> str:
    """The multicast address of a target's solicitations (RFC 4291, 2.7.1)."""
    return str(
        IPv6Address(int(IPv6Address("ff02::1:ff00:0")) | int(IPv6Address(target)) & 0xFFFFFF)
    )


def multicast_mac(group: str) -> str:
    """The MAC of an IPv6 multicast address (RFC 2464, 7)."""
    return "33:33:" + IPv6Address(group).packed[12:].hex(":")
