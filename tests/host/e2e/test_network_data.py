"""A VM with a trunk learns its subports from network_data.json, with each backend and engine."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from dfmeta.store.db.repository import Repository
from tests.harness.agent import HAPROXY, Agent, Options
from tests.harness.cloudinit import Booting
from tests.harness.fixtures import MakeAgent
from tests.harness.guest import Guest, uuid_of
from tests.harness.netjson import CloudInit
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.trunk import Container, Trunk
from tests.host.e2e import shared
from tests.host.e2e.support import NOVA_OPTIONS, project_ids, put_nova

PATH = "/openstack/latest/network_data.json"
VIDS = (100, 200)
MTU = 1442
ENGINES: dict[str, Options] = {
    "store": {},
    "nova, haproxy": {
        **NOVA_OPTIONS,
        "df_metadata": {"backend": "nova", "engine": "haproxy", "proxy_workers": 0},
        "haproxy": {"binary": HAPROXY},
    },
}
TAGGED, TAGGED_MAC = 300, "fa:16:3f:00:03:00"

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record


@pytest.fixture(scope="module")
def trunk(host: OpenvSwitch) -> Iterator[Trunk]:
    """A VM with a trunk of two subports."""
    with Guest(host, "vm", ids=project_ids("vm"), plug=False) as vm:
        made = Trunk(vm, *VIDS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def container(trunk: Trunk) -> Iterator[Container]:
    """A container of that VM, with an instance of its own."""
    with Container(trunk, VIDS[0], "box", address="10.9.0.5/24", mac="fa:16:3f:aa:aa:aa") as made:
        made.ids = project_ids("box")
        for key, value in (("instance", made.instance_id), ("project", made.ids.project_id)):
            name = {"instance": "dfmeta-instance", "project": "project-id"}[key]
            trunk.guest.host.vsctl(
                "set", "Interface", trunk.subports[0].inner, f'external_ids:{name}="{value}"'
            )
        yield made


@pytest.fixture(scope="module")
def tagged(host: OpenvSwitch) -> Iterator[Guest]:
    """A VM whose tags reach br-int: a list in its row names its subports."""
    listed = [{"vid": TAGGED, "mac": TAGGED_MAC.upper()}, {"vid": TAGGED + 1}]
    with Guest(host, "tagged", address="10.0.0.6/24", ids=project_ids("tagged")) as vm:
        text = json.dumps(json.dumps(listed))
        host.vsctl("set", "Interface", vm.port, f"external_ids:dfmeta-subports={text}")
        yield vm


def document(guest: Guest) -> dict[str, Any]:
    """A network_data.json as Nova makes it."""
    return {
        "links": [
            {
                "id": f"tap{guest.ids.iface_id[:11]}",
                "vif_id": guest.ids.iface_id,
                "type": "ovs",
                "mtu": MTU,
                "ethernet_mac_address": guest.mac,
            }
        ],
        "networks": [
            {
                "id": "network0",
                "type": "ipv4_dhcp",
                "link": f"tap{guest.ids.iface_id[:11]}",
                "network_id": uuid_of("network"),
            }
        ],
        "services": [],
    }


def put(agent: Agent, nova: RecordingNova, *guests: Guest) -> None:
    """Give guests that file, at Nova and in the store."""
    with closing(Repository(f"sqlite:///{agent.state_path}/store.db")) as repository:
        for guest in guests:
            put_nova(nova, guest, network_data=document(guest))
            members = {"network_data": document(guest), "hostname": guest.name}
            repository.put(guest.instance_id, document=members)


def links(guest: Guest) -> list[dict[str, Any]]:
    """The links that a guest is told."""
    reply = guest.curl(PATH)
    assert reply.status == 200, reply
    return list(json.loads(reply.body)["links"])


def vids(guest: Guest) -> list[int]:
    """The VLAN ids among them."""
    return [link["vlan_id"] for link in links(guest) if link["type"] == "vlan"]


def know_all(guest: Guest, count: int) -> None:
    """Wait until a VM is told that many subports."""
    wait_for(lambda: len(vids(guest)) == count, "the subports to be told")


@pytest.mark.parametrize("engine", ENGINES)
def test_network_data_lists_the_subports_of_its_vm_alone(
    make_agent: MakeAgent,
    nova: RecordingNova,
    trunk: Trunk,
    container: Container,
    tagged: Guest,
    engine: str,
) -> None:
    vm = trunk.guest
    agent = make_agent(ENGINES[engine])
    put(agent, nova, vm, container, tagged)
    know_all(vm, len(VIDS))
    own = document(vm)
    message = [
        {
            "id": f"dfsub{subport.vid}",
            "type": "vlan",
            "vlan_link": own["links"][0]["id"],
            "vlan_id": subport.vid,
            "vlan_mac_address": f"fa:16:3f:00:00:{subport.vid:02x}",
            "mtu": MTU,
        }
        for subport in trunk.subports
    ]
    reply = vm.curl(PATH)
    assert json.loads(reply.body) == {**own, "links": [*own["links"], *message]}
    assert reply.header("Content-Length") == str(len(reply.body))
    head = vm.curl(PATH, "--head")
    names = ("Content-Length", "Content-Type", "ETag")
    assert [head.header(name) for name in names] == [reply.header(name) for name in names]
    assert head.status == 200
    other = vm.curl("/openstack/2018-08-27/network_data.json")
    assert other.body == reply.body
    # A container with an instance of its own has a document of its own.
    assert json.loads(container.curl(PATH).body) == document(container)
    # Of the other VM's entries, one has no MAC.
    (link,) = links(tagged)[1:]
    assert (link["vlan_id"], link["vlan_mac_address"]) == (TAGGED, TAGGED_MAC)
    # The subports are those of the moment; only the store gives entity tags.
    known = ("If-None-Match", reply.header("ETag"))
    same = 304 if engine.startswith("store") else 200
    assert vm.curl(PATH, headers=[known]).status == same
    trunk.add(7)
    know_all(vm, len(VIDS) + 1)
    assert vm.curl(PATH, headers=[known]).status == 200
    trunk.remove(7)
    know_all(vm, len(VIDS))
    assert vm.curl(PATH, headers=[known]).status == same


def test_an_unmodified_cloud_init_makes_a_device_of_each(
    make_agent: MakeAgent, nova: RecordingNova, trunk: Trunk, cloud_init: Callable[..., Booting]
) -> None:
    vm = trunk.guest
    agent = make_agent(ENGINES["store"])
    put(agent, nova, vm)
    know_all(vm, len(VIDS))
    boot = cloud_init(vm, network=True).finish()
    assert boot.errors == [], boot.output + boot.log
    assert (boot.datasource, boot.instance_id) == ("OpenStack", vm.instance_id)
    message = boot.instance_data["ds"]["network_json"]
    assert message == json.loads(vm.curl(PATH).body)
    with CloudInit() as program:
        devices = program.netplan(message, {vm.mac: "eth0"})["vlans"]
    assert devices == {
        f"eth0.{vid}": {
            "id": vid,
            "link": "eth0",
            "macaddress": f"fa:16:3f:00:00:{vid:02x}",
            "mtu": MTU,
        }
        for vid in VIDS
    }
