"""A guest that passes for Meta IPs, Meta MACs or the gateway has its own metadata, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from dfmeta.flows.meta_key import GATEWAY, PROBE
from tests.core.flows.frames import (
    arp,
    ethernet,
    ipv4,
    ipv6,
    link_layer,
    neighbour,
    solicited_node,
    tagged,
    tcp,
)
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest
from tests.harness.scheme import SIDES
from tests.host.e2e import shared
from tests.host.e2e.support import PROXY_PORT, Capture, asks_own, uuid_in
from tests.host.e2e.test_hostile_packets import ARP, BROADCAST, NAME, TAGS, Net, Watched, ask_as

META = SIDES["meta_ip"]
VLAN = 1
"""``[METADATA] provider_vlan_id`` as it is unless it is set."""
IPV6, ICMP6 = 0x86DD, 58
SOLICITATION, ADVERTISEMENT = 135, 136
SERVICE6 = "fe80::a9fe:a9fe"
REQUESTS = 100
SYNS = 500
"""A second."""

net = shared.net_of(Net, META)


@pytest.fixture(autouse=True)
def _nobody_is_hurt(net: Net) -> Iterator[None]:
    """Both are served, over both versions of IP, before and after."""
    for one in (net.bad, net.good):
        for host in (METADATA_IP, OPENSTACK6):
            asks_own(one, host=host)
    yield
    for one in (net.good, net.bad):
        for host in (METADATA_IP, OPENSTACK6):
            asks_own(one, host=host)


def label(net: Net, guest: Guest) -> str:
    """The Meta MAC of the guest's first address."""
    (row,) = [row for row in net.agent.admin("/ports").json() if row["port"] == guest.port]
    return str(row["meta_mac"])


def macs(net: Net) -> Mapping[str, str]:
    """MACs that stand for others on the second bridge."""
    return {
        "another's Meta MAC": label(net, net.good),
        "its own Meta MAC": label(net, net.bad),
        "the gateway's MAC": str(META.keys.label(GATEWAY)),
        "the probe's MAC": str(META.keys.label(PROBE)),
        "a free Meta MAC": str(META.keys.label(999)),
    }


def ips(net: Net) -> Mapping[str, str]:
    """IPv4 addresses that stand for others on the second bridge."""
    return {
        "another's Meta IP": net.key(net.good),
        "its own Meta IP": net.key(net.bad),
        "the gateway's": META.ip,
        "the probe's": META.keys.probe_key(4),
        "the next hop's": META.keys.next_hop(4),
    }


def test_whatever_it_calls_itself_it_gets_its_own(net: Net) -> None:
    asked = {
        **{name: (mac, net.bad.ip) for name, mac in macs(net).items()},
        **{name: (net.bad.mac, ip) for name, ip in ips(net).items()},
        "another's Meta IP and Meta MAC": (label(net, net.good), net.key(net.good)),
    }
    got = {}
    with Watched(net):
        for name, (mac, ip) in asked.items():
            body = ask_as(net, mac=mac, ip=ip)
            got[name] = uuid_in(body) if body else "nothing"
            asks_own(net.good)
    assert got == dict.fromkeys(asked, net.bad.instance_id)


def test_frames_to_meta_ips_and_meta_macs_arrive_nowhere(net: Net) -> None:
    """Neither as answers of the host, nor with the tag that answers have."""
    tags = {"untagged": lambda frame: frame, **TAGS, "own": lambda frame: tagged(frame, VLAN)}
    frames = []
    for mac in (*macs(net).values(), net.tap_mac, BROADCAST):
        for source in (net.bad.ip, *ips(net).values()):
            for address in ips(net).values():
                for sport, dport in ((40000, 80), (PROXY_PORT, 40000), (80, PROXY_PORT)):
                    segment = tcp(dst=address, src=source, sport=sport, dport=dport, flags=0x12)
                    packet = ipv4(segment, dst=address, src=source)
                    frames.append(ethernet(packet, dst=mac, src=net.bad.mac))
    with Watched(net), Capture(net.good.namespace, net.good.device, arriving=True) as heard:
        for tag in tags.values():
            net.bad.send_frames(*(tag(frame) for frame in frames))
        asks_own(net.good)
        service = net.tap_mac.replace(":", "")
        answers = [data for _, data in heard.frames() if data[6:12].hex() == service]
        # All that the service has sent is for the guest's own connection.
        own = net.good.mac.replace(":", "")
        assert {data[:6].hex() for data in answers} == {own}


