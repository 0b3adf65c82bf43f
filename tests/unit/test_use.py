"""An address in use should be known at once, and one that is not, before long."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.proxy.worker.use import SlotUse, Use

ONE, OTHER = (1, 0, 0, 5), (2, 0, 3, 6)


class Told:
    """What was told, as it stands."""

    def __init__(self) -> None:
        self.used: set[SlotUse] = set()
        self.messages = 0

    def __call__(self, place: SlotUse, *, used: bool) -> None:
        assert used is (place not in self.used), "told only of what changes"
        (self.used.add if used else self.used.remove)(place)
        self.messages += 1


def test_the_first_connection_is_told_at_once_and_the_last_after_a_review_or_two() -> None:
    told = Told()
    use = Use(told)
    use.count(ONE, 1)
    assert told.used == {ONE}
    use.count(ONE, -1)
    use.review()
    assert told.used == {ONE}, "it was used a moment ago"
    use.review()
    assert told.used == set()


def test_connections_one_after_the_other_are_told_of_once() -> None:
    told = Told()
    use = Use(told)
    for _ in range(50):
        use.count(ONE, 1)
        use.count(ONE, -1)
        use.review()
    assert told.messages == 1


@given(st.lists(st.sampled_from([("open", ONE), ("open", OTHER), ("close", ONE), ("review", ONE)])))
def test_what_has_a_connection_counts_as_used(steps: list[tuple[str, SlotUse]]) -> None:
    told, counts = Told(), Counter[SlotUse]()
    use = Use(told)
    for step, place in steps:
        if step == "open":
            use.count(place, 1)
            counts[place] += 1
        elif step == "close" and counts[place]:
            use.count(place, -1)
            counts[place] -= 1
        elif step == "review":
            use.review()
        assert {one for one, count in counts.items() if count} <= told.used
    use.review()
    use.review()
    assert told.used == {one for one, count in counts.items() if count}
