"""A key should be an address that stands for exactly one endpoint and slot, and back."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.key import IN_PORT, SLOTS, VID_MAX
from dfmeta.model import OFPORT_MAX, Endpoint

ENDPOINTS = st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.integers(0, VID_MAX))
ADDRESSES = st.integers(0, 0xFFFFFFFF).map(IPv4Address)


@pytest.mark.parametrize(("ofport", "key"), [(13, "128.0.0.13"), (1058, "128.0.4.34")])
def test_an_untagged_first_address_has_the_specifications_key(ofport: int, key: str) -> None:
    assert str(IN_PORT.key_of(Endpoint(ofport), 0)) == key


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(SLOTS))
@example(Endpoint(1), 0)
@example(Endpoint(OFPORT_MAX, VID_MAX), 7)
def test_an_endpoint_and_a_slot_come_back_from_their_key(endpoint: Endpoint, slot: int) -> None:
    assert IN_PORT.parse(IN_PORT.key_of(endpoint, slot)) == (endpoint, slot)


@settings(deadline=None)
@given(ADDRESSES)
@example(IPv4Address("255.255.255.255"))
@example(IPv4Address("128.0.0.0"))
@example(IPv4Address("127.0.0.1"))
def test_an_address_is_the_key_that_it_stands_for_or_none_at_all(address: IPv4Address) -> None:
    try:
        endpoint, slot = IN_PORT.parse(address)
    except KeyRangeError:
        return
    assert IN_PORT.key_of(endpoint, slot) == address


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(SLOTS))
def test_a_key_is_a_source_that_linux_accepts(endpoint: Endpoint, slot: int) -> None:
    key = IN_PORT.key_of(endpoint, slot)
    assert not key.is_multicast
    assert not key.is_loopback
    assert key != IPv4Address("255.255.255.255")


@pytest.mark.parametrize(
    ("endpoint", "slot"),
    [
        (Endpoint(0), 0),
        (Endpoint(-1), 0),
        (Endpoint(OFPORT_MAX + 1), 0),
        (Endpoint(0xFFFE), 0),
        (Endpoint(1, -1), 0),
        (Endpoint(1, VID_MAX + 1), 0),
        (Endpoint(1), 6),
        (Endpoint(1), 8),
        (Endpoint(1), -1),
    ],
)
def test_what_cannot_be_a_source_address_has_no_key(endpoint: Endpoint, slot: int) -> None:
    with pytest.raises(KeyRangeError) as caught:
        IN_PORT.key_of(endpoint, slot)
    assert caught.value.fields["ofport"] == endpoint.ofport
    assert caught.value.fields["slot"] == slot


@pytest.mark.parametrize(
    "address",
    ["10.0.0.5", "127.255.255.255", "224.0.0.13", "239.1.0.1", "128.0.0.0", "143.255.0.1"],
)
def test_an_address_that_no_endpoint_has_is_no_key(address: str) -> None:
    with pytest.raises(KeyRangeError):
        IN_PORT.parse(IPv4Address(address))


@pytest.mark.parametrize("address", ["::ffff:128.0.0.13", "2001:db8::8000:d", "::128.0.0.13"])
def test_an_ipv6_address_is_no_key(address: str) -> None:
    with pytest.raises(KeyRangeError):
        IN_PORT.parse(IPv6Address(address))
