"""A guest with raw sockets gains nothing: neither another's metadata, nor a way to the host."""

from __future__ import annotations

import itertools
import re
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from tests.core.flows.frames import arp, ethernet, ipv4, tagged, tcp, udp
from tests.harness.guest import METADATA_IP
from tests.harness.netns import KERNEL_DATAPATH
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, PROXY_PORT, Capture, asks_own, source_of, uuid_in

NAME = "/latest/meta-data/hostname"
BROADCAST = "ff:ff:ff:ff:ff:ff"
NOBODY = "00:00:00:00:00:00"
ELSEWHERE = "fa:16:3e:99:99:99"
"""A MAC that nobody has."""
SYN, RST, ACK, PSH, FIN = 0x02, 0x04, 0x10, 0x08, 0x01
ARP, TCP, UDP, ICMP = 0x0806, 6, 17, 1
RETRANSMISSION = 1.0
"""Seconds after which a SYN without an answer is sent again (RFC 6298, 2.1)."""
_source_ports = itertools.count(20000)


class Net(shared.Net):
    """The net, with IPv4's names and frames."""

    def packet_ins(self) -> float:
        """How many SYNs the controller has been asked about."""
        return self.agent.metric("dfmeta_packet_ins_total")

    def frame(
        self,
        *,
        flags: int = SYN,
        sport: int = 40000,
        dport: int = 80,
        src: str = "",
        seq: int = 1,
        to: str = "",
    ) -> bytes:
        """A TCP segment of the hostile guest to the service, by way of tap-metadata's MAC."""
        src = src or self.bad.ip
        segment = tcp(dst=METADATA_IP, src=src, sport=sport, dport=dport, flags=flags, seq=seq)
        packet = ipv4(segment, dst=METADATA_IP, src=src)
        return ethernet(packet, dst=to or self.tap_mac, src=self.bad.mac)


net = shared.net_of(Net)


@pytest.fixture(autouse=True)
def _both_are_served(net: Net) -> Iterator[None]:
    """Both are known, and served afterwards."""
    asks_own(net.bad)
    asks_own(net.good)
    yield
    asks_own(net.good)
    asks_own(net.bad)


class Watched:
    """tap-metadata while a test sends frames to it; a context manager.

    At its end nothing may have arrived but what the service flows of the two guests let through.

    :param beside: the start of a frame, from its type on, that may arrive all the same.
    """

    def __init__(self, net: Net, *, beside: bytes | None = None) -> None:
        self.net = net
        self.beside = beside
        self.tap = Capture(net.host.namespace, net.side.tap, arriving=True)

    def __enter__(self) -> Watched:
        self.neighbours = neighbours(self.net)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self.tap:
            if kind is None:
                self.settle()
                assert self.strays() == []
                assert neighbours(self.net) == self.neighbours

    def settle(self) -> None:
        """Wait until all that the hostile guest has sent is through the switch."""
        asks_own(self.net.bad)  # its address may have given way to those that it has forged
        port = next(_source_ports)
        self.net.bad.send_frames(self.net.frame(flags=RST, sport=port))
        mark = port.to_bytes(2, "big")
        wait_for(lambda: any(frame[34:36] == mark for frame in self.frames()), "the last frame")

    def frames(self) -> list[bytes]:
        """What has arrived."""
        return [data for _, data in self.tap.frames()]

    def strays(self) -> list[str]:
        """What has arrived that is none of the two guests' to the service."""
        self.net.note_keys()
        return [
            frame.hex(" ")
            for frame in self.frames()
            if source_of(frame, self.net.side) not in self.net.keys
            and (self.beside is None or not frame[12:].startswith(self.beside))
        ]


def neighbours(net: Net) -> dict[str, str]:
    """The next hop behind tap-metadata, and its MAC, as the host's kernel knows them."""
    text = net.host.namespace.ip(f"neigh show dev {net.side.tap}")
    result = re.findall(r"^([0-9.]+) lladdr (\S+)", text, re.MULTILINE)
    assert result
    return dict(result)


