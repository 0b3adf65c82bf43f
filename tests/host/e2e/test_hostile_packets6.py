"""Over IPv6, too, a guest with raw sockets gets no other's metadata, and no way to the host."""

import struct
from collections.abc import Iterator
from functools import partial

import pytest

from tests.core.flows.frames import (
    ethernet,
    icmpv6,
    ipv6,
    link_layer,
    multicast_mac,
    neighbour,
    solicited_node,
    tcp,
    udp,
)
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.scheme import SIDE
from tests.host.e2e import shared, support
from tests.host.e2e.support import PROXY_PORT, Capture, source_of

NAME = "/latest/meta-data/hostname"
HOST_IP6 = SIDE.ip6
SERVICE, OTHER_SERVICE = "fe80::a9fe:a9fe", "fd00:ec2::254"
ALL_NODES = "ff02::1"
SOLICITATION, ADVERTISEMENT, ROUTER = 135, 136, 134
OVERRIDE = 0x20000000
KIND, UDP, ICMP6 = 0x86DD, 17, 58
REQUESTS = 150


class Net(shared.Net):
    """The net, with IPv6's names and frames."""

    def key(self, guest: Guest, version: int = 6) -> str:
        """The key of the guest's first address of that version of IP."""
        return super().key(guest, version)

    def syn(self, source: str, *, to: str = SERVICE, dport: int = 80, mac: str = "") -> bytes:
        """A SYN of the hostile guest."""
        packet = ipv6(tcp(dst=to, src=source, dport=dport), dst=to, src=source)
        return ethernet(packet, dst=self.tap_mac, src=mac or self.bad.mac, kind=KIND)


net = shared.net_of(Net)
asks_own = partial(support.asks_own, host=OPENSTACK6)


@pytest.fixture(autouse=True)
def _both_are_served(net: Net) -> Iterator[None]:
    asks_own(net.bad)
    asks_own(net.good)
    yield
    asks_own(net.good)
    asks_own(net.bad)


@pytest.fixture
def arrived(net: Net) -> Iterator[Capture]:
    """The frames that reach the host: only those that the service flows of both guests send."""
    net.note_keys()
    with Capture(net.host.namespace, SIDE.tap, arriving=True) as capture:
        yield capture
        asks_own(net.bad)  # after all that the hostile guest has sent
        net.note_keys()
        strays = [data for _, data in capture.frames() if source_of(data) not in net.keys]
        assert [data.hex(" ") for data in strays] == []


def forged_nd(net: Net) -> list[bytes]:
    """Advertisements, solicitations and router advertisements with addresses of others."""
    keys = [net.key(net.good), net.key(net.bad)]
    packets = []
    for target in (SERVICE, OTHER_SERVICE, HOST_IP6, net.good.link_local, *keys):
        for mac in (net.bad.mac, net.tap_mac):
            for source in (target, net.bad.link_local):
                lie = neighbour(
                    ADVERTISEMENT,
                    target=target,
                    dst=ALL_NODES,
                    src=source,
                    flags=OVERRIDE,
                    options=link_layer(2, mac),
                )
                packets.append(ipv6(lie, dst=ALL_NODES, src=source, proto=ICMP6))
        group = solicited_node(target)
        for source in (net.bad.link_local, net.good.link_local, *keys, "::"):
            question = neighbour(
                SOLICITATION,
                target=target,
                dst=group,
                src=source,
                options=link_layer(1, net.bad.mac),
            )
            packets.append(ipv6(question, dst=group, src=source, proto=ICMP6))
    for source in (SERVICE, net.bad.link_local):
        # A default router with a lifetime of 1800 s (RFC 4861, 4.2).
        body = struct.pack("!BBHII", 64, 0, 1800, 0, 0) + link_layer(1, net.bad.mac)
        message = icmpv6(body, dst=ALL_NODES, src=source, kind=ROUTER)
        packets.append(ipv6(message, dst=ALL_NODES, src=source, proto=ICMP6))
    return [
        ethernet(packet, dst=to, src=source, kind=KIND)
        for packet in packets
        for to in (multicast_mac(ALL_NODES), net.tap_mac, net.good.mac)
        for source in (net.bad.mac, net.tap_mac)
    ]


@pytest.mark.usefixtures("arrived")
def test_forged_neighbour_discovery(net: Net) -> None:
    frames = forged_nd(net)
    net.bad.send_frames(*frames)
    asks_own(net.good)
    net.good.forget_neighbours()
    batch = net.good.start_many(REQUESTS, path=NAME, host=OPENSTACK6)
    while batch.running:
        net.bad.send_frames(*frames)
    answers = {(sample.status, sample.body) for sample in batch.samples()}
    assert answers == {(200, b"good.example.org")}
    known = net.good.namespace.ip("neigh show", six=True)
    assert net.bad.mac in known, "the lies have reached the neighbour"


@pytest.mark.usefixtures("arrived")
def test_the_host_is_not_reached(net: Net) -> None:
    host_link_local = "fe80::64:66ff:fe6d:65fe"
    targets = (HOST_IP6, host_link_local, net.key(net.good), net.key(net.bad), ALL_NODES)
    echo = struct.pack("!HH", 1, 1)
    frames = []
    for target in targets:
        for source in (net.bad.link_local, net.key(net.good), SERVICE):
            packets = [
                ipv6(tcp(dst=target, src=source, dport=port), dst=target, src=source)
                for port in sorted({80, PROXY_PORT, 22})
            ]
            packets.append(ipv6(udp(b"anything", dport=80), dst=target, src=source, proto=UDP))
            message = icmpv6(echo, dst=target, src=source, kind=128)
            packets.append(ipv6(message, dst=target, src=source, proto=ICMP6))
            frames += [
                ethernet(packet, dst=net.tap_mac, src=net.bad.mac, kind=KIND) for packet in packets
            ]
    for port in {PROXY_PORT, 22, 443} - {80}:
        frames.append(net.syn(net.bad.link_local, dport=port))
    net.bad.send_frames(*frames)
