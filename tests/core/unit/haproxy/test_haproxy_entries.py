"""haproxy's map should have the registry's guests, and the daemon should know it exactly."""

import itertools
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import eventlet
import pytest
from eventlet.event import Event
from eventlet.hubs import trampoline

from dfmeta.errors import HaproxyError
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, Identity
from dfmeta.proxy.engines.haproxy import runtime as runtime_module
from dfmeta.proxy.engines.haproxy.config import COUNTED, IN_DOUBT, PARTS
from dfmeta.proxy.engines.haproxy.entries import (
    MANY,
    Entries,
    GuestMap,
    claim_token,
    port_token,
    read_token,
    vm_token,
)
from dfmeta.proxy.engines.haproxy.runtime import COMMANDS, REQUEST, Runtime
from dfmeta.proxy.replicator import BATCH
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
        ((named, entries),) = self.entries.batch_of([endpoint])
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
    value = f"{here}|{vm_token(identity)}|{claim}|10.0.0.5|{PROJECT}|{INSTANCE}|{signed(INSTANCE)}"
    assert world.of() == {key: value}
    assert read_token(claim) == (HERE, identity.incarnation, learned.slot, learned.epoch)


def test_address_whose_requests_are_the_daemons_is_only_counted(world: World) -> None:
    world.registry.learn(HERE, address(), 0)
    world.registry.learn(HERE, address6(), 0)
    assert len(world.of()) == 2
    world.versions = {4}
    assert {":" in key: entry.count("|") for key, entry in world.of().items()} == {
        False: len(PARTS) - 1,
        True: len(COUNTED) - 1,
    }
    world.registry.learn(HERE, address6("fe80::5%eth0"), 0)
    world.versions = {6}
    addresses = {entry.split("|")[3] for entry in world.of().values() if entry.count("|") > 1}
    assert addresses == {GUEST_IP6, "fe80::5"}


def test_value_that_means_something_to_haproxy_is_not_in_an_entry(world: World) -> None:
    assert world.of(THERE) == {}, "there is no guest"
    for odd in ("a b", "a|b", "a;b", "a\nb", "", "ä"):
        world.registry.set_port(replace(port(13), project_id=odd))
        world.registry.learn(HERE, address(), 0)
        assert [entry.count("|") for entry in world.of().values()] == [len(COUNTED) - 1], odd


def test_container_counts_for_its_vm_with_or_without_a_port_of_its_own(world: World) -> None:
    tagged = replace(port(13), vid=9, parent="tap1")
    for container in (tagged, replace(port(15, name="spi-1"), parent="tap1")):
        world.registry.set_port(container)
    endpoints = (HERE, Endpoint(13, 9), Endpoint(15))
    for endpoint in endpoints:
        world.registry.learn(endpoint, address(), 0)
    assert (
        len(
            {entry.split("|")[1] for endpoint in endpoints for entry in world.of(endpoint).values()}
        )
        == 1
    )


def test_parent_that_becomes_known_later_changes_the_entry_and_not_the_guest(world: World) -> None:
    shown: list[Endpoint] = []
    world.registry.learn(HERE, address(), 0)
    ((_key, before),) = world.of().items()
    world.registry.watch(shown.append)
    world.registry.set_port(replace(port(13), parent="tpi"))
    ((_key, after),) = world.of().items()
    assert shown == [HERE]
    assert [a == b for a, b in zip(before.split("|"), after.split("|"), strict=True)] == [
        part != "vm" for part in PARTS
    ]


def test_token_is_read_as_it_is_written_and_no_other_text() -> None:
    trunk = Endpoint(7, 9)
    assert port_token(trunk, 3) == "7.9.3"
    assert read_token(claim_token(trunk, 3, 1, 5)) == (trunk, 3, 1, 5)
    assert [read_token(text) for text in ("", "1.2.3.4", "1.2.3.4.x", "1.2.3.4.5.6")] == [None] * 4


