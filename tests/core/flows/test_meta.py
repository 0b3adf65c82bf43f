"""Guests behind br-meta: whatever they call themselves, none gets what is another's."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows import integration_bridge
from dfmeta.flows.integration_bridge import ServedEndpoint, towards_proxy
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.core.flows.bridges import (
    FOREIGN,
    IP,
    IP6,
    KEYS,
    KNOWN,
    LABELS,
    MAC,
    SIZE,
    A,
    B,
    Bridges,
    Left,
    is_answer,
    own_keys,
    requests,
    source_on_tap,
)
from tests.core.flows.frames import (
    Frame,
    arp,
    ethernet,
    icmpv6,
    ipv4,
    ipv6,
    link_layer,
    mac,
    multicast_mac,
    neighbour,
    sums_are_right,
    tagged,
    tcp,
    udp,
)
from tests.core.flows.world import BROADCAST, GATEWAY_MAC, Host, Host6
from tests.harness.examples import examples
from tests.harness.meta import CIDR, PATCH_INT, PATCH_META, PORT, SERVICE6, TAP_META, VLAN

GONE = [("br-int", ofp.OFPP_NORMAL)]
"""What becomes of a frame that is none of dfmeta's."""


@pytest.fixture(scope="module")
def bridges() -> Bridges:
    """Both bridges with the flows of the twins; no test changes them."""
    return Bridges([A, B])


def places(lefts: list[Left]) -> list[tuple[str, int]]:
    """Where frames have left."""
    return [(left.bridge, left.port) for left in lefts]


# Known guests


def test_twins_of_a_network_are_different_clients_with_own_answers(bridges: Bridges) -> None:
    assert len({*own_keys(A), *own_keys(B)}) == 6
    for guest in (A, B):
        for (host, service, _syn), key in zip(
            requests(guest.endpoint.ofport), own_keys(guest), strict=True
        ):
            bridges.assert_served(host, service, key)


def test_a_first_syn_goes_to_the_controller_and_then_the_way_that_later_ones_go() -> None:
    bridges = Bridges([replace(A, addresses={})])
    for host, _service, syn in requests(1):
        assert places(bridges.receive(1, syn)) == [("br-int", ofp.OFPP_CONTROLLER)]
        assert bridges.receive(1, host.segment(flags=0x04)) == [], "a reset"
    bridges.install("br-int", integration_bridge.guest_flows(A, bridges.patch))
    bridges.install("br-meta", bridges.way(A))
    slots = dict(zip(requests(1), A.addresses, strict=True))
    for (_host, _service, syn), slot in slots.items():
        actions = towards_proxy(A.endpoint, slot, tap=bridges.patch)
        assert bridges.release(1, actions, syn) == bridges.receive(1, syn) != []


@pytest.mark.parametrize("bridge", ["br-int", "br-meta"])
def test_without_the_flows_of_a_bridge_the_guest_is_not_served_and_its_twin_is(bridge: str) -> None:
    bridges = Bridges([A, B])
    arrived = [left for *_, syn in requests(1) for left in bridges.receive(1, syn)]
    if bridge == "br-int":
        bridges.remove("br-int", integration_bridge.guest_flows(A, bridges.patch))
    else:
        bridges.remove("br-meta", bridges.way(A))
    for left in arrived:
        assert bridges.answered(left) == []
    for _host, _service, syn in requests(1):
        assert places(bridges.receive(1, syn)) == (GONE if bridge == "br-int" else [])
    for (host, service, _syn), key in zip(requests(2), own_keys(B), strict=True):
        bridges.assert_served(host, service, key)


def test_a_number_that_another_port_gets_serves_that_port_alone() -> None:
    bridges = Bridges([A, B])
    bridges.remove("br-int", integration_bridge.guest_flows(A, bridges.patch))
    heir = replace(A, endpoint=Endpoint(3))
    bridges.install("br-int", integration_bridge.guest_flows(heir, bridges.patch))
    bridges.install("br-meta", bridges.way(heir))
    for key in own_keys(A):
        assert places(bridges.from_host(bridges.host_frame(key))) == [("br-int", 3)]


def test_without_ipv6_a_guest_is_served_over_ipv4_alone() -> None:
    bridges = Bridges([replace(A, addresses={7: KNOWN})], ip6=())
    (host, service, _syn), *over_ipv6 = requests(1)
    bridges.assert_served(host, service, own_keys(A)[0])
    for *_, syn in over_ipv6:
        assert places(bridges.receive(1, syn)) == GONE


