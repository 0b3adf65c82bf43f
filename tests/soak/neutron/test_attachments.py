"""The driver ``neutron`` should leave nothing behind, whatever happens to its requests."""

import json
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from dfmeta.attach.drivers import wired
from dfmeta.attach.model import AttachmentState, Found, Parent
from dfmeta.errors import AttachDriverError, AttachNetworkError, AttachQuotaError
from dfmeta.ovsdb.subport_list import KEY
from tests.host.neutron.api import PROJECT
from tests.host.ovs import vms
from tests.host.ovs.neutron_world import (
    INSTANCE,
    CrashError,
    Engines,
    LostError,
    World,
    one_of,
    trunk_of,
    wanted,
)


@pytest.mark.parametrize("step", range(1, 5))
def test_a_lost_answer_leaves_no_second_port(world: World, vm: Parent, step: int) -> None:
    """The steps are before and after the creation, and before and after the addition."""
    attachment = wanted(vm, 100)
    api = world.api()
    driver = world.driver(vm, api=api)
    assert driver.ready(vm) == ""
    api.left, api.error = step, LostError
    with pytest.raises(AttachDriverError, match="Neutron does not answer") as caught:
        driver.make(vm, [attachment])
    assert caught.value.fields["whole"]
    again = world.driver(vm)
    if step == 3:
        # The port is on no trunk.
        lost = Found(id=attachment.id, parent=vm.port_id, vid=0, whole=False, shared=True)
        assert again.found() == [lost]
    names = again.make(vm, [replace(attachment, state=AttachmentState.MADE)])
    assert world.ours() == list(names.values())
    assert again.found() == [Found(id=attachment.id, parent=vm.port_id, vid=100, shared=True)]
    # The same without the knowledge that it is a repetition.
    assert world.driver(vm).make(vm, [attachment]) == names
    api = world.api()
    attachment = replace(attachment, port_id=names[attachment.id])
    api.left, api.error = step, LostError
    with pytest.raises(AttachDriverError, match="Neutron does not answer"):
        world.driver(vm, api=api).remove([attachment])
    world.driver(vm).remove([attachment])
    assert (world.ours(), world.server.subports(trunk_of(world, vm))) == ([], {})


def test_vlan_ids_of_others_are_found_and_refused(world: World, vm: Parent) -> None:
    other = world.server.create("port", network_id=world.pods.network_id)["id"]
    body = {"sub_ports": [{"port_id": other, "segmentation_type": "vlan", "segmentation_id": 100}]}
    trunk = trunk_of(world, vm)
    assert world.server.ask("PUT", f"trunks/{trunk}/add_subports", body).status == 200
    driver = world.driver(vm)
    assert driver.found() == [Found(id="", parent=vm.port_id, vid=100)]
    pair = [wanted(vm, 100), wanted(vm, 101)]
    for items in (pair, pair[:1]):
        with pytest.raises(AttachDriverError, match="the VLAN id 100 is in use") as caught:
            driver.make(vm, items)
        assert (caught.value.fields["taken"], "whole" in caught.value.fields) == (True, False)
    assert list(driver.make(vm, pair[1:])) == [pair[1].id]
    driver.remove(pair)
    assert world.server.subports(trunk) == {other: 100}
    assert world.ours() == []


def test_a_refusal_says_why(world: World, vm: Parent) -> None:
    driver = world.driver(vm)
    first, second = wanted(vm, 100), wanted(vm, 101)
    driver.make(vm, [first])
    with pytest.raises(AttachNetworkError, match="the MAC is in use"):
        driver.make(vm, [replace(second, mac=first.mac)])
    with pytest.raises(AttachNetworkError, match="the address is not one of the network"):
        driver.make(vm, [replace(second, ip=IPv4Address("10.99.0.1"))])
    quota = f"quotas/{PROJECT}"
    limit = len(world.server.ports(project_id=PROJECT))
    assert world.server.ask("PUT", quota, {"quota": {"port": limit}}).status == 200
    with pytest.raises(AttachQuotaError, match="quota of ports"):
        driver.make(vm, [second])
    assert world.server.ask("DELETE", quota).status == 204
    with pytest.raises(AttachDriverError, match="'blue' is no longer configured"):
        driver.make(vm, [replace(second, network="blue")])
    narrow, _subnet = world.server.network("narrow", "10.50.0.0/24", mtu=1400)
    small, trunk = world.vm("tap2", network=narrow["id"])
    with pytest.raises(AttachNetworkError, match="larger MTU") as caught:
        driver.make(small, [wanted(small, 100)])
    assert caught.value.status == 422
    driver.remove([wanted(small, 100), first])
    assert (world.ours(), world.server.subports(trunk)) == ([], {})


