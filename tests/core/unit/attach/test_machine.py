"""Any order of requests, failures and ends of the process should leak and double nothing."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dfmeta.attach.model import Attachment, State
from dfmeta.exceptions import AttachError
from tests.core.unit.attach.support import NETWORKS, OTHER, VM, Breaking, CrashError, World
from tests.harness.examples import examples

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
        one = self.act(step, lambda: self.world.attach(container, parent=parent, **fields))
        if one is None:
            return
        assert isinstance(one, Attachment)
        assert one.state is State.ACTIVE
        assert one.vid not in fields["avoid"]
        assert one.id in self.world.plane.ports or self.lost
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
            for one in self.world.engine.listed(parent):
                self.world.detach(one.container, parent=parent)
        self.world.check_nothing_leaked()


def test_any_order(database: Breaking) -> None:
    kind: Any = type("Filled", (Machine,), {"database": database})
    run_state_machine_as_test(
        kind, settings=settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
    )
