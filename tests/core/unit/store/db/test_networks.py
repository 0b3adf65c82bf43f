"""An address should be one thing, however it is written, and be found in what contains it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.db.networks import Address, containing, parse_address, parse_network


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("192.0.2.7", "192.0.2.7/32"),
        ("10.1.2.3/28", "10.1.2.0/28"),
        ("10.1.2.3/255.255.255.240", "10.1.2.0/28"),
        ("2001:0DB8:8583:0000::9", "2001:db8:8583::9/128"),
        ("2001:db8::1/64", "2001:db8::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ("::ffff:192.0.2.7/124", "192.0.2.0/28"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ],
)
def test_a_network_is_canonical(text: str, network: str) -> None:
    assert str(parse_network(text)) == network


@pytest.mark.parametrize("text", ["", "host", "10.1.2", "10.1.2.3/33", "fe80::1%eth0", "1", " ::1"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|network"):
        parse_network(text)
    with pytest.raises(ValueError, match=r"address"):
        parse_address(text)


def test_a_mapped_address_is_its_ipv4_address() -> None:
    assert parse_address("::ffff:192.0.2.7") == ip_address("192.0.2.7")


@given(
    st.integers(0, 2**32 - 1).map(IPv4Address)
    | st.integers(0, 2**128 - 1).map(IPv6Address)
    | st.builds(
        lambda high, low: IPv6Address(high << 32 | low),
        st.sampled_from([0, 0xFFFF, 1 << 32, 1 << 95]),
        st.integers(0, 2**32 - 1),
    )
)
def test_what_contains_an_address_is_written_as_it_is_stored(address: Address) -> None:
    expected = [
        str(ip_network((address, prefix), strict=False))
        for prefix in range(address.max_prefixlen, -1, -1)
    ]
    assert containing(address) == expected
