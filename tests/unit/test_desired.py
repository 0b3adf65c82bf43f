"""What ought to be on the switch should lead each guest there and back, and nobody elsewhere."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows.desired import Guest, address_flows, fixed_flows, guest_flows
from dfmeta.flows.flow import ETH_IPV6, Flow, Move, Output, SetField, ToController
from dfmeta.flows.key import IN_PORT, SLOT6, SLOTS, SLOTS6, VID_MAX
from dfmeta.flows.pipeline import (
    CONTROLLER_ID,
    PORT_IN_PORT,
    PURPOSES,
    Layout,
    Priority,
    Purpose,
    Stage,
)
from dfmeta.flows.service import Tap, towards_proxy
from dfmeta.model import OFPORT_MAX, Endpoint, GuestAddress
from tests.harness.examples import examples
from tests.unit.support import SERVICE6, TAP, TAP6, address, address6

ELSEWHERE = Tap(ofport=9, mac=TAP.mac, port=8080, ip="192.0.2.1", guest_ip="169.254.169.254")
ADDRESSES = st.builds(
    GuestAddress,
    st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":")),
    st.integers(0, 0xFFFFFFFF).map(IPv4Address),
)
ADDRESSES6 = st.builds(
    GuestAddress,
    st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":")),
    st.integers(0, (1 << 128) - 1).map(IPv6Address),
    st.sampled_from(SERVICE6).map(IPv6Address),
)
GUESTS = st.builds(
    Guest,
    st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.just(0) | st.integers(1, VID_MAX)),
    st.one_of(st.none(), st.integers(1, 0xFFFF)),
    st.builds(
        lambda ipv4, ipv6: ipv4 | ipv6,
        st.dictionaries(st.sampled_from(SLOTS), ADDRESSES, max_size=3),
        st.dictionaries(st.sampled_from(SLOTS6), ADDRESSES6, max_size=3),
    ).filter(lambda slots: len(set(slots.values())) == len(slots)),
)
# Hypothesis' own tries; each builds some dozens of flows.
FEW = settings(deadline=None, max_examples=examples(16))


def by_purpose(flows: tuple[Flow, ...], purpose: Purpose) -> list[Flow]:
    return [one for one in flows if one.purpose is purpose]


def outputs(flow: Flow) -> list[int]:
    return [action.port for action in flow.actions if isinstance(action, Output)]


def sets(flow: Flow) -> dict[str, int | str]:
    return {a.field: a.value for a in flow.actions if isinstance(a, SetField)}


@FEW
@given(GUESTS)
def test_an_addresss_way_back_is_added_before_its_way_in(guest: Guest) -> None:
    order = [one.purpose for one in guest_flows(guest, TAP6)]
    for position, purpose in enumerate(order):
        if purpose is Purpose.ADDRESS:
            request, back = order[position - 2 : position]
            assert request in (Purpose.KEY_ARP, Purpose.KEY_ND)
            assert back is Purpose.REPLY
    to_service = [Purpose.GUEST_FRAGMENT, Purpose.GUEST_HTTP, Purpose.GUEST_SYN]
    assert order[-15:] == [
        *(Purpose.SYN, Purpose.GUEST_ARP, *to_service),
        *(Purpose.SYN, Purpose.GUEST_ND_BARE),
        *(Purpose.GUEST_ND, *to_service),
        *(Purpose.GUEST_ND, *to_service),
    ]


@FEW
@given(GUESTS)
def test_without_ipv6_there_is_no_flow_of_it(guest: Guest) -> None:
    plain = replace(guest, addresses={s: a for s, a in guest.addresses.items() if s in SLOTS})
    for flow in (*fixed_flows(TAP), *guest_flows(plain, TAP)):
        assert flow.field("eth_type") != ETH_IPV6
        assert PURPOSES[flow.purpose].stage is not Stage.ND
    flows = {one.match_key for one in (*fixed_flows(TAP), *guest_flows(plain, TAP))}
    assert flows < {one.match_key for one in (*fixed_flows(TAP6), *guest_flows(plain, TAP6))}


@FEW
@given(GUESTS)
def test_a_guests_flows_have_places_of_their_own(guest: Guest) -> None:
    flows = [*guest_flows(guest, TAP6), *fixed_flows(TAP6)]
    assert len({one.match_key for one in flows}) == len(flows)


@FEW
@given(GUESTS, GUESTS)
def test_two_guests_share_no_place(one: Guest, other: Guest) -> None:
    if one.endpoint == other.endpoint:
        return
    places = {flow.match_key for flow in guest_flows(one, TAP6)}
    assert not places & {flow.match_key for flow in guest_flows(other, TAP6)}


@FEW
@given(GUESTS)
def test_an_answer_leaves_on_its_own_guests_port_alone(guest: Guest) -> None:
    for flow in by_purpose(guest_flows(guest, TAP6), Purpose.REPLY):
        assert outputs(flow) == [guest.endpoint.ofport]


@FEW
@given(GUESTS)
def test_every_way_in_matches_the_guests_own_port(guest: Guest) -> None:
    of_keys = (Purpose.REPLY, Purpose.KEY_ARP, Purpose.KEY_ND)
    for flow in guest_flows(guest, TAP6):
        if flow.purpose not in of_keys:
            assert flow.field("in_port") == guest.endpoint.ofport


def test_a_guests_answer_gets_its_own_addresses_and_port_80() -> None:
    endpoint = Endpoint(13)
    _arp, back, way_in = address_flows(endpoint, address(), slot=0, tap=TAP)
    assert back.field("ipv4_dst") == "128.0.0.13"
    assert back.field("tcp_src") == TAP.port
    assert sets(back) == {"eth_dst": address().mac, "ipv4_dst": "10.0.0.5", "tcp_src": 80}
    assert sets(way_in) == {"eth_dst": TAP.mac, "ipv4_src": "128.0.0.13", "tcp_dst": TAP.port}
    assert outputs(way_in) == [TAP.ofport]


def test_an_ipv6_answer_comes_from_the_address_that_was_asked() -> None:
    endpoint, slot, key = Endpoint(13), SLOT6 + 2, "fd00:a9fe:a9fe:a9fe:2::d"
    for service in SERVICE6:
        known = address6(service=service)
        nd, back, way_in = address_flows(endpoint, known, slot=slot, tap=TAP6)
        assert (way_in.field("ipv6_src"), way_in.field("ipv6_dst")) == (str(known.ip), service)
        assert sets(way_in) == {
            "eth_dst": TAP6.mac,
            "ipv6_src": key,
            "ipv6_dst": TAP6.ip6,
            "tcp_dst": TAP6.port,
        }
        assert (back.field("ipv6_src"), back.field("ipv6_dst")) == (TAP6.ip6, key)
        assert sets(back) == {
            "eth_dst": known.mac,
            "ipv6_dst": str(known.ip),
            "ipv6_src": service,
            "tcp_src": 80,
        }
        assert nd.field("ipv6_nd_target") == key
        assert sets(nd)["ipv6_nd_tll"] == known.mac


def test_an_ipv6_listener_at_the_services_own_address_needs_no_rewriting() -> None:
    alone = replace(TAP6, ip6=SERVICE6[0], guest_ip6=SERVICE6[:1])
    _nd, back, way_in = address_flows(Endpoint(13), address6(), slot=SLOT6 + 1, tap=alone)
    assert "ipv6_dst" not in sets(way_in)
    assert "ipv6_src" not in sets(back)


def test_solicitations_for_the_service_are_answered_by_flows_alone() -> None:
    flows = (*fixed_flows(TAP6), *guest_flows(Guest(Endpoint(13), 77), TAP6))
    assert {one.field("ipv6_nd_target") for one in by_purpose(flows, Purpose.GUEST_ND)} == set(
        SERVICE6
    )
    answers = by_purpose(flows, Purpose.SERVICE_ND)
    assert {one.field("ipv6_nd_target") for one in answers} == set(SERVICE6)
    for one in answers:
        target = one.field("ipv6_nd_target")
        assert sets(one) == {"eth_src": TAP6.mac, "ipv6_src": target, "ipv6_nd_tll": TAP6.mac}
        assert one.actions[-1] == Output(PORT_IN_PORT)
    (dad,) = by_purpose(flows, Purpose.GUEST_DAD)
    assert (dad.field("ipv6_src"), dad.actions, dad.goto) == ("::", (), None)
    (bare,) = by_purpose(flows, Purpose.GUEST_ND_BARE)
    assert (bare.meter, bare.actions) == (77, (ToController(CONTROLLER_ID),))
    assert bare.field("ipv6_nd_sll") == "00:00:00:00:00:00"
    order = [Purpose.GUEST_DAD, Purpose.GUEST_ND_BARE, Purpose.GUEST_ND_ANSWER]
    numbers = [Layout().priority(purpose) for purpose in order]
    assert numbers == sorted(set(numbers), reverse=True)


def test_what_a_kernel_refuses_to_set_is_moved_from_a_register() -> None:
    for purpose in (Purpose.GUEST_ND_ANSWER, Purpose.KEY_ND_ANSWER):
        (flow,) = by_purpose(fixed_flows(TAP6), purpose)
        assert sets(flow) == {"icmpv6_type": 136, "reg0": 0x60000000, "reg1": 2}
        moved = {one.field: one.source for one in flow.actions if isinstance(one, Move)}
        assert moved == {"nd_reserved": "reg0", "nd_options_type": "reg1"}
        assert flow.goto is Stage.ND


def test_with_a_host_ip_the_flows_rewrite_the_service_address_both_ways() -> None:
    _arp, back, way_in = address_flows(Endpoint(13), address(), slot=0, tap=ELSEWHERE)
    assert sets(way_in)["ipv4_dst"] == "192.0.2.1"
    assert back.field("ipv4_src") == "192.0.2.1"
    assert sets(back)["ipv4_src"] == "169.254.169.254"


def test_a_first_syn_goes_the_way_that_its_address_will_go() -> None:
    endpoint = Endpoint(13)
    *_, way_in = address_flows(endpoint, address(), slot=3, tap=ELSEWHERE)
    assert way_in.actions == towards_proxy(endpoint, 3, tap=ELSEWHERE)


def test_a_first_syn_goes_to_our_controller_through_the_meter() -> None:
    flows = by_purpose(guest_flows(Guest(Endpoint(13), 77), TAP6), Purpose.SYN)
    assert [flow.field("eth_type") for flow in flows] == [0x0800, ETH_IPV6]
    for flow in flows:
        assert flow.actions == (ToController(CONTROLLER_ID),)
        assert flow.meter == 77
        assert flow.field("tcp_flags") == (0x02, 0x12)


def test_syns_of_both_versions_share_the_meter_of_the_port() -> None:
    flows = by_purpose(guest_flows(Guest(Endpoint(13), 77, syn_meter=78), TAP6), Purpose.GUEST_SYN)
    assert len(flows) == 3
    assert {flow.meter for flow in flows} == {78}


def test_hooks_take_only_untagged_http_and_arp_of_the_service() -> None:
    flows = guest_flows(Guest(Endpoint(13), None), ELSEWHERE)
    hooks = [one for one in flows if PURPOSES[one.purpose].priority is Priority.HOOK]
    assert len(hooks) == 4
    for hook in hooks:
        assert hook.field("vlan_vid") == 0
        assert "169.254.169.254" in (hook.field("ipv4_dst"), hook.field("arp_tpa"))
    (http,) = by_purpose(flows, Purpose.GUEST_HTTP)
    assert (http.field("ip_proto"), http.field("tcp_dst")) == (6, 80)


def test_syns_pass_the_meter_of_the_port_and_nothing_else_does() -> None:
    flows = guest_flows(Guest(Endpoint(13), 77, syn_meter=78), TAP)
    (syn,) = by_purpose(flows, Purpose.GUEST_SYN)
    (http,) = by_purpose(flows, Purpose.GUEST_HTTP)
    assert (syn.meter, http.meter) == (78, None)
    assert syn.field("tcp_flags") == (0x02, 0x02)
    assert http.field("tcp_flags") == (0x00, 0x02)
    rest = [[one for one in flow.match if one[0] != "tcp_flags"] for flow in (syn, http)]
    assert rest[0] == rest[1]
    assert syn.goto is http.goto is Stage.SERVICE


def test_fragments_of_tcp_to_the_service_are_dropped() -> None:
    (flow,) = by_purpose(guest_flows(Guest(Endpoint(13), None), TAP), Purpose.GUEST_FRAGMENT)
    assert (flow.actions, flow.goto) == ((), None)
    assert dict(flow.match) == {
        "in_port": 13,
        "vlan_vid": 0,
        "eth_type": 0x0800,
        "ip_proto": 6,
        "ipv4_dst": TAP.guest_ip,
        "ip_frag": (1, 1),
    }


def test_what_tap_metadata_emits_only_goes_to_the_reply_table() -> None:
    flows = fixed_flows(TAP)
    (from_tap,) = by_purpose(flows, Purpose.FROM_TAP)
    assert from_tap.match == (("in_port", TAP.ofport),)
    assert from_tap.goto is Stage.REPLY
    for purpose in (Purpose.SERVICE_DROP, Purpose.REPLY_DROP):
        (drop,) = by_purpose(flows, purpose)
        assert (drop.match, drop.actions, drop.goto) == ((), (), None)


@FEW
@given(st.integers(1, OFPORT_MAX), st.sampled_from(SLOTS), st.integers(0, VID_MAX))
def test_the_host_learns_a_keys_mac_for_that_key_alone(ofport: int, slot: int, vid: int) -> None:
    endpoint = Endpoint(ofport, vid)
    arp, *_ = address_flows(endpoint, address(), slot=slot, tap=TAP)
    assert arp.field("arp_tpa") == str(IN_PORT.key_of(endpoint, slot))
    assert sets(arp)["arp_sha"] == address().mac