class Replica:
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
        self.map.apply([(endpoint, entries)])

    def settle(self) -> dict[str, str]:
        let_hub_run()
        return self.runtime.map


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    yield made
    made.runtime.gate = None
    made.thread.kill()


def test_map_follows_what_it_is_told(replica: Replica) -> None:
    for entries in ({"a": "1", "b": "2"}, {"a": "3"}, {"a": "3"}, {}):
        replica.tell(HERE, **entries)
        replica.tell(THERE)
        assert replica.settle() == entries
        assert replica.map.acked(replica.map.position), "with or without a change"
        assert len(replica.map) == len(entries)
    assert replica.runtime.done == [
        ("change", {"a": "1", "b": "2"}),
        ("change", {"a": "3", "b": None}),
        ("change", {"a": None}),
    ]


def test_guest_in_doubt_is_withdrawn_at_once_until_the_next_message(replica: Replica) -> None:
    replica.tell(HERE, a="1", b="2")
    replica.tell(THERE, c="3")
    replica.settle()
    replica.map.withdraw(HERE)
    replica.map.withdraw(HERE)
    doubted = {"a": IN_DOUBT, "b": IN_DOUBT}
    assert replica.runtime.map == doubted | {"c": "3"}
    assert replica.runtime.done[1:] == [("at once", doubted)]
    replica.tell(THERE, c="4")
    assert replica.settle() == doubted | {"c": "4"}
    replica.tell(HERE, a="1")
    assert replica.settle() == {"a": "1", "c": "4"}


def test_guest_that_is_withdrawn_during_a_change_is_put_right(replica: Replica) -> None:
    replica.tell(HERE, a="1")
    replica.settle()
    replica.runtime.gate = Event()
    replica.tell(THERE, c="3")
    let_hub_run()
    replica.map.withdraw(HERE)
    replica.runtime.gate.send()
    assert replica.settle() == {"a": IN_DOUBT, "c": "3"}
    replica.tell(HERE, a="1")
    assert replica.settle() == {"a": "1", "c": "3"}


def test_haproxy_that_does_not_withdraw_gets_the_next_message_as_well(replica: Replica) -> None:
    replica.tell(HERE, a="1")
    replica.tell(THERE, c="3")
    replica.settle()
    replica.runtime.fails = True
    replica.map.withdraw(HERE)
    replica.runtime.fails = False
    replica.map.withdraw(THERE)
    assert replica.runtime.map == {"a": "1", "c": "3"}, "it is not asked again before"
    replica.tell(HERE, a="1")
    replica.settle()
    assert replica.runtime.done[-1] == ("change", {"a": "1"})


def test_of_many_guests_in_doubt_only_the_first_are_withdrawn_one_by_one(replica: Replica) -> None:
    for number in range(BATCH + 1):
        replica.tell(Endpoint(number), **{f"k{number}": "1"})
    replica.settle()
    for number in range(BATCH + 1):
        replica.map.withdraw(Endpoint(number))
    assert sorted(replica.runtime.map.values()) == ["1"] + [IN_DOUBT] * BATCH


def test_key_that_moves_is_the_new_ports_in_either_order(replica: Replica) -> None:
    moves = [(HERE, {"b": "2"}), (THERE, {"a": "3"})]
    for order, at_once in itertools.product((moves, moves[::-1]), (True, False)):
        replica.tell(HERE, a="1", b="2")
        replica.settle()
        for endpoint, entries in order:
            replica.tell(endpoint, **entries)
            if not at_once:
                replica.settle()
        assert replica.settle() == {"a": "3", "b": "2"}
        replica.tell(THERE)
        assert replica.settle() == {"b": "2"}


def test_many_changes_replace_the_map_and_few_do_not(replica: Replica) -> None:
    few = {f"k{number}": "1" for number in range(MANY)}
    replica.tell(HERE, **few)
    replica.settle()
    assert [kind for kind, _entries in replica.runtime.done] == ["change"]
    many = {f"m{number}": "1" for number in range(MANY + 1)}
    replica.tell(THERE, **many)
    assert replica.settle() == few | many
    assert replica.runtime.done[1] == ("replace", few | many)
    assert len(replica.map) == 2 * MANY + 1