def test_forged_arp_for_meta_ips_and_the_gateway(net: Net) -> None:
    claims = [(mac, ip) for mac in macs(net).values() for ip in ips(net).values()]
    claims += [(net.bad.mac, ip) for ip in ips(net).values()]
    packets = [arp(op=op, sha=mac, spa=ip, tpa=ip) for mac, ip in claims for op in (1, 2)]
    packets += [arp(op=1, sha=net.bad.mac, spa=net.bad.ip, tpa=ip) for ip in ips(net).values()]
    frames = [
        ethernet(packet, dst=to, src=source, kind=ARP)
        for packet in packets
        for to in (BROADCAST, net.tap_mac, str(META.keys.label(GATEWAY)))
        for source in (net.bad.mac, str(META.keys.label(GATEWAY)))
    ]
    with Watched(net), Capture(net.bad.namespace, net.bad.device, arriving=True) as answers:
        batch = net.good.start_many(REQUESTS, path=NAME)
        net.bad.send_frames(*frames)
        while batch.running:
            net.bad.send_frames(*frames)
        assert {(one.status, one.body) for one in batch.samples()} == {(200, b"good.example.org")}
        asks_own(net.bad)
        said = {data[28:32] for _, data in answers.frames() if data[12:14] == b"\x08\x06"}
        assert said <= {bytes([169, 254, 169, 254]), bytes([10, 0, 0, 5])}


def test_forged_neighbour_discovery_and_ipv6_keys(net: Net) -> None:
    keys = [net.key(net.good, 6), net.key(net.bad, 6), META.ip6, META.keys.probe_key(6)]
    packets = []
    for target in keys:
        group = solicited_node(target)
        for source in (net.bad.link_local, *keys):
            question = neighbour(
                SOLICITATION,
                target=target,
                dst=group,
                src=source,
                options=link_layer(1, label(net, net.good)),
            )
            packets.append(ipv6(question, dst=group, src=source, proto=ICMP6))
            lie = neighbour(
                ADVERTISEMENT,
                target=target,
                dst=source,
                src=target,
                options=link_layer(2, label(net, net.good)),
            )
            packets.append(ipv6(lie, dst=source, src=target, proto=ICMP6))
            for to in (SERVICE6, *keys):
                segment = tcp(dst=to, src=target, flags=0x10)
                packets.append(ipv6(segment, dst=to, src=target))
    frames = [
        ethernet(packet, dst=to, src=source, kind=IPV6)
        for packet in packets
        for to in (net.tap_mac, label(net, net.good), "33:33:00:00:00:01")
        for source in (net.bad.mac, label(net, net.good), str(META.keys.label(GATEWAY)))
    ]
    with Watched(net):
        batch = net.good.start_many(REQUESTS, path=NAME, host=OPENSTACK6)
        net.bad.send_frames(*frames)
        while batch.running:
            net.bad.send_frames(*frames)
        assert {(one.status, one.body) for one in batch.samples()} == {(200, b"good.example.org")}


def test_a_flood_of_forged_syns_takes_no_meta_ip_from_others(net: Net) -> None:
    before = net.key(net.good), net.key(net.good, 6)
    with net.bad.flood("forged", rate=SYNS, seconds=60) as flood:
        batches = [
            net.good.start_many(REQUESTS, path=NAME, host=host)
            for host in (METADATA_IP, OPENSTACK6)
        ]
        answers = {(one.status, one.body) for batch in batches for one in batch.samples()}
        assert answers == {(200, b"good.example.org")}
        assert flood.end() >= SYNS
    assert (net.key(net.good), net.key(net.good, 6)) == before
