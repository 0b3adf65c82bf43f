"""VLAN ids and addresses should go round, and a bucket should fill with time."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.attach import rate
from dfmeta.attach.addresses import is_unicast, may_have, next_address, random_mac
from dfmeta.attach.choice import next_vid
from dfmeta.attach.model import Network
from dfmeta.attach.rate import Rate


@given(st.integers(0, 30), st.sets(st.integers(0, 30)))
def test_the_next_vid_is_the_first_free_one_after_the_last(last: int, taken: set[int]) -> None:
    vids = range(5, 15)
    start = last + 1 if last in vids else 5
    order = [5 + (start - 5 + step) % 10 for step in range(10)]
    free = [vid for vid in order if vid not in taken]
    assert next_vid(vids, last, taken) == (free[0] if free else None)


@given(
    st.integers(16, 32),
    st.integers(0, 255),
    st.none() | st.integers(-5, 300),
    st.sets(st.integers(0, 300)),
)
def test_the_next_address_is_free_and_of_the_subnet(
    prefix: int, gateway: int, last: int | None, used: set[int]
) -> None:
    subnet = IPv4Network((int(IPv4Address("10.0.0.0")), prefix))
    base = int(subnet.network_address)
    network = Network(name="n", subnet=subnet, gateway=IPv4Address(base + gateway))
    asked: set[int] = set()

    def ask(low: int, high: int) -> set[int]:
        assert low <= high
        assert not asked & set(range(low, high + 1))
        asked.update(range(low, high + 1))
        return {base + one for one in used if low <= base + one <= high}

    found = next_address(network, None if last is None else base + last, ask)
    if found is not None:
        assert may_have(network, IPv4Address(found))
        assert IPv4Address(found) in subnet
        assert found - base not in used
    else:
        hosts = {int(one) - base for one in subnet.hosts()} - {gateway}
        assert hosts <= used


def test_a_subnet_of_two_addresses_has_both() -> None:
    network = Network(name="n", subnet=IPv4Network("10.0.0.0/31"))
    assert next_address(network, None, lambda _low, _high: set()) == int(IPv4Address("10.0.0.0"))
    assert may_have(network, IPv4Address("10.0.0.1"))


def test_a_random_mac_is_local_and_of_one_device() -> None:
    for mac in {random_mac() for _ in range(200)}:
        assert is_unicast(mac)
        assert int(mac[:2], 16) & 3 == 2


def test_a_bucket_fills_with_time() -> None:
    now = [0.0]
    bucket = Rate(2, lambda: now[0])
    assert [bucket.take("a") for _ in range(3)] == [True, True, False]
    assert bucket.take("b")
    now[0] = 0.5
    assert [bucket.take("a") for _ in range(2)] == [True, False]
    now[0] = 0.0  # a clock that was set back
    assert not bucket.take("a")
    now[0] = 100.0
    assert [bucket.take("a") for _ in range(3)] == [True, True, False]
    # A rate below one lets one pass.
    seldom = Rate(0.1, lambda: now[0])
    assert [seldom.take("a") for _ in range(2)] == [True, False]
    now[0] += 10.0
    assert seldom.take("a")


def test_buckets_are_bounded() -> None:
    bucket = Rate(1, lambda: 0.0)
    assert all(bucket.take(str(number)) for number in range(rate.KEPT + 1))
    # That of the first was dropped for the last.
    assert [bucket.take("0"), bucket.take(str(rate.KEPT))] == [True, False]
