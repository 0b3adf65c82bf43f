"""A port that is refused again and again should wait, and no other port."""

from __future__ import annotations

import pytest

from dfmeta.model import Endpoint
from dfmeta.proxy.refusals import AT_ONCE, LONGEST, PER_SECOND, Refusals

ONE, TWO = Endpoint(1), Endpoint(2)


class World:
    now = 1000.0

    def __init__(self) -> None:
        self.refusals = Refusals(clock=lambda: self.now)

    def pauses(self, endpoint: Endpoint, count: int) -> list[float]:
        return [self.refusals.pause(endpoint) for _ in range(count)]


@pytest.fixture
def world() -> World:
    return World()


def test_further_refusals_wait_in_turn(world: World) -> None:
    world.pauses(ONE, AT_ONCE)
    assert world.pauses(ONE, 3) == pytest.approx([n / PER_SECOND for n in (1, 2, 3)])


def test_another_port_does_not_wait(world: World) -> None:
    world.pauses(ONE, 2 * AT_ONCE)
    assert world.pauses(TWO, 1) == [0.0]


def test_no_place_is_kept_for_longer_than_a_moment(world: World) -> None:
    pauses = world.pauses(ONE, 1000)
    assert max(pauses) == pauses[-1] == LONGEST


def test_the_next_guest_of_a_port_begins_anew(world: World) -> None:
    world.pauses(ONE, 1000)
    world.refusals.forget(ONE)
    world.refusals.forget(TWO)
    assert world.pauses(ONE, AT_ONCE) == [0.0] * AT_ONCE


def test_a_guest_that_keeps_to_its_share_never_waits(world: World) -> None:
    for _ in range(10 * AT_ONCE):
        assert world.pauses(ONE, 1) == [0.0]
        world.now += 1 / PER_SECOND


def test_ports_that_are_within_their_share_take_no_memory(world: World) -> None:
    for number in range(1000):
        world.pauses(Endpoint(number + 1), 1)
        world.now += 1 / PER_SECOND
    assert len(world.refusals._until) <= 2