def ask_as(net: Net, *, mac: str, ip: str) -> bytes:
    """Have the hostile guest ask for its metadata by hand, calling itself what it likes.

    :return: the answer's body, or nothing.
    """
    sport = next(_source_ports)

    def send(flags: int, seq: int, ack: int = 0, data: bytes = b"") -> None:
        segment = tcp(
            dst=METADATA_IP, src=ip, sport=sport, flags=flags, seq=seq, ack=ack, data=data
        )
        packet = ipv4(segment, dst=METADATA_IP, src=ip)
        net.bad.send_frames(ethernet(packet, dst=ELSEWHERE, src=mac))

    with Capture(net.bad.namespace, net.bad.device, arriving=True) as heard:

        def segments() -> list[tuple[int, int, bytes]]:
            # A datapath that has not yet seen that an address gave way answers to that one.
            here = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(ip)
            frames = (frame for _, frame in heard.frames() if (frame[:6], frame[30:34]) == here)
            return [_read(f) for f in frames if f[36:38] == sport.to_bytes(2, "big")]

        def syn_acks() -> list[int]:
            return [seq for flags, seq, _ in segments() if flags == SYN | ACK]

        due = time.monotonic()

        def connected() -> bool:
            nonlocal due
            if time.monotonic() >= due:
                due += RETRANSMISSION
                send(SYN, 1000)
            return bool(syn_acks())

        request = f"GET {META_DATA} HTTP/1.0\r\nHost: {METADATA_IP}\r\n\r\n".encode()

        def ended() -> bool:
            # After a repeated SYN-ACK the kernel sends one segment at a time (RFC 6298, 5.7).
            ends = [seq + len(data) for _, seq, data in segments() if data]
            if ends:
                send(ACK, 1001 + len(request), max(ends))
            return any(flags & FIN for flags, _, _ in segments())

        try:
            wait_for(connected, "the service")
            send(ACK | PSH, 1001, syn_acks()[0] + 1, request)
            wait_for(ended, "the end of the answer")
        except TimeoutError:
            return b""
        net.note_keys()
        pieces = {seq: data for _, seq, data in segments() if data}
        return b"".join(pieces[seq] for seq in sorted(pieces)).partition(b"\r\n\r\n")[2]


def _read(frame: bytes) -> tuple[int, int, bytes]:
    """Flags, sequence number and data of a TCP segment without IP options."""
    (seq,) = struct.unpack_from("!I", frame, 38)
    end = 14 + int.from_bytes(frame[16:18], "big")
    return frame[47], seq, frame[34 + (frame[46] >> 4) * 4 : end]


def forged_arp(net: Net) -> list[bytes]:
    """ARP that claims what is the service's, the other guest's or tap-metadata's."""
    claims = [
        (net.bad.mac, METADATA_IP),
        (net.tap_mac, METADATA_IP),
        (net.tap_mac, net.bad.ip),
        (net.bad.mac, net.key(net.good)),
        (net.bad.mac, net.key(net.bad)),
        (net.bad.mac, net.good.ip),
    ]
    request = [net.key(net.good), net.key(net.bad), net.side.key(99 << 8 | 99)]
    packets = [arp(op=op, sha=mac, spa=ip, tpa=ip) for mac, ip in claims for op in (1, 2)]
    packets += [arp(op=2, sha=mac, spa=ip, tpa=net.good.ip) for mac, ip in claims]
    packets += [arp(op=2, sha=mac, spa=ip, tpa=METADATA_IP, tha=net.tap_mac) for mac, ip in claims]
    packets += [arp(op=1, sha=net.bad.mac, spa=net.bad.ip, tpa=ip) for ip in request]
    return [
        ethernet(packet, dst=to, src=source, kind=ARP)
        for packet in packets
        for to in (BROADCAST, net.tap_mac, net.good.mac)
        for source in (net.bad.mac, net.tap_mac)
    ]


def test_forged_arp(net: Net) -> None:
    frames = forged_arp(net)
    with Watched(net), Capture(net.good.namespace, net.good.device, arriving=True) as heard:
        net.bad.send_frames(*frames)
        asks_own(net.good)
        net.good.forget_neighbours()
        batch = net.good.start_many(150, path=NAME)
        while batch.running:
            net.bad.send_frames(*frames)
        answers = {(sample.status, sample.body) for sample in batch.samples()}
        assert answers == {(200, b"good.example.org")}
        lies = [data for _, data in heard.frames() if data[28:32] == bytes([169, 254, 169, 254])]
        assert [data for data in lies if data[22:28] == bytes.fromhex(net.bad.mac.replace(":", ""))]


