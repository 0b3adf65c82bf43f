"""A swarm of Docker in two VMs gives the containers of a service their networks by dfmeta.

The commands of the section "Docker Swarm" of doc/source/dfmeta-cni.rst are typed in both VMs. The
machine has no iptables: Docker's resolver is asked at its own port.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.core.docs.typed import page
from tests.harness.agent import Agent
from tests.harness.closing import Closing
from tests.harness.console import Step, blocks, difference, steps
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.cni_vm import BRIDGE
from tests.host.e2e.container_vm import ContainerVm
from tests.host.e2e.support import put
from tests.soak.e2e.runtimes import NETWORK, PORT, SwarmNode

PAGE = page("dfmeta-cni").partition("Docker Swarm\n============\n")[2]
SECTION = PAGE.partition("\nBehaviour\n=========\n")[0]
IMAGE = f"--stop-signal KILL guest /bin/nc -ll -p {PORT} -e /bin/hostname"
host = shared.host
agent = shared.agent_with(
    {
        "attachments": {"enabled": True, "rate": 100, "rest": 0},
        f"attachment_network:{NETWORK}": {"subnet": "10.9.0.0/24", "local_vlan": 11},
    }
)


class Swarm(Closing):
    """Two VMs with dockerd each, in which the commands of the page are typed."""

    def __init__(self, host: OpenvSwitch, agent: Agent) -> None:
        self.nodes: dict[str, SwarmNode] = {}
        self._names = {"br-containers": BRIDGE, "IMAGE": IMAGE}
        self._left: list[Step] = []
        with ExitStack() as stack:
            for number in (1, 2):
                name = f"vm{number}"
                vm = stack.enter_context(ContainerVm(host, name, f"10.0.0.1{number}/24"))
                put(agent, vm.guest)
                agent.ctl("trunk", "enable", vm.guest.port)
                wait_for(vm.ready, "the VM to be ready")
                self.nodes[name] = stack.enter_context(SwarmNode(vm, NETWORK))
            for block in blocks(SECTION):
                if block.kind == "console":
                    self._left += steps(block.text)
                    continue
                for node in self.nodes.values():
                    node.save(block.caption, block.text)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def read(self, until: str = "") -> None:
        """Type the commands up to one that begins with *until*, and compare what is printed."""
        while self._left and not (until and self._left[0].command.startswith(until)):
            step = self._left.pop(0)
            command = step.command
            for word, name in self._names.items():
                command = re.sub(rf"\b{word}\b", name, command)
            printed = self.nodes[step.guest].type(command)
            result = difference(step.shown, printed)
            assert not result, f"{step.command}: {result}"
            if "join-token" in command:
                self._names["TOKEN"] = printed.strip()

    def containers(self) -> list[tuple[SwarmNode, str]]:
        """Return each container of both VMs, and its VM."""
        return [
            (node, container) for node in self.nodes.values() for container in node.containers()
        ]

    def places(self) -> list[SwarmNode]:
        """Return the VM of each container."""
        return [node for node, _name in self.containers()]

    def attached(self) -> int:
        """Return the number of attachments of both VMs."""
        return sum(len(node.vm.attachments()) for node in self.nodes.values())


@pytest.fixture(scope="module")
def swarm(host: OpenvSwitch, agent: Agent) -> Iterator[Swarm]:
    with Swarm(host, agent) as made:
        yield made


def test_a_service_has_its_network_in_both_vms(swarm: Swarm, agent: Agent) -> None:
    manager, worker = swarm.nodes.values()
    swarm.read(until="docker network create -d")
    listed = ["docker", "node", "ls", "--format", "{{.Status}}"]
    wait_for(lambda: manager.run(*listed).split() == ["Ready", "Ready"], "both VMs to be ready")
    swarm.read(until="docker run")
    wait_for(lambda: swarm.places() == [manager, worker], "a container in each VM")
    containers = swarm.containers()
    addresses = [node.address(name) for node, name in containers]
    for (node, name), (_node, other), own, others in zip(
        containers, reversed(containers), addresses, reversed(addresses), strict=True
    ):
        (row,) = node.vm.attachments()
        assert row["ips"][0]["address"] == f"{own}/24"
        assert node.says(name, others) == other
        assert node.get(name, "/latest/meta-data/local-ipv4") == own
        assert f'"uuid": "{row["id"]}"' in node.get(name, "/openstack/latest/meta_data.json")
        assert node.get(name, "/latest/meta-data/local-hostname") == row["container"][:63]
        wait_for(partial(_knows, node, name, addresses), "the service's name")
        assert len(node.kept()) == 2
    assert swarm.attached() == 2

    swarm.read(until="docker rm")
    address = worker.address("probe")
    assert (
        manager.says(containers[0][1], address) == worker.inside("probe", "/bin/hostname").strip()
    )
    assert swarm.attached() == 3
    swarm.read(until="docker service scale")
    assert swarm.attached() == 2
    swarm.read(until="docker service rm")
    (node,) = wait_for(lambda: len(swarm.places()) == 1 and swarm.places(), "one container")
    wait_for(lambda: swarm.attached() == 1, "one attachment")
    assert len(node.vm.attachments()) == 1
    swarm.read(until="docker network rm")
    wait_for(lambda: swarm.attached() == 0, "the end of the last attachment")
    assert json.loads(agent.ctl("attachment", "list", "--format", "json").stdout) == []
    assert [node.vm.traces() for node in (manager, worker)] == [([], [])] * 2
    swarm.read(until="docker plugin disable")
    for one in (manager, worker):
        wait_for(partial(_forgets, one), "the driver to forget the network")
    swarm.read()
    assert worker.run("docker", "plugin", "ls", "--quiet") == ""


def _forgets(node: SwarmNode) -> bool:
    return not node.kept()


def _knows(node: SwarmNode, name: str, addresses: list[str]) -> bool:
    return node.resolved(name, "web") == {*addresses}
