"""What is not for the metadata service passes as if dfmeta were not there."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.core.flows.frames import arp, ethernet, ipv4, ipv6, neighbour, tagged, tcp, udp
from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest, Ids
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e.support import PROXY_PORT, Capture, asks_own, put, source_of

TAP = SIDE.tap
TAP_MAC = "02:64:66:6d:65:fe"
STRANGE = SIDE.key(5)
"""An address like a key that is a port's own."""
BROADCAST, MULTICAST, NOBODY = "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:fb", "fa:16:3e:99:99:99"
IP, ARP, RARP, MPLS, IPV6, EXPERIMENTAL = 0x0800, 0x0806, 0x8035, 0x8847, 0x86DD, 0x88B5
ICMP, UDP, SCTP = 1, 17, 132
ACK = 0x10
TENANT, DEAD = 7, 4095
MTU = 9000
TOKEN = 8
"""Bytes behind a frame's end that it is known by."""
PORTS = {
    "guest": [],
    "neighbour": [],
    "access": [f"tag={TENANT}"],
    "tenant": [f"tag={TENANT}"],
    "trunk": [f"trunks={TENANT},8"],
    "dead": [f"tag={DEAD}"],
    "isolated": [f"tag={DEAD}", "vlan_mode=trunk", f"trunks={DEAD}"],
    "uplink": [],
}
"""Name → columns of its row in table Port."""
_TRUNKS = {"guest", "neighbour", "uplink", BRIDGE}
HEARD_IN = {
    0: _TRUNKS,
    TENANT: {"access", "tenant", "trunk", *_TRUNKS},
    DEAD: {"dead", "isolated", *_TRUNKS},
}
"""VLAN → where a frame to a stranger arrives, unless it came in there."""
AT_ONCE = 32
"""Frames that wait for ovs-vswitchd at a time: a queue that is full drops some."""
_source_ports = itertools.count(50_000)
UNSERVED = {"dead", "uplink"}
"""Whose questions to the service are nothing to dfmeta: not guests', or switched off."""

Arrivals = dict[tuple[str, str, str], list[bytes]]
"""(Sender, kind, place of arrival) → what it arrived as."""


class Sending:
    """Frames that are sent in at ports, each known by its end, and where they have arrived.

    :ivar captures: place → what arrives there.
    :ivar sent: how many frames there were.
    """

    def __init__(self, captures: dict[str, Capture]) -> None:
        self.captures = captures
        self.sent = 0
        self._names: dict[bytes, tuple[str, str]] = {}
        self._looked: dict[str, int] = dict.fromkeys(captures, 0)
        self._heard: dict[str, set[bytes]] = {place: set() for place in captures}

    def mark(self, sender: str, kind: str, frame: bytes) -> bytes:
        """The frame with a token behind its end."""
        token = b"<%06d>" % self.sent
        self.sent += 1
        self._names[token] = (sender, kind)
        return frame + token

    def wait(self, frame: bytes, places: set[str], what: str) -> None:
        """Wait until a frame has arrived at each of those places."""
        for place in sorted(places):
            heard = partial(self._has, place, frame[-TOKEN:])
            wait_for(heard, f"{what} at {place}", interval=0.001)

    def arrivals(self) -> Arrivals:
        """All that has arrived of what was sent; nothing strange may have, on tap-metadata."""
        found: Arrivals = {}
        for place, capture in self.captures.items():
            for _, data in capture.frames():
                if data[-TOKEN:] in self._names:
                    found.setdefault((*self._names[data[-TOKEN:]], place), []).append(data)
                elif place == TAP:
                    assert SIDE.is_key(source_of(data)), data.hex()
        return found

    def _has(self, place: str, token: bytes) -> bool:
        frames = self.captures[place].frames()
        self._heard[place] |= {data[-TOKEN:] for _, data in frames[self._looked[place] :]}
        self._looked[place] = len(frames)
        return token in self._heard[place]


