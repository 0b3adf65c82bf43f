"""With Neutron and tags that reach br-int, as with ML2/OVN, a container gets its own record.

The server is Neutron's own. A stand-in for OVN gives the ports the status ACTIVE, and br-int
forwards no frames between containers.
"""

import contextlib
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from dfmeta.store.db.repository import Repository
from tests.harness.container import Container, declare
from tests.harness.guest import Guest, uuid_of
from tests.harness.poll import wait_for
from tests.harness.vm_api import allowed
from tests.host.e2e import shared
from tests.host.e2e.neutron_vm import TaggedWorld, listed, tagged_with
from tests.host.e2e.support import META_DATA, SILENCE, asks_own, is_unanswered

NETWORK = {"network": "pods"}
NETWORK_DATA = "/openstack/latest/network_data.json"
OTHER = uuid_of("an instance of the operator")

agent = shared.agent_of_world
pytestmark = [pytest.mark.usefixtures("agent"), pytest.mark.early]


@pytest.fixture(scope="module")
def whole() -> Iterator[TaggedWorld]:
    """Neutron, the daemon with driver = neutron, and a VM whose tags reach br-int."""
    with tagged_with(rest_unknown=0) as made:
        with closing(Repository(f"sqlite:///{made.agent.state_path}/store.db")) as records:
            records.put(made.vm.instance_id, document=document(made.vm))
            records.put(OTHER, document={"hostname": "other"})
        yield made


@pytest.fixture
def world(whole: TaggedWorld) -> Iterator[TaggedWorld]:
    """The same, without attachments after the test."""
    yield whole
    if not whole.agent.running:
        whole.agent.start()
    with allowed(whole.vm.namespace) as connection:
        for attachment in listed(connection):
            path = f"/attachments/{attachment['container']}/{attachment['ifname']}?link=gone"
            assert connection.ask("DELETE", path).status == 204
    wait_for(lambda: not whole.ours(), "the ports to go")
    assert all("attachment" not in entry for entry in whole.entries())
    declare(whole.vm)
    asks_own(whole.vm)


def document(vm: Guest) -> dict[str, Any]:
    link = {"id": "tap0", "type": "ovs", "mtu": 1500, "ethernet_mac_address": vm.mac}
    network = {"id": "network0", "type": "ipv4_dhcp", "link": "tap0", "network_id": "n"}
    message = {"links": [link], "networks": [network], "services": []}
    return {"hostname": vm.name, "network_data": message}


def made(world: TaggedWorld, name: str) -> dict[str, Any]:
    with allowed(world.vm.namespace) as connection:
        reply = connection.ask("PUT", f"/attachments/{name}/eth0", NETWORK)
        assert reply.status in (200, 201), reply
        return dict(json.loads(reply.body))


def detach(world: TaggedWorld, name: str) -> None:
    with allowed(world.vm.namespace) as connection:
        path = f"/attachments/{name}/eth0?link=gone"
        assert connection.ask("DELETE", path).status == 204


@contextlib.contextmanager
def container(world: TaggedWorld, attachment: dict[str, Any]) -> Iterator[Container]:
    """Provide the container of an attachment, once it gets an answer."""
    address = attachment["ips"][0]["address"]
    with Container(
        world.vm,
        attachment["vid"],
        address=address,
        mac=attachment["mac"],
        instance_id=attachment["id"],
    ) as guest:
        wait_for(partial(meta_data, guest), "its record")
        yield guest


def meta_data(guest: Guest) -> dict[str, Any]:
    reply = guest.curl(META_DATA, timeout=SILENCE)
    return dict(json.loads(reply.body)) if reply.status == 200 else {}


def doctor(world: TaggedWorld, check: str) -> list[dict[str, Any]]:
    rows = json.loads(world.agent.ctl("doctor", "--format", "json", check=False).stdout)
    return [row for row in rows if row["check"] == check]


def links(vm: Guest) -> list[str]:
    """Return the types of the links that a VM is told."""
    return [link["type"] for link in json.loads(vm.curl(NETWORK_DATA).body)["links"]]


def test_a_container_gets_its_own_record_until_it_is_deleted(world: TaggedWorld) -> None:
    vm, before = world.vm, meta_data(world.vm)
    attachment, other = made(world, "c1"), made(world, "c2")
    its = {name: attachment[name] for name in ("vid", "port_id", "mac")}
    (entry, _other) = world.entries()
    assert entry == {**its, "instance_id": attachment["id"], "attachment": attachment["id"]}
    with container(world, attachment) as first, container(world, other) as second:
        for guest, name in ((first, "c1"), (second, "c2")):
            asks_own(guest)
            assert meta_data(guest)["name"] == name
        assert meta_data(vm) == before
        # A device of cloud-init would be in the way of the container's.
        assert links(vm) == ["ovs"]
        rows = json.loads(world.agent.ctl("ports", "--format", "json").stdout)
        message = {
            row["vid"]: (row["container"], row["network"], row["attachment"]) for row in rows
        }
        assert message[attachment["vid"]] == ("c1", "pods", attachment["id"])
        assert [(it["status"], it["text"]) for it in doctor(world, "attachments")] == [
            ("ok", "2 attachments of 1 VMs")
        ]
        assert [it["status"] for it in doctor(world, "trunks")] == ["ok"]
        shown = json.loads(world.agent.ctl("subport", "list", vm.port, "--format", "json").stdout)
        assert [row["attachment"] for row in shown] == [attachment["id"], other["id"]]
        detach(world, "c1")
        assert [it["attachment"] for it in world.entries()] == [other["id"]]
        wait_for(lambda: is_unanswered(first), "no more answers")
        asks_own(second)
    assert len(world.ours()) == 1


def test_an_operators_entry_stands(world: TaggedWorld) -> None:
    attachment = made(world, "c1")
    declare(world.vm, *world.entries(), {"vid": attachment["vid"] + 1})
    assert made(world, "c2")["vid"] == attachment["vid"] + 2
    detach(world, "c2")
    with container(world, attachment) as first:
        # The command changes the entry of the attachment, which stays one.
        world.agent.ctl(
            *("subport", "add", world.vm.port, "--vid", str(attachment["vid"]), "--instance", OTHER)
        )
        wait_for(lambda: meta_data(first).get("uuid") == OTHER, "the other record")
        assert links(world.vm) == ["ovs"]
        # An entry of another program is left alone, and named.
        declare(world.vm, {"vid": attachment["vid"], "instance_id": OTHER})
        world.agent.ctl("attachment", "gc")
        assert world.entries() == [{"vid": attachment["vid"], "instance_id": OTHER}]
        (line,) = doctor(world, "attachments")
        assert (line["status"], f"{world.vm.port} (VID {attachment['vid']})" in line["text"]) == (
            *("warning", True),
        )
        world.agent.ctl("subport", "delete", world.vm.port, "--vid", str(attachment["vid"]))
        (line,) = doctor(world, "attachments")
        assert line["text"].startswith("attachments without an entry in the list of subports: c1")
        world.agent.ctl("attachment", "gc")
        wait_for(lambda: meta_data(first).get("uuid") == attachment["id"], "its own record")
        assert [it["status"] for it in doctor(world, "attachments")] == ["ok"]