def test_numbers_at_both_ends_of_the_range_lead_each_guest_to_its_own_answers() -> None:
    numbers = {1: 2, 2: SIZE - 2}
    guests = [ServedEndpoint(Endpoint(port), {number: KNOWN}) for port, number in numbers.items()]
    bridges = Bridges(guests)
    for ofport, number in numbers.items():
        bridges.assert_served(Host(ofport, IP, MAC), METADATA_IP, str(CIDR[number]))


# The host


def asked(bridges: Bridges, target: str, *, op: int = 1) -> bytes:
    """The host's neighbour request on tap-meta."""
    source = bridges.tap.mac
    if ":" in target:
        return Host6(TAP_META, bridges.keys.gateway(6), source).solicit(target)
    return Host(TAP_META, bridges.keys.gateway(4), source).question(target, op=op)


def test_host_learns_the_meta_mac_of_a_meta_ip_unheard_by_guests(bridges: Bridges) -> None:
    for guest in (A, B):
        for number in guest.addresses:
            key = str(KEYS.key_of(guest.endpoint, number))
            (reply,) = bridges.from_host(asked(bridges, key))
            assert (reply.bridge, reply.port) == ("br-meta", TAP_META)
            seen = Frame(0, reply.frame)
            found = seen["ipv6_nd_tll" if ":" in key else "arp_sha"]
            assert mac(found) == mac(seen["eth_src"]) == KEYS.label(number)
            assert mac(seen["eth_dst"]) == bridges.tap.mac


def test_requests_for_other_addresses_are_dropped(bridges: Bridges) -> None:
    others = [str(CIDR[9]), str(CIDR[1]), IP, METADATA_IP]
    others += ["fd00:a9fe:a9fe:a9fe::9", IP6, SERVICE6[0], "fe80::1"]
    for target in others:
        assert bridges.from_host(asked(bridges, target)) == [], target
    assert bridges.from_host(asked(bridges, str(CIDR[7]), op=2)) == []


def host_noise(bridges: Bridges) -> Iterator[bytes]:
    """What a kernel sends by itself on a device that is up, and what a program might."""
    source, gateway, gateway6 = bridges.tap.mac, bridges.keys.gateway(4), bridges.keys.gateway(6)
    yield ethernet(b"\0" * 46, dst=BROADCAST, src=source, kind=0x88CC)
    for dst in (str(CIDR[-1]), "255.255.255.255", "224.0.0.22", str(CIDR[7]), IP):
        packet = ipv4(udp(b"data", dport=5353), dst=dst, src=gateway, proto=17)
        yield ethernet(packet, dst=BROADCAST, src=source)
        yield ethernet(ipv4(b"\x08\0\xf7\xff\0\0\0\0", dst=dst, src=gateway, proto=1),
                       dst=BROADCAST, src=source)  # fmt: skip
    message = icmpv6(bytes(4), dst="ff02::2", src=gateway6, kind=133)
    yield ethernet(
        ipv6(message, dst="ff02::2", src=gateway6, proto=58),
        dst=multicast_mac("ff02::2"),
        src=source,
        kind=0x86DD,
    )
    for key in (str(CIDR[7]), "fd00:a9fe:a9fe:a9fe::7"):
        good = bridges.host_frame(key)
        for vlan in (VLAN, 0, 1):
            yield tagged(good, vlan)
        yield bridges.host_frame(key, sport=80)
        yield bridges.host_frame(key, src="198.51.100.1" if ":" not in key else "2001:db8::1")
    for key in (str(CIDR[9]), str(CIDR[1]), str(CIDR[-1]), IP, IP6, SERVICE6[0]):
        yield bridges.host_frame(key)


def test_frames_of_the_host_besides_answers_are_dropped(bridges: Bridges) -> None:
    for frame in host_noise(bridges):
        assert bridges.from_host(frame) == [], frame.hex()


def test_an_answer_does_not_go_by_the_hosts_neighbour_table(bridges: Bridges) -> None:
    good = bridges.host_frame(str(CIDR[7]))
    for wrong in (KEYS.label(17), MAC, BROADCAST):
        (left,) = bridges.from_host(bytes.fromhex(wrong.replace(":", "")) + good[6:])
        assert is_answer(left, Host(1, IP, MAC), METADATA_IP)


