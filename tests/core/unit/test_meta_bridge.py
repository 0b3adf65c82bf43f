"""The flows of Meta IPs should lead each number there and back, and be read back as built."""

from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from hypothesis import given, settings

from dfmeta.apps.floods import BY_FLOW
from dfmeta.flows import integration_bridge, meta_bridge
from dfmeta.flows.entry import Entry
from dfmeta.flows.integration_bridge import ServedEndpoint
from dfmeta.flows.openflow import Flow, Value
from dfmeta.flows.pipeline import BR_META, Layout, Purpose, cookie_of
from dfmeta.flows.reading import read_address
from dfmeta.flows.wire import Wire
from dfmeta.identity.key import IN_PORT, SLOT6, Keys, MetaKeys
from dfmeta.model import Endpoint
from tests.core.unit.support import SERVICE6, TAP6, address, address6, guests
from tests.flowsim import Switch, stats
from tests.harness.examples import examples
from tests.harness.meta import meta_keys, meta_tap_of, patch_of

HERE, THERE = Endpoint(13), Endpoint(14)
CIDR = IPv4Network("240.0.0.0/28")
N = CIDR.num_addresses
NUMBER, NUMBER6 = 3, N + 3
"""Numbers of an IPv4 and of an IPv6 address."""
KNOWN = {NUMBER: address(), NUMBER6: address6(service=SERVICE6[1])}
LAYOUTS = {"br-int": Layout(), "br-meta": Layout(pipeline=BR_META)}
GUESTS = guests(meta_keys(CIDR).slots(4), meta_keys(CIDR).slots(6)).filter(
    lambda guest: len(set(guest.addresses.values())) == len(guest.addresses)
)
FEW = settings(deadline=None, max_examples=examples(16))


def scheme(*, owned: bool = True) -> MetaKeys:
    """A key scheme in which :data:`HERE` owns the two numbers."""
    keys = meta_keys(CIDR)
    for number in KNOWN if owned else ():
        keys.own(HERE, number)
    return keys


def both_bridges(guest: ServedEndpoint, keys: MetaKeys) -> dict[str, list[Flow]]:
    """All flows of one guest and the fixed ones, by bridge."""
    tap, meta = patch_of(keys), meta_tap_of(keys)
    behind = [
        flow
        for number, known in sorted(guest.addresses.items())
        for flow in meta_bridge.address_flows(guest.endpoint, known, slot=number, tap=meta)
    ]
    return {
        "br-int": [
            *integration_bridge.fixed_flows(tap),
            *integration_bridge.guest_flows(guest, tap),
        ],
        "br-meta": [*meta_bridge.fixed_flows(meta), *behind],
    }


def of(bridge: str, purpose: Purpose, number: int = NUMBER) -> Flow:
    keys = scheme()
    known = KNOWN[number]
    flows = (
        integration_bridge.address_flows(HERE, known, slot=number, tap=patch_of(keys))
        if bridge == "br-int"
        else meta_bridge.address_flows(HERE, known, slot=number, tap=meta_tap_of(keys))
    )
    return next(flow for flow in flows if flow.purpose is purpose)


def with_match(flow: Flow, field: str, value: Value) -> Flow:
    return replace(flow, match=tuple((n, value if n == field else v) for n, v in flow.match))


@FEW
@given(GUESTS)
def test_flows_are_of_their_bridges_pipeline_with_own_places(guest: ServedEndpoint) -> None:
    for bridge, flows in both_bridges(guest, meta_keys(CIDR)).items():
        assert {flow.purpose for flow in flows} <= set(LAYOUTS[bridge].pipeline.purposes)
        assert len({flow.match_key for flow in flows}) == len(flows)


@pytest.mark.parametrize("number", KNOWN)
def test_an_address_has_its_way_back_before_its_way_in(number: int) -> None:
    keys, known = scheme(), KNOWN[number]
    inner = integration_bridge.address_flows(HERE, known, slot=number, tap=patch_of(keys))
    assert [flow.purpose for flow in inner] == [Purpose.REPLY, Purpose.ADDRESS]
    outer = meta_bridge.address_flows(HERE, known, slot=number, tap=meta_tap_of(keys))
    asked = Purpose.META_KEY_ARP if number == NUMBER else Purpose.META_KEY_ND
    assert [flow.purpose for flow in outer] == [asked, Purpose.META_REPLY, Purpose.META_SOURCE]


def test_every_drop_of_guests_and_answers_is_needed_and_has_a_reason() -> None:
    keys = scheme()
    drops = {
        flow.purpose
        for flow in meta_bridge.fixed_flows(meta_tap_of(keys))
        if not flow.actions and flow.goto is None
    }
    drops -= {Purpose.META_NEIGHBOURS_DROP}
    assert drops < {purpose for purpose in BR_META.purposes if purpose.is_needed}
    assert drops == {one for one in BY_FLOW if one in BR_META.purposes}


META = Layout(pipeline=BR_META)
METADATA_PATH = 201
"""Highest priority of metadata_path's flows in table 0 of br-meta."""


def test_the_numbers_of_the_second_bridges_tables_are_fixed() -> None:
    for layout in (META, Layout(60, 7, 500, BR_META)):
        assert [layout.number(stage) for stage in BR_META.tables] == [0, 80, 87, 90, 91]
        assert [layout.stage(number) for number in (0, 80, 87, 90, 91)] == [*BR_META.tables]


