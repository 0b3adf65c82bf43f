"""What is not for the metadata service passes as if dfmeta were not there."""

import socket

import pytest

from tests.core.flows.frames import arp, ethernet, ipv4, ipv6, neighbour, tagged, tcp, udp
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.scheme import SIDE
from tests.host.e2e.support import PROXY_PORT, asks_own, put
from tests.host.ovs.switch import Tracer

TAP_MAC = "02:64:66:6d:65:fe"
STRANGE = SIDE.key(5)
"""An address like a key that is a port's own."""
BROADCAST, MULTICAST, NOBODY = "ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:fb", "fa:16:3e:99:99:99"
IP, ARP, RARP, MPLS, IPV6, EXPERIMENTAL = 0x0800, 0x0806, 0x8035, 0x8847, 0x86DD, 0x88B5
ICMP, UDP, SCTP = 1, 17, 132
TENANT, DEAD = 7, 4095
MTU = 9000
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
UNSERVED = {"dead", "uplink"}
"""Whose questions to the service are nothing to dfmeta: not guests', or switched off."""


@pytest.fixture
def ports(host: OpenvSwitch, make_guest: MakeGuest) -> dict[str, Guest]:
    """Ports of every kind."""
    made = {}
    for number, (name, columns) in enumerate(PORTS.items(), 5):
        ids = Ids(attached_mac=False) if name == "uplink" else None
        made[name] = make_guest(name, address=f"10.0.0.{number}/24", ids=ids)
        if columns:
            host.vsctl("set", "Port", made[name].port, *columns)
    return made


def fates(host: OpenvSwitch, known: Guest, frames: list[tuple[int, bytes]]) -> list[str]:
    """What the switch does with each frame, when it knows where one guest is."""
    host.appctl("fdb/flush", BRIDGE)
    for vlan in (0, TENANT):
        host.appctl("fdb/add", BRIDGE, known.port, str(vlan), known.mac)
    with Tracer(host, {number: number for number in range(1000)}) as tracer:
        texts = [trace.text for trace in tracer.trace(frames)]
    return [line for text in texts for line in text.splitlines() if line.startswith("Datapath")]


def traffic(ports: dict[str, Guest], sender: str) -> dict[str, bytes]:
    """All kinds of frames from one port."""
    port, other = ports[sender], ports["neighbour"]
    key = SIDE.key(ports["guest"].ofport)
    result: dict[str, bytes] = {}
    for name, (proto, payload, address) in _packets(port, key).items():
        for where, mac in (("other", other.mac), ("nobody", NOBODY), ("tap", TAP_MAC)):
            packet = ipv4(payload, dst=address, src=port.ip, proto=proto)
            result[f"{name}, to {where}"] = ethernet(packet, dst=mac, src=port.mac)
    for name, (kind, payload, mac) in _others(port, key).items():
        result[name] = ethernet(payload, dst=mac, src=port.mac, kind=kind)
    for name, frame in _service(port).items():
        if sender in UNSERVED:
            result[name] = frame
        for tci in (0xE000, 1, TENANT, 8, DEAD):
            result[f"{name}, VID {tci & 4095}"] = tagged(frame, tci)
        result[f"{name}, QinQ"] = tagged(tagged(frame, 1), DEAD, tpid=0x88A8)
        result[f"{name}, two tags"] = tagged(tagged(frame, 1), DEAD)
    return result


