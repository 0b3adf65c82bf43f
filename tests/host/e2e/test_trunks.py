"""A VM on a Neutron trunk gets its own metadata, and so does each container behind its subports."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, OPENSTACK6, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Container, Trunk
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, asks_own, put

VIDS = (100, 200)
MAC = "fa:16:3f:aa:aa:aa"
"""MAC of all containers."""
ADDRESS = "10.9.0.5/24"
"""Address of all containers."""
FAMILIES = (METADATA_IP, OPENSTACK6)

host, agent = shared.host, shared.agent_with()


@dataclass
class Vm:
    """A VM with a trunk, and its containers."""

    trunk: Trunk
    containers: dict[int, Container]

    @property
    def guest(self) -> Guest:
        """Return the VM itself."""
        return self.trunk.guest

    def everyone(self) -> list[Guest]:
        """Return the VM and its containers."""
        return [self.guest, *self.containers.values()]

    def name_containers(self) -> None:
        """Write the containers' instances into the rows of the subports."""
        for subport in self.trunk.subports:
            instance = self.containers[subport.vid].instance_id
            self.guest.host.vsctl(
                "set", "Interface", subport.inner, f'external_ids:dfmeta-instance="{instance}"'
            )


def make_vm(host: OpenvSwitch, agent: Agent, name: str, number: int) -> Vm:
    """Make a VM with a trunk of two subports; all have records in the store."""
    guest = Guest(host, name, address=f"10.0.0.{number}/24", plug=False)
    trunk = Trunk(guest, *VIDS)
    made = Vm(trunk, {})
    for vid in VIDS:
        made.containers[vid] = Container(trunk, vid, f"{name}-{vid}", address=ADDRESS, mac=MAC)
    for guest_ in made.everyone():
        put(agent, guest_, hostname=guest_.name)
    made.name_containers()
    return made


@pytest.fixture(scope="module")
def vms(host: OpenvSwitch, agent: Agent) -> Iterator[list[Vm]]:
    """Two VMs with the same VLAN ids."""
    made = [make_vm(host, agent, name, number) for number, name in enumerate(("vm-a", "vm-b"), 5)]
    wait_served(agent, *made)
    yield made
    for vm in made:
        vm.trunk.close()
        for guest in vm.everyone():
            guest.close()


def rows(agent: Agent) -> dict[str, dict[str, object]]:
    """Return the listing of the ports by their names."""
    return {row["port"]: row for row in agent.admin("/ports").json()}


def wait_served(agent: Agent, *vms: Vm) -> None:
    """Wait until all ports of the VMs' trunks are served."""
    names = {vm.trunk.inner for vm in vms}
    names |= {subport.inner for vm in vms for subport in vm.trunk.subports}
    wait_for(
        lambda: (
            all(row["state"] == "served" for row in rows(agent).values())
            and names <= rows(agent).keys()
        ),
        "all to be served",
    )


def test_vms_and_containers_get_their_own(vms: list[Vm]) -> None:
    """The containers have the same MAC, the same address, and VLAN ids that occur twice."""
    for service in FAMILIES:
        for vm in vms:
            for guest in vm.everyone():
                asks_own(guest, host=service)


def test_unknown_subport_gets_404(host: OpenvSwitch, agent: Agent, vms: list[Vm]) -> None:
    subport, container = vms[0].trunk.subports[0], vms[0].containers[VIDS[0]]
    host.vsctl("remove", "Interface", subport.inner, "external_ids", "dfmeta-instance")
    wait_for(lambda: rows(agent)[subport.inner]["state"] == "unnamed", "no instance")
    for service in FAMILIES:
        for path in (META_DATA, "/latest/meta-data/", "/", "/nocloud/meta-data"):
            assert container.curl(path, host=service).status == 404, path
        assert container.curl("/latest/api/token", "-X", "PUT", host=service).status == 404
        asks_own(vms[0].guest, host=service)
        asks_own(vms[0].containers[VIDS[1]], host=service)
    assert not json.loads(agent.ctl("ports", "--failing", "--format", "json").stdout)
    vms[0].name_containers()
    wait_served(agent, vms[0])
    asks_own(container)
