"""The instance of a subport comes from its own sources, and is its VM's only where that is set."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.harness import neutron as neutron_harness
from tests.harness.agent import Agent
from tests.harness.container import Container, declare
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import OPENSTACK6, Guest, Ids, uuid_of
from tests.harness.neutron import Neutron
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.nova_tree import Instance
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, asks_own, put_nova

PROJECT = "5f0c0a52b6f44d12a8a1e1a5e5f0c0a5"
OTHER_PROJECT = "0ther0a52b6f44d12a8a1e1a5e5f0c0a"


@pytest.fixture
def make_container() -> Iterator[Callable[[Guest, int], Container]]:
    """Make containers of a VM, which end with the test."""
    with ExitStack() as stack:
        yield lambda vm, vid: stack.enter_context(Container(vm, vid))


def vm_of(make_guest: MakeGuest) -> Guest:
    """Make a VM with a project."""
    ids = Ids(iface_id=uuid_of("port vm"), vm_uuid=uuid_of("instance vm"), project_id=PROJECT)
    return make_guest("vm", ids=ids)


def row(agent: Agent, vid: int) -> dict[str, object]:
    """Return the row of a subport in the listing; empty: there is none."""
    rows = agent.admin("/ports").json()
    return next((row for row in rows if row["segmentation_id"] == vid), {})


def test_nova_is_asked_for_a_containers_own_instance(
    host: OpenvSwitch,
    nova: RecordingNova,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    make_container: Callable[[Guest, int], Container],
) -> None:
    """Named by the list, with the VM's project or its own, and by Neutron's trunk_details."""
    nova.mend()
    vm = vm_of(make_guest)
    put_nova(nova, vm)
    containers = {vid: make_container(vm, vid) for vid in (100, 200, 300, 400)}
    projects = {100: PROJECT, 200: OTHER_PROJECT, 300: OTHER_PROJECT}
    for vid, project in projects.items():
        instance = containers[vid].instance_id
        nova.put(Instance(instance_id=instance, project_id=project, hostname=str(vid)))
    with Neutron(host.namespace) as neutron:
        # In Neutron, the list's VLAN 100 is another port's, and 400 is the VM's owner's claim.
        ids = {vid: uuid_of(f"neutron {vid}") for vid in (100, 300, 400)}
        details = [
            {"segmentation_id": vid, "segmentation_type": "vlan", "port_id": port_id}
            for vid, port_id in ids.items()
        ]
        parent = neutron_harness.port(vm.ids.iface_id, vm.instance_id, PROJECT)
        neutron.put({**parent, "trunk_details": {"sub_ports": details}})
        for vid, owner in ((300, "trunk:subport"), (400, "compute:kuryr")):
            instance = containers[vid].instance_id
            neutron.put(neutron_harness.port(ids[vid], instance, OTHER_PROJECT, owner=owner))
        agent = make_agent(
            {
                "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
                "df_metadata": {"backend": "nova", "identity_sources": "ovsdb,neutron"},
                "neutron": neutron_harness.options(),
            }
        )
        declare(vm, containers[100].entry(), containers[200].entry(project_id=OTHER_PROJECT))
        wait_for(lambda: row(agent, 300).get("state") == "served", "Neutron's subports")
        asks_own(vm)
        for vid in projects:
            asks_own(containers[vid])
            asks_own(containers[vid], host=OPENSTACK6)
            assert row(agent, vid)["project"] == projects[vid]
        # Nova does not have this instance in that project: no one's claim gets it anything.
        assert containers[400].curl(META_DATA).status == 404
        neutron.remove(vm.ids.iface_id)
        declare(vm, containers[100].entry())
        asks_own(containers[100])
