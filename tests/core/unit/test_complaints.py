"""What goes wrong should be read once with its remedy, and not a thousand times."""

import logging

import pytest

from dfmeta.model import Endpoint
from dfmeta.runtime import throttle
from dfmeta.runtime.throttle import QUIET, Complaints

HERE, THERE = Endpoint(13), Endpoint(13, vid=7)
AWAY = "%s: Nova is away: see nova_metadata_host"
LOGGER = logging.getLogger("tests.complaints")


class World:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 1000.0
        self.complaints = Complaints(LOGGER, clock=lambda: self.now)
        self._caplog = caplog

    def complain(self, endpoint: Endpoint = HERE, kind: str = "away") -> None:
        self.complaints.about(endpoint, kind, AWAY, "i1")

    def logged(self) -> list[str]:
        """What was logged since the last time."""
        messages = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return messages


@pytest.fixture
def world(caplog: pytest.LogCaptureFixture) -> World:
    caplog.set_level(logging.DEBUG)
    return World(caplog)


def test_repetitions_are_counted_and_the_count_is_logged_once(world: World) -> None:
    first = "i1: Nova is away: see nova_metadata_host"
    world.complain()
    assert world.logged() == [first]
    for _ in range(41):
        world.now += 1
        world.complain()
    assert world.logged() == []
    world.now += QUIET - 41
    world.complain()
    (line,) = world.logged()
    assert line.startswith("i1: Nova is away")
    assert line.endswith("(and 41 more like it since it was last logged)")
    world.now += QUIET
    world.complain()
    assert world.logged() == [first]


def test_ports_and_kinds_are_throttled_separately(world: World) -> None:
    for endpoint in (HERE, THERE):
        for kind in ("away", "slow"):
            world.complain(endpoint, kind)
            world.complain(endpoint, kind)
    assert len(world.logged()) == 4


def test_another_guest_on_the_port_begins_anew(world: World) -> None:
    for endpoint in (HERE, THERE):
        world.complain(endpoint)
    world.complain()
    world.complaints.forget(HERE)
    world.complaints.forget(Endpoint(99))
    world.logged()
    world.complain()
    world.complain(THERE)
    assert world.logged() == ["i1: Nova is away: see nova_metadata_host"]


def test_count_does_not_change_the_arguments(world: World) -> None:
    for _ in range(2):
        world.complaints.about(HERE, "away", "%(name)s is away", {"name": "100%"})
    world.now += QUIET
    world.complaints.about(HERE, "away", "%(name)s is away", {"name": "100%"})
    assert world.logged() == [
        "100% is away",
        "100% is away (and 1 more like it since it was last logged)",
    ]


def test_remembered_ports_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "PORTS", 10)
    for number in range(1, 1001):
        world.complain(Endpoint(number))
    assert len(world.logged()) == 1000
    assert len(world.complaints._ports) == 10
    world.complain(Endpoint(1000))
    assert world.logged() == [], "the newest are remembered"
    world.complain(Endpoint(1))
    assert len(world.logged()) == 1, "the oldest are not"
