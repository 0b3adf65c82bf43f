"""A worker should report each address that has connections, once, with the times of its use."""

from __future__ import annotations

from typing import Any

from dfmeta.proxy.worker.use import Use

ONE, OTHER = (7, 0, 0, 1), (7, 0, 1, 2)


def test_the_end_of_the_last_connection_is_reported_late_with_its_time() -> None:
    told: list[tuple[Any, bool, float]] = []
    now = 10.0
    use = Use(lambda slot, *, used, at: told.append((slot, used, at)), clock=lambda: now)
    use.count(ONE, 1)
    now = 11.0
    use.count(OTHER, 1)
    now = 12.0
    use.count(ONE, -1)
    assert told == [(ONE, True, 10.0), (OTHER, True, 11.0)]
    now = 13.0
    use.review()
    assert len(told) == 2, "used since the last review"
    now = 14.0
    use.review()
    assert told[2:] == [(ONE, False, 12.0)], "the other one still has a connection"