# The daemon's own SYN


@pytest.mark.parametrize("version", [4, 6])
def test_daemons_syn_reaches_the_listener_and_comes_back(bridges: Bridges, version: int) -> None:
    syn = (Host if version == 4 else Host6)(PATCH_INT, mac=KEYS.probe_label(version)).segment()
    (arrived,) = bridges.receive(PATCH_META, syn, bridge="br-meta")
    assert source_on_tap(arrived) == KEYS.probe_key(version)
    (back,) = bridges.answered(arrived)
    assert (back.bridge, back.port) == ("br-int", ofp.OFPP_CONTROLLER)
    assert sums_are_right(back.frame)


# Forged frames

MACS = [MAC, GATEWAY_MAC, TAP_MAC, KEYS.label(1), *LABELS, KEYS.label(0), KEYS.label(9)]
IPS = [IP, "10.0.0.6", METADATA_IP, *(str(CIDR[n]) for n in (0, 1, 7, 9, 17, -1))]
IPS6 = [IP6, *SERVICE6, KEYS.gateway(6), KEYS.probe_key(6), "fe80::5"]
IPS6 += [key for key in (*own_keys(A), *own_keys(B)) if ":" in key]
macs = st.sampled_from([MAC, MAC, *MACS])
ips, ips6 = st.sampled_from([IP, IP, *IPS]), st.sampled_from([IP6, IP6, *IPS6])
tag_lists: st.SearchStrategy[list[int]] = st.just([]) | st.lists(
    st.sampled_from([VLAN, 1, 0, 0x2001]), max_size=2
)
few = settings(deadline=None, max_examples=examples(30), suppress_health_check=list(HealthCheck))


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """A frame that a guest might send to pass for its twin, the gateway or the host."""
    tags, ends = draw(tag_lists), {"dst": draw(macs), "src": draw(macs)}
    kind = draw(st.sampled_from(["tcp", "tcp", "tcp6", "tcp6", "arp", "nd", "udp"]))
    ports = {"dport": draw(st.sampled_from([80, PORT])), "sport": draw(st.sampled_from([PORT, 80]))}
    if kind == "arp":
        packet = arp(
            op=draw(st.sampled_from([1, 2])),
            sha=draw(macs),
            spa=draw(st.sampled_from(IPS)),
            tpa=draw(st.sampled_from(IPS)),
        )
        return ethernet(packet, kind=0x0806, tags=tags, **ends)
    if kind in ("tcp", "udp"):
        src, dst = draw(ips), draw(st.sampled_from([METADATA_IP, METADATA_IP, *IPS]))
        flags = draw(st.sampled_from([0x02, 0x10, 0x12, 0x18]))
        segment = (
            tcp(dst=dst, src=src, flags=flags, **ports) if kind == "tcp" else udp(b"", **ports)
        )
        packet = ipv4(segment, dst=dst, src=src, proto=6 if kind == "tcp" else 17)
        return ethernet(packet, tags=tags, **ends)
    src, dst = draw(ips6), draw(st.sampled_from([*SERVICE6, *IPS6]))
    if kind == "tcp6":
        packet = ipv6(tcp(dst=dst, src=src, **ports), dst=dst, src=src)
    else:
        message = neighbour(
            draw(st.sampled_from([135, 136])),
            target=draw(st.sampled_from(IPS6)),
            dst=dst,
            src=src,
            options=link_layer(draw(st.sampled_from([1, 2])), draw(macs)),
        )
        packet = ipv6(message, dst=dst, src=src, proto=58)
    return ethernet(packet, kind=0x86DD, tags=tags, **ends)


HONEST = [
    *(syn for *_, syn in requests(1)),
    Host(1, IP, MAC).question(),
    Host6(1, IP6, MAC).solicit(),
    Host(1, "10.0.0.6", MAC).segment(),
    Host(1, IP, MAC).segment(dport=443),
]
"""Frames of a guest, one at least for each fate that they can have."""
forgeries = st.lists(st.sampled_from(HONEST) | forged(), min_size=10, max_size=30)


