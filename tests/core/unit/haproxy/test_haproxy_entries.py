"""haproxy's map should have the guests that the registry has, and the daemon should know it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import eventlet
import pytest
from eventlet.event import Event

from dfmeta.exceptions import HaproxyError
from dfmeta.model import Endpoint, Identity
from dfmeta.proxy.haproxy.config import IN_DOUBT
from dfmeta.proxy.haproxy.entries import (
    AT_ONCE,
    MANY,
    Entries,
    GuestMap,
    claim_token,
    port_token,
    read_token,
)
from dfmeta.registry import Registry
from tests.core.unit.haproxy.support import FakeRuntime
from tests.core.unit.support import (
    GUEST_IP6,
    INSTANCE,
    PROJECT,
    address,
    address6,
    let_hub_run,
    port,
)

HERE, THERE = Endpoint(13), Endpoint(14)


def signed(instance: str) -> str:
    return f"signature-of-{instance[:4]}"


class World:
    def __init__(self, **options: Any) -> None:
        self.registry = Registry(**options)
        self.versions = {4, 6}
        self.entries = Entries(self.registry, signed, self._plain)
        self.registry.set_port(port(13))

    def _plain(self, _identity: Identity, version: int) -> bool:
        return version in self.versions

    def of(self, endpoint: Endpoint = HERE) -> dict[str, str]:
        ((named, entries),) = self.entries.news([endpoint], False)
        assert named == endpoint
        return entries


@pytest.fixture
def world() -> World:
    return World()


def test_entry_says_all_that_identifies_a_guest(world: World) -> None:
    learned = world.registry.learn(HERE, address(), 0)
    identity = world.registry.identity(HERE)
    assert learned is not None
    assert identity is not None
    key = str(world.registry.keys.key_of(HERE, learned.slot))
    here = f"13.0.{identity.incarnation}"
    claim = f"{here}.{learned.slot}.{learned.epoch}"
    said = f"{here}|{claim}|10.0.0.5|{PROJECT}|{INSTANCE}|{signed(INSTANCE)}"
    assert world.of() == {key: said}
    assert read_token(claim) == (HERE, identity.incarnation, learned.slot, learned.epoch)


def test_each_address_has_an_entry_unless_its_requests_are_the_daemons(world: World) -> None:
    world.registry.learn(HERE, address(), 0)
    world.registry.learn(HERE, address6(), 0)
    assert len(world.of()) == 2
    world.versions = {4}
    assert [":" in key for key in world.of()] == [False]
    world.versions = set()
    assert world.of() == {}
    world.registry.learn(HERE, address6("fe80::5%eth0"), 0)
    world.versions = {6}
    assert {entry.split("|")[2] for entry in world.of().values()} == {GUEST_IP6, "fe80::5"}


def test_value_that_means_something_to_haproxy_has_no_entry(world: World) -> None:
    assert world.of(THERE) == {}, "there is no guest"
    for odd in ("a b", "a|b", "a;b", "a\nb", "", "ä"):
        world.registry.set_port(replace(port(13), project_id=odd))
        world.registry.learn(HERE, address(), 0)
        assert world.of() == {}, odd


def test_token_is_read_as_it_is_written_and_no_other_text() -> None:
    trunk = Endpoint(7, 9)
    assert port_token(trunk, 3) == "7.9.3"
    assert read_token(claim_token(trunk, 3, 1, 5)) == (trunk, 3, 1, 5)
    assert [read_token(text) for text in ("", "1.2.3.4", "1.2.3.4.x", "1.2.3.4.5.6")] == [None] * 4


# The map of one haproxy


class Follower:
    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.map = GuestMap(self.runtime, "m")  # type: ignore[arg-type]
        self.error: HaproxyError | None = None
        self.thread = eventlet.spawn(self._run)

    def _run(self) -> None:
        try:
            self.map.run()
        except HaproxyError as error:
            self.error = error

    def tell(self, endpoint: Endpoint, **entries: str) -> None:
        self.map.tell([(endpoint, entries)])

    def settle(self) -> dict[str, str]:
        let_hub_run()
        return self.runtime.map


@pytest.fixture
def follower() -> Iterator[Follower]:
    one = Follower()
    yield one
    one.runtime.gate = None
    one.thread.kill()


def test_map_follows_what_it_is_told(follower: Follower) -> None:
    for entries in ({"a": "1", "b": "2"}, {"a": "3"}, {"a": "3"}, {}):
        follower.tell(HERE, **entries)
        follower.tell(THERE)
        assert follower.settle() == entries
        assert follower.map.has(follower.map.position), "with or without a change"
        assert len(follower.map) == len(entries)
    assert follower.runtime.done == [
        ("change", {"a": "1", "b": "2"}),
        ("change", {"a": "3", "b": None}),
        ("change", {"a": None}),
    ]


def test_guest_in_doubt_is_withdrawn_at_once_until_the_next_message(follower: Follower) -> None:
    follower.tell(HERE, a="1", b="2")
    follower.tell(THERE, c="3")
    follower.settle()
    follower.map.withdraw(HERE)
    follower.map.withdraw(HERE)
    doubted = {"a": IN_DOUBT, "b": IN_DOUBT}
    assert follower.runtime.map == doubted | {"c": "3"}
    assert follower.runtime.done[1:] == [("at once", doubted)]
    assert follower.map.differs() == 0
    follower.tell(THERE, c="4")
    assert follower.settle() == doubted | {"c": "4"}
    follower.tell(HERE, a="1")
    assert follower.settle() == {"a": "1", "c": "4"}


def test_guest_that_is_withdrawn_during_a_change_is_put_right(follower: Follower) -> None:
    follower.tell(HERE, a="1")
    follower.settle()
    follower.runtime.gate = Event()
    follower.tell(THERE, c="3")
    let_hub_run()
    follower.map.withdraw(HERE)
    follower.runtime.gate.send()
    assert follower.settle() == {"a": IN_DOUBT, "c": "3"}
    assert follower.map.differs() == 0, "the next look decides"
    follower.runtime.change = follower.runtime.put  # type: ignore[method-assign]
    follower.tell(HERE, a="1")
    assert follower.settle() == {"a": "1", "c": "3"}


def test_haproxy_that_does_not_withdraw_gets_the_next_message_as_well(
    follower: Follower,
) -> None:
    follower.tell(HERE, a="1")
    follower.tell(THERE, c="3")
    follower.settle()
    follower.runtime.fails = True
    follower.map.withdraw(HERE)
    follower.runtime.fails = False
    follower.map.withdraw(THERE)
    assert follower.runtime.map == {"a": "1", "c": "3"}, "it is not asked again before"
    follower.tell(HERE, a="1")
    follower.settle()
    assert follower.runtime.done[-1] == ("change", {"a": "1"})


def test_of_many_guests_in_doubt_only_the_first_are_withdrawn_one_by_one(
    follower: Follower,
) -> None:
    for number in range(AT_ONCE + 1):
        follower.tell(Endpoint(number), **{f"k{number}": "1"})
    follower.settle()
    for number in range(AT_ONCE + 1):
        follower.map.withdraw(Endpoint(number))
    assert sorted(follower.runtime.map.values()) == ["1"] + [IN_DOUBT] * AT_ONCE


def test_key_that_moves_is_the_new_ports_in_either_order(follower: Follower) -> None:
    moves = [(HERE, {"b": "2"}), (THERE, {"a": "3"})]
    for order, at_once in itertools.product((moves, moves[::-1]), (True, False)):
        follower.tell(HERE, a="1", b="2")
        follower.settle()
        for endpoint, entries in order:
            follower.tell(endpoint, **entries)
            if not at_once:
                follower.settle()
        assert follower.settle() == {"a": "3", "b": "2"}
        follower.tell(THERE)
        assert follower.settle() == {"b": "2"}


def test_many_changes_replace_the_map_and_few_do_not(follower: Follower) -> None:
    few = {f"k{number}": "1" for number in range(MANY)}
    follower.tell(HERE, **few)
    follower.settle()
    assert [kind for kind, _entries in follower.runtime.done] == ["change"]
    many = {f"m{number}": "1" for number in range(MANY + 1)}
    follower.tell(THERE, **many)
    assert follower.settle() == few | many
    assert follower.runtime.done[1] == ("replace", few | many)
    assert len(follower.map) == 2 * MANY + 1
    follower.map.leaving = True
    follower.tell(HERE, **{f"l{number}": "1" for number in range(MANY + 1)})
    follower.settle()
    assert follower.runtime.done[-1][0] == "change", "a haproxy that leaves takes no new version"


def test_position_is_reached_when_haproxy_has_confirmed_it(follower: Follower) -> None:
    follower.runtime.gate = Event()
    follower.tell(HERE, a="1")
    first = follower.map.position
    let_hub_run()
    follower.tell(HERE, a="2")
    second = follower.map.position
    assert not follower.map.has(first)
    gate, follower.runtime.gate = follower.runtime.gate, Event()
    gate.send()
    let_hub_run()
    assert follower.map.has(first)
    assert not follower.map.has(second)
    follower.runtime.gate.send()
    assert follower.settle() == {"a": "2"}
    assert follower.map.has(second)


def test_map_that_has_ended_keeps_no_guest_waiting_and_one_that_failed_does(
    follower: Follower,
) -> None:
    follower.runtime.gate = Event()
    follower.runtime.fails = True
    follower.tell(HERE, a="1")
    let_hub_run()
    follower.map.end()
    assert follower.map.has(follower.map.position)
    follower.runtime.gate.send()
    let_hub_run()
    assert follower.error is None
    assert follower.thread.dead
    unconfirmed = Follower()
    unconfirmed.runtime.fails = True
    unconfirmed.tell(HERE, a="1")
    let_hub_run()
    assert unconfirmed.error is not None
    assert not unconfirmed.map.has(unconfirmed.map.position)


def test_what_differs_in_haproxy_is_counted(follower: Follower) -> None:
    follower.tell(HERE, a="1", b="2")
    follower.settle()
    assert follower.map.differs() == 0
    follower.runtime.map = {"a": "1", "b": "3", "c": "4"}
    assert follower.map.differs() == 3
    before = {"a": "1"}

    def change_first(_name: str) -> dict[str, str]:
        follower.runtime.map = {"a": "1", "b": "2"}
        follower.tell(HERE, a="2")
        follower.settle()
        return before

    follower.runtime.entries = change_first  # type: ignore[method-assign]
    assert follower.map.differs() == 0, "it changes meanwhile"
