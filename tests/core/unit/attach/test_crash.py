"""A process that ends at any step should leave nothing that the next one does not finish."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dfmeta.attach.model import Attachment, AttachmentState, Found
from dfmeta.errors import AttachDriverError, AttachError
from tests.core.unit.attach.support import NETWORKS, OTHER, VM, Breaking, CrashError, Plane, World
from tests.harness.examples import examples


def prepare_nothing(_world: World) -> None:
    """The VM has no attachment."""


def prepare_one(world: World) -> None:
    world.attach("c1", boot_id="first")
    world.now += 100


def attach(world: World) -> None:
    world.attach("c1")


def attach_refused(world: World) -> None:
    world.plane.refused = lambda attachment: attachment.container == "c1"
    with pytest.raises(AttachDriverError):
        world.attach("c1")


def attach_avoiding(world: World) -> None:
    world.attach("c1", boot_id="first", avoid=frozenset({2}))


def attach_in_another_boot(world: World) -> None:
    world.attach("c2", boot_id="second")


def detach(world: World) -> None:
    world.detach("c1")


def collect(world: World) -> None:
    world.engine.collect(VM, "blue", "", set())


def lose_the_data_plane(world: World) -> None:
    world.plane.ports.clear()
    world.engine.tidy()


def leave_the_host(world: World) -> None:
    world.there.clear()
    world.engine.tidy()
    world.now += 601
    world.engine.tidy()
    world.there.add(VM.port_id)


STORIES: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "attach": (prepare_nothing, attach),
    "refused": (prepare_nothing, attach_refused),
    "avoid": (prepare_one, attach_avoiding),
    "boot": (prepare_one, attach_in_another_boot),
    "detach": (prepare_one, detach),
    "collect": (prepare_one, collect),
    "lost": (prepare_one, lose_the_data_plane),
    "left": (prepare_one, leave_the_host),
}


@pytest.mark.parametrize("resume", [True, False], ids=["resume", "request"])
@pytest.mark.parametrize("story", STORIES)
def test_the_end_of_the_process_at_each_step(database: Breaking, story: str, resume: bool) -> None:
    prepare, act = STORIES[story]
    for step in range(1, 100):
        world = World(database)
        prepare(world)
        ended = world.end_at(step, act)
        world.check_single()
        world.start()
        if resume:
            world.engine.resume()
            world.check()
        # The guest repeats its request.
        attachment = world.attach("c1", boot_id="second")
        assert world.engine.get(VM, "c1", "eth0") == attachment
        assert attachment.id in world.plane.ports
        world.engine.tidy()
        world.check()
        for name in ("c1", "c2"):
            world.detach(name)
        world.check_nothing_leaked()
        if not ended:
            assert step > 4
            return
    raise AssertionError("the story has no end")


def test_a_row_that_cannot_be_made_goes_back_after_five_minutes(world: World) -> None:
    world.fuse.left = 4  # the row is committed, and the state before the driver is called
    with pytest.raises(CrashError):
        world.attach()
    world.plane.refused = lambda _one: True
    world.start().resume()
    assert [row.state for row in world.engine.everything()] == [AttachmentState.MADE]
    world.now += 301
    world.engine.tidy()
    assert world.engine.everything() == []
    world.check_nothing_leaked()


def test_an_active_row_whose_data_plane_cannot_be_made_again_stays(world: World) -> None:
    attachment = world.attach()
    world.plane.ports.clear()
    world.plane.refused = lambda _one: True
    world.now += 1000
    world.engine.tidy()
    assert [row.state for row in world.engine.everything()] == [AttachmentState.ACTIVE]
    world.plane.refused = lambda _one: False
    world.engine.tidy()
    assert world.plane.ports[attachment.id].vid == attachment.vid


def test_ports_without_a_row_are_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be removed does not stop the others."""
    attachment = world.attach()
    for name in ("a", "b"):
        world.plane.ports[name] = Found(id=name, parent=VM.port_id, vid=77)
    world.plane.ports["half"] = Found(id="half", parent="", vid=0)
    remove = world.plane.remove

    def refuse(attachments: list[Attachment]) -> None:
        if attachments[0].id == "a":
            raise AttachDriverError(cause="refused")
        remove(attachments)

    monkeypatch.setattr(world.plane, "remove", refuse)
    world.engine.tidy()
    assert set(world.plane.ports) == {"a", attachment.id}


def test_a_vm_that_is_away_keeps_its_attachments_for_its_grace(world: World) -> None:
    attachment = world.attach()

    def away(seconds: float) -> list[str]:
        world.there.clear()
        world.engine.tidy()
        world.now += seconds
        world.engine.tidy()
        return [row.id for row in world.engine.everything()]

    assert away(599) == [attachment.id]
    world.check()
    # It comes back: its absence begins anew.
    world.there.add(VM.port_id)
    world.engine.tidy()
    assert away(599) == [attachment.id]
    # So it does at a start.
    world.start().resume()
    assert away(599) == [attachment.id]
    assert away(1) == []
    world.check_nothing_leaked()


