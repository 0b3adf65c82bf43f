"""A guest should get as long as it reads, and no longer."""

from dfmeta.http.connection import FLOOR, SendProgress

PATIENCE = 30.0
PAUSE = 10.0


def seconds(bytes_a_second: float, size: int = 1 << 20) -> float | None:
    """Return the time at which a guest that reads steadily is given up; None: it got all."""
    progress, now, taken = SendProgress(now=0.0, patience=PATIENCE), 0.0, 0
    while taken < size:
        if progress.left(taken, now=now) <= 0:
            return now
        now += PAUSE
        taken += int(PAUSE * bytes_a_second)
    return None


def test_guest_that_reads_steadily_gets_all() -> None:
    assert seconds(FLOOR) is None
    assert seconds(100 * FLOOR) is None


def test_guest_that_reads_more_slowly_than_it_may_is_given_up() -> None:
    assert seconds(0) == PATIENCE
    assert seconds(1) == PATIENCE + PAUSE
    assert seconds(FLOOR / 2) == 2 * PATIENCE


def test_guest_that_stops_is_given_up_however_much_it_has_read() -> None:
    progress = SendProgress(now=0.0, patience=PATIENCE)
    assert progress.left(1 << 20, now=5.0) == PATIENCE
    assert progress.left(1 << 20, now=5.0 + PATIENCE) == 0
