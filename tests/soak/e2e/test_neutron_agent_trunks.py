"""Trunks that Neutron's own Open vSwitch agent wires: the VM and each subport get their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.harness.agent import Agent
from tests.harness.container import Container
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.neutron_agent import OUTSIDE, NeutronAgent
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Subport, Trunk
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, put
from tests.host.e2e.test_neutron_agent import asking, requests
from tests.host.ovs.vms import rows

VIDS = (100, 200)
ADDED = 300
MAC = "fa:16:3f:aa:aa:a"


@dataclass(frozen=True)
class World:
    """A VM with a trunk on a compute node with both agents."""

    host: OpenvSwitch
    neutron: NeutronAgent
    agent: Agent
    trunk: Trunk
    containers: dict[int, Container]

    @property
    def vm(self) -> Guest:
        """Return the VM."""
        return self.trunk.guest

    def subport(self, vid: int) -> Subport:
        """Return the names of a subport's ports."""
        return Subport(self.containers[vid].ids.iface_id, vid)

    def tell(self, *vids: int) -> None:
        """Have neutron-server know the trunk with these subports."""
        self.neutron.put_trunk(self.trunk.id, self.vm, {vid: self.containers[vid] for vid in vids})

    def is_wired(self, *vids: int) -> bool:
        """Return whether exactly these subports are served."""
        rows = {row["port"]: row for row in self.agent.admin("/ports").json()}
        found = {row["segmentation_id"] for row in rows.values() if row["kind"] == "subport"}
        return found == {*vids} and all(row["state"] != "no instance" for row in rows.values())


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    """A compute node with a bridge of the physical network."""
    with OpenvSwitch(bridges=(BRIDGE, OUTSIDE)) as switch:
        yield switch


@pytest.fixture(scope="module")
def world(host: OpenvSwitch) -> Iterator[World]:
    """Neutron's agent, dfmeta, and a VM that os-vif plugs after them."""
    with ExitStack() as stack:
        neutron = stack.enter_context(NeutronAgent(host)).start()
        vm = stack.enter_context(Guest(host, "vm", address="10.0.0.5/24", plug=False))
        neutron.put(vm, network="common", vlan=201)
        agent = stack.enter_context(Agent(host)).start()
        containers = {}
        for number, vid in enumerate((*VIDS, ADDED), 6):
            address = f"10.0.0.{number}/24"
            one = Container(vm, vid, f"c{vid}", address=address, mac=f"{MAC}{number:x}")
            containers[vid] = stack.enter_context(one)
            neutron.put(one, network=f"of-{vid}", vlan=300 + number)
        for guest in (vm, *containers.values()):
            put(agent, guest, hostname=guest.name)
        wait_for(lambda: "iteration:1 completed" in neutron.log(), "Neutron's agent to run")
        trunk = Trunk(vm, plugged=False, wired=False)
        stack.callback(trunk.close)
        made = World(host, neutron, agent, trunk, containers)
        made.tell(*VIDS)
        trunk.plug()
        for vid in VIDS:
            name = made.subport(vid).inner
            wait_for(lambda name=name: name in host.ports(), f"the subport {name}")
            instance = containers[vid].instance_id
            host.vsctl("set", "Interface", name, f'external_ids:dfmeta-instance="{instance}"')
        wait_for(lambda: made.is_wired(*VIDS), "the trunk to be served")
        yield made
        agent.stop()


neutron, agent = shared.neutron_of_world, shared.agent_of_world


pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]


def test_the_vm_and_its_subports_get_their_own(world: World) -> None:
    for one in (world.vm, *(world.containers[vid] for vid in VIDS)):
        asks_own(one)
        asks_own(one, host=OPENSTACK6)
    rows = {row["port"]: row for row in world.agent.admin("/ports").json()}
    assert rows[world.trunk.inner]["kind"] == "trunk parent"
    assert rows[world.trunk.inner]["instance"] == world.vm.instance_id


def test_subports_come_and_go_beside_guests_at_work(world: World) -> None:
    """Neutron's agent writes the VM's row anew at each of these changes."""
    guests = (world.vm, *(world.containers[vid] for vid in VIDS))
    entry = json.dumps(
        json.dumps([{"vid": ADDED, "instance_id": world.containers[ADDED].instance_id}])
    )
    world.host.vsctl("set", "Interface", world.trunk.inner, f"external_ids:dfmeta-subports={entry}")
    with asking(requests(world.agent), guests, timeout=20):
        world.tell(*VIDS, ADDED)
        wait_for(lambda: world.is_wired(*VIDS, ADDED), "the added subport")
        asks_own(world.containers[ADDED])
        world.tell(*VIDS)
        wait_for(lambda: world.is_wired(*VIDS), "the subport to be gone")


def test_a_restart_of_neutrons_agent_changes_nothing(world: World) -> None:
    before = {row["port"]: row["instance"] for row in world.agent.admin("/ports").json()}
    neutron = world.neutron
    neutron.kill()
    known = len(neutron.log())
    neutron.start(wait=False)
    # It wires the trunk again before that.
    wait_for(lambda: "iteration:2 completed" in neutron.log()[known:], "Neutron's agent")
    for one in (world.vm, *(world.containers[vid] for vid in VIDS)):
        asks_own(one)
    after = {row["port"]: row["instance"] for row in world.agent.admin("/ports").json()}
    assert after == before


def test_dfmeta_makes_and_removes_no_trunk_beside_neutrons_agent(world: World) -> None:
    before = rows(world.host)
    with Guest(world.host, "other", address="10.0.0.20/24") as other:
        for verb, port, said in (
            ("enable", world.vm.port, "was made by another program"),
            ("disable", world.trunk.inner, "was made by another program"),
            ("enable", other.port, "of Neutron's agent, which wires the ports of br-int"),
        ):
            done = world.agent.ctl("trunk", verb, port, check=False)
            assert (done.returncode, said in done.stderr) == (2, True), done
    assert rows(world.host) == before