def test_attachments_move_with_their_vm(world: World) -> None:
    attachment = world.attach()
    first, here = world.engine, world.plane
    plane = Plane()
    second = world.start("host-2", plane)
    # The destination asks nothing of the rows while the VM is on its first host.
    world.there.clear()
    second.tidy()
    assert not plane.ports
    # The first host sees that the port has gone, and the second that it has come.
    first.tidy()
    world.there.add(VM.port_id)
    second.tidy()
    assert set(plane.ports) == {attachment.id}
    assert [row.host for row in second.everything()] == ["host-2"]
    assert second.get(VM, "c1", "eth0") is not None
    world.there.clear()
    first.tidy()
    assert not here.ports


def test_a_request_on_another_host_moves_the_attachments(world: World) -> None:
    attachment = world.attach()
    first, here = world.engine, world.plane
    plane = Plane()
    second = world.start("host-2", plane)
    plane.refused = lambda _one: True
    with pytest.raises(AttachError, match="refused"):
        world.attach()
    plane.refused = lambda _one: False
    again = world.attach()
    assert (again.id, again.vid, again.host) == (attachment.id, attachment.vid, "host-2")
    second.tidy()
    assert set(plane.ports) == {attachment.id}
    first.tidy()
    assert here.ports == {}


PARENTS = st.sampled_from([VM, OTHER])
CONTAINERS = st.sampled_from([f"c{number}" for number in range(5)])
STEPS = st.integers(0, 12)
"""Number of the step at which the process ends; 0: none."""


class Machine(RuleBasedStateMachine):
    """Two VMs, few VLAN ids, and a network with six addresses."""

    database: Breaking

    @initialize()
    def begin(self) -> None:
        self.world = World(self.database, vids=range(2, 8), quota=4)

    def act(self, step: int, work: Any) -> Any:
        """Do some work in a process that may end meanwhile; its successor resumes."""
        self.world.fuse.left = step
        try:
            return work()
        except AttachError:
            return None
        except CrashError:
            self.world.fuse.left = 0
            self.world.start().resume()
            return None
        finally:
            self.world.fuse.left = 0

    @rule(
        parent=PARENTS,
        container=CONTAINERS,
        network=st.sampled_from(sorted(NETWORKS)),
        boot_id=st.sampled_from(["", "a", "b"]),
        avoid=st.frozensets(st.integers(2, 8), max_size=2),
        step=STEPS,
    )
    def attach(self, parent: Any, container: str, step: int, **fields: Any) -> None:
        attachment = self.act(step, lambda: self.world.attach(container, parent=parent, **fields))
        if attachment is None:
            return
        assert isinstance(attachment, Attachment)
        assert attachment.state is AttachmentState.ACTIVE
        assert attachment.vid not in fields["avoid"]
        assert attachment.id in self.world.plane.ports or self.lost
        boots = {row.boot_id for row in self.world.engine.listed(parent)} - {""}
        assert not fields["boot_id"] or boots <= {fields["boot_id"]}

    lost = False

    @rule(parent=PARENTS, container=CONTAINERS, gone=st.booleans(), step=STEPS)
    def detach(self, parent: Any, container: str, gone: bool, step: int) -> None:
        self.act(step, lambda: self.world.detach(container, parent=parent, gone=gone))
        if not step:
            assert self.world.engine.get(parent, container, "eth0") is None

    @rule(parent=PARENTS, network=st.sampled_from(sorted(NETWORKS)), step=STEPS)
    def collect(self, parent: Any, network: str, step: int) -> None:
        valid = {("c1", "eth0")}
        self.act(step, lambda: self.world.engine.collect(parent, network, "", valid))

    @rule(step=STEPS)
    def tidy(self, step: int) -> None:
        self.act(step, self.world.engine.tidy)

    @rule(seconds=st.sampled_from([1.0, 15.0, 130.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @rule()
    def switch_goes_and_comes(self) -> None:
        self.world.plane.away = not self.world.plane.away

    @rule()
    def switch_loses_an_answer(self) -> None:
        self.world.plane.lost_answer = True

    @rule()
    def switch_loses_its_ports(self) -> None:
        self.world.plane.ports.clear()
        self.lost = True

    @rule(parent=PARENTS)
    def vm_goes_and_comes(self, parent: Any) -> None:
        self.world.there ^= {parent.port_id}

    @invariant()
    def nothing_is_double(self) -> None:
        if hasattr(self, "world"):
            self.world.check_single()

    @rule()
    def settle(self) -> None:
        """When all answer again, rows and data plane are the same."""
        self.world.plane.away = self.world.plane.lost_answer = self.lost = False
        self.world.there |= {VM.port_id, OTHER.port_id}
        self.world.engine.tidy()
        self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.settle()
        for parent in (VM, OTHER):
            for attachment in self.world.engine.listed(parent):
                self.world.detach(attachment.container, parent=parent)
        self.world.check_nothing_leaked()


def test_any_order(database: Breaking) -> None:
    kind: Any = type("Filled", (Machine,), {"database": database})
    run_state_machine_as_test(
        kind, settings=settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
    )
