"""A subport should have its own instance or its VM's, as configured, and never another's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dfmeta.model import Port, PortId, PortKind, PortState
from dfmeta.ports.subports import Subports
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.examples import examples

VM = Port("tpi-1", "vm", 1, instance_id=INSTANCE, project_id="p", kind=PortKind.PARENT)
SUB = Port("spi-1", "sub", 2, kind=PortKind.SUBPORT, segmentation_id=100, parent="tpi-1")
NAMED = replace(SUB, instance_id=OTHER_INSTANCE)


class World:
    def __init__(self, *, own: bool = True) -> None:
        self.ports: dict[str, Port] = {}
        self.stage = Subports(self.take, self.drop, own=own)

    def take(self, port: Port) -> None:
        self.ports[port.row] = port

    def drop(self, port_id: PortId) -> None:
        self.ports.pop(port_id.row, None)

    def put(self, *ports: Port) -> Port:
        for port in ports:
            self.stage.put(port)
        return self.ports["sub"]


def test_a_subport_gets_the_project_of_its_parent_and_not_its_instance() -> None:
    found = World().put(VM, NAMED)
    assert (found.instance_id, found.project_id) == (OTHER_INSTANCE, "p")
    assert found.sources["project_id"] == "parent"
    unnamed = World().put(VM, replace(SUB, unnamed=True))
    assert (unnamed.instance_id, unnamed.state) == ("", PortState.UNNAMED)


def test_a_project_of_its_own_comes_first_and_an_unverified_subport_gets_none() -> None:
    assert World().put(VM, replace(NAMED, project_id="q")).project_id == "q"
    assert World().put(VM, replace(NAMED, unverified=True)).project_id == ""
    guessed = replace(NAMED, project_id="q", sources={"project_id": "neutron (port)"})
    assert World().put(VM, guessed).project_id == "p"
    assert World().put(VM, replace(guessed, unverified=True)).project_id == "q"
    assert World().put(guessed).project_id == "q"


def test_a_change_and_the_end_of_a_parent_are_followed() -> None:
    world = World()
    assert world.put(NAMED).project_id == ""
    assert world.put(VM).project_id == "p"
    assert world.put(replace(VM, project_id="q")).project_id == "q"
    assert world.put(replace(VM, name="tpi-2")).project_id == "", "it is the parent of others"
    assert world.put(VM).project_id == "p"
    world.stage.forget(VM.id)
    assert world.ports["sub"].project_id == ""
    # Neither a subport nor the parent of another trunk is its parent.
    world.put(replace(VM, kind=PortKind.SUBPORT), NAMED)
    assert world.ports["sub"].project_id == ""
    world.put(replace(VM, name="tpi-2"), replace(NAMED, parent=""))
    assert world.ports["sub"].project_id == ""


def test_with_parent_a_subport_is_its_vm() -> None:
    world = World(own=False)
    vm = replace(VM, instance_name="web", unverified=True)
    found = world.put(replace(NAMED, project_id="q"), vm)
    values = (found.instance_id, found.project_id, found.instance_name, found.unverified)
    assert values == (INSTANCE, "p", "web", True)
    assert set(found.sources.values()) == {"parent"}
    assert world.put(replace(SUB, unnamed=True)).state is PortState.SERVED
    world.stage.forget(VM.id)
    assert world.ports["sub"].state is PortState.NO_INSTANCE


ANY = st.builds(
    Port,
    name=st.sampled_from(["a", "b", "c"]),
    row=st.sampled_from(["a", "b", "c"]),
    ofport=st.just(1),
    vid=st.sampled_from([0, 0, 7]),
    instance_id=st.sampled_from(["", INSTANCE, OTHER_INSTANCE]),
    project_id=st.sampled_from(["", "p", "q"]),
    kind=st.sampled_from(PortKind),
    parent=st.sampled_from(["", "a", "b"]),
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ANY | st.sampled_from(["a", "b", "c"]), max_size=12), st.booleans())
def test_after_any_changes_each_port_is_as_if_all_had_come_anew(
    steps: list[Any], own: bool
) -> None:
    found: dict[PortId, Port] = {}
    stage = Subports(lambda port: found.update({port.id: port}), found.pop, own=own)
    there: dict[PortId, Port] = {}
    for step in steps:
        if isinstance(step, Port):
            # A name belongs to one row.
            step = replace(step, row=step.name)
            there[step.id] = step
            stage.put(step)
        elif PortId(step) in there:
            del there[PortId(step)]
            stage.forget(PortId(step))
    anew: dict[PortId, Port] = {}
    other = Subports(lambda port: anew.update({port.id: port}), anew.pop, own=own)
    for port in there.values():
        other.put(port)
    assert found == anew