def _packets(port: Guest, key: str) -> dict[str, tuple[int, bytes, str]]:
    """IPv4: what it is → protocol, payload, destination."""
    addresses = ["10.0.0.250", "192.0.2.80", STRANGE, key, "255.255.255.255"]
    result: dict[str, tuple[int, bytes, str]] = {
        f"TCP {number} of the service's address": (
            6,
            tcp(dst=METADATA_IP, src=port.ip, dport=number),
            METADATA_IP,
        )
        for number in sorted({53, 79, 81, 443, 8775, 18080, PROXY_PORT} - {80})
    }
    for address in (*addresses, METADATA_IP):
        for number in (53, 67, 80):
            result[f"UDP {number} of {address}"] = (UDP, udp(b"", dport=number), address)
        result[f"ICMP to {address}"] = (ICMP, b"\x08\0\xf7\xfe\0\1\0\0", address)
        result[f"SCTP 80 of {address}"] = (SCTP, b"\x9c\x40\0\x50" + bytes(8), address)
    for address in addresses:
        for flags in (0x02, 0x12, 0x10):
            segment = tcp(dst=address, src=port.ip, flags=flags)
            result[f"TCP 80 of {address}, flags {flags}"] = (6, segment, address)
    result["TCP 80, cut off"] = (6, b"\x9c\x40\0\x50", METADATA_IP)
    return result


def _others(port: Guest, key: str) -> dict[str, tuple[int, bytes, str]]:
    """Not IPv4, or not to one: what it is → type, payload, destination."""
    group = ipv4(udp(b"", dport=5353), dst="224.0.0.251", src=port.ip, proto=UDP)
    large = ipv4(udp(bytes(MTU - 100), dport=9), dst="10.0.0.250", src=port.ip, proto=UDP)
    service = ipv4(tcp(dst=METADATA_IP, src=port.ip), dst=METADATA_IP, src=port.ip)
    six = bytes.fromhex("60000000 0014 06 40") + socket.inet_pton(socket.AF_INET6, "fe80::66")
    six += socket.inet_pton(socket.AF_INET6, "fe80::a9fe:a9fd") + tcp(dst="0.0.0.0", src="0.0.0.0")
    service6 = ipv6(udp(b"", dport=80), dst="fe80::a9fe:a9fe", src="fe80::66", proto=UDP)
    asked6 = neighbour(135, target="fe80::66", dst="ff02::1:ff00:66", src="fe80::67")
    solicitation = ipv6(asked6, dst="ff02::1:ff00:66", src="fe80::67", proto=58)
    request = ["10.0.0.250", STRANGE, key, "169.254.169.253"]
    result = {
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
    for address in request:
        question = arp(op=1, sha=port.mac, spa=port.ip, tpa=address)
        result[f"ARP for {address}"] = (ARP, question, BROADCAST)
        result[f"ARP for {address} to tap-metadata"] = (ARP, question, TAP_MAC)
    return result


def _service(port: Guest) -> dict[str, bytes]:
    """What dfmeta takes when it comes untagged from a guest."""
    packet = ipv4(tcp(dst=METADATA_IP, src=port.ip), dst=METADATA_IP, src=port.ip)
    question = arp(op=1, sha=port.mac, spa=port.ip, tpa=METADATA_IP)
    return {
        "service": ethernet(packet, dst=NOBODY, src=port.mac),
        "service by tap-metadata": ethernet(packet, dst=TAP_MAC, src=port.mac),
        "service by broadcast": ethernet(packet, dst=BROADCAST, src=port.mac),
        "ARP for the service": ethernet(question, dst=BROADCAST, src=port.mac, kind=ARP),
    }


def test_other_frames_go_where_they_would_without_dfmeta(
    host: OpenvSwitch, ports: dict[str, Guest], make_agent: MakeAgent
) -> None:
    names = [(name, kind) for name in ports for kind in traffic(ports, name)]
    frames = [(ports[n].ofport, frame) for n in ports for frame in traffic(ports, n).values()]
    before = fates(host, ports["neighbour"], frames)
    assert len(before) == len(frames)
    agent = make_agent()
    put(agent, ports["guest"])
    asks_own(ports["guest"])
    for end in (lambda: None, agent.stop, agent.clean_up):
        end()
        now = fates(host, ports["neighbour"], frames)
        changed = zip(names, before, now, strict=True)
        assert [(name, was, it) for name, was, it in changed if was != it] == [], end
