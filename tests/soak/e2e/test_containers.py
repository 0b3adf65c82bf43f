"""Fifty containers of one VM at once."""

from contextlib import ExitStack

from tests.harness.agent import Agent
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import test_containers as few
from tests.host.e2e.cni_vm import ended, path
from tests.host.e2e.container_vm import ContainerVm
from tests.host.e2e.test_containers import ends

MANY = 50
PARENT = "trunk parent"

host, agent, vms = few.host, few.agent, few.vms


def answers(agent: Agent, vm: ContainerVm) -> dict[str, int]:
    """Return how many answers a VM has had, by class of the status, and closed connections."""
    mac = vm.guest.mac
    (row,) = [
        one for one in agent.admin("/ports").json() if (one["mac"], one["kind"]) == (mac, PARENT)
    ]
    return {name: row["requests"][name] for name in ("2xx", "4xx", "5xx", "closed")}


def test_fifty_containers_at_once(host: OpenvSwitch, agent: Agent, vms: list[ContainerVm]) -> None:
    vm = vms[0]
    before = answers(agent, vm)
    names = [f"many{number}" for number in range(MANY)]
    with ExitStack() as stack:
        pods = {name: stack.enter_context(Namespace("many")) for name in names}
        calls = [vm.start("ADD", name, path(pods[name]), network="red") for name in names]
        results = [ended(one) for one in calls]
        assert [status for status, _result in results] == [0] * MANY, results
        # A token and an attachment each, on one connection: nothing was asked twice.
        after = {**before, "2xx": before["2xx"] + 2 * MANY}
        assert answers(agent, vm) == after
        for member in ("vid", "mac", "port_id"):
            assert len({one[member] for one in vm.attachments()}) == MANY
        assert len({one["ips"][0]["address"] for _status, one in results}) == MANY
        tags = [row["tag"] for row in vm.switch.records("Port", "name", "tag") if row["tag"]]
        assert len(set(tags)) == len(tags) == MANY
        assert len(ends(host)) == 2 * MANY
        gone = [vm.start("DEL", name, path(pods[name])) for name in names]
        assert [ended(one) for one in gone] == [(0, None)] * MANY
    assert vm.attachments() == []
    assert vm.traces() == ([], [])
    wait_for(lambda: not ends(host), "the ports to go")
