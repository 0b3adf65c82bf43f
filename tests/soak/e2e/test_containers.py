"""Fifty containers of one VM at once."""

import json
from contextlib import ExitStack

from dfmeta.attach.drivers.local import names_of
from tests.harness.agent import Agent
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import test_containers as few
from tests.host.e2e.cni_vm import ended, path
from tests.host.e2e.container_vm import ContainerVm, Pod
from tests.host.e2e.test_containers import ends

MANY = 50
PARENT = "trunk parent"

host, agent, vms = few.host, few.agent, few.vms


def answers(agent: Agent, vm: ContainerVm) -> dict[str, int]:
    """Return how many answers a VM has had, by class of the status, and closed connections."""
    mac = vm.guest.mac
    (row,) = [
        row for row in agent.admin("/ports").json() if (row["mac"], row["kind"]) == (mac, PARENT)
    ]
    return {name: row["requests"][name] for name in ("2xx", "4xx", "5xx", "closed")}


def test_fifty_containers_at_once(host: OpenvSwitch, agent: Agent, vms: list[ContainerVm]) -> None:
    vm = vms[0]
    before = answers(agent, vm)
    names = [f"many{number}" for number in range(MANY)]
    with ExitStack() as stack:
        pods = {name: stack.enter_context(Namespace("many")) for name in names}
        calls = [vm.start("ADD", name, path(pods[name]), network="red") for name in names]
        results = [ended(call) for call in calls]
        assert [status for status, _result in results] == [0] * MANY, results
        # A token and an attachment each, on one connection: nothing was asked twice.
        after = {**before, "2xx": before["2xx"] + 2 * MANY}
        assert answers(agent, vm) == after
        for member in ("vid", "mac", "port_id"):
            assert len({attachment[member] for attachment in vm.attachments()}) == MANY
        assert len({result["ips"][0]["address"] for _status, result in results}) == MANY
        tags = [row["tag"] for row in vm.switch.records("Port", "name", "tag") if row["tag"]]
        assert len(set(tags)) == len(tags) == MANY
        assert len(ends(host)) == 2 * MANY
        gone = [vm.start("DEL", name, path(pods[name])) for name in names]
        assert [ended(call) for call in gone] == [(0, None)] * MANY
    assert vm.attachments() == []
    assert vm.traces() == ([], [])
    wait_for(lambda: not ends(host), "the ports to go")


def test_operators_list_and_delete_attachments_and_other_users_may_not(
    host: OpenvSwitch, agent: Agent, vms: list[ContainerVm]
) -> None:
    vm = vms[0]
    with Pod(vm, "first", "red") as first, Pod(vm, "second", "red") as second:
        for pod in (first, second):
            pod.add()
        rows = json.loads(agent.ctl("attachment", "list", "--format", "json").stdout)
        shown = ("id", "container", "vid", "mac", "port_id", "state")
        assert [{name: row[name] for name in shown} for row in rows] == [
            {name: attachment[name] for name in shown} for attachment in vm.attachments()
        ]
        attachment, other_attachment = [row["id"] for row in rows]
        ports = {
            row["port"]: row for row in json.loads(agent.ctl("ports", "--format", "json").stdout)
        }
        inner, _outer = names_of(attachment)
        assert (ports[inner]["attachment"], ports[inner]["network"]) == (attachment, "red")
        assert {"first", "second", None} == {row["container"] for row in ports.values()}
        doctor = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
        (line,) = [it for it in json.loads(doctor.stdout) if it["check"] == "attachments"]
        assert line["status"] == "ok"
        assert line["text"].startswith("2 attachments of 1 VMs")
        url = f"http://127.0.0.1:9697/attachments/{attachment}"
        curl = ["curl", "--silent", "--request", "DELETE", "--write-out", "%{http_code}", url]
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        assert host.namespace.run([*user, *curl]).stdout.endswith("403")
        assert len(vm.attachments()) == 2
        assert host.namespace.run(curl).stdout == "204"
        assert (
            agent.ctl("attachment", "delete", other_attachment).stdout
            == f"{other_attachment}: deleted\n"
        )
        done = agent.ctl("attachment", "delete", other_attachment, check=False)
        assert (done.returncode, "there is no such attachment" in done.stderr) == (2, True)
        assert agent.ctl("attachment", "gc").stdout.startswith("0 attachments removed, ")
        for pod in (first, second):
            assert pod.call("DEL") == (0, None)
    assert vm.attachments() == []
