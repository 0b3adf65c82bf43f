"""The driver ``neutron`` should make attachments in a real Neutron, and leave nothing behind.

``tests/soak/neutron`` has what happens when an answer is lost, or another program changes a trunk.
"""

from dataclasses import replace

from dfmeta.attach.model import AttachmentState, Found, Parent
from tests.harness.trunk import Subport
from tests.host.neutron.api import PROJECT
from tests.host.ovs import vms
from tests.host.ovs.neutron_world import INSTANCE, Engines, World, one_of, trunk_of, wanted


def test_an_attachment_is_made_found_and_removed(world: World, vm: Parent) -> None:
    trunk = trunk_of(world, vm)
    driver = world.driver(vm)
    assert driver.ready(vm) == ""
    attachment = wanted(vm, 100, instance_id=INSTANCE)
    names = driver.make(vm, [attachment])
    port_id = names[attachment.id]
    assert world.ours() == [port_id]
    (port,) = world.server.ports(id=port_id)
    assert {key: port[key] for key in ("id", "network_id", "mac_address", "device_id")} == {
        "id": port_id,
        "network_id": world.pods.network_id,
        "mac_address": attachment.mac,
        "device_id": "",
    }
    assert port["fixed_ips"] == [
        {"subnet_id": world.pods.subnet_id, "ip_address": str(attachment.ip)}
    ]
    assert (port["description"], port["project_id"]) == (f"dfmeta:{attachment.id}", PROJECT)
    assert port["security_groups"] == list(world.pods.groups)
    assert world.server.subports(trunk) == {port_id: 100}
    (subport,) = world.server.trunk(trunk)["sub_ports"]
    assert (subport["port_id"], subport["segmentation_id"]) == (port_id, 100)
    row = vms.rows(world.host)[Subport(port_id, 100).inner]
    assert row["external_ids"] == {
        "iface-id": port_id,
        "attached-mac": attachment.mac,
        "dfmeta-attachment": attachment.id,
        "dfmeta-instance": INSTANCE,
    }
    assert driver.found() == [Found(id=attachment.id, parent=vm.port_id, vid=100, shared=True)]
    named = replace(attachment, port_id=port_id, state=AttachmentState.ACTIVE)
    assert driver.make(vm, [named]) == names
    driver.remove([named])
    assert (world.ours(), world.server.subports(trunk), driver.found()) == ([], {}, [])
    driver.remove([named, attachment])
    assert driver.make(vm, []) == {}
    driver.remove([])


def test_an_attachment_of_the_engine_follows_its_container(engines: Engines, vm: Parent) -> None:
    engine = engines.start()
    attachment, new = engine.attach(vm, one_of())
    assert (new, attachment.state) == (True, AttachmentState.ACTIVE)
    assert engine.attach(vm, one_of()) == (attachment, False)
    engines.check(engine)
    again = engines.start()
    again.resume()
    engines.check(again)
    again.detach(vm, "c1", "eth0", gone=True)
    assert (again.everything(), engines.world.ours()) == ([], [])