def test_no_flow_of_metadata_path_takes_a_frame_of_our_two_ports() -> None:
    mine = {purpose: META.priority(purpose) for purpose in BR_META.purposes if purpose.is_shared}
    rest = mine.pop(Purpose.META_OTHER_DROP)
    assert METADATA_PATH < rest < min(mine.values()) == max(mine.values()) == META.hook_priority


def dumped(wire: Wire, flow: Flow) -> Entry:
    """The entry of a dump that *flow* has on a switch."""
    switch, mod = Switch((), lambda _message: None), wire.add(flow)
    mod.set_xid(5)
    mod.serialize()
    switch.feed(bytes(mod.buf))
    return Entry(stats(switch.flows[0]))


@pytest.mark.parametrize("bridge", LAYOUTS)
def test_dump_reads_as_the_flow_that_was_added(bridge: str) -> None:
    wire = Wire(LAYOUTS[bridge])
    for flow in both_bridges(ServedEndpoint(HERE, KNOWN), scheme())[bridge]:
        found = wire.found(dumped(wire, flow))
        assert found is not None
        assert found.flow == flow
        assert found.entry.cookie == cookie_of(flow.purpose)


@FEW
@given(GUESTS)
def test_a_flow_is_read_back_as_it_was_built(guest: ServedEndpoint) -> None:
    keys = meta_keys(CIDR)
    for number in guest.addresses:
        keys.own(guest.endpoint, number)
    for flows in both_bridges(guest, keys).values():
        for flow in flows:
            read = read_address(flow, keys)
            if read.slot is None:
                continue
            assert read.endpoint == guest.endpoint
            assert read.key == str(keys.key_of(guest.endpoint, read.slot))
            known = guest.addresses[read.slot]
            if flow.purpose is Purpose.ADDRESS:
                assert read.address == known
            if flow.purpose is Purpose.REPLY:
                assert (read.mac, read.ip) == (known.mac, known.ip)
    behind = both_bridges(guest, keys)["br-meta"]
    keyed = [flow for flow in behind if read_address(flow, keys).slot is not None]
    assert len(keyed) == 3 * len(guest.addresses)


@pytest.mark.parametrize("number", KNOWN)
def test_a_service_flow_has_its_number_until_another_guest_owns_it(number: int) -> None:
    keys = scheme(owned=False)
    flow = of("br-int", Purpose.ADDRESS, number)
    read = read_address(flow, keys)
    assert (read.endpoint, read.slot, read.address) == (HERE, number, KNOWN[number])
    assert read.key == str(keys.key_of(HERE, number))
    keys.own(THERE, number)
    read = read_address(flow, keys)
    assert (read.endpoint, read.slot, read.address) == (HERE, None, KNOWN[number])


@pytest.mark.parametrize("number", KNOWN)
def test_other_flow_of_a_number_without_an_owner_serves_no_guest(number: int) -> None:
    keys = scheme(owned=False)
    asked = Purpose.META_KEY_ARP if number == NUMBER else Purpose.META_KEY_ND
    flows = [of("br-int", Purpose.REPLY, number)]
    flows += [of("br-meta", purpose, number) for purpose in (asked, Purpose.META_REPLY)]
    flows.append(of("br-meta", Purpose.META_SOURCE, number))
    for flow in flows:
        read = read_address(flow, keys)
        assert (read.endpoint, read.slot) == (None, None)
        assert read.key == str(keys.key_of(HERE, number))


@pytest.mark.parametrize("value", ["nonsense", 7, ("fa:16:ee:00:00:00", "ff:ff:ff:00:00:00")])
def test_damaged_flow_of_the_second_bridge_serves_no_guest(value: Value) -> None:
    keys = scheme()
    for purpose, field in (
        (Purpose.META_SOURCE, "eth_src"),
        (Purpose.META_REPLY, "ipv4_dst"),
        (Purpose.META_KEY_ARP, "arp_tpa"),
    ):
        read = read_address(with_match(of("br-meta", purpose), field, value), keys)
        assert (read.endpoint, read.slot) == (None, None)


def test_a_flow_of_the_other_scheme_has_no_slot() -> None:
    keys, ports = scheme(), Keys()
    guest = ServedEndpoint(HERE, {0: address(), 7: address("10.0.0.7"), SLOT6 + 1: address6()})
    tap = replace(TAP6, keys=ports)
    # Slot 7's keys are in this range as well.
    assert keys.covers(ports.key_of(Endpoint(2), 7))
    keys.own(Endpoint(2), 2)
    keys.own(Endpoint(2), N + 2)
    for flow in (
        *integration_bridge.guest_flows(guest, tap),
        *integration_bridge.guest_flows(replace(guest, endpoint=Endpoint(2)), tap),
    ):
        assert read_address(flow, keys).slot is None
        if flow.purpose is Purpose.ADDRESS:
            assert read_address(flow, keys).endpoint is not None
    for flows in both_bridges(ServedEndpoint(HERE, KNOWN), keys).values():
        for flow in flows:
            assert read_address(flow, IN_PORT).slot is None