def test_position_is_reached_when_haproxy_has_confirmed_it(replica: Replica) -> None:
    replica.runtime.gate = Event()
    replica.tell(HERE, a="1")
    first = replica.map.position
    let_hub_run()
    replica.tell(HERE, a="2")
    second = replica.map.position
    assert not replica.map.acked(first)
    gate, replica.runtime.gate = replica.runtime.gate, Event()
    gate.send()
    let_hub_run()
    assert replica.map.acked(first)
    assert not replica.map.acked(second)
    replica.runtime.gate.send()
    assert replica.settle() == {"a": "2"}
    assert replica.map.acked(second)


def test_ended_map_keeps_no_guest_waiting_and_a_failed_map_does(replica: Replica) -> None:
    replica.runtime.gate = Event()
    replica.runtime.fails = True
    replica.tell(HERE, a="1")
    let_hub_run()
    replica.map.end()
    assert replica.map.acked(replica.map.position)
    replica.runtime.gate.send()
    let_hub_run()
    assert replica.error is None
    assert replica.thread.dead
    unconfirmed = Replica()
    unconfirmed.runtime.fails = True
    unconfirmed.tell(HERE, a="1")
    let_hub_run()
    assert unconfirmed.error is not None
    assert not unconfirmed.map.acked(unconfirmed.map.position)


LOCAL = "127.0.0.1"


class Foreign:
    """haproxy's end of the pair: answers each connection as a test says."""

    def __init__(self) -> None:
        near, self._link = socket.socketpair()
        self.runtime = Runtime(near)
        self.answers: list[bytes] = []
        self.commands: list[bytes] = []
        self._link.setblocking(False)
        self._thread = eventlet.spawn(self._run)

    def _run(self) -> None:
        while True:
            trampoline(self._link.fileno(), read=True)
            data, descriptors, _flags, _address = socket.recv_fds(self._link, 1, 1)
            if not data:
                return
            for descriptor in descriptors:
                eventlet.spawn_n(self._serve, eventlet.green.socket.socket(fileno=descriptor))

    def _serve(self, sock: Any) -> None:
        with sock:
            if piece := sock.recv(65536):
                self.commands.append(piece)
                sock.sendall(self.answers.pop(0) if self.answers else b"")

    def end(self) -> None:
        self._thread.kill()
        self._link.close()
        self.runtime.close()


@pytest.fixture
def foreign() -> Iterator[Foreign]:
    made = Foreign()
    yield made
    made.end()


def test_answer_that_is_cut_short_or_not_text_is_refused(foreign: Foreign) -> None:
    asks: list[Callable[[], object]] = [
        lambda: foreign.runtime.entries("m"),
        lambda: foreign.runtime.table("t"),
        foreign.runtime.statistics,
        lambda: foreign.runtime.change("m", {}, {LOCAL: "a"}),
    ]
    for ask in asks:
        for answer in (b"", b"# pxname,svname", b"\xff\n"):
            foreign.answers = [answer]
            with pytest.raises(HaproxyError):
                ask()


def test_long_answers_do_not_fill_memory(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "BODY_MAX", 100)
    foreign.answers = [bytes(101)]
    with pytest.raises(HaproxyError, match="too long"):
        foreign.runtime.ask("show map m")


REPLACEMENTS: list[tuple[list[bytes], str]] = [
    ([b"New version created: x\n\n"], "did not prepare"),
    ([b"New version created: 1\n\n", b"No such version\n"], "did not add"),
    ([b"New version created: 1\n\n", b"\n", b"\n"], "not all entries"),
    ([b"New version created: 1\n\n", b"\n", b"0x1 10.0.0.1 a\n\n", b"No.\n"], "did not use"),
]


