"""Real runtimes in a VM give their containers networks by dfmeta-cni."""

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.container_vm import ContainerVm
from tests.host.e2e.support import put
from tests.soak.e2e.runtimes import Containerd, Dockerd, Netavark, Podman, Runtime

host = shared.host
agent = shared.agent_with(
    {
        "attachments": {"enabled": True, "rate": 100, "rest": 0},
        "attachment_network:red": {"subnet": "10.9.0.0/24", "local_vlan": 11},
    }
)


@pytest.fixture(scope="module")
def vm(host: OpenvSwitch, agent: Agent) -> Iterator[ContainerVm]:
    """Provide a VM with a trunk."""
    with ContainerVm(host, "vm", "10.0.0.1/24") as made:
        put(agent, made.guest)
        agent.ctl("trunk", "enable", made.guest.port)
        wait_for(made.ready, "the VM to be ready")
        yield made


@pytest.mark.parametrize("kind", [Podman, Netavark, Containerd, Dockerd])
def test_containers_of_a_runtime_have_networks(vm: ContainerVm, kind: type[Runtime]) -> None:
    with kind(vm, "red") as runtime:
        first, second = runtime.start("one"), runtime.start("two")
        attachments = vm.attachments()
        assert {row["ips"][0]["address"] for row in attachments} == {f"{first}/24", f"{second}/24"}
        assert {row["owner"] for row in attachments} == {runtime.owner}
        assert (runtime.says("one", second), runtime.says("two", first)) == ("two", "one")
        assert runtime.get("one", "/latest/meta-data/local-ipv4") == first
        runtime.remove("one")
        assert [row["ips"][0]["address"] for row in vm.attachments()] == [f"{second}/24"]
        runtime.remove("two")
        assert vm.attachments() == []
        assert vm.traces() == ([], [])
