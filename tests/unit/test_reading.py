"""A flow should say which endpoint and address it serves, and a damaged one nothing wrong."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.flows.desired import Guest, address_flows, fixed_flows, guest_flows
from dfmeta.flows.flow import Flow, SetField, Value
from dfmeta.flows.key import IN_PORT, SLOTS
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.reading import NONE, FlowAddress, read_address
from dfmeta.model import OFPORT_MAX, Endpoint, GuestAddress
from tests.harness.examples import examples
from tests.unit.support import TAP, address

HERE = Endpoint(13)
GUESTS = st.builds(
    Guest,
    st.integers(1, OFPORT_MAX).map(Endpoint),
    st.none(),
    st.dictionaries(
        st.sampled_from(SLOTS),
        st.integers(0, 0xFFFFFFFF).map(lambda ip: replace(address(), ip=IPv4Address(ip))),
        max_size=3,
    ),
)


def of(purpose: Purpose) -> Flow:
    """That flow of one address at :data:`HERE`."""
    flows = address_flows(HERE, address(), slot=1, tap=TAP)
    return next(flow for flow in flows if flow.purpose is purpose)


def with_match(flow: Flow, field: str, value: Value) -> Flow:
    match = tuple((name, value if name == field else old) for name, old in flow.match)
    return replace(flow, match=match)


@settings(deadline=None, max_examples=examples(16))
@given(GUESTS)
def test_a_flow_is_read_back_as_it_was_built(guest: Guest) -> None:
    for flow in fixed_flows(TAP):
        assert read_address(flow) == NONE
    for flow in guest_flows(guest, TAP):
        read = read_address(flow)
        assert read.endpoint == guest.endpoint
        if flow.purpose in (Purpose.ADDRESS, Purpose.REPLY):
            assert read.slot is not None
            assert read.address == guest.addresses[read.slot]
        if read.slot is not None:
            assert read.key == str(IN_PORT.key_of(guest.endpoint, read.slot))


def test_only_flows_of_an_address_have_a_key() -> None:
    keyed = {flow.purpose for flow in guest_flows(Guest(HERE, None, {1: address()}), TAP)}
    keyed = {p for p in keyed if p in (Purpose.ADDRESS, Purpose.REPLY, Purpose.KEY_ARP)}
    assert len(keyed) == 3
    for purpose in keyed:
        assert read_address(of(purpose)).key == str(IN_PORT.key_of(HERE, 1))
    (syn,) = [f for f in guest_flows(Guest(HERE, None), TAP) if f.purpose is Purpose.SYN]
    assert read_address(syn) == FlowAddress(HERE)


@pytest.mark.parametrize("key", ["10.0.0.1", "224.0.0.13", "nonsense"])
def test_a_reply_to_what_is_no_key_serves_no_endpoint(key: str) -> None:
    read = read_address(with_match(of(Purpose.REPLY), "ipv4_dst", key))
    assert (read.endpoint, read.key, read.slot) == (None, key, None)


def test_the_key_of_another_endpoint_gives_no_slot() -> None:
    flow = with_match(of(Purpose.ADDRESS), "in_port", 14)
    read = read_address(flow)
    assert (read.endpoint, read.slot) == (Endpoint(14), None)
    assert read.key == str(IN_PORT.key_of(HERE, 1))


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
    for purpose in Purpose:
        assert read_address(Flow(purpose, ())) == NONE
    assert isinstance(read_address(of(Purpose.REPLY)).address, GuestAddress)