def test_made_up_frames_reach_the_proxy_as_the_guests_own_or_never(bridges: Bridges) -> None:
    fates = Counter[str]()

    @few
    @given(sent=forgeries, guest=st.sampled_from([A, B]))
    def hold(sent: list[bytes], guest: ServedEndpoint) -> None:
        fate = {
            guest.endpoint.ofport: "back",
            ofp.OFPP_CONTROLLER: "controller",
            ofp.OFPP_NORMAL: "untouched",
        }
        for frame in sent:
            for left in bridges.receive(guest.endpoint.ofport, frame):
                if (left.bridge, left.port) == ("br-meta", TAP_META):
                    assert source_on_tap(left) in own_keys(guest)
                    fates["proxy"] += 1
                else:
                    assert left.bridge == "br-int"
                    fates[fate[left.port]] += 1

    hold()
    assert fates.keys() == {"proxy", "back", "controller", "untouched"}


def test_frames_that_br_int_itself_floods_to_the_patch_are_dropped(bridges: Bridges) -> None:
    """The patch port's VLAN keeps them out; without it, br-meta drops them."""

    @few
    @given(sent=forgeries)
    def hold(sent: list[bytes]) -> None:
        for frame in sent:
            for out in bridges.receive(1, frame):
                if out.port == ofp.OFPP_NORMAL:
                    assert bridges.receive(PATCH_META, out.frame, bridge="br-meta") == []

    hold()


def test_a_guest_that_calls_itself_a_meta_mac_or_meta_ip_has_its_own() -> None:
    claims = [(mac, IP) for mac in {*LABELS, KEYS.label(1), KEYS.label(0), TAP_MAC}]
    claims += [(MAC, ip) for ip in (str(CIDR[17]), str(CIDR[1]), str(CIDR[0]), METADATA_IP)]
    for claimed_mac, claimed_ip in claims:
        host = Host(1, claimed_ip, claimed_mac)
        known = GuestAddress(claimed_mac, IPv4Address(claimed_ip))
        bridges = Bridges([replace(A, addresses={7: known}), B])
        bridges.assert_served(host, METADATA_IP, str(CIDR[7]))
        bridges = Bridges([replace(A, addresses={}), B])
        lefts = bridges.receive(1, host.segment())
        assert places(lefts) == [("br-int", ofp.OFPP_CONTROLLER)], (claimed_mac, claimed_ip)


def test_tagged_frames_are_not_served(bridges: Bridges) -> None:
    for tags in ([VLAN], [0], [1], [VLAN, 1]):
        for sender in (Host(1, IP, MAC), Host6(1, IP6, MAC)):
            assert places(bridges.receive(1, sender.segment(tags=tags))) == GONE, tags
        for label in LABELS:
            frame = Host(1, IP, label).segment(tags=tags)
            assert bridges.receive(PATCH_META, frame, bridge="br-meta") == []


# Others on br-meta


def test_frames_of_a_port_of_others_go_br_metas_own_way(bridges: Bridges) -> None:
    @few
    @given(sent=forgeries)
    def hold(sent: list[bytes]) -> None:
        for frame in sent:
            (left,) = bridges.receive(FOREIGN, frame, bridge="br-meta")
            assert left == Left("br-meta", ofp.OFPP_NORMAL, frame)

    hold()


# Made up worlds

hosts = st.tuples(
    st.sampled_from((1, 2)),
    st.one_of(
        st.builds(GuestAddress, macs, st.sampled_from(IPS).map(IPv4Address)),
        st.builds(
            GuestAddress,
            macs,
            st.sampled_from(IPS6).map(IPv6Address),
            st.sampled_from(SERVICE6).map(IPv6Address),
        ),
    ),
)


@settings(few, max_examples=examples(10))
@given(
    known=st.lists(hosts, min_size=1, max_size=10, unique=True), order=st.permutations(range(2, 12))
)
def test_an_answer_never_leaves_on_another_port_than_its_request_came_in_on(
    known: list[tuple[int, GuestAddress]], order: list[int]
) -> None:
    addresses: dict[int, dict[int, GuestAddress]] = {1: {}, 2: {}}
    for number, (ofport, address) in zip(order, known, strict=False):
        addresses[ofport][number + (SIZE if address.ip.version == 6 else 0)] = address
    bridges = Bridges(ServedEndpoint(Endpoint(port), mine) for port, mine in addresses.items())
    for ofport, mine in addresses.items():
        for number, address in mine.items():
            host = (Host6 if address.service else Host)(ofport, str(address.ip), address.mac)
            service = str(address.service or METADATA_IP)
            key = str(bridges.keys.key_of(Endpoint(ofport), number))
            bridges.assert_served(host, service, key)