def test_a_parent_that_is_not_ready_is_told_why(world: World, vm: Parent) -> None:
    port = world.server.create("port", network_id=world.vms_network)["id"]
    plain = vms.parent("tap9", port, "")
    trunk = trunk_of(world, vm)
    for parent, change, cause in (
        (plain, lambda: None, "the VM's port is no parent of a trunk in Neutron"),
        (vm, lambda: _switch(world, trunk, up=False), "is switched off in Neutron"),
        (vm, lambda: world.server.set_status("trunks", trunk, "ERROR"), "has the status ERROR"),
    ):
        _switch(world, trunk, up=True)
        before = world.driver(vm)
        assert before.ready(vm) == ""
        change()
        driver = world.driver(vm)
        assert cause in driver.ready(parent)
        with pytest.raises(AttachDriverError, match=cause):
            driver.make(parent, [wanted(parent, 100)])
        if parent is vm:
            # It was ready a moment ago.
            with pytest.raises(AttachDriverError, match=cause):
                before.make(vm, [wanted(vm, 100)])
            before.remove([wanted(vm, 100)])
    assert world.ours() == []


def _switch(world: World, trunk: str, *, up: bool) -> None:
    body = {"trunk": {"admin_state_up": up}}
    assert world.server.ask("PUT", f"trunks/{trunk}", body).status == 200


def test_only_this_hosts_vms_are_found(world: World, vm: Parent) -> None:
    moving, _trunk = world.vm("tap2", host="compute-2")
    remote, _other = world.vm("tap3", host="compute-2")
    driver = world.driver(vm, moving)
    for parent in (vm, moving, remote):
        driver.make(parent, [wanted(parent, 100)])
    # Another tenant's port with the name and the description of a container's.
    world.server.create(
        "port",
        network_id=world.pods.network_id,
        project_id="another",
        name=f"dfmeta:{vm.port_id}",
        description=f"dfmeta:{INSTANCE}",
    )
    assert {(attachment.parent, attachment.removable) for attachment in driver.found()} == {
        (vm.port_id, True),
        (moving.port_id, False),
    }


def test_a_subport_that_others_have_removed_is_made_again(world: World, vm: Parent) -> None:
    driver, trunk = world.driver(vm), trunk_of(world, vm)
    items = [wanted(vm, vid) for vid in (100, 101)]
    names = driver.make(vm, items)
    body = {"sub_ports": [{"port_id": names[items[0].id]}]}
    assert world.server.ask("PUT", f"trunks/{trunk}/remove_subports", body).status == 200
    assert [attachment.id for attachment in driver.found() if not attachment.whole] == [items[0].id]
    active = [
        replace(attachment, port_id=names[attachment.id], state=AttachmentState.ACTIVE)
        for attachment in items
    ]
    assert driver.make(vm, active) == names
    assert world.server.subports(trunk) == {
        names[attachment.id]: attachment.vid for attachment in items
    }
    assert world.server.ask("PUT", f"trunks/{trunk}/remove_subports", body).status == 200
    driver.remove(active)
    assert world.ours() == []