def test_replacement_counts_only_when_each_step_is_confirmed(foreign: Foreign) -> None:
    for answers, fault in REPLACEMENTS:
        foreign.answers = list(answers)
        with pytest.raises(HaproxyError, match=fault):
            foreign.runtime.replace("m", {"10.0.0.1": "a"})
    foreign.commands.clear()
    foreign.answers = [b"New version created: 1\n\n", b"\n", b"0x1 10.0.0.1 a\n\n", b"\n"]
    foreign.runtime.replace("m", {"10.0.0.1": "a"})
    assert foreign.commands == [
        *(b"prepare map m\n", b"add map @1 m <<\n10.0.0.1 a\n\n"),
        *(b"show map @1 m\n", b"commit map @1 m\n"),
    ]


def test_rows_statistics_and_entries_are_read(foreign: Foreign) -> None:
    runtime = foreign.runtime
    foreign.answers = [b"# table: t\n0x1: key=a use=0 gpc0=3\n0x2: key=b conn_cur=1\n\n"]
    assert runtime.table("t", "data.gpc0 gt 0") == {
        "a": {"use": 0, "gpc0": 3},
        "b": {"conn_cur": 1},
    }
    foreign.answers = [b"# pxname,svname,scur,\nguests,FRONTEND,4,\n\n"]
    (row,) = runtime.statistics()
    assert (row["pxname"], row["svname"], row["scur"]) == ("guests", "FRONTEND", "4")
    foreign.answers = [b"0x1 10.0.0.1 a b\n\n"]
    assert runtime.entries("m") == {"10.0.0.1": "a b"}
    assert foreign.commands == [b"show table t data.gpc0 gt 0\n", b"show stat\n", b"show map m\n"]
    for answer, ask in (
        *((f"# table: t\n{line}\n\n", lambda: runtime.table("t")) for line in ODD_ROWS),
        ("Unknown command\n\n", runtime.statistics),
        ("\n", runtime.statistics),
        ("0x1 10.0.0.1\n", lambda: runtime.entries("m")),
    ):
        foreign.answers = [answer.encode()]
        with pytest.raises(HaproxyError, match="not readable"):
            ask()


ODD_ROWS = ("0x1: use=0", "0x1: key=a use=x", "0x1:")


def test_changes_are_sent_in_batches_and_each_is_confirmed(foreign: Foreign) -> None:
    runtime = foreign.runtime
    foreign.answers = [b"\n\n\n"]
    runtime.change("m", {"a": "1", "b": "2"}, {"a": "3", "b": None, "c": "4", "d": None})
    assert foreign.commands == [b"set map m a 3;del map m b;add map m c 4\n"]
    foreign.answers = [b"\n" * COMMANDS, b"\n"]
    runtime.change("m", {}, {f"k{number}": "1" for number in range(COMMANDS + 1)})
    assert [command.count(b";") + 1 for command in foreign.commands[1:]] == [COMMANDS, 1]
    foreign.answers = [b"\n", b"\n"]
    runtime.change("m", {}, {"a": "x" * REQUEST, "b": "1"})
    assert len(foreign.commands) == 5
    foreign.answers = [b"entry not found.\n\n"]
    with pytest.raises(HaproxyError, match="did not change its map: 'entry not found"):
        runtime.change("m", {"a": "1"}, {"a": "2"})
    foreign.answers = [b"\n", b"No such server.\n"]
    runtime.take_for_down(["nova/a", "nova/b"])
    assert foreign.commands[-1] == b"set server nova/a health down;set server nova/b health down\n"
    with pytest.raises(HaproxyError, match="the state of a server"):
        runtime.take_for_down(["nova/a"])
    foreign.answers = [b"\n", b"No such frontend.\n"]
    runtime.shut_down("guests")
    assert foreign.commands[-1] == b"shutdown frontend guests\n"
    with pytest.raises(HaproxyError, match="did not shut its frontend down"):
        runtime.shut_down("guests")