def sources(net: Net) -> dict[str, tuple[str, str]]:
    """MAC and IP that the hostile guest calls itself by."""
    mac, stranger = net.bad.mac, "10.0.0.77"
    return {
        "another's IP": (mac, net.good.ip),
        "another's IP and MAC": (net.good.mac, net.good.ip),
        "another's MAC": (net.good.mac, stranger),
        "another's key": (mac, net.key(net.good)),
        "its own key": (mac, net.key(net.bad)),
        "the service's IP": (mac, METADATA_IP),
        "the service's IP and MAC": (net.tap_mac, METADATA_IP),
        "the service's MAC": (net.tap_mac, stranger),
        "loopback": (mac, "127.0.0.1"),
        "no IP": (mac, "0.0.0.0"),
        "broadcast IP": (mac, "255.255.255.255"),
        "multicast IP": (mac, "224.0.0.1"),
        "broadcast MAC": (BROADCAST, stranger),
        "multicast MAC": ("01:00:5e:00:00:01", stranger),
        "no MAC": (NOBODY, stranger),
    }


def test_forged_addresses(net: Net) -> None:
    got = {}
    with Watched(net), Capture(net.good.namespace, net.good.device, arriving=True) as heard:
        for name, (mac, ip) in sources(net).items():
            body = ask_as(net, mac=mac, ip=ip)
            got[name] = uuid_in(body) if body else "nothing"
            asks_own(net.good)
        answers = b"".join(data for _, data in heard.frames())
        assert net.good.instance_id.encode() in answers
        assert net.bad.instance_id.encode() not in answers
    assert got == dict.fromkeys(got, net.bad.instance_id)


TAGS: dict[str, Callable[[bytes], bytes]] = {
    "priority-tagged": lambda frame: tagged(frame, 0xE000),
    "VID 1": lambda frame: tagged(frame, 1),
    "VID 7": lambda frame: tagged(frame, 7),
    "VID 4095": lambda frame: tagged(frame, 4095),
    "802.1ad": lambda frame: tagged(frame, 7, tpid=0x88A8),
    "QinQ": lambda frame: tagged(tagged(frame, 7), 8, tpid=0x88A8),
    "QinQ, inner VID 0": lambda frame: tagged(tagged(frame, 0), 7, tpid=0x88A8),
    "tap-metadata's own two": lambda frame: tagged(tagged(frame, 1), 4095),
    "its own two, 802.1ad": lambda frame: tagged(tagged(frame, 1), 4095, tpid=0x88A8),
}


@pytest.mark.parametrize("limit", [1, 0], ids=["one tag", "every tag"])
def test_tags_that_a_guest_sets_itself(net: Net, limit: int) -> None:
    """Open vSwitch looks at one tag of a frame, or at two (``vlan-limit`` 0).

    At two, the kernel's datapath lets frames of tap-metadata's own VLANs through, with tag 1
    (doc/source/limits.rst); Linux has no device for that tag, and no frame is answered.
    """
    net.host.vsctl("set", "Open_vSwitch", ".", f"other_config:vlan-limit={limit}")
    before = net.packet_ins()
    beside = bytes.fromhex("81000001") if KERNEL_DATAPATH and limit == 0 else None
    for column in ("tag=[]", "tag=7") if limit else ("tag=[]",):
        net.host.vsctl("set", "Port", net.bad.port, column)
        with (
            Watched(net, beside=beside),
            Capture(net.bad.namespace, net.bad.device, arriving=True) as heard,
        ):
            ports = dict(zip(TAGS, _source_ports, strict=False))
            net.bad.send_frames(
                *(
                    TAGS[name](net.frame(src=ip, sport=port, to=destination))
                    for name, port in ports.items()
                    for destination in (net.tap_mac, ELSEWHERE, BROADCAST)
                    for ip in (net.bad.ip, net.good.ip, "10.0.0.78")
                )
            )
            asks_own(net.bad)
            answered = {data[36:38] for _, data in heard.frames() if data[23] == TCP}
            assert [
                name for name, port in ports.items() if port.to_bytes(2, "big") in answered
            ] == [], column
    net.host.vsctl("set", "Port", net.bad.port, "tag=[]")
    net.host.vsctl("remove", "Open_vSwitch", ".", "other_config", "vlan-limit")
    assert net.packet_ins() == before


