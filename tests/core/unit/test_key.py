"""A key should be an address that stands for exactly one endpoint and slot, and back."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import KeyRangeError
from dfmeta.flows.key import (
    IN_PORT,
    PREFIX6,
    SLOT6,
    SLOTS,
    SLOTS6,
    VID_MAX,
    InPortKeys,
    slot_in_key,
)
from dfmeta.model import OFPORT_MAX, Endpoint

ENDPOINTS = st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.integers(0, VID_MAX))
ADDRESSES = st.integers(0, 0xFFFFFFFF).map(IPv4Address)
ADDRESSES6 = st.integers(0, 0xFFFFFFFFFFFFFFFF).map(PREFIX6.network_address.__add__)
ALL_SLOTS = (*SLOTS, *SLOTS6)
OTHER = InPortKeys(IPv6Network("fd12:3456:789a:1::/64"))


@pytest.mark.parametrize(("ofport", "key"), [(13, "128.0.0.13"), (1058, "128.0.4.34")])
def test_an_untagged_first_address_has_the_specifications_key(ofport: int, key: str) -> None:
    assert str(IN_PORT.key_of(Endpoint(ofport), 0)) == key


@pytest.mark.parametrize(
    ("endpoint", "slot", "key"),
    [
        (Endpoint(13), 1, "fd00:a9fe:a9fe:a9fe:1:0:0:d"),
        (Endpoint(0xFEFF, 100), 16, "fd00:a9fe:a9fe:a9fe:10:64:0:feff"),
    ],
)
def test_an_ipv6_key_has_slot_vid_and_ofport_in_its_interface_id(
    endpoint: Endpoint, slot: int, key: str
) -> None:
    assert IN_PORT.key_of(endpoint, SLOT6 + slot) == IPv6Address(key)


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(ALL_SLOTS))
@example(Endpoint(1), 0)
@example(Endpoint(OFPORT_MAX, VID_MAX), 7)
@example(Endpoint(OFPORT_MAX, VID_MAX), SLOT6 + 16)
def test_an_endpoint_and_a_slot_come_back_from_their_key(endpoint: Endpoint, slot: int) -> None:
    assert IN_PORT.parse(IN_PORT.key_of(endpoint, slot)) == (endpoint, slot)


@settings(deadline=None)
@given(ADDRESSES | ADDRESSES6)
@example(IPv4Address("255.255.255.255"))
@example(IPv4Address("128.0.0.0"))
@example(IPv4Address("127.0.0.1"))
@example(IPv6Address("fd00:a9fe:a9fe:a9fe::a9fe"))
@example(IPv6Address("fd00:a9fe:a9fe:a9fe:1:0:1:1"))
def test_an_address_is_the_key_that_it_stands_for_or_none_at_all(
    address: IPv4Address | IPv6Address,
) -> None:
    try:
        endpoint, slot = IN_PORT.parse(address)
    except KeyRangeError:
        return
    assert IN_PORT.key_of(endpoint, slot) == address


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(ALL_SLOTS))
def test_a_key_is_a_source_that_linux_accepts(endpoint: Endpoint, slot: int) -> None:
    key = IN_PORT.key_of(endpoint, slot)
    assert not key.is_multicast
    assert not key.is_loopback
    assert not key.is_link_local
    assert key != IPv4Address("255.255.255.255")


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(ALL_SLOTS))
def test_a_key_is_in_the_range_of_its_version_alone(endpoint: Endpoint, slot: int) -> None:
    key = IN_PORT.key_of(endpoint, slot)
    assert IN_PORT.covers(key)
    assert slot in IN_PORT.slots(key.version)
    assert OTHER.covers(key) is (key.version == 4)
    assert key in IN_PORT.network(key.version)


def test_the_network_of_all_keys_is_that_of_its_version() -> None:
    assert [str(OTHER.network(version)) for version in (4, 6)] == [
        "128.0.0.0/1",
        "fd12:3456:789a:1::/64",
    ]


@pytest.mark.parametrize("keys", [IN_PORT, OTHER])
@pytest.mark.parametrize("version", [4, 6])
def test_what_the_host_itself_uses_is_no_guests_key(keys: InPortKeys, version: int) -> None:
    assert keys.covers(ip_address(keys.probe_key(version)))
    for text in (keys.next_hop(version), keys.probe_key(version)):
        address = ip_address(text)
        assert address.version == version
        with pytest.raises(KeyRangeError):
            keys.parse(address)


def test_the_slots_of_an_endpoint_have_numbers_of_their_own() -> None:
    assert len(set(ALL_SLOTS)) == len(SLOTS) + 16
    assert [slot_in_key(slot) for slot in SLOTS] == list(SLOTS)
    assert [slot_in_key(slot) for slot in SLOTS6] == list(range(1, 17))


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(ALL_SLOTS))
def test_a_key_tells_its_slot_and_a_listing_shows_the_one_of_its_version(
    endpoint: Endpoint, slot: int
) -> None:
    assert IN_PORT.number_of(IN_PORT.key_of(endpoint, slot)) == slot
    assert IN_PORT.shown(slot) == slot_in_key(slot)


@pytest.mark.parametrize("text", ["10.0.0.1", "128.0.0.0", "224.0.0.13", "fd12::1"])
def test_what_is_no_key_has_no_slot(text: str) -> None:
    assert IN_PORT.number_of(ip_address(text)) is None


def test_the_prefix_of_another_host_gives_other_keys() -> None:
    assert OTHER.key_of(Endpoint(13), SLOT6 + 1) == IPv6Address("fd12:3456:789a:1:1:0:0:d")
    with pytest.raises(KeyRangeError, match="is not in fd12:3456:789a:1::/64"):
        OTHER.parse(IN_PORT.key_of(Endpoint(13), SLOT6 + 1))


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
        (Endpoint(1), SLOT6),
        (Endpoint(1), SLOT6 + 17),
        (Endpoint(0), SLOT6 + 1),
        (Endpoint(OFPORT_MAX + 1), SLOT6 + 1),
        (Endpoint(1, VID_MAX + 1), SLOT6 + 1),
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


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:128.0.0.13",
        "2001:db8::8000:d",
        "::128.0.0.13",
        "fd00:a9fe:a9fe:a9fe::d",
        "fd00:a9fe:a9fe:a9fe:11:0:0:d",
        "fd00:a9fe:a9fe:a9fe:1:1000:0:d",
        "fd00:a9fe:a9fe:a9fe:1:0:1:d",
        "fd00:a9fe:a9fe:a9ff:1:0:0:d",
        "fe80:ffff:a9fe:a9fe:1:0:0:d",
    ],
)
def test_an_ipv6_address_that_no_endpoint_has_is_no_key(address: str) -> None:
    with pytest.raises(KeyRangeError):
        IN_PORT.parse(IPv6Address(address))
