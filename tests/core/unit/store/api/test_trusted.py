"""X-Forwarded-For should count where a trusted proxy has written it, and nowhere else."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.exceptions import ForwardedForError
from dfmeta.store.api.trusted import TrustedProxies
from dfmeta.store.db.networks import Address, parse_network
from tests.core.unit.store.support import named

PROXY = ip_address("192.0.2.1")
GUEST = ip_address("10.0.0.5")
TRUSTED = TrustedProxies(
    map(parse_network, ["192.0.2.0/28", "::ffff:198.51.100.7", "2001:db8:0:1::/64"])
)

addresses = st.ip_addresses().map(lambda one: getattr(one, "ipv4_mapped", None) or one)
proxies = st.sampled_from(["192.0.2.1", "192.0.2.15", "198.51.100.7", "2001:db8:0:1::9"])


def test_the_header_of_another_peer_than_a_proxy_counts_nothing() -> None:
    assert TrustedProxies().guest(PROXY, "10.0.0.5") == PROXY
    assert TRUSTED.guest(PROXY, None) == PROXY
    for header in ("10.0.0.5", "192.0.2.1", "10.0.0.5:80", "rubbish", ""):
        assert TRUSTED.guest(GUEST, header) == GUEST, header


def test_the_last_address_that_is_not_trusted_is_the_guest() -> None:
    for header, guest in [
        ("10.0.0.5", "10.0.0.5"),
        (" 10.0.0.5\t", "10.0.0.5"),
        ("192.0.2.3, 192.0.2.2", "192.0.2.3"),
        ("2001:DB8:0::5", "2001:db8::5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("10.0.0.5,::ffff:192.0.2.2", "10.0.0.5"),
    ]:
        assert TRUSTED.guest(PROXY, header) == ip_address(guest), header


def test_an_entry_that_is_no_bare_address_is_refused() -> None:
    for entry in [
        *(
            "",
            "10.0.0.5:80",
            "[2001:db8::5]",
            "fe80::5%eth0",
            "10.0.0.0/8",
            "010.0.0.5",
            "167772165",
        ),
        *("10.0.0.5 10.0.0.6", '"10.0.0.5"', "unknown", "\u0661\u0660.0.0.5", "\xa010.0.0.5"),
    ]:
        for place in ["{}", "{}, 10.0.0.5", "10.0.0.5, {}", "10.0.0.5, {}, 192.0.2.2"]:
            with named((entry, place)):
                with pytest.raises(ForwardedForError) as caught:
                    TRUSTED.guest(PROXY, place.format(entry))
                assert not entry or entry not in str(caught.value)


@given(st.lists(addresses), addresses.filter(lambda one: one not in TRUSTED), st.lists(proxies))
def test_entries_before_the_guests_own_decide_nothing(
    forged: list[Address], guest: Address, through: list[str]
) -> None:
    header = ", ".join([*map(str, forged), str(guest), *through])
    assert TRUSTED.guest(PROXY, header) == guest