def direct(net: Net) -> list[bytes]:
    """Frames for the host itself, the proxy's port, and the keys."""
    keys = [net.key(net.good), net.key(net.bad)]
    result = []
    for source in (net.bad.ip, net.good.ip, METADATA_IP, "10.9.9.9", *keys):
        for address in (METADATA_IP, "10.9.9.9", "127.0.0.1", "255.255.255.255", *keys):
            ports = sorted({PROXY_PORT, 22, 9697, 80} - ({80} if address == METADATA_IP else set()))
            payloads = [(TCP, tcp(dst=address, src=source, dport=port)) for port in ports]
            payloads += [(TCP, tcp(dst=address, src=source, dport=22, flags=SYN | ACK))]
            payloads += [(UDP, udp(b"anything", dport=port)) for port in (53, 80, PROXY_PORT)]
            payloads += [(ICMP, b"\x08\0\xf7\xfe\0\1\0\0")]
            for proto, payload in payloads:
                result.append(ipv4(payload, dst=address, src=source, proto=proto))
    return result


def test_the_host_and_the_proxys_port(net: Net) -> None:
    net.host.namespace.ip("addr add 10.9.9.9/32 dev lo")
    before = net.packet_ins()
    own = bytes.fromhex(net.bad.mac.replace(":", ""))
    with Watched(net), Capture(net.good.namespace, net.good.device, arriving=True) as heard:
        for destination in (net.tap_mac, BROADCAST):
            packets = direct(net)
            frames = [ethernet(packet, dst=destination, src=net.bad.mac) for packet in packets]
            net.bad.send_frames(*frames)
        ipv6 = (
            "60000000 0008 3a ff fe800000000000000000000000000066 fe80000000000000006466fffe6d65fe"
        )
        echo = bytes.fromhex(ipv6 + "8000 0000 0001 0001")
        for destination in (net.tap_mac, "33:33:00:00:00:01"):
            net.bad.send_frames(ethernet(echo, dst=destination, src=net.bad.mac, kind=0x86DD))
        asks_own(net.good)

        # They went the bridge's own way, and the host answered none.
        def broadcasts() -> int:
            mine = (data for _, data in heard.frames() if data[6:12] == own)
            return sum(data[:6] == b"\xff" * 6 for data in mine)

        wait_for(lambda: broadcasts() >= len(direct(net)) / 2, "the neighbour to hear them")
    with Capture(net.bad.namespace, net.bad.device, arriving=True) as answers:
        net.bad.send_frames(net.frame(dport=PROXY_PORT), net.frame(dport=22))
        asks_own(net.bad)
        ports = {data[34:36] for _, data in answers.frames() if data[23] == TCP}
        assert ports == {(80).to_bytes(2, "big")}
    net.host.namespace.ip("addr del 10.9.9.9/32 dev lo")
    assert net.packet_ins() == before


def test_forged_answers(net: Net) -> None:
    """What a neighbour on one's own link claims to be the service's answer is not taken for it."""
    batch = net.good.start_many(100, path=NAME)
    addresses = {"dst": net.good.ip, "src": METADATA_IP}
    segments = [
        tcp(**addresses, sport=80, dport=port, flags=flags, ack=1)
        for flags in (SYN | ACK, RST | ACK, ACK | PSH, FIN | ACK)
        for port in range(32768, 61000, 500)
    ]
    packets = [ipv4(segment, **addresses) for segment in segments]
    frames = [ethernet(packet, dst=net.good.mac, src=net.tap_mac) for packet in packets]
    while batch.running:
        net.bad.send_frames(*frames)
    assert {(sample.status, sample.body) for sample in batch.samples()} == {
        (200, b"good.example.org")
    }
