"""A flow should say which endpoint and address it serves, and a damaged one nothing wrong."""

from dataclasses import replace
from ipaddress import IPv6Network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows.integration_bridge import ServedEndpoint, address_flows, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow, SetField, Value
from dfmeta.flows.pipeline import BR_INT, Purpose
from dfmeta.flows.reading import NONE, FlowAddress, read_address, read_service, version_of
from dfmeta.identity.key import IN_PORT, SLOT6, SLOTS, SLOTS6, Keys
from dfmeta.model import Endpoint, GuestAddress
from tests.core.unit.support import SERVICE6, TAP, TAP6, address, address6, guests
from tests.harness.examples import examples

HERE = Endpoint(13)
OTHER_KEYS = Keys(IPv6Network("fd12:3456:789a:1::/64"))
KEYED = frozenset({Purpose.ADDRESS, Purpose.REPLY, Purpose.KEY_ARP, Purpose.KEY_ND})
GUESTS = guests(SLOTS, SLOTS6)


def of(purpose: Purpose, version: int = 4) -> Flow:
    known, slot = (address(), 1) if version == 4 else (address6(), SLOT6 + 1)
    flows = address_flows(HERE, known, slot=slot, tap=TAP6)
    return next(flow for flow in flows if flow.purpose is purpose)


def with_match(flow: Flow, field: str, value: Value) -> Flow:
    match = tuple((name, value if name == field else old) for name, old in flow.match)
    return replace(flow, match=match)


@settings(deadline=None, max_examples=examples(16))
@given(GUESTS, st.sampled_from([IN_PORT, OTHER_KEYS]))
def test_a_flow_is_read_back_as_it_was_built(guest: ServedEndpoint, keys: Keys) -> None:
    tap = replace(TAP6, keys=keys)
    for flow in fixed_flows(tap):
        assert read_address(flow, keys) == NONE
    for flow in guest_flows(guest, tap):
        read = read_address(flow, keys)
        assert read.endpoint == guest.endpoint
        if flow.purpose in (Purpose.ADDRESS, Purpose.REPLY):
            assert read.slot is not None
            assert read.address == guest.addresses[read.slot]
        assert (read.slot is not None) is (flow.purpose in KEYED)
        if read.slot is not None:
            assert read.key == str(keys.key_of(guest.endpoint, read.slot))


def test_the_service_and_the_version_of_a_flow_are_read() -> None:
    flows = (*fixed_flows(TAP6), *guest_flows(ServedEndpoint(HERE, {17: address6()}), TAP6))
    found: dict[Purpose, set[tuple[int | None, str]]] = {}
    for flow in flows:
        found.setdefault(flow.purpose, set()).add((version_of(flow), read_service(flow)))
    all6 = {(6, service) for service in SERVICE6}
    for purpose, seen in (
        (Purpose.GUEST_HTTP, all6 | {(4, TAP.guest_ip)}),
        (Purpose.GUEST_ARP, {(4, TAP.guest_ip)}),
        (Purpose.GUEST_ND, all6),
        (Purpose.ADDRESS, {(6, SERVICE6[0])}),
        (Purpose.REPLY, {(6, SERVICE6[0])}),
        (Purpose.SYN, {(4, ""), (6, "")}),
        (Purpose.FROM_TAP, {(None, "")}),
    ):
        assert found[purpose] == seen, purpose
    assert read_service(with_match(of(Purpose.ADDRESS, 6), "ipv6_dst", "nonsense")) == ""


@pytest.mark.parametrize("key", ["10.0.0.1", "224.0.0.13", "nonsense"])
def test_reply_to_an_invalid_key_serves_no_endpoint(key: str) -> None:
    read = read_address(with_match(of(Purpose.REPLY), "ipv4_dst", key))
    assert (read.endpoint, read.key, read.slot) == (None, key, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("ipv4_src", "nonsense"), ("ipv4_src", ("10.0.0.0", "255.0.0.0")), ("eth_src", 7)],
    ids=["no address", "a mask", "no MAC"],
)
def test_an_address_that_is_not_one_is_left_out(field: str, value: Value) -> None:
    read = read_address(with_match(of(Purpose.ADDRESS), field, value))
    assert (read.endpoint, read.slot, read.address) == (HERE, 1, None)


def test_a_flow_with_two_keys_has_no_slot() -> None:
    flow = of(Purpose.ADDRESS)
    doubled = replace(flow, actions=(SetField("ipv4_src", "128.0.0.2"), *flow.actions))
    assert read_address(doubled) == FlowAddress(HERE)


def test_a_flow_without_match_and_actions_serves_nothing() -> None:
    for purpose in BR_INT.purposes:
        assert read_address(Flow(purpose, ())) == NONE
        assert (version_of(Flow(purpose, ())), read_service(Flow(purpose, ()))) == (None, "")
    assert isinstance(read_address(of(Purpose.REPLY)).address, GuestAddress)
