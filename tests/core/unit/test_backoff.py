"""A thing that failed should rest for its time, and be tried again afterwards."""

from dfmeta.runtime.throttle import Backoff


def test_it_rests_after_a_failure_until_the_end_of_the_rest() -> None:
    rest = Backoff(10.0, 10.0)
    assert not rest.rests(-1e9)
    rest.failed(100.0)
    assert (rest.rests(100.0), rest.rests(109.9), rest.rests(110.0)) == (True, True, False)
    rest.failed(109.0)
    assert rest.until == 119.0


def test_rests_of_a_series_grow_only_up_to_the_longest() -> None:
    for most, expected in ((0.5, [0.5] * 5), (3.0, [0.5, 1.0, 2.0, 3.0, 3.0])):
        rest, lengths = Backoff(0.5, most), []
        for _ in expected:
            rest.failed(0.0)
            lengths.append(rest.until)
        assert lengths == expected
    for _ in range(3000):
        rest.failed(0.0)
    assert rest.until == 3.0, "no float is that large"


def test_a_reset_keeps_the_rest_and_shortens_the_next_one() -> None:
    rest = Backoff(1.0, 8.0)
    rest.failed(0.0)
    rest.failed(0.0)
    rest.reset()
    assert rest.until == 2.0
    rest.failed(5.0)
    assert rest.until == 6.0


def test_a_success_ends_the_rest_and_the_series() -> None:
    rest = Backoff(1.0, 8.0)
    rest.failed(0.0)
    rest.failed(0.0)
    rest.succeeded()
    assert not rest.rests(0.0)
    rest.failed(5.0)
    assert rest.until == 6.0
