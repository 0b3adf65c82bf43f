"""The cache should stay within its bound and give up what was used least."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.db.cache import ENTRY, Cache


def test_it_gives_what_it_was_given_with_what_that_was_read_under() -> None:
    cache: Cache[str] = Cache()
    cache.put("a", 7, "value", size=5)
    assert cache.get("a") == (7, "value")
    assert cache.get("b") is None


def test_the_least_used_gives_way() -> None:
    cache: Cache[int] = Cache(limit=5 * ENTRY)
    for number in range(5):
        cache.put(str(number), 0, number, size=0)
    cache.get("0")
    cache.put("5", 0, 5, size=0)
    assert cache.get("1") is None
    assert cache.get("0") == (0, 0)


def test_what_is_too_large_is_not_kept_and_ends_what_was() -> None:
    cache: Cache[int] = Cache(limit=8 * ENTRY)
    cache.put("a", 0, 1, size=0)
    cache.put("a", 1, 2, size=2 * ENTRY)
    assert cache.get("a") is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"), st.sampled_from(["put", "drop"]), st.integers(0, 9 * ENTRY)
        )
    )
)
def test_it_never_holds_more_than_it_may(steps: list[tuple[str, str, int]]) -> None:
    cache: Cache[int] = Cache(limit=16 * ENTRY)
    sizes: dict[str, int] = {}
    for name, what, size in steps:
        if what == "put":
            cache.put(name, 0, size, size=size)
            sizes[name] = size + ENTRY
        else:
            cache.drop(name)
        kept = [one for one in "abcdefgh" if cache.get(one) is not None]
        assert sum(sizes[one] for one in kept) <= 16 * ENTRY
        assert len(cache) == len(kept)
    cache.clear()
    assert len(cache) == 0
