"""A container should have a record as long as its attachment stands, and no other id has one."""

import dataclasses
import json
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import pytest

from dfmeta.attach.model import AttachmentState
from dfmeta.attach.records import ContainerRecords, record
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.record import Record
from dfmeta.store.guest.documents import from_record, network_data_of
from tests.core.unit.attach import vm_side
from tests.core.unit.attach.support import NETWORKS, OTHER, VM, Breaking, World
from tests.core.unit.attach.test_crash import STORIES

LABELS = {"K8S_POD_NAME": "web-1", "K8S_POD_NAMESPACE": "shop"}


def records_of(world: World, key: bytes = b"k") -> ContainerRecords:
    return ContainerRecords(AttachmentTables(world.database), NETWORKS, key)


def document_of(result: Record | None) -> dict[str, Any]:
    assert result is not None
    return dict(json.loads(result.metadata or "null"))


@pytest.fixture
def world(database: Breaking) -> World:
    return World(database, instances=True)


def test_an_attachment_is_an_instance_with_a_record(world: World) -> None:
    parent = dataclasses.replace(VM, project_id="p")
    attachment = world.attach(parent=parent, labels=LABELS)
    assert attachment.instance_id == attachment.id == str(UUID(attachment.id))
    result = records_of(world).get(attachment.id.upper())
    assert result is not None
    assert (result.id, result.project_id, result.derived) == (attachment.id, "p", True)
    assert (result.userdata, result.password, result.created_at) == (None, None, result.updated_at)
    assert document_of(result) == {
        "name": "web-1",
        "hostname": "web-1",
        "meta": LABELS,
        "instance_tags": LABELS,
        "network": {
            "interfaces": [{"name": "eth0", "mac": attachment.mac}],
            "addresses": [
                {
                    "address": "10.1.0.2",
                    "address_family": 4,
                    "cidr": 24,
                    "gateway": "10.1.0.1",
                    "public": False,
                }
            ],
        },
    }
    network_data = network_data_of(from_record(result))
    assert network_data is not None
    (network,) = network_data["networks"]
    assert (network["ip_address"], network["netmask"]) == ("10.1.0.2", "255.255.255.0")
    assert records_of(world).get(attachment.id) == result


def test_the_id_is_never_one_that_the_guest_names(world: World) -> None:
    victim = world.attach(parent=OTHER)
    names = {"id": victim.id, "instance_id": victim.id}
    thief = world.attach(victim.id, owner=victim.id, labels=names)
    assert thief.instance_id == thief.id
    assert thief.id not in (victim.id, VM.instance_id, OTHER.instance_id)
    records = records_of(world)
    assert document_of(records.get(victim.id))["meta"] == {}
    for other in (VM.instance_id, OTHER.instance_id, victim.port_id, "c1", ""):
        assert records.get(other) is None


def test_seeds_differ_and_need_the_key(world: World) -> None:
    ids = [world.attach("c1").id, world.attach("c2").id]
    seeds = {
        result.seed
        for key in (b"k", b"l")
        for result in map(records_of(world, key).get, ids)
        if result is not None
    }
    assert len(seeds) == 4


def test_without_instances_there_is_no_record(database: Breaking) -> None:
    world = World(database)
    attachment = world.attach(labels=LABELS)
    assert attachment.instance_id == ""
    for name in (attachment.id, ""):
        assert records_of(world).get(name) is None


@pytest.mark.parametrize("story", STORIES)
def test_the_records_are_those_of_the_attachments_that_stand(
    database: Breaking, story: str
) -> None:
    """Whatever ends them, and wherever the process ends meanwhile."""
    prepare, act = STORIES[story]
    for step in range(1, 100):
        world = World(database, instances=True)
        prepare(world)
        seen = {attachment.id for attachment in world.engine.everything()}
        ended = world.end_at(step, act)
        seen |= {attachment.id for attachment in world.engine.everything()}
        check(world, seen)
        world.start().resume()
        check(world, seen)
        seen.add(world.attach("c1", boot_id="second").id)
        check(world, seen)
        for name in ("c1", "c2"):
            world.detach(name)
        check(world, seen)
        assert not [name for name in seen if records_of(world).get(name)]
        if not ended:
            return
    raise AssertionError("the story has no end")


def check(world: World, seen: set[str]) -> None:
    standing = {
        attachment.id
        for attachment in world.engine.everything()
        if attachment.state is not AttachmentState.LEAVING
    }
    records = records_of(world)
    assert {name for name in seen if records.get(name) is not None} == standing


ONE = dataclasses.replace(
    vm_side.ONE,
    id="a",
    instance_id="a",
    container="C_1",
    network="blue",
    ip=IPv4Address("10.1.0.2"),
)


def test_the_host_name_is_made_valid() -> None:
    for label, name, hostname in (
        ("", "C_1", "c-1"),
        ("Web.Example_1", "Web.Example_1", "web-example-1"),
        ("x" * 256, "x" * 256, "x" * 63),
        ("-a;reboot/../b-", "-a;reboot/../b-", "areboot--b"),
        # Nothing remains, and the id is the host name, as for any record.
        ("日本", "日本", "a"),
    ):
        attachment = dataclasses.replace(ONE, labels={"K8S_POD_NAME": label})
        result = from_record(record(attachment, NETWORKS["blue"], project_id="", seed=b""))
        assert (result.name, result.hostname, result.project_id) == (name, hostname, "")


def test_a_network_that_was_removed_leaves_the_address() -> None:
    result = record(ONE, None, project_id="", seed=b"")
    (address,) = document_of(result)["network"]["addresses"]
    assert (address["address"], address["cidr"]) == ("10.1.0.2", 32)
    assert "gateway" not in address