def test_ports_status_counts_without_bridge(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """OVN has no row for a subport, and no agent that would change the status here."""
    monkeypatch.setattr(wired, "WAIT", 0.3)
    monkeypatch.setattr(wired, "POLL_STATUS", 0.05)
    vm = world.tagged("tap1")
    driver = world.driver(vm)
    attachment = wanted(vm, 100, instance_id=INSTANCE)
    with pytest.raises(AttachDriverError, match="has not connected the port"):
        driver.make(vm, [attachment])
    assert world.entries(vm) == []
    (made,) = world.ours()
    lost = Found(id=attachment.id, parent=vm.port_id, vid=100, whole=False, shared=True)
    assert driver.found() == [lost]
    world.server.set_status("ports", made, "ACTIVE")
    assert driver.make(vm, [attachment]) == {attachment.id: made}
    its = {"port_id": made, "instance_id": INSTANCE, "mac": attachment.mac}
    assert world.entries(vm) == [{"vid": 100, **its, "attachment": attachment.id}]
    assert driver.found() == [replace(lost, whole=True)]
    # A program has removed the list.
    world.host.vsctl("remove", "Interface", "tap1", "external_ids", KEY)
    assert driver.found() == [lost]
    active = replace(attachment, port_id=made, state=AttachmentState.ACTIVE)
    driver.make(vm, [active])
    assert driver.found() == [replace(lost, whole=True)]
    driver.remove([active])
    assert (world.entries(vm), world.ours(), driver.found()) == ([], [], [])


@pytest.mark.usefixtures("ovn")
def test_a_removal_ends_the_entry_although_neutron_is_away(world: World) -> None:
    vm, api = world.tagged("tap1"), world.api()
    driver, attachment = world.driver(vm, api=api), wanted(vm, 100)
    attachment = replace(attachment, port_id=driver.make(vm, [attachment])[attachment.id])
    api.left, api.error = 1, LostError
    with pytest.raises(AttachDriverError, match="Neutron does not answer"):
        driver.remove([attachment])
    assert (world.entries(vm), len(world.ours())) == ([], 1)
    world.driver(vm).remove([attachment])
    assert world.ours() == []


@pytest.mark.parametrize("action", ["attach", "detach"])
@pytest.mark.parametrize("form", ["bridge", "tags"])
@pytest.mark.usefixtures("ovn")
def test_ended_process_leaves_nothing(engines: Engines, vm: Parent, action: str, form: str) -> None:
    if form == "tags":
        vm = engines.world.tagged("tap2")
        engines.parents = (vm,)
    for step in range(1, 12):
        api = engines.world.api()
        engine = engines.start(api)
        engine.status(vm)
        engine._networks.get("red")
        if action == "detach":
            engine.attach(vm, one_of())
        api.left = step
        try:
            if action == "attach":
                engine.attach(vm, one_of())
            else:
                engine.detach(vm, "c1", "eth0", gone=True)
        except CrashError:
            ended = True
        else:
            ended = False
        after = engines.start()
        after.resume()
        engines.check(after)
        after.detach(vm, "c1", "eth0", gone=True)
        assert (after.everything(), engines.world.ours()) == ([], [])
        if not ended:
            assert step > 4
            return
    raise AssertionError("the action has more steps")


@pytest.mark.usefixtures("ovn")
def test_the_list_of_a_vm_is_brought_in_order(engines: Engines, vm: Parent) -> None:
    """With entries of an operator, of attachments that are over, and without one that is there."""
    world, vm = engines.world, engines.world.tagged("tap2")
    engines.parents = (vm,)
    engine = engines.start()
    attachment, _new = engine.attach(vm, one_of(1))
    (own,) = world.entries(vm)
    others = [{"vid": attachment.vid + 1}, {"vid": attachment.vid + 2, "instance_id": "odd"}]
    stray = {"vid": 99, "attachment": INSTANCE}
    listed = json.dumps(json.dumps([*others, stray]))
    world.host.vsctl("set", "Interface", vm.port_name, f"external_ids:{KEY}={listed}")
    engine.tidy()
    assert world.entries(vm) == [*others, own]
    # The VLAN ids of the operator's entries are left out, also by a process that does not know.
    assert engine.attach(vm, one_of(2))[0].vid == attachment.vid + 3
    engine.detach(vm, "c2", "eth0", gone=True)
    world.host.vsctl("remove", "Interface", vm.port_name, "external_ids", KEY)
    taken = json.dumps(json.dumps([{"vid": attachment.vid + 4}]))
    world.host.vsctl("set", "Interface", vm.port_name, f"external_ids:{KEY}={taken}")
    assert engine.attach(vm, one_of(3))[0].vid == attachment.vid + 5
    engine.detach(vm, "c3", "eth0", gone=True)
    engine.tidy()
    assert world.entries(vm) == [{"vid": attachment.vid + 4}, own]
    # An operator's entry for the attachment's own VLAN id stands until it is removed.
    other = json.dumps(json.dumps([{"vid": attachment.vid}]))
    world.host.vsctl("set", "Interface", vm.port_name, f"external_ids:{KEY}={other}")
    engine.tidy()
    assert world.entries(vm) == [{"vid": attachment.vid}]
    assert engine.attach(vm, one_of(1)) == (attachment, False)
    world.host.vsctl("remove", "Interface", vm.port_name, "external_ids", KEY)
    engine.tidy()
    engines.check(engine)
