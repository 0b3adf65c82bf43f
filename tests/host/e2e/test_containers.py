"""Containers of two VMs: dfmeta-cni, the API, the engine, the driver ``local`` and Open vSwitch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dfmeta.guest import cni
from tests.harness.agent import Agent
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.cni_vm import ended, path
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.support import put

host = shared.host
agent = shared.agent_with(
    {
        "attachments": {"enabled": True, "rate": 100, "gc_min_age": 0, "rest": 1},
        "attachment_network:red": {"subnet": "10.9.0.0/24", "local_vlan": 11},
        "attachment_network:blue": {"subnet": "10.9.1.0/24", "local_vlan": 12},
    }
)
EVERYWHERE = "10.9.0.0/16 dev eth0"
"""Route by which a container would reach the addresses of both networks."""
MANY = 50
PARENT = "trunk parent"
SOON = 0.5
"""Seconds in which a connection would have been made."""


@pytest.fixture(scope="module")
def vms(host: OpenvSwitch, agent: Agent) -> Iterator[list[ContainerVm]]:
    """Provide two VMs with trunks."""
    with ExitStack() as stack:
        made = []
        for number in (1, 2):
            vm = stack.enter_context(ContainerVm(host, f"vm{number}", f"10.0.0.{number}/24"))
            put(agent, vm.guest)
            agent.ctl("trunk", "enable", vm.guest.port)
            wait_for(vm.ready, "the VM to be ready")
            made.append(vm)
        yield made


@pytest.fixture
def pods(vms: list[ContainerVm]) -> Iterator[dict[tuple[int, str], Pod]]:
    """Provide two containers of each VM, each on a network of its own."""
    with ExitStack() as stack:
        made = {}
        for number, vm in enumerate(vms):
            for network in ("red", "blue"):
                pod = stack.enter_context(Pod(vm, f"{network}{number}", network)).add()
                pod.ip(f"route replace {EVERYWHERE}")
                made[number, network] = pod
        yield made
        for pod in made.values():
            assert pod.call("DEL") == (0, None)
    for vm in vms:
        assert vm.attachments() == []
        assert vm.traces() == ([], [])


def ends(host: OpenvSwitch) -> list[str]:
    """The ports of attachments on the host."""
    names = [row["name"] for row in host.records("Interface", "name")]
    return [name for name in names if name.startswith(("spi-", "spt-"))]


@pytest.mark.parametrize("network", ["red", "blue"])
def test_containers_of_a_network_reach_each_other_and_no_others(
    pods: dict[tuple[int, str], Pod], network: str
) -> None:
    here, there = pods[0, network], pods[1, network]
    assert here.reaches(there)
    assert there.reaches(here)
    for key, other in pods.items():
        if key[1] != network:
            assert not here.reaches(other, timeout=SOON)


def test_a_container_gets_its_own_metadata_by_its_own_device(
    agent: Agent, pods: dict[tuple[int, str], Pod]
) -> None:
    for pod in pods.values():
        assert "169.254.169.254 dev eth0" in pod.ip("route show")
        own = {"local-hostname": pod.id, "local-ipv4": pod.address}
        assert {name: pod.get(f"/latest/meta-data/{name}") for name in own} == own
    rows = {row["mac"]: row for row in agent.admin("/ports").json()}
    for pod in pods.values():
        row = rows[pod.result["interfaces"][0]["mac"]]
        assert (row["kind"], row["requests"]["2xx"]) == ("subport", 2)


def test_check_and_del(
    host: OpenvSwitch, vms: list[ContainerVm], pods: dict[tuple[int, str], Pod]
) -> None:
    del pods
    with Pod(vms[0], "checked", "red") as pod:
        pod.add()
        assert pod.call("CHECK", prevResult=pod.result) == (0, None)
        before = len(ends(host))
        assert pod.call("DEL") == (0, None)
        wait_for(lambda: len(ends(host)) == before - 2, "the ports to go")
        assert "eth0" not in pod.ip("link show")
        assert pod.call("CHECK", prevResult=pod.result)[1]["code"] == cni.UNKNOWN
        assert pod.call("DEL") == (0, None)


def test_gc_removes_the_containers_of_a_runtime_that_crashed(
    host: OpenvSwitch, vms: list[ContainerVm]
) -> None:
    vm = vms[0]
    with Pod(vm, "lost", "red") as lost, Pod(vm, "kept", "red") as kept:
        for pod in (lost, kept):
            pod.add()
        lost.ip("link del eth0")
        valid = [{"containerID": "kept", "ifname": "eth0"}]
        more: dict[str, Any] = {"cni.dev/valid-attachments": valid}
        assert vm.call("GC", network="red", **more) == (0, None)
        assert [one["container"] for one in vm.attachments()] == ["kept"]
        wait_for(lambda: len(ends(host)) == 2, "the ports to go")
        assert kept.call("CHECK", prevResult=kept.result) == (0, None)
        assert kept.call("DEL") == (0, None)
    wait_for(lambda: not ends(host), "the ports to go")


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
        calls = [
            vm.start("ADD", name, path(pods[name]), network="red", timeout=60) for name in names
        ]
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
        gone = [vm.start("DEL", name, path(pods[name]), timeout=60) for name in names]
        assert [ended(one) for one in gone] == [(0, None)] * MANY
    assert vm.attachments() == []
    assert vm.traces() == ([], [])
    wait_for(lambda: not ends(host), "the ports to go")
