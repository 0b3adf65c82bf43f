"""A guest behind br-meta should gain nothing by passing for another guest, or for the host."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.desired import Guest
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.core.flows.bridges import (
    FOREIGN,
    IP,
    IP6,
    KEYS,
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
    ipv4,
    ipv6,
    link_layer,
    mac,
    neighbour,
    tcp,
    udp,
)
from tests.core.flows.world import GATEWAY_MAC, Host, Host6
from tests.harness.examples import examples
from tests.harness.meta import (
    CIDR,
    PATCH_META,
    PORT,
    SERVICE6,
    TAP_META,
    VLAN,
)


@pytest.fixture(scope="module")
def bridges() -> Bridges:
    """Both bridges with the flows of the twins; no test changes them."""
    return Bridges([A, B])


MACS = [MAC, GATEWAY_MAC, TAP_MAC, KEYS.label(1), *LABELS, KEYS.label(0), KEYS.label(9)]
IPS = [IP, "10.0.0.6", METADATA_IP, *(str(CIDR[n]) for n in (0, 1, 7, 9, 17, -1))]
IPS6 = [IP6, *SERVICE6, KEYS.gateway(6), KEYS.probe_key(6), "fe80::5"]
IPS6 += [one for one in sorted(own_keys(A) | own_keys(B)) if ":" in one]
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


def test_whatever_a_guest_makes_up_reaches_the_proxy_as_its_own_or_not_at_all(
    bridges: Bridges,
) -> None:
    fates = Counter[str]()

    @few
    @given(sent=forgeries, guest=st.sampled_from([A, B]))
    def hold(sent: list[bytes], guest: Guest) -> None:
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


def test_frames_that_br_int_itself_floods_to_the_patch_reach_nobody(bridges: Bridges) -> None:
    """The patch port's VLAN keeps them out; without it, br-meta drops them."""

    @few
    @given(sent=forgeries)
    def hold(sent: list[bytes]) -> None:
        for frame in sent:
            for out in bridges.receive(1, frame):
                if out.port == ofp.OFPP_NORMAL:
                    assert bridges.receive(PATCH_META, out.frame, bridge="br-meta") == []

    hold()


@pytest.mark.parametrize("own", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("claimed", sorted({*LABELS, KEYS.label(1), KEYS.label(0), TAP_MAC}))
def test_a_guest_that_calls_itself_a_meta_mac_has_its_own(claimed: str, own: bool) -> None:
    known = GuestAddress(claimed, IPv4Address(IP))
    bridges = Bridges([replace(A, addresses={7: known} if own else {}), B])
    (left,) = bridges.receive(1, Host(1, IP, claimed).segment())
    if own:
        assert source_on_tap(left) == str(CIDR[7])
        (back,) = bridges.receive(TAP_META, bridges.answer(left.frame), bridge="br-meta")
        assert is_answer(back, Host(1, IP, claimed), METADATA_IP)
    else:
        assert (left.bridge, left.port) == ("br-int", ofp.OFPP_CONTROLLER)


@pytest.mark.parametrize("claimed", [str(CIDR[17]), str(CIDR[1]), str(CIDR[0]), METADATA_IP])
def test_a_guest_that_calls_itself_a_meta_ip_has_its_own(claimed: str) -> None:
    known = GuestAddress(MAC, IPv4Address(claimed))
    bridges = Bridges([replace(A, addresses={7: known}), B])
    (left,) = bridges.receive(1, Host(1, claimed, MAC).segment())
    assert source_on_tap(left) == str(CIDR[7])
    (back,) = bridges.receive(TAP_META, bridges.answer(left.frame), bridge="br-meta")
    assert is_answer(back, Host(1, claimed, MAC), METADATA_IP)


@pytest.mark.parametrize("tags", [[VLAN], [0], [1], [VLAN, 1]], ids=str)
def test_tagged_frames_are_not_served(bridges: Bridges, tags: list[int]) -> None:
    for sender in (Host(1, IP, MAC), Host6(1, IP6, MAC)):
        (left,) = bridges.receive(1, sender.segment(tags=tags))
        assert (left.bridge, left.port) == ("br-int", ofp.OFPP_NORMAL)
    for label in LABELS:
        frame = Host(1, IP, label).segment(tags=tags)
        assert bridges.receive(PATCH_META, frame, bridge="br-meta") == []


def test_a_guests_request_for_the_service_s_mac_is_answered_on_br_int(bridges: Bridges) -> None:
    (reply,) = bridges.receive(1, Host(1, IP, MAC).question())
    assert (reply.bridge, reply.port) == ("br-int", 1)
    assert mac(Frame(0, reply.frame)["arp_sha"]) == TAP_MAC
    for service in SERVICE6:
        (reply,) = bridges.receive(1, Host6(1, IP6, MAC).solicit(service))
        assert (reply.bridge, reply.port) == ("br-int", 1)
        assert mac(Frame(0, reply.frame)["ipv6_nd_tll"]) == TAP_MAC


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
    known=st.lists(hosts, min_size=1, max_size=10, unique=True),
    order=st.permutations(range(2, 12)),
)
def test_an_answer_never_leaves_on_another_port_than_its_request_came_in_on(
    known: list[tuple[int, GuestAddress]], order: list[int]
) -> None:
    addresses: dict[int, dict[int, GuestAddress]] = {1: {}, 2: {}}
    for number, (ofport, one) in zip(order, known, strict=False):
        addresses[ofport][number + (SIZE if one.ip.version == 6 else 0)] = one
    bridges = Bridges(Guest(Endpoint(port), None, mine) for port, mine in addresses.items())
    for ofport, mine in addresses.items():
        for number, one in mine.items():
            host = (Host6 if one.service else Host)(ofport, str(one.ip), one.mac)
            service = str(one.service or METADATA_IP)
            (left,) = bridges.receive(ofport, host.segment(dst=service))
            key = ip_address(source_on_tap(left))
            assert bridges.keys.parse(key) == (Endpoint(ofport), number)
            (back,) = bridges.receive(TAP_META, bridges.answer(left.frame), bridge="br-meta")
            assert is_answer(back, host, service)
