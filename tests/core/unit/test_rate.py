"""A port should be slowed down to its rates, refused only for abuse, and never for another's."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.http.service import AT_ONCE, LONGEST, PER_SECOND, RefusalThrottle
from dfmeta.model import Endpoint
from dfmeta.proxy.rate import RateLimiter, RateSettings, Verdict, Window

HERE, THERE = Endpoint(13), Endpoint(14)
ON = RateSettings(enabled=True)
SLOW = replace(ON, base=Window(1, 10.0), burst=Window(1, 10.0))
NOTHING = 1e-6

WINDOWS = st.builds(Window, st.integers(1, 30), st.integers(1, 60).map(float))
SETTINGS = st.builds(
    RateSettings,
    enabled=st.just(True),
    base=WINDOWS,
    burst=WINDOWS,
    delay_max=st.floats(0, 8),
    tolerated=st.integers(0, 40),
)
STEPS = st.one_of(st.just(0.0), st.floats(0, 0.5), st.floats(0, 30), st.floats(0, 1e6))


class World:
    def __init__(self, settings: RateSettings = ON) -> None:
        self.now = 1000.0
        self.limiter = RateLimiter(settings, clock=lambda: self.now)

    def ask(self, endpoint: Endpoint = HERE, ip_version: int = 4) -> Verdict:
        return self.limiter.ask(endpoint, ip_version)

    def ask_at_once(self, count: int) -> list[Verdict]:
        return [self.ask() for _ in range(count)]


@pytest.fixture
def world() -> World:
    return World()


def test_burst_beyond_the_tolerance_is_refused(world: World) -> None:
    verdicts = world.ask_at_once(200)
    taken = [verdict for verdict in verdicts if not verdict.refuse]
    # 10 at once, 2 whose tokens come within the longest delay, and those tolerated.
    assert len(taken) == 10 + 2 + 32
    assert max(verdict.delay for verdict in taken) == 2.0
    assert set(verdicts[44:]) == {Verdict(refuse=True, retry_after=1)}


@pytest.mark.parametrize("settings", [ON, SLOW, replace(SLOW, delay_max=0.0, tolerated=0)])
def test_request_is_taken_after_retry_after(settings: RateSettings) -> None:
    world = World(settings)
    verdicts = world.ask_at_once(200)
    assert verdicts[-1].refuse
    world.now += verdicts[-1].retry_after - 1
    if verdicts[-1].retry_after > 1:
        assert world.ask().refuse
    world.now += 1
    assert not world.ask().refuse


def test_ip_versions_count_together_where_both_are_limited() -> None:
    world = World(replace(ON, ip_versions=frozenset({4, 6})))
    for version in (4, 6) * 5:
        assert world.ask(ip_version=version) == Verdict()
    assert world.ask(ip_version=6).delay > 0.9
    assert world.ask(ip_version=4).delay > 0.9


def test_another_guest_on_the_port_begins_anew(world: World) -> None:
    world.ask_at_once(100)
    world.limiter.forget(HERE)
    world.limiter.forget(THERE)
    assert world.ask() == Verdict()


def test_counts_hold_against_new_settings(world: World) -> None:
    world.ask_at_once(20)
    world.limiter.settings = replace(ON, base=Window(20, 10.0), burst=Window(20, 10.0))
    assert world.ask().delay == pytest.approx(0.5), "20 are used, the rate is 2 a second"
    world.limiter.settings = replace(SLOW, tolerated=0)
    assert world.ask().retry_after == 21 * 10 - 2
    world.limiter.settings = RateSettings()
    assert world.ask() == Verdict()


def test_ports_at_rest_are_forgotten() -> None:
    world = World()
    for number in range(1, 5001):
        world.ask(Endpoint(number))
        world.now += 0.1
    # Each is at rest after a second.
    assert len(world.limiter._ports) <= 12
    world.now += 60
    world.ask()
    world.ask()
    assert len(world.limiter._ports) <= 10


@given(SETTINGS, st.lists(st.tuples(STEPS, st.integers(1, 50)), max_size=30))
def test_windows_bound_requests(settings: RateSettings, requests: list[tuple[float, int]]) -> None:
    world = World(settings)
    taken = []
    for step, count in requests:
        world.now += step
        for _ in range(count):
            verdict = world.ask()
            assert 0 <= verdict.delay <= settings.delay_max
            assert verdict.refuse == (verdict.retry_after >= 1)
            if not verdict.refuse:
                taken.append(world.now + verdict.delay)
    assert taken == pytest.approx(sorted(taken)), "none overtakes another"
    for window in (settings.base, settings.burst):
        rate = window.queries / window.seconds
        for first, since in enumerate(taken):
            for last in range(first, len(taken)):
                most = window.queries + rate * (taken[last] - since + NOTHING) + settings.tolerated
                assert last - first + 1 <= most + 0.001


@given(SETTINGS, st.lists(st.tuples(STEPS, st.booleans()), max_size=100))
def test_ports_are_independent(settings: RateSettings, requests: list[tuple[float, bool]]) -> None:
    shared, alone = World(settings), World(settings)
    for step, other in requests:
        shared.now += step
        alone.now += step
        if other:
            shared.ask(THERE)
        else:
            beside, without = shared.ask(HERE), alone.ask(HERE)
            assert beside.refuse == without.refuse
            assert beside.delay == pytest.approx(without.delay, abs=NOTHING)


ONE, TWO = Endpoint(1), Endpoint(2)


class Refused:
    now = 1000.0

    def __init__(self) -> None:
        self.refusals = RefusalThrottle(clock=lambda: self.now)

    def pauses(self, endpoint: Endpoint, count: int) -> list[float]:
        return [self.refusals.pause(endpoint) for _ in range(count)]


@pytest.fixture
def refused() -> Refused:
    return Refused()


def test_further_refusals_wait_in_turn(refused: Refused) -> None:
    refused.pauses(ONE, AT_ONCE)
    assert refused.pauses(ONE, 3) == pytest.approx([n / PER_SECOND for n in (1, 2, 3)])


def test_another_guest_does_not_wait(refused: Refused) -> None:
    refused.pauses(ONE, 2 * AT_ONCE)
    assert refused.pauses(TWO, 1) == [0.0]


def test_no_place_is_kept_for_longer_than_a_moment(refused: Refused) -> None:
    pauses = refused.pauses(ONE, 1000)
    assert max(pauses) == pauses[-1] == LONGEST


def test_guest_waits_no_longer_than_some_seconds_after_a_flood(refused: Refused) -> None:
    refused.pauses(ONE, 1000)
    refused.now += AT_ONCE / PER_SECOND + LONGEST
    assert refused.pauses(ONE, AT_ONCE) == [0.0] * AT_ONCE


def test_a_guest_that_keeps_to_its_share_never_waits(refused: Refused) -> None:
    for _ in range(10 * AT_ONCE):
        assert refused.pauses(ONE, 1) == [0.0]
        refused.now += 1 / PER_SECOND


def test_guests_that_are_within_their_share_take_no_memory(refused: Refused) -> None:
    for number in range(1000):
        refused.pauses(Endpoint(number + 1), 1)
        refused.now += 1 / PER_SECOND
    assert len(refused.refusals._until) <= 2
