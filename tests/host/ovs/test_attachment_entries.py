"""Attachments of a VM whose tags reach br-int should be entries of its list in a real OVSDB."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dfmeta.attach.drivers.wired import ListEntries, WiredPorts
from dfmeta.attach.model import Attachment, Parent
from dfmeta.errors import AttachDriverError
from dfmeta.ovsdb.idl import OvsdbClient
from dfmeta.ovsdb.subport_list import KEY, ListClaim
from dfmeta.ovsdb.watcher import COLUMNS
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.ovs import vms

INSTANCE = "11111111-2222-3333-4444-555555555555"


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch(dummies=True) as switch:
        yield switch


@pytest.fixture
def vm(host: OpenvSwitch) -> Iterator[Parent]:
    """Provide a VM that is plugged straight into the integration bridge."""
    yield replace(vms.plug(host, "tap1"), port_name="tap1")
    vms.clear(host)


@pytest.fixture
def entries(host: OpenvSwitch) -> ListEntries:
    return ListEntries(OvsdbClient(host.ovsdb_connection, COLUMNS), BRIDGE)


def listed(host: OpenvSwitch, name: str = "tap1") -> list[Any]:
    """Return the list of a port; empty: it has none."""
    text = vms.rows(host)[name]["external_ids"].get(KEY)
    return list(json.loads(text)) if text is not None else []


def write(host: OpenvSwitch, text: str, name: str = "tap1") -> None:
    """Write a list, as the operator does."""
    value = f"external_ids:{KEY}={json.dumps(text)}"
    host.vsctl("set", "Interface", name, value, wait=False)


def ports(*those: Attachment) -> dict[str, Attachment]:
    return {attachment.port_id: attachment for attachment in those}


def entry(attachment: Attachment) -> dict[str, Any]:
    its = {"port_id": attachment.port_id, "mac": attachment.mac, "attachment": attachment.id}
    return {
        "vid": attachment.vid,
        **its,
        **({"instance_id": INSTANCE} if attachment.instance_id else {}),
    }


def test_entries_stand_beside_others(host: OpenvSwitch, vm: Parent, entries: ListEntries) -> None:
    before = vms.rows(host)["tap1"]["external_ids"]
    write(host, '[{"vid":7,"of":"another program"}]')
    first, second = vms.attachment(vm, 100, instance=INSTANCE), vms.attachment(vm, 101)
    entries.write(vm, ports(first))
    entries.write(vm, ports(first, second))
    other = {"vid": 7, "of": "another program"}
    assert listed(host) == [other, entry(first), entry(second)]
    # A port that was made anew.
    again = replace(first, port_id=INSTANCE)
    entries.write(vm, ports(again))
    assert listed(host) == [other, entry(second), entry(again)]
    entries.remove({second.id, INSTANCE})
    assert listed(host) == [other, entry(again)]
    host.vsctl("remove", "Interface", "tap1", "external_ids", KEY, wait=False)
    entries.write(vm, ports(second))
    entries.remove({second.id})
    entries.remove({second.id})
    entries.remove(set())
    assert vms.rows(host)["tap1"]["external_ids"] == before


def test_an_entry_of_an_operator_stands(
    host: OpenvSwitch, vm: Parent, entries: ListEntries
) -> None:
    write(host, '[{"vid":100}]')
    first, second = vms.attachment(vm, 100), vms.attachment(vm, 101)
    for items in ([second, first], [first]):
        with pytest.raises(AttachDriverError, match="tap1: VID 100 has an entry of") as caught:
            entries.write(vm, ports(*items))
        assert (caught.value.fields["taken"], "whole" in caught.value.fields) == (True, False)
    entries.remove({first.id})
    assert listed(host) == [{"vid": 100}]
    # So does a list that cannot be read.
    write(host, "odd")
    with pytest.raises(AttachDriverError, match="tap1: it is not JSON") as caught:
        entries.write(vm, ports(first))
    assert caught.value.fields["whole"]
    entries.remove({first.id})
    assert vms.rows(host)["tap1"]["external_ids"][KEY] == "odd"


def test_row_must_be_the_vms(host: OpenvSwitch, vm: Parent, entries: ListEntries) -> None:
    attachment = vms.attachment(vm, 100)
    host.add_bridge("br-other")
    its = ("set", "Interface", "tap8", f'external_ids:iface-id="{vm.port_id}"')
    host.vsctl("add-port", "br-other", "tap8", "--", *its, wait=False)
    for change in ({"port_name": "tap7"}, {"port_name": "tap8"}, {"port_id": INSTANCE}):
        with pytest.raises(AttachDriverError, match="is not on br-int"):
            entries.write(replace(vm, **change), ports(attachment))
    assert listed(host) == []
    away = ListEntries(OvsdbClient("unix:/nowhere", COLUMNS), BRIDGE)
    for call in (lambda: away.write(vm, ports(attachment)), lambda: away.remove({INSTANCE})):
        with pytest.raises(AttachDriverError, match="Open vSwitch does not answer"):
            call()


def test_state_has_the_lists(host: OpenvSwitch, vm: Parent, entries: ListEntries) -> None:
    vms.plug(host, "tpi-1", iface_id=INSTANCE)
    write(host, '[{"vid":100}]', "tpi-1")
    kept, gone = vms.attachment(vm, 100), vms.attachment(vm, 102)
    entries.write(vm, ports(kept, gone))
    other = {"vid": 101, "instance_id": "odd"}
    write(host, json.dumps([*listed(host), other]))
    state = WiredPorts(
        OvsdbClient(host.ovsdb_connection, COLUMNS), BRIDGE, lambda _ports: {}
    ).state()
    assert state.claims == {
        vm.port_id: [
            ListClaim(100, kept.id, kept.port_id),
            ListClaim(102, gone.id, gone.port_id),
            ListClaim(101, "", ""),
        ]
    }
    assert state.parents == {INSTANCE}
    # The entry of another program stands, so that nothing is missing.
    for vid, name, port_id, whole in (
        (100, kept.id, kept.port_id, True),
        (100, kept.id, "another", False),
        (103, kept.id, kept.port_id, False),
        (101, INSTANCE, "", True),
    ):
        assert state.works(vm.port_id, name, port_id, vid) == whole
    assert (state.others(vm.port_id), state.others(INSTANCE)) == ({101}, set())
    assert state.left({kept.id}) == {gone.id: (vm.port_id, 102)}
