"""OVN's port bindings give identities and subports, and each change reaches the ports at once."""

from collections.abc import Callable, Collection
from typing import Any

import eventlet
import pytest

from dfmeta.model import Port, PortId, PortKind
from dfmeta.ovsdb.external_ids import southbound_of
from dfmeta.ovsdb.southbound import BindingsUpdate, _binding
from dfmeta.sources.added_subports import AddedSubports
from dfmeta.sources.ovn import OvnSource
from dfmeta.sources.source import Ownership, PortQuery
from tests.core.unit.support import GUEST_MAC, INSTANCE, IdlRow

PROJECT = "p1"
VM = Port(name="tap1", row="row1", ofport=1, iface_id="vm")


def row(name: str, *mac: str, parent: str = "", tag: int = 0, **ids: str) -> Any:
    columns = {"parent_port": [parent] if parent else [], "tag": [tag] if tag else []}
    external_ids = {f"neutron:{key}": value for key, value in ids.items()}
    return IdlRow(logical_port=name, mac=list(mac), external_ids=external_ids, **columns)


CONTAINER = row(
    *("c1", "unknown", f"{GUEST_MAC.upper()} 10.0.0.5"),
    parent="vm",
    tag=100,
    device_id=INSTANCE,
    project_id=PROJECT,
)


class Cloud:
    def __init__(self) -> None:
        self.source = OvnSource("")
        self.renewed: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.source.renew = self._renew
        self.ports: dict[PortId, Port] = {}
        self.source.stage = AddedSubports(self._update, self._forget, self.source.ring)
        self.source.stage.update(VM)

    def _renew(self, names: Collection[str]) -> None:
        self.renewed += names

    def _forget(self, port_id: PortId) -> None:
        self.ports.pop(port_id, None)

    def _update(self, port: Port) -> None:
        self.ports[port.id] = port
        if port.vid:
            self.meanwhile()

    def take(self, *rows: Any, gone: Collection[str] = (), whole: bool = False) -> None:
        changed = {**dict.fromkeys(gone), **{each.logical_port: _binding(each) for each in rows}}
        self.source.take(BindingsUpdate(frozenset({"vm"}), changed, whole))

    def vids(self) -> list[int]:
        return sorted(port_id.vid for port_id in self.ports if port_id.vid)

    def find(self, port: Port) -> Ownership:
        return self.source.find(PortQuery(port, 0.0))


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def test_a_container_port_is_a_subport_with_its_own_identity(cloud: Cloud) -> None:
    cloud.take(CONTAINER, row("vm", device_id=INSTANCE, device_owner="compute:nova"))
    subport = cloud.ports[PortId("row1", 100)]
    assert (subport.kind, subport.iface_id, subport.mac) == (PortKind.SUBPORT, "c1", GUEST_MAC)
    assert (subport.project_id, subport.sources) == ("", {}), "the port's is a guess"
    assert cloud.find(subport) == Ownership(INSTANCE, port_project=PROJECT)
    assert cloud.find(VM) == Ownership(INSTANCE)
    cloud.take(row("vm", device_id=INSTANCE, device_owner="network:router_interface"))
    assert cloud.find(VM) == Ownership(), "no instance's port"


def test_each_change_of_a_row_reaches_its_ports(cloud: Cloud) -> None:
    cloud.take(CONTAINER, row("c2", parent="vm", tag=200), row("c3", parent="other", tag=300))
    assert cloud.vids() == [100, 200]
    cloud.renewed.clear()
    cloud.take(CONTAINER, row("c2", parent="vm", tag=201))
    assert (cloud.vids(), cloud.renewed) == ([100, 201], ["c2"])
    cloud.take(row("c4", parent="vm", tag=100))
    assert cloud.vids() == [201], "two ports have the VLAN"
    cloud.take(gone=["c4"])
    assert cloud.vids() == [100, 201]
    cloud.take(CONTAINER, whole=True)
    assert cloud.vids() == [100], "c2 went while the database was away"


def test_subports_do_not_outlive_a_parent_that_goes_while_they_come(cloud: Cloud) -> None:
    cloud.meanwhile = lambda: cloud.source.stage.forget(VM.id)
    cloud.take(CONTAINER, row("c2", parent="vm", tag=200))
    assert cloud.ports == {}


def test_a_query_waits_until_the_rows_of_its_port_are_there(cloud: Cloud) -> None:
    answer = eventlet.spawn(cloud.find, VM)
    eventlet.sleep(0)
    assert not answer.dead
    cloud.take()
    assert answer.wait() == Ownership()
    assert cloud.find(Port(name="spi-1", row="row2", ofport=2, iface_id="x")) == Ownership()


def test_odd_rows_cost_no_other(cloud: Cloud) -> None:
    cloud.take(CONTAINER, row("a b", "router", parent="vm", tag=2), row("c5", "", parent="vm"))
    assert cloud.vids() == [100]


def test_a_chassis_may_have_an_address_of_its_own() -> None:
    ids = {"ovn-remote": "tcp:a:6642, tcp:b:6642", "ovn-remote-h": "unix:/sb", "system-id": "h"}
    assert southbound_of(ids) == "unix:/sb"
    assert southbound_of({**ids, "system-id": "i"}) == "tcp:a:6642,tcp:b:6642"
    assert southbound_of({}) == ""
