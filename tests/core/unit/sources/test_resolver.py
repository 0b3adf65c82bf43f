"""The resolver should ask its sources in order, and mix up no ports' answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import eventlet
import pytest
from eventlet.event import Event
from hypothesis import given
from hypothesis import strategies as st

from dfmeta import metrics
from dfmeta.errors import SourceError
from dfmeta.model import Port, PortId, PortKind, PortState
from dfmeta.ovsdb.external_ids import instance_of, name_of, project_of
from dfmeta.runtime.clock import POLL
from dfmeta.runtime.throttle import FIRST_PAUSE, LONGEST_PAUSE
from dfmeta.sources import resolver as module
from dfmeta.sources.resolution import PORT_PROJECT_AFTER, SourceAnswer, merge, open_fields
from dfmeta.sources.resolver import Resolver
from dfmeta.sources.source import (
    FIELDS,
    INSTANCE,
    NAME,
    PORT_PROJECT,
    PROJECT,
    Ownership,
    PortQuery,
)
from tests.harness.tier import CLOCK

values = st.sampled_from(["", "1", "2"])
founds = st.builds(
    Ownership, instance_id=values, project_id=values, instance_name=values, port_project=values
)
answers = st.lists(
    st.builds(
        SourceAnswer,
        source=st.sampled_from(["a", "b", "c"]),
        ownership=founds,
        unverified=st.booleans(),
    ),
    max_size=5,
)


@given(answers, st.booleans())
def test_values_are_of_one_instance(given_answers: list[SourceAnswer], port_project: bool) -> None:
    port = merge(ROW, given_answers, port_project=port_project)
    instance = next((a.ownership.instance_id for a in given_answers if a.ownership.instance_id), "")
    expected, first = dict.fromkeys(FIELDS, ""), ""
    for answer in given_answers:
        if first and answer.ownership.instance_id not in ("", first):
            continue
        first = first or answer.ownership.instance_id
        for name in FIELDS:
            expected[name] = expected[name] or getattr(answer.ownership, name)
    assert port.instance_id == instance == expected[FIELDS[0]]
    assert port.instance_name == expected[FIELDS[2]]
    if expected["project_id"] or not port_project:
        assert port.project_id == expected["project_id"]
    assert set(port.sources) == {name for name in FIELDS if getattr(port, name)}
    hosts = {a.ownership.instance_id for a in given_answers if not a.unverified}
    assert port.unverified == (bool(port.instance_id) and port.instance_id not in hosts)
    assert PortQuery(port, 0.0).proven == (bool(port.instance_id) and not port.unverified)


def test_a_ports_own_project_is_marked_and_stays_open() -> None:
    given_answers = [SourceAnswer("neutron", Ownership("i", port_project="p"), unverified=True)]
    port = merge(ROW, given_answers, port_project=True)
    assert port.sources["project_id"] == "neutron (port)"
    assert "project_id" in open_fields(port)
    better = merge(
        ROW, [*given_answers, SourceAnswer("libvirt", Ownership("i", "q"))], port_project=True
    )
    assert (better.project_id, better.unverified) == ("q", False)


def test_what_comes_from_outside_is_cleaned() -> None:
    assert instance_of(" 6A7B1C1E-0D5F-4E0E-8D61-1F5B1F6F3F10 ")[:8] == "6a7b1c1e"
    assert instance_of("dhcp-1") == ""
    assert project_of(" p ") == "p"
    assert project_of("a b") == project_of("a\nb") == project_of("x" * 300) == ""
    assert name_of(" a\x1b[2J\n b ") == "a [2J b"


ROW = Port(name="tap0", row="r", ofport=1, iface_id="port", mac="m")
ALL = frozenset({INSTANCE, PROJECT, NAME})


class Fake:
    by_instance = False
    subports = True
    unverified = False
    retry = (1.0, 2.0)
    recheck = 0.0
    at_once = 4

    def __init__(self, name: str, *, gives: frozenset[str] = ALL, timeout: float = 5) -> None:
        self.name, self.gives, self.timeout = name, gives, timeout
        self.asked: list[PortQuery] = []
        self.answer: Callable[[PortQuery], Ownership] = lambda _question: Ownership()

    def find(self, question: PortQuery) -> Ownership:
        self.asked.append(question)
        return self.answer(question)

    def says(self, *values: Any, **named: Any) -> Fake:
        self.answer = lambda _question: Ownership(*values, **named)
        return self

    def waits(self, event: Event) -> Fake:
        self.answer = lambda _question: event.wait()
        return self

    def fails(self) -> Fake:
        def raise_error(_question: PortQuery) -> Ownership:
            raise SourceError(source=self.name, cause="away")

        self.answer = raise_error
        return self


class World:
    made: ClassVar[list[World]] = []

    def __init__(self, order: Sequence[str], *sources: Fake) -> None:
        self.made.append(self)
        self.ports: dict[str, Port] = {}
        self.history: list[Port] = []
        self.resolver = Resolver(order, sources, self._take)

    def _take(self, port: Port) -> None:
        self.ports[port.row] = port
        self.history.append(port)

    @property
    def port(self) -> Port:
        return self.ports["r"]


@pytest.fixture(autouse=True)
def _nothing_goes_on() -> Iterator[None]:
    """A source is asked for as long as its port exists: in other tests as well."""
    yield
    while World.made:
        world = World.made.pop()
        for port in list(world.history):
            world.resolver.forget(port.id)


def until(predicate: Callable[[], object]) -> None:
    end = CLOCK.now() + 600
    while not predicate():
        assert CLOCK.now() < end
        eventlet.sleep(POLL)


def count(source: str, outcome: str) -> float:
    labels = {"source": source, "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("dfmeta_identity_lookups_total", labels) or 0.0


def test_what_ovsdb_knows_is_handed_on_at_once() -> None:
    world = World(["ovsdb", "a"], a := Fake("a").says("i", "p", "n"))
    world.resolver.update(replace(ROW, instance_id="i"))
    assert world.port.instance_id == "i"
    assert not a.asked
    until(lambda: world.port.project_id == "p")
    assert world.port.sources == {INSTANCE: "ovsdb", PROJECT: "a", NAME: "a"}
    assert world.resolver.settled()


def test_a_known_port_is_not_asked_about_and_a_name_once() -> None:
    world = World(["ovsdb", "a"], a := Fake("a", gives=frozenset({INSTANCE, PROJECT})))
    world.resolver.update(replace(ROW, instance_id="i", project_id="p"))
    assert world.resolver.settled()
    assert not a.asked
    world = World(["ovsdb", "a"], a := Fake("a"))
    world.resolver.update(replace(ROW, instance_id="i", project_id="p"))
    until(lambda: a.asked and world.resolver.settled())
    world.resolver.update(replace(ROW, instance_id="i", project_id="p", dead=True))
    assert world.port.dead
    assert world.resolver.settled()
    assert len(a.asked) == 1


def test_the_first_wins_and_the_others_fill_in() -> None:
    first, second = Fake("a").says("1"), Fake("b").says("1", "p", "n")
    world = World(["a", "b", "ovsdb"], first, second)
    world.resolver.update(replace(ROW, instance_id="o", project_id="x"))
    assert world.port.instance_id == ""
    until(lambda: world.port.project_id)
    assert (world.port.instance_id, world.port.project_id) == ("1", "p")
    # OVSDB comes when it is its turn.
    world = World(["a", "ovsdb"], Fake("a").fails())
    world.resolver.update(replace(ROW, instance_id="o", project_id="x"))
    until(lambda: world.port.instance_id == "o")


def test_an_answer_about_the_device_of_before_is_dropped() -> None:
    late: Event = Event()
    world = World(["ovsdb", "a"], a := Fake("a").waits(late))
    world.resolver.update(ROW)
    until(lambda: a.asked)
    a.says("j", "q")
    world.resolver.renew(PortId("r"))
    until(lambda: world.port.project_id)
    before = count("a", "late")
    late.send(Ownership("i"))
    until(lambda: count("a", "late") > before)
    assert (world.port.instance_id, world.port.project_id) == ("j", "q")
    a.waits(Event())
    world.resolver.renew(PortId("r"))
    assert world.port.instance_id == "", "before the source has answered"


def test_an_instance_that_ovsdb_names_outlives_its_device_and_a_move() -> None:
    world = World(["ovsdb", "a"], a := Fake("a").says("", "p", "n"))
    row = replace(ROW, instance_id="i")
    world.resolver.update(row)
    until(lambda: world.port.project_id)
    deliveries = len(world.history)
    world.resolver.renew(PortId("r"))
    world.resolver.renew(PortId("another row"))
    assert (len(world.history), len(a.asked)) == (deliveries, 1)
    world.resolver.update(replace(row, ofport=9, mac="x"))
    assert (world.port.project_id, len(a.asked)) == ("p", 1)


def test_a_conflict_or_a_defect_costs_its_answer_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World(["ovsdb", "a"], Fake("a").says("other", "p"))
    before = count("a", "conflict")
    world.resolver.update(replace(ROW, instance_id="i"))
    until(lambda: count("a", "conflict") > before)
    assert world.port.project_id == ""
    (a := Fake("a")).answer = lambda _question: {}["defect"]
    world = World(["a", "b"], a, Fake("b").says("i", "p"))
    world.resolver.update(ROW)
    until(lambda: world.port.project_id == "p")
    assert "Identity source a failed" in caplog.text


def test_a_source_that_fails_rests_and_holds_up_no_other() -> None:
    dead = Fake("dead").waits(Event())
    world = World(["dead", "b"], dead, Fake("b").says("i", "p"))
    before, began = count("dead", "timeout"), CLOCK.now()
    world.resolver.update(ROW)
    until(lambda: world.port.project_id == "p")
    assert CLOCK.now() - began == pytest.approx(dead.timeout, abs=0.2)
    assert count("dead", "timeout") == before + 1
    world.resolver.update(replace(ROW, row="s"))
    eventlet.sleep(FIRST_PAUSE / 2)
    assert world.ports["s"].project_id == "p"
    assert len(dead.asked) == 1
    dead.says("j", "q", "n")
    CLOCK.advance(FIRST_PAUSE)
    world.resolver.update(replace(ROW, row="t", mac="other"))
    until(lambda: world.ports["t"].instance_id == "j")


def test_an_answer_for_a_port_that_has_changed_or_is_gone_is_dropped() -> None:
    gate = Event()
    world = World(["a"], a := Fake("a").waits(gate))
    before = count("a", "late")
    world.resolver.update(ROW)
    world.resolver.update(replace(ROW, row="gone"))
    until(lambda: len(a.asked) == 2)
    a.says("new", "q")
    world.resolver.forget(PortId("gone"))
    world.resolver.update(replace(ROW, iface_id="another"))
    until(lambda: world.port.instance_id == "new")
    gate.send(Ownership("old", "p"))
    until(lambda: count("a", "late") == before + 2)
    assert {port.instance_id for port in world.history} == {"", "new"}
    assert world.ports["gone"].instance_id == ""


def test_ports_of_one_row_are_asked_about_apart() -> None:
    gate = Event()
    world = World(["a"], a := Fake("a").waits(gate))
    behind = replace(ROW, vid=100)
    world.resolver.update(ROW)
    world.resolver.update(behind)
    until(lambda: len(a.asked) == 2)
    world.resolver.forget(ROW.id)
    gate.send(Ownership("i", "p"))
    until(lambda: world.port.instance_id == "i")
    assert {port.id for port in world.history if port.instance_id} == {behind.id}
    queries = len(a.asked)
    world.resolver.renew(ROW.id)
    world.resolver.renew(behind.id)
    until(lambda: len(a.asked) > queries)
    assert {question.port.id for question in a.asked[queries:]} == {behind.id}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"dead": True}, True),
        *(({name: "x"}, False) for name in ("iface_id", "mac", "name", "instance_id")),
        *(({"ofport": number}, False) for number in (7, None)),
    ],
)
def test_an_answer_stays_with_its_incarnation(change: dict[str, Any], kept: bool) -> None:
    world = World(["a"], a := Fake("a").says("i", "p", "n"))
    world.resolver.update(ROW)
    until(lambda: world.port.project_id)
    a.says("j", "q", "n")
    world.resolver.update(replace(ROW, **change))
    assert world.port.instance_id == ("i" if kept else "")
    until(lambda: world.port.instance_id == ("i" if kept else "j"))


def test_a_number_that_comes_later_changes_nothing() -> None:
    world = World(["a"], a := Fake("a").says("i", "p", "n"))
    world.resolver.update(replace(ROW, ofport=None))
    until(lambda: world.port.project_id)
    world.resolver.update(ROW)
    assert (world.port.ofport, world.port.instance_id) == (1, "i")
    assert len(a.asked) == 1
    # An odd port is delivered, and no source is asked about it.
    world.resolver.update(replace(ROW, row="s", fault="odd"))
    assert world.resolver.settled()
    assert (world.ports["s"].fault, len(a.asked)) == ("odd", 1)


def neutron() -> Fake:
    fake = Fake("neutron", gives=frozenset({INSTANCE, PORT_PROJECT}))
    fake.unverified = True
    return fake


def test_a_ports_project_gives_way_to_the_instances() -> None:
    libvirt, began = Fake("libvirt"), CLOCK.now()
    world = World(["neutron", "libvirt"], neutron().says("i", port_project="p"), libvirt)
    world.resolver.update(ROW)
    until(lambda: len(libvirt.asked) > 1)
    assert world.port.project_id == ""
    until(lambda: world.port.project_id == "p")
    assert CLOCK.now() - began == pytest.approx(PORT_PROJECT_AFTER, abs=0.2)
    libvirt.says("i", "q")
    until(lambda: world.port.project_id == "q")
    assert not world.port.unverified


def test_who_names_an_instance_is_asked_whether_it_is_still_there() -> None:
    a = Fake("a").says("i", "p", "n")
    a.recheck = 1.0
    world = World(["a"], a)
    world.resolver.start()
    world.resolver.update(ROW)
    until(lambda: len(a.asked) > 3)
    assert len({port.instance_id for port in world.history}) == 2
    a.fails()
    queries = len(a.asked)
    until(lambda: len(a.asked) > queries)
    assert world.port.instance_id == "i"
    a.says("j", "q", "n")
    until(lambda: world.port.instance_id == "j")
    # In between it had none, so that nothing of the first one stays.
    assert [port.instance_id for port in world.history][-3:].count("") >= 1


def test_no_more_are_asked_about_at_once_than_a_source_can_bear() -> None:
    gate = Event()
    world = World(["a"], a := Fake("a").waits(gate))
    for number in range(10):
        world.resolver.update(replace(ROW, row=str(number)))
    until(lambda: len(a.asked) == Fake.at_once)
    eventlet.sleep(0)
    assert len(a.asked) == Fake.at_once
    gate.send(Ownership("i", "p"))
    until(lambda: len(a.asked) == 10)


def test_thousands_of_unknown_ports_are_asked_about_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CROWD", 1)
    times: list[float] = []

    def answer(question: PortQuery) -> Ownership:
        if question.port.row == "r7":
            times.append(CLOCK.now())
        return Ownership()

    world = World(["ovsdb", "a"], a := Fake("a", gives=frozenset({INSTANCE, PROJECT})))
    a.answer = answer
    for number in range(50):
        world.resolver.update(replace(ROW, row=f"r{number}", name=f"tap{number}"))
    eventlet.sleep(a.retry[0] + 101 * a.retry[1])
    pauses = [late - soon for soon, late in itertools.pairwise(times)]
    assert pauses == pytest.approx([a.retry[0], 50 * a.retry[1], 50 * a.retry[1]])


def test_a_defect_costs_a_port_some_seconds_and_not_its_life(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, began = World(["libvirt"], Fake("libvirt").says("i", "p")), CLOCK.now()
    due = iter([ZeroDivisionError("a defect")] * 2)
    real = world.resolver._query

    def broken(*args: Any) -> None:
        for failure in due:
            raise failure
        real(*args)

    monkeypatch.setattr(world.resolver, "_query", broken)
    world.resolver.update(ROW)
    until(lambda: world.port.instance_id == "i")
    assert CLOCK.now() - began == pytest.approx(2 * LONGEST_PAUSE, abs=0.2)
    assert caplog.text.count("The identity query for port tap0 failed") == 2


SUBPORT = replace(ROW, kind=PortKind.SUBPORT, name="spi-1", parent="tpi-1", segmentation_id=100)


def test_a_subport_that_no_source_names_is_unnamed_at_once() -> None:
    libvirt = Fake("libvirt").says("i", "p", "n")
    libvirt.subports = False
    world = World(["ovsdb", "libvirt"], libvirt)
    world.resolver.update(SUBPORT)
    assert world.port.state is PortState.UNNAMED
    world.resolver.update(replace(SUBPORT, instance_id="i"))
    assert (world.port.state, world.port.unnamed) == (PortState.SERVED, False)
    world.resolver.update(SUBPORT)
    assert world.port.state is PortState.UNNAMED
    assert not libvirt.asked, "a domain is no subport"


def test_a_port_that_no_source_names_is_waited_for() -> None:
    world = World(["ovsdb"])
    world.resolver.update(ROW)
    assert world.port.state is PortState.NO_INSTANCE
    world = World(["neutron"], a := neutron().says(port_project="p"))
    world.resolver.update(ROW)
    until(lambda: len(a.asked) > 3)
    assert world.port.project_id == "", "a port's project without an instance is nothing"


def test_a_subport_is_unnamed_only_when_all_sources_have_answered() -> None:
    gate = Event()
    world = World(["ovsdb", "a"], a := Fake("a").fails())
    world.resolver.update(SUBPORT)
    until(lambda: len(a.asked) > 1)
    assert world.port.state is PortState.NO_INSTANCE
    a.waits(gate)
    queries = len(a.asked)
    until(lambda: len(a.asked) > queries)
    assert world.port.state is PortState.NO_INSTANCE
    gate.send(Ownership())
    until(lambda: world.port.state is PortState.UNNAMED)
    a.says("i", "p")
    until(lambda: world.port.state is PortState.SERVED)


def test_an_instance_that_only_neutron_names_is_unverified() -> None:
    store = Fake("store", gives=frozenset({PROJECT}))
    store.by_instance = True
    for row, names in ((ROW, ["neutron", "store"]), (SUBPORT, ["ovsdb", "neutron", "store"])):
        world = World(names, neutron().says("i", port_project="p"), store)
        world.resolver.update(row)
        eventlet.sleep(PORT_PROJECT_AFTER + 1)
        assert (world.port.instance_id, world.port.project_id) == ("i", "p")
        assert world.port.sources[PROJECT] == "neutron (port)"
        assert (world.port.unverified, world.port.unnamed) == (True, False)
        # By an instance that is only claimed no project is looked up.
        assert not store.asked
