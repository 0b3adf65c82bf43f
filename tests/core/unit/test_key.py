"""A key should be an address that stands for exactly one endpoint and slot, and back."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dfmeta.errors import KeyRangeError
from dfmeta.identity.key import IN_PORT, PREFIX6, SLOT6, SLOTS, SLOTS6, Keys, slot_in_key
from dfmeta.model import OFPORT_MAX, VID_MAX, Endpoint

ENDPOINTS = st.builds(Endpoint, st.integers(1, OFPORT_MAX), st.integers(0, VID_MAX))
ADDRESSES = st.integers(0, 0xFFFFFFFF).map(IPv4Address)
ADDRESSES6 = st.integers(0, 0xFFFFFFFFFFFFFFFF).map(PREFIX6.network_address.__add__)
ALL_SLOTS = (*SLOTS, *SLOTS6)
OTHER = Keys(IPv6Network("fd12:3456:789a:1::/64"))


def test_a_key_has_the_specifications_form() -> None:
    for endpoint, slot, key in (
        (Endpoint(13), 0, "128.0.0.13"),
        (Endpoint(1058), 0, "128.0.4.34"),
        (Endpoint(13), SLOT6 + 1, "fd00:a9fe:a9fe:a9fe:1:0:0:d"),
        (Endpoint(0xFEFF, 100), SLOT6 + 16, "fd00:a9fe:a9fe:a9fe:10:64:0:feff"),
    ):
        assert IN_PORT.key_of(endpoint, slot) == ip_address(key)


@settings(deadline=None)
@given(ENDPOINTS, st.sampled_from(ALL_SLOTS))
@example(Endpoint(1), 0)
@example(Endpoint(OFPORT_MAX, VID_MAX), 7)
@example(Endpoint(OFPORT_MAX, VID_MAX), SLOT6 + 16)
def test_key_is_a_valid_source_of_one_endpoint_and_slot(endpoint: Endpoint, slot: int) -> None:
    key = IN_PORT.key_of(endpoint, slot)
    assert IN_PORT.parse(key) == (endpoint, slot)
    assert (key.is_multicast, key.is_loopback, key.is_link_local) == (False, False, False)
    assert key != IPv4Address("255.255.255.255")
    assert IN_PORT.covers(key)
    assert OTHER.covers(key) is (key.version == 4)
    assert slot in IN_PORT.slots(key.version)
    assert key in IN_PORT.network(key.version)
    assert (IN_PORT.number_of(key), IN_PORT.shown(slot)) == (slot, slot_in_key(slot))


@settings(deadline=None)
@given(ADDRESSES | ADDRESSES6)
@example(IPv4Address("255.255.255.255"))
@example(IPv4Address("128.0.0.0"))
@example(IPv4Address("127.0.0.1"))
@example(IPv6Address("fd00:a9fe:a9fe:a9fe::a9fe"))
@example(IPv6Address("fd00:a9fe:a9fe:a9fe:1:0:1:1"))
def test_address_is_the_key_of_its_place_or_none(address: IPv4Address | IPv6Address) -> None:
    try:
        endpoint, slot = IN_PORT.parse(address)
    except KeyRangeError:
        return
    assert IN_PORT.key_of(endpoint, slot) == address


def test_the_network_of_all_keys_is_that_of_its_version() -> None:
    assert [str(OTHER.network(version)) for version in (4, 6)] == [
        "128.0.0.0/1",
        "fd12:3456:789a:1::/64",
    ]


def test_the_hosts_own_keys_are_no_guests() -> None:
    for keys, version in product((IN_PORT, OTHER), (4, 6)):
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


def test_the_prefix_of_another_host_gives_other_keys() -> None:
    assert OTHER.key_of(Endpoint(13), SLOT6 + 1) == IPv6Address("fd12:3456:789a:1:1:0:0:d")
    with pytest.raises(KeyRangeError, match="is not in fd12:3456:789a:1::/64"):
        OTHER.parse(IN_PORT.key_of(Endpoint(13), SLOT6 + 1))


def test_an_endpoint_or_slot_out_of_range_has_no_key() -> None:
    for endpoint, slot in (
        *((Endpoint(ofport), 0) for ofport in (0, -1, OFPORT_MAX + 1, 0xFFFE)),
        *((Endpoint(1, vid), 0) for vid in (-1, VID_MAX + 1)),
        *((Endpoint(1), slot) for slot in (6, 8, -1, SLOT6, SLOT6 + 17)),
        *((Endpoint(0), SLOT6 + 1), (Endpoint(OFPORT_MAX + 1), SLOT6 + 1)),
        (Endpoint(1, VID_MAX + 1), SLOT6 + 1),
    ):
        with pytest.raises(KeyRangeError) as caught:
            IN_PORT.key_of(endpoint, slot)
        assert caught.value.fields["ofport"] == endpoint.ofport
        assert caught.value.fields["slot"] == slot


def test_an_address_that_no_endpoint_has_is_no_key() -> None:
    for text in (
        *("10.0.0.5", "127.255.255.255", "224.0.0.13", "239.1.0.1", "128.0.0.0", "143.255.0.1"),
        *("::ffff:128.0.0.13", "2001:db8::8000:d", "::128.0.0.13", "fd00:a9fe:a9fe:a9fe::d"),
        *("fd00:a9fe:a9fe:a9fe:11:0:0:d", "fd00:a9fe:a9fe:a9fe:1:1000:0:d"),
        *("fd00:a9fe:a9fe:a9fe:1:0:1:d", "fd00:a9fe:a9ff:a9ff:1:0:0:d"),
        *("fd00:a9fe:a9fe:a9ff:1:0:0:d", "fe80:ffff:a9fe:a9fe:1:0:0:d", "fd12::1"),
    ):
        address = ip_address(text)
        with pytest.raises(KeyRangeError):
            IN_PORT.parse(address)
        assert IN_PORT.number_of(address) is None, text
