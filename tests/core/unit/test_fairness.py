"""A port that has much to do should have one piece of it done in each round of the hub."""

import functools
from collections.abc import Iterator
from typing import Any

import eventlet
import pytest

from dfmeta.http.service import REST, SHARE, FairScheduler
from dfmeta.model import Endpoint
from tests.core.unit.support import let_hub_run

ONE, TWO, THREE = Endpoint(1), Endpoint(2), Endpoint(3)


class World:
    """Ports that do things, each of which takes as long as is said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done: list[tuple[int, Endpoint]] = []
        self.round = 0
        self.rounds = FairScheduler(clock=lambda: self.now)
        self._counting = eventlet.spawn(self._count)

    def _count(self) -> None:
        while True:
            eventlet.sleep(0)
            self.round += 1

    def close(self) -> None:
        self._counting.kill()

    def work(self, *ports: Endpoint, seconds: float) -> list[Any]:
        """Have a piece of work come for each of them, in this order and in one round."""
        return [eventlet.spawn(self._piece, port, seconds) for port in ports]

    def spawn(self, *ports: Endpoint, seconds: float) -> None:
        """The same, each in a greenlet that begins at its turn."""
        for port in ports:
            self.rounds.spawn(port, functools.partial(self._do, port, seconds))

    def _piece(self, port: Endpoint, seconds: float) -> None:
        self.rounds.acquire(port)
        self._do(port, seconds)

    def _do(self, port: Endpoint, seconds: float) -> None:
        self.done.append((self.round, port))
        self.now += seconds

    @property
    def order(self) -> list[Endpoint]:
        return [port for _round, port in self.done]

    def by_round(self) -> list[list[Endpoint]]:
        return [
            [port for turn, port in self.done if turn == number]
            for number in sorted({turn for turn, _port in self.done})
        ]


@pytest.fixture
def world() -> Iterator[World]:
    scheduled = World()
    yield scheduled
    scheduled.close()


def test_the_first_piece_of_each_port_is_done_at_once(world: World) -> None:
    world.work(ONE, TWO, THREE, seconds=10 * SHARE)
    let_hub_run()
    assert world.by_round() == [[ONE, TWO, THREE]]


def test_busy_port_does_not_delay_others(world: World) -> None:
    world.work(*[ONE] * 5, *[TWO] * 2, THREE, seconds=SHARE)
    let_hub_run()
    assert world.order == [ONE, TWO, THREE, ONE, TWO, ONE, ONE, ONE]


def test_greenlets_begin_in_turn_and_those_of_idle_ports_in_the_next_round(world: World) -> None:
    world.spawn(*[ONE] * 3, TWO, TWO, THREE, seconds=SHARE)
    let_hub_run()
    first, *others = world.by_round()
    assert sorted(first) == [ONE, ONE, TWO, THREE]
    assert others == [[TWO], [ONE]]
    assert len(world.rounds._seen) == 3
    world.now += 2 * REST
    world.spawn(ONE, ONE, seconds=SHARE)
    assert list(world.rounds._seen) == [ONE]


def test_round_has_room_for_many_short_pieces(world: World) -> None:
    world.work(*[ONE] * 21, seconds=SHARE / 10)
    let_hub_run()
    assert [len(turn) for turn in world.by_round()] == [1, 10, 10]


def test_a_port_that_has_rested_goes_at_once_again(world: World) -> None:
    world.work(ONE, seconds=SHARE)
    let_hub_run()
    world.now += REST
    world.work(TWO, ONE, seconds=SHARE)
    let_hub_run()
    assert world.by_round() == [[ONE], [TWO, ONE]]


def test_a_port_that_has_not_rested_waits_where_another_has_gone(world: World) -> None:
    world.work(ONE, seconds=SHARE)
    let_hub_run()
    world.work(TWO, ONE, seconds=SHARE)
    let_hub_run()
    assert world.by_round() == [[ONE], [TWO], [ONE]]


def test_killed_waiter_keeps_no_other_from_its_turn(world: World) -> None:
    threads = world.work(ONE, ONE, ONE, ONE, seconds=SHARE)
    eventlet.sleep(0)
    threads[1].kill()
    let_hub_run()
    assert world.order == [ONE] * 3
