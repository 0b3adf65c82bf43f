"""A Meta IP should stand for one number, and a number for one guest at a time."""

from ipaddress import IPv4Network, ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.errors import KeyRangeError
from dfmeta.model import Endpoint
from tests.harness.examples import examples
from tests.harness.meta import BASE_MAC, CIDR, meta_keys

SIZE = CIDR.num_addresses
SMALL = IPv4Network("192.0.2.16/28")
HERE, THERE = Endpoint(13), Endpoint(14)
NUMBERS = st.integers(2, SIZE - 2) | st.integers(SIZE + 2, 2 * SIZE - 2)
FEW = settings(deadline=None, max_examples=examples(50))


def test_a_number_gives_the_meta_ip_and_the_meta_mac() -> None:
    keys = meta_keys()
    for number, key, label in (
        (0x0102, "240.0.1.2", "fa:16:ee:00:01:02"),
        (SIZE - 2, "240.0.255.254", "fa:16:ee:00:ff:fe"),
        (SIZE + 2, "fd00:a9fe:a9fe:a9fe::2", "fa:16:ee:01:00:02"),
    ):
        assert str(keys.key_of(HERE, number)) == key
        assert keys.label(number) == label


@FEW
@given(NUMBERS)
def test_a_number_comes_back_from_its_meta_ip_and_from_its_meta_mac(number: int) -> None:
    keys = meta_keys()
    key = keys.key_of(HERE, number)
    assert key == keys.key_of(THERE, number)
    assert keys.number_of(key) == number
    assert number in keys.slots(key.version)
    assert keys.covers(key)
    assert keys.labelled(keys.label(number)) == (None, number)
    keys.own(HERE, number)
    assert keys.parse(key) == keys.labelled(keys.label(number)) == (HERE, number)


@pytest.mark.parametrize("cidr", [SMALL, CIDR, IPv4Network("192.0.2.8/29")], ids=str)
@pytest.mark.parametrize("version", [4, 6])
def test_addresses_of_the_host_are_no_guests(cidr: IPv4Network, version: int) -> None:
    keys = meta_keys(cidr)
    for text in (keys.gateway(version), keys.probe_key(version), keys.next_hop(version)):
        address = ip_address(text)
        assert address.version == version
        assert keys.number_of(address) is None
        with pytest.raises(KeyRangeError):
            keys.parse(address)
    for number in (0, 1, cidr.num_addresses - 1, cidr.num_addresses, cidr.num_addresses + 1):
        with pytest.raises(KeyRangeError):
            keys.key_of(HERE, number)
    assert keys.labelled(keys.probe_label(version)) is None
    assert keys.labelled(keys.label(1)) is None
    assert keys.labelled(BASE_MAC) is None


@pytest.mark.parametrize(
    "text",
    ["240.1.0.2", "239.255.255.254", "10.0.0.5", "fd00:a9fe:a9fe:a9fe::1:2", "fe80::2", "::f000:2"],
)
def test_an_address_of_no_number_is_no_key(text: str) -> None:
    keys = meta_keys()
    for mac in ("", "nonsense", "fa:16:ee:02:00:02", "fa:16:ed:ff:ff:ff", "2"):
        assert keys.labelled(mac) is None, mac
    for number in (2, SIZE + 2):
        keys.own(HERE, number)
    assert keys.number_of(ip_address(text)) is None
    with pytest.raises(KeyRangeError, match="is not a Meta IP in use"):
        keys.parse(ip_address(text))


def test_a_number_without_an_owner_identifies_no_guest() -> None:
    keys = meta_keys()
    with pytest.raises(KeyRangeError):
        keys.parse(CIDR[7])
    keys.own(HERE, 7)
    assert keys.parse(CIDR[7]) == (HERE, 7)
    keys.disown(HERE, 7)
    with pytest.raises(KeyRangeError):
        keys.parse(CIDR[7])
    keys.disown(HERE, 7)


def test_former_owner_takes_no_number_away() -> None:
    keys = meta_keys()
    keys.own(HERE, 7)
    keys.own(THERE, 7)
    keys.disown(HERE, 7)
    assert keys.parse(CIDR[7]) == (THERE, 7)
