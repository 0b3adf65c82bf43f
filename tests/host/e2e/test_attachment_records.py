"""Each container of a VM gets the record of its attachment, and no other guest's."""

import contextlib
import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent, Options
from tests.harness.container import Container
from tests.harness.guest import Guest, uuid_of
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed, is_ready
from tests.host.e2e import shared
from tests.host.e2e.support import META_DATA, SILENCE, asks_own, project_ids, put

VMS = ("vm1", "vm2")
OPTIONS: Options = {
    "attachments": {
        "enabled": True,
        "allow": ",".join(uuid_of(f"instance {name}") for name in VMS),
        "rest": 0,
    },
    "attachment_network:pods": {"subnet": "10.20.0.0/24", "gateway": "10.20.0.1", "local_vlan": 7},
}
LABELS = {"K8S_POD_NAME": "Web_1.a", "K8S_POD_NAMESPACE": "shop", "K8S_POD_UID": "u-1"}

host = shared.host


@dataclass
class Site:
    """Two allowed VMs with trunks."""

    host: OpenvSwitch
    agent: Agent
    vms: list[Guest]

    def attach(self, vm: Guest, container: str, **body: Any) -> dict[str, Any]:
        """Make an attachment; return it."""
        with allowed(vm.namespace) as connection:
            path = f"/attachments/{container}/eth0"
            reply = connection.ask("PUT", path, {"network": "pods", **body})
            assert reply.status == 201, reply
            return dict(json.loads(reply.body))

    def detach(self, vm: Guest, container: str) -> None:
        """Delete an attachment, and wait until its port is gone."""
        with allowed(vm.namespace) as connection:
            path = f"/attachments/{container}/eth0?link=gone"
            assert connection.ask("DELETE", path).status == 204
        wait_for(lambda: container not in self.containers(vm), "the attachment to go")

    def containers(self, vm: Guest) -> list[str]:
        """The containers of a VM that have an attachment."""
        with allowed(vm.namespace) as connection:
            listed = json.loads(connection.ask("GET", "/attachments").body)["attachments"]
        return [attachment["container"] for attachment in listed]

    @contextlib.contextmanager
    def container(self, vm: Guest, name: str, **body: Any) -> Iterator[Container]:
        """A container with an attachment, whose instance is that of the attachment."""
        attachment = self.attach(vm, name, **body)
        with Container(
            vm,
            attachment["vid"],
            address=attachment["ips"][0]["address"],
            mac=attachment["mac"],
            instance_id=attachment["id"],
        ) as made:
            wait_for(
                lambda: (
                    attachment["mac"] in {row["mac"] for row in self.agent.admin("/ports").json()}
                ),
                "the container's port",
            )
            yield made
        self.detach(vm, name)


@pytest.fixture(scope="module")
def site(host: OpenvSwitch) -> Iterator[Site]:
    """Two VMs."""
    with ExitStack() as stack:
        agent = stack.enter_context(Agent(host, OPTIONS))
        agent.start()
        vms = []
        for number, name in enumerate(VMS, 5):
            address = f"10.0.0.{number}/24"
            vm = stack.enter_context(Guest(host, name, address=address, ids=project_ids(name)))
            vms.append(vm)
            put(agent, vm)
            asks_own(vm)
            agent.ctl("trunk", "enable", vm.port)
            asks_own(vm)
            wait_for(functools.partial(is_ready, vm.namespace), "the VM to be ready")
        yield Site(host, agent, vms)
        for vm in vms:
            agent.ctl("trunk", "disable", f"tpi-{vm.ids.iface_id}"[:15])
        agent.stop()


def meta_data(guest: Guest) -> dict[str, Any]:
    reply = guest.curl(META_DATA)
    assert reply.status == 200, reply
    return dict(json.loads(reply.body))


def test_no_guest_reads_the_record_of_anothers_container(site: Site) -> None:
    vm, other = site.vms
    with site.container(vm, "c1", labels=LABELS) as first:
        # The id is no secret: the other VM names it in each place where it can name anything.
        stolen = first.instance_id
        labels = {"K8S_POD_NAME": "thief", "id": stolen, "instance_id": stolen}
        with site.container(other, stolen, labels=labels, owner=stolen) as thief:
            for guest in (other, thief):
                for name in ("X-Instance-ID", "X-Tenant-ID", "X-Forwarded-For"):
                    value = first.ip if name == "X-Forwarded-For" else stolen
                    reply = guest.curl(META_DATA, headers=[(name, value)])
                    assert json.loads(reply.body)["uuid"] == guest.instance_id
            assert meta_data(thief)["hostname"] == "thief"
        with allowed(other.namespace) as connection:
            body = {"network": "pods", "instance_id": stolen}
            assert connection.ask("PUT", "/attachments/c9/eth0", body).status == 400
        asks_own(first)


def test_a_record_goes_with_its_attachment_and_stays_through_a_kill(site: Site) -> None:
    vm = site.vms[0]
    with site.container(vm, "c1", labels=LABELS) as container:
        before = meta_data(container)
        site.agent.kill()
        site.agent.start()
        assert meta_data(container) == before
        site.detach(vm, "c1")
        assert container.curl(META_DATA, timeout=SILENCE).status == 0
        # Nor does the next one with this name, address and MAC get it.
        again = site.attach(vm, "c1", ip=container.ip, mac=container.mac)
        assert again["id"] != container.instance_id
        with Container(
            vm,
            again["vid"],
            address=again["ips"][0]["address"],
            mac=again["mac"],
            instance_id=again["id"],
        ) as next_one:
            wait_for(lambda: next_one.curl(META_DATA).status == 200, "an answer")
            asks_own(next_one)
            assert meta_data(next_one)["hostname"] == "c1"
