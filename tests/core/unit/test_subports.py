"""A VM should be told its own subports, and no other guest's."""

import json
from dataclasses import replace

import pytest

from dfmeta.identity.registry import Registry
from dfmeta.model import Answer, AnswerTerms, GuestRequest, Identity, Port, PortKind, View
from dfmeta.proxy.backends import network_data
from dfmeta.proxy.backends.network_data import Completing, Vlan, with_vlans
from tests.core.unit.support import GUEST_MAC, INSTANCE, OTHER_INSTANCE, PROJECT, port

PATH = "/openstack/latest/network_data.json"
SUB = "fa:16:3f:00:00:64"
IDENTITY = Identity(INSTANCE, PROJECT, "port-tpi-1", "tpi-1", 1)
PARENT = replace(port(1, name="tpi-1"), kind=PortKind.PARENT)
VLAN = Vlan(GUEST_MAC, 100, SUB)


def subport(vid: int = 100, parent: str = "tpi-1", **fields: object) -> Port:
    row = port(100 + vid, name=f"spi-{parent}-{vid}", instance="", project="")
    kind = PortKind.SUBPORT
    row = replace(row, kind=kind, segmentation_id=vid, parent=parent, mac=SUB, unnamed=True)
    return replace(row, **fields)  # type: ignore[arg-type]  # fields by name


def told(*ports: Port, identity: Identity = IDENTITY) -> list[Vlan]:
    registry = Registry()
    for row in ports:
        registry.set_port(row)
    return sorted(network_data.subport_vlans(registry, identity))


def test_a_vm_has_the_subports_of_all_its_ports() -> None:
    other_mac = "fa:16:3e:00:00:02"
    second = replace(PARENT, name="tpi-2", row="row 2", ofport=2, mac=other_mac)
    # Behind this one the tags reach the bridge: its subports have its row.
    tagged = replace(subport(7, "tpi-2"), row=second.row, ofport=2, vid=7)
    named = subport(200, instance_id=OTHER_INSTANCE, unnamed=False)
    assert told(PARENT, second, subport(), named, tagged) == [
        VLAN,
        Vlan(GUEST_MAC, 200, SUB),
        Vlan(other_mac, 7, SUB),
    ]
    assert told(PARENT, replace(subport(), mtu=1442)) == [VLAN._replace(mtu=1442)]
    assert told(PARENT) == []
    assert told(subport()) == []


def test_other_vm_gets_no_subports() -> None:
    assert told(PARENT, subport(), identity=replace(IDENTITY, instance_id=OTHER_INSTANCE)) == []
    assert told(replace(PARENT, kind=PortKind.PORT), subport()) == []
    other = replace(PARENT, name="tpi-2", row="row 2", ofport=2, instance_id=OTHER_INSTANCE)
    assert told(PARENT, other, subport(parent="tpi-2")) == []


def test_container_with_its_vms_identity_has_its_vms_subports() -> None:
    container = subport(instance_id=INSTANCE, project_id=PROJECT, unnamed=False)
    identity = replace(IDENTITY, port_id=container.iface_id, port_name=container.name)
    assert told(PARENT, container, identity=identity) == told(PARENT, container) == [VLAN]


def test_an_instance_that_a_tenant_has_named_counts_for_its_project_alone() -> None:
    parent = replace(PARENT, unverified=True)
    assert told(parent, subport()) == [VLAN]
    assert told(replace(parent, project_id="another"), subport()) == []
    assert told(replace(PARENT, project_id="another"), subport()) == [VLAN]


def test_a_subport_without_the_mac_of_a_device_is_left_out() -> None:
    odd = ("", "fa:16:3f:00:00", "fa-16-3f-00-00-64", "fa:16:3f:00:00:6g", "fa:16:3f:00:0064:")
    for mac in (*odd, "fb:16:3f:00:00:64", "00:00:00:00:00:00"):
        assert told(PARENT, subport(mac=mac), subport(200)) == [Vlan(GUEST_MAC, 200, SUB)], mac


def test_a_subport_without_a_vlan_id_and_a_parent_without_a_mac_are_left_out() -> None:
    assert told(PARENT, subport(segmentation_id=0)) == []
    assert told(replace(PARENT, mac=""), subport()) == []


LINKS = [{"id": "tap1", "type": "ovs", "ethernet_mac_address": GUEST_MAC}]
BODY = json.dumps({"links": LINKS, "networks": [], "services": []}).encode()


TERMS = AnswerTerms(5.0)


class Inner:
    name = "nova"

    def __init__(self) -> None:
        self.asked: list[GuestRequest] = []

    def open(self, request: GuestRequest, identity: Identity, terms: AnswerTerms) -> View:
        assert (identity, terms) == (IDENTITY, TERMS)
        self.asked.append(request)
        return View("optional", lambda: Answer(200, BODY))


class World:
    def __init__(self, *vlans: Vlan) -> None:
        self.inner = Inner()
        self.vlans = vlans
        self.outer = Completing(self.inner, self._subports)  # type: ignore[arg-type]  # fields by name

    def _subports(self, identity: Identity, deadline: float) -> tuple[Vlan, ...]:
        assert (identity, deadline) == (IDENTITY, 5.0)
        return self.vlans

    def ask(self, request: GuestRequest) -> Answer:
        view = self.outer.open(request, IDENTITY, TERMS)
        assert view.http_tokens == "optional"
        return view.answer()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_head_is_answered_from_the_document_of_a_get(method: str) -> None:
    world = World(VLAN)
    answer = world.ask(GuestRequest(method, PATH, headers={"if-none-match": "*"}))
    assert answer.body == with_vlans(BODY, [VLAN]) != BODY
    assert world.inner.asked == [GuestRequest("GET", PATH)]


def test_any_other_request_passes() -> None:
    for request, vlans in (
        (GuestRequest("HEAD", PATH, headers={"if-none-match": "*"}), []),
        (GuestRequest("GET", f"{PATH}/x"), [VLAN]),
        (GuestRequest("POST", PATH), [VLAN]),
    ):
        world = World(*vlans)
        assert world.ask(request).body == BODY
        assert world.inner.asked == [request]
