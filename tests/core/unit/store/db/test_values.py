"""Merge patches, addresses, forwarded ones and the cache should keep to their specifications."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.errors import ForwardedForError, StoreError
from dfmeta.store.db.cache import LruCache
from dfmeta.store.db.record import (
    Address,
    merge_patch,
    parse_address,
    parse_document,
    parse_network,
)
from dfmeta.store.guest.requests import TrustedProxies
from tests.core.unit.store.support import named
from tests.core.unit.support import INSTANCE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
RFC_7396: list[tuple[object, dict[str, object], dict[str, object]]] = [
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    (["a"], {"a": "b"}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
"""Target, patch and result, as in appendix A."""


def test_merge_patch_gives_the_results_of_rfc_7396() -> None:
    for target, patch, expected in RFC_7396:
        assert merge_patch(target, patch) == expected, (target, patch)


@given(target=JSON, patch=st.dictionaries(st.text(), JSON))
def test_merge_patch_is_idempotent_and_pure(target: object, patch: dict[str, object]) -> None:
    before = repr((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert repr((target, patch)) == before


def test_stored_text_that_is_no_json_object_is_an_error() -> None:
    assert parse_document(INSTANCE, None) == {}
    for text in ("", "[]", "null", "{", '{"a": NaN}', "[" * 100_000):
        with named(text), pytest.raises(StoreError, match=INSTANCE):
            parse_document(INSTANCE, text)


def test_a_network_is_canonical() -> None:
    for text, network in (
        ("192.0.2.7", "192.0.2.7/32"),
        ("10.1.2.3/255.255.255.240", "10.1.2.0/28"),
        ("2001:0DB8:8583:0000::9", "2001:db8:8583::9/128"),
        ("::ffff:192.0.2.7/124", "192.0.2.0/28"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
    ):
        assert str(parse_network(text)) == network, text
    assert parse_address("::ffff:192.0.2.7") == ip_address("192.0.2.7")


def test_text_that_is_no_network_is_refused() -> None:
    for text in ("", "host", "10.1.2", "10.1.2.3/33", "fe80::1%eth0", "1", " ::1"):
        with named(text), pytest.raises(ValueError, match=r"address|network"):
            parse_network(text)
        with named(text), pytest.raises(ValueError, match=r"address"):
            parse_address(text)


def test_the_cache_evicts_the_least_used_value() -> None:
    cache: LruCache[str, int] = LruCache(5)
    for name in "abcde":
        cache.put(name, 7)
    assert cache.get("a") == 7
    cache.put("f", 7)
    assert (cache.get("a"), cache.get("b")) == (7, None)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 90))))
def test_the_cache_never_exceeds_its_limit(steps: list[tuple[str, bool, int]]) -> None:
    cache: LruCache[str, int] = LruCache(160)
    sizes: dict[str, int] = {}
    for name, put, size in steps:
        if put:
            cache.put(name, size, size=size)
            sizes[name] = size
        else:
            cache.drop(name)
        kept = [name for name in "abcdefgh" if cache.get(name) is not None]
        assert sum(sizes[name] for name in kept) <= 160
        assert len(cache) == len(kept)


# X-Forwarded-For


PROXY = ip_address("192.0.2.1")
GUEST = ip_address("10.0.0.5")
TRUSTED = TrustedProxies(
    map(parse_network, ["192.0.2.0/28", "::ffff:198.51.100.7", "2001:db8:0:1::/64"])
)

addresses = st.ip_addresses().map(lambda address: getattr(address, "ipv4_mapped", None) or address)
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


@given(
    st.lists(addresses), addresses.filter(lambda address: address not in TRUSTED), st.lists(proxies)
)
def test_earlier_entries_ignored(forged: list[Address], guest: Address, through: list[str]) -> None:
    header = ", ".join([*map(str, forged), str(guest), *through])
    assert TRUSTED.guest(PROXY, header) == guest