@contextmanager
def on_one_cpu() -> Iterator[None]:
    """Have all frames sent by one CPU: the kernel's datapath keeps their order for each alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Net:
    """A bridge with ports of every kind; the kernels behind them have nothing to say."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.host = self._stack.enter_context(OpenvSwitch())
        self.agent = self._stack.enter_context(Agent(self.host))
        self.ports = {}
        for number, (name, columns) in enumerate(PORTS.items(), 5):
            ids = Ids(attached_mac=False) if name == "uplink" else None
            self.ports[name] = port = self._stack.enter_context(
                Guest(self.host, name, address=f"10.0.0.{number}/24", ids=ids)
            )
            port.namespace.sysctl(**{"net.ipv6.conf.all.disable_ipv6": 1})
            port.namespace.ip(f"link set {port.device} mtu {MTU}")
            self.host.namespace.ip(f"link set {port.port} mtu {MTU}")
            if columns:
                self.host.vsctl("set", "Port", port.port, *columns)
        self.host.namespace.ip(f"link set {BRIDGE} addrgenmode none", f"link set {BRIDGE} up")

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def key(self, name: str) -> str:
        """The key of a guest's first address, or one like it."""
        return SIDE.key(self.ports[name].ofport)

    def run(self, sent: dict[str, dict[str, bytes]]) -> Arrivals:
        """Send in what each port has to send, and see what arrives where."""
        # The switch learns from what no flow of the datapath is there for yet.
        self.host.appctl("fdb/flush", BRIDGE)
        self.host.appctl("revalidator/purge")
        with ExitStack() as stack:
            places = {name: (port.namespace, port.device) for name, port in self.ports.items()}
            for device in {BRIDGE, TAP} & {BRIDGE, *self.host.ports()}:
                places[device] = self.host.namespace, device
            sending = Sending(
                {
                    name: stack.enter_context(Capture(namespace, device, arriving=True))
                    for name, (namespace, device) in places.items()
                }
            )
            stack.enter_context(on_one_cpu())
            # First of all where each port is, for the switch to learn.
            for sender in sent:
                self._send(sending, sender, {})
            for sender, kinds in sent.items():
                left = list(kinds.items())
                while left:
                    self._send(sending, sender, dict(left[:AT_ONCE]))
                    del left[:AT_ONCE]
            # Of frames that it takes together, ovs-vswitchd sends on those first for which there is
            # no flow of the datapath yet: what comes after them all is taken later.
            for sender in sent:
                self._send(sending, sender, {})
            if TAP in places:
                self._await_tap(sending.captures[TAP])
            return sending.arrivals()

    def _send(self, sending: Sending, sender: str, frames: dict[str, bytes]) -> None:
        """Send some frames, then one to each place that they may have led to; wait for these."""
        port, ways = self.ports[sender], self._ways(sender)
        marked = [sending.mark(sender, kind, frame) for kind, frame in frames.items()]
        lasts: list[tuple[bytes, set[str]]] = []
        for tag, vlan in ways:
            question = arp(op=1, sha=port.mac, spa=port.ip, tpa="10.0.0.250")
            # To another stranger each time: no flow of the datapath is there for it, so that it
            # waits for ovs-vswitchd behind all that wait.
            stranger = f"fa:16:3e:aa:{sending.sent >> 8:02x}:{sending.sent & 255:02x}"
            frame = ethernet(question, dst=stranger, src=port.mac, kind=ARP)
            frame = frame if tag is None else tagged(frame, tag)
            last = sending.mark(sender, f"last, VID {tag}", frame)
            lasts.append((last, HEARD_IN[vlan] - {sender}))
        port.send_frames(*marked, *(last for last, _ in lasts))
        for last, places in lasts:
            sending.wait(last, places, f"the last frame of {sender}")

    def _ways(self, sender: str) -> list[tuple[int | None, int]]:
        """By which tags a port's frames get to all that it can reach, and the VLAN of each."""
        trunk = [(None, 0), (TENANT, TENANT), (DEAD, DEAD)]
        return {
            "guest": trunk,
            "neighbour": trunk,
            "access": [(None, TENANT)],
            "tenant": [(None, TENANT)],
            "trunk": [(TENANT, TENANT)],
            "uplink": trunk,
            "dead": [(None, DEAD)],
            "isolated": [(DEAD, DEAD)],
        }[sender]

    def _await_tap(self, capture: Capture) -> None:
        """Send to the service, from an address that dfmeta knows: all else is through then."""
        guest, port = self.ports["guest"], next(_source_ports)
        segment = tcp(dst=METADATA_IP, src=guest.ip, sport=port, flags=ACK)
        packet = ipv4(segment, dst=METADATA_IP, src=guest.ip)
        guest.send_frames(ethernet(packet, dst=NOBODY, src=guest.mac))
        mark = port.to_bytes(2, "big")

        def heard() -> bool:
            return any(data[34:36] == mark for _, data in capture.frames())

        wait_for(heard, f"the last frame on {TAP}", interval=0.001)

    def traffic(self, sender: str) -> dict[str, bytes]:
        """All kinds of frames from one port."""
        port, other = self.ports[sender], self.ports["neighbour"]
        found: dict[str, bytes] = {}
        for name, (proto, payload, address) in self._packets(port).items():
            for where, mac in (("other", other.mac), ("nobody", NOBODY), ("tap", TAP_MAC)):
                packet = ipv4(payload, dst=address, src=port.ip, proto=proto)
                found[f"{name}, to {where}"] = ethernet(packet, dst=mac, src=port.mac)
        for name, (kind, payload, mac) in self._others(port).items():
            found[name] = ethernet(payload, dst=mac, src=port.mac, kind=kind)
        for name, frame in self._service(port).items():
            if sender in UNSERVED:
                found[name] = frame
            for tci in (0xE000, 1, TENANT, 8, DEAD):
                found[f"{name}, VID {tci & 4095}"] = tagged(frame, tci)
            found[f"{name}, QinQ"] = tagged(tagged(frame, 1), DEAD, tpid=0x88A8)
            found[f"{name}, two tags"] = tagged(tagged(frame, 1), DEAD)
        return found

    def _packets(self, port: Guest) -> dict[str, tuple[int, bytes, str]]:
        """IPv4: what it is → protocol, payload, destination."""
        addresses = ["10.0.0.250", "192.0.2.80", STRANGE, self.key("guest"), "255.255.255.255"]
        found: dict[str, tuple[int, bytes, str]] = {
            f"TCP {number} of the service's address": (
                6,
                tcp(dst=METADATA_IP, src=port.ip, dport=number),
                METADATA_IP,
            )
            for number in sorted({53, 79, 81, 443, 8775, 18080, PROXY_PORT} - {80})
        }
        for address in (*addresses, METADATA_IP):
            for number in (53, 67, 80):
                found[f"UDP {number} of {address}"] = (UDP, udp(b"", dport=number), address)
            found[f"ICMP to {address}"] = (ICMP, b"\x08\0\xf7\xfe\0\1\0\0", address)
            found[f"SCTP 80 of {address}"] = (SCTP, b"\x9c\x40\0\x50" + bytes(8), address)
        for address in addresses:
            for flags in (0x02, 0x12, 0x10):
                segment = tcp(dst=address, src=port.ip, flags=flags)
                found[f"TCP 80 of {address}, flags {flags}"] = (6, segment, address)
        found["TCP 80, cut off"] = (6, b"\x9c\x40\0\x50", METADATA_IP)
        return found

    def _others(self, port: Guest) -> dict[str, tuple[int, bytes, str]]:
        """Not IPv4, or not to one: what it is → type, payload, destination."""
        group = ipv4(udp(b"", dport=5353), dst="224.0.0.251", src=port.ip, proto=UDP)
        large = ipv4(udp(bytes(MTU - 100), dport=9), dst="10.0.0.250", src=port.ip, proto=UDP)
        service = ipv4(tcp(dst=METADATA_IP, src=port.ip), dst=METADATA_IP, src=port.ip)
        six = bytes.fromhex("60000000 0014 06 40") + socket.inet_pton(socket.AF_INET6, "fe80::66")
        six += socket.inet_pton(socket.AF_INET6, "fe80::a9fe:a9fd") + tcp(
            dst="0.0.0.0", src="0.0.0.0"
        )
        service6 = ipv6(udp(b"", dport=80), dst="fe80::a9fe:a9fe", src="fe80::66", proto=UDP)
        asked6 = neighbour(135, target="fe80::66", dst="ff02::1:ff00:66", src="fe80::67")
        solicitation = ipv6(asked6, dst="ff02::1:ff00:66", src="fe80::67", proto=58)
        asked = ["10.0.0.250", STRANGE, self.key("guest"), "169.254.169.253"]
        found = {
            "multicast": (IP, group, MULTICAST),
            "a jumbo frame": (IP, large, NOBODY),
            "IPv6": (IPV6, six, NOBODY),
            "IPv6 multicast": (IPV6, six, "33:33:00:00:00:01"),
            "IPv6 to tap-metadata": (IPV6, six, TAP_MAC),
            "UDP to the service over IPv6": (IPV6, service6, NOBODY),
            "another's solicitation": (IPV6, solicitation, "33:33:ff:00:00:66"),
            "MPLS": (MPLS, b"\0\1\1\x40" + service, NOBODY),
            "802.3": (3, b"\x42\x42\3", "01:80:c2:00:00:10"),
            "an unknown type": (EXPERIMENTAL, b"", NOBODY),
            "an unknown type to tap-metadata": (EXPERIMENTAL, b"", TAP_MAC),
            "an unknown type to all": (EXPERIMENTAL, b"", BROADCAST),
            "RARP": (RARP, arp(op=3, sha=port.mac, spa="0.0.0.0", tpa="0.0.0.0"), BROADCAST),
            "ARP answer": (ARP, arp(op=2, sha=port.mac, spa=port.ip, tpa=METADATA_IP), TAP_MAC),
        }
        for address in asked:
            question = arp(op=1, sha=port.mac, spa=port.ip, tpa=address)
            found[f"ARP for {address}"] = (ARP, question, BROADCAST)
            found[f"ARP for {address} to tap-metadata"] = (ARP, question, TAP_MAC)
        return found

    def _service(self, port: Guest) -> dict[str, bytes]:
        """What dfmeta takes when it comes untagged from a guest."""
        packet = ipv4(tcp(dst=METADATA_IP, src=port.ip), dst=METADATA_IP, src=port.ip)
        question = arp(op=1, sha=port.mac, spa=port.ip, tpa=METADATA_IP)
        return {
            "service": ethernet(packet, dst=NOBODY, src=port.mac),
            "service by tap-metadata": ethernet(packet, dst=TAP_MAC, src=port.mac),
            "service by broadcast": ethernet(packet, dst=BROADCAST, src=port.mac),
            "ARP for the service": ethernet(question, dst=BROADCAST, src=port.mac, kind=ARP),
        }


def test_other_frames_arrive_where_they_would_without_dfmeta() -> None:
    """As the same bytes, on every port of the bridge; and none of them on tap-metadata."""
    with Net() as net:
        sent = {name: net.traffic(name) for name in net.ports}
        before = net.run(sent)
        assert {place for _, _, place in before} == {*net.ports, BRIDGE}
        net.agent.start()
        put(net.agent, net.ports["guest"])
        asks_own(net.ports["guest"])
        during = net.run(sent)
        net.agent.stop()
        stopped = net.run(sent)
        net.agent.clean_up()
        after = net.run(sent)
    assert differences(before, during) == []
    assert differences(before, stopped) == []
    assert differences(before, after) == []


def differences(before: Arrivals, now: Arrivals) -> list[tuple[str, str, str]]:
    """What arrives otherwise, or not, or where it did not."""
    return sorted(what for what in before.keys() | now.keys() if before.get(what) != now.get(what))
