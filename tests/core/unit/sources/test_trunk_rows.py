"""Ports of a trunk should follow its rows, and a subport have its own instance or its VM's."""

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dfmeta.model import Endpoint, Port, PortId, PortKind, PortState
from dfmeta.ovsdb.bridge_reader import BridgeReader, Update
from dfmeta.ovsdb.subport_list import KEY
from dfmeta.ovsdb.vif import INSTANCE_KEY
from dfmeta.sources.stages import Subports
from tests.core.unit.support import GUEST_MAC, INSTANCE, OTHER_INSTANCE, IdlRow
from tests.harness.examples import examples

VM = {"iface-id": "p", "attached-mac": GUEST_MAC, "vm-uuid": INSTANCE}
PORT = {"iface-id": "p", "attached-mac": GUEST_MAC}


class Ovsdb:
    def __init__(self) -> None:
        self.tables = {
            name: SimpleNamespace(rows=dict[Any, Any]())
            for name in ("Open_vSwitch", "Bridge", "Port", "Interface")
        }
        self.changes: list[Any] = []
        self._numbers = itertools.count(1)
        self.reader = BridgeReader("br-int", "tap-metadata")
        self.known: dict[PortId, Port] = {}
        self.bridge("br-int")
        self.take(self.reader.read(self))

    def insert(self, table: str, **columns: Any) -> Any:
        uuid = f"{table}-{next(self._numbers)}"
        row = IdlRow(uuid=uuid, _table=SimpleNamespace(name=table), **columns)
        self.tables[table].rows[uuid] = row
        self.changes.append(row)
        return row

    def delete(self, row: Any) -> None:
        del self.tables[row._table.name].rows[row.uuid]
        self.changes.append(row)

    def bridge(self, name: str) -> Any:
        return self.insert(
            "Bridge",
            name=name,
            ports=[],
            datapath_id=[],
            controller=[],
            datapath_type="",
            fail_mode=[],
        )

    def bridges(self) -> dict[str, Any]:
        return {bridge.name: bridge for bridge in self.tables["Bridge"].rows.values()}

    def interface(self, name: str) -> Any:
        rows = [row for row in self.tables["Interface"].rows.values() if row.name == name]
        return rows[0] if rows else None

    def add(self, bridge: str, name: str, *, tag: int = 0, **columns: Any) -> Any:
        base = {"type": "", "ofport": [next(self._numbers)], "external_ids": {}, "options": {}}
        base |= {"mac_in_use": [], "mtu": [], "mtu_request": []}
        interface = self.insert("Interface", name=name, **base | columns)
        port = self.insert(
            "Port",
            name=name,
            interfaces=[interface],
            tag=[tag] if tag else [],
            vlan_mode=["access"] if tag else [],
            cvlans=[],
            other_config={},
        )
        self.bridges()[bridge].ports.append(port)
        self.changes.append(self.bridges()[bridge])
        return interface

    def patch(
        self, bridge: str, name: str, peer: str, port_id: str, *, tag: int = 0, listed: str = ""
    ) -> Any:
        ids = {"iface-id": port_id, "attached-mac": GUEST_MAC, KEY: listed}
        return self.add(
            bridge, name, type="patch", options={"peer": peer}, external_ids=ids, tag=tag
        )

    def remove(self, name: str) -> None:
        for bridge in self.bridges().values():
            for port in [row for row in bridge.ports if row.name == name]:
                bridge.ports.remove(port)
                self.changes.append(bridge)
                self.delete_port(port)

    def delete_port(self, port: Any) -> None:
        for row in (port, *port.interfaces):
            self.delete(row)

    def remove_bridge(self, name: str) -> None:
        bridge = self.bridges()[name]
        self.delete(bridge)
        for port in bridge.ports:
            self.delete_port(port)

    def change(self, name: str, **columns: Any) -> None:
        row = self.interface(name)
        vars(row).update(columns)
        self.changes.append(row)

    def port_row(self, name: str) -> Any:
        return next(row for row in self.tables["Port"].rows.values() if row.name == name)

    def take(self, update: Update) -> None:
        for port_id in update.gone:
            del self.known[port_id]
        self.known |= {port.id: port for port in update.changed}
        self.changes = []

    def read(self) -> dict[str, Port]:
        """Read the changes; return the ports of rows by their names."""
        self.take(self.reader.read(self, self.changes))
        return {port.name: port for port in self.known.values() if not port.vid}

    def anew(self) -> dict[PortId, Port]:
        changed = BridgeReader("br-int", "tap-metadata").read(self).changed
        return {port.id: port for port in changed}


@pytest.fixture
def ovsdb() -> Ovsdb:
    """A trunk with its parent and a subport, without the VM's interface."""
    made = Ovsdb()
    made.bridge("tbr-1")
    made.patch("br-int", "tpi-1", "tpt-1", "p")
    made.patch("tbr-1", "tpt-1", "tpi-1", "p")
    made.patch("br-int", "spi-1", "spt-1", "s")
    made.patch("tbr-1", "spt-1", "spi-1", "s", tag=100)
    return made


def test_a_parent_has_the_instance_of_the_interface_on_its_trunks_bridge(ovsdb: Ovsdb) -> None:
    ports = ovsdb.read()
    assert ports["tpi-1"].state is PortState.NO_INSTANCE
    ovsdb.add("tbr-1", "tap1", external_ids=VM | {"project-id": "project"})
    ports = ovsdb.read()
    assert ports.keys() == {"tpi-1", "spi-1"}
    parent = ports["tpi-1"]
    assert (parent.state, parent.kind) == (PortState.SERVED, PortKind.PARENT)
    assert (parent.instance_id, parent.project_id) == (INSTANCE, "project")
    assert parent.sources == {"instance_id": "ovsdb", "project_id": "ovsdb"}
    assert parent.ofport == ovsdb.interface("tpi-1").ofport[0]
    ovsdb.change("tap1", external_ids=VM | {"vm-uuid": OTHER_INSTANCE})
    assert ovsdb.read()["tpi-1"].instance_id == OTHER_INSTANCE
    ovsdb.remove("tap1")
    assert ovsdb.read()["tpi-1"].instance_id == ""


def test_one_interface_alone_of_the_parents_port_names_an_instance(ovsdb: Ovsdb) -> None:
    ovsdb.bridge("tbr-2")
    ovsdb.add("tbr-1", "tap2", external_ids=VM | {"iface-id": "q"})
    ovsdb.add("tbr-2", "tap3", external_ids=VM)
    ovsdb.add("tbr-1", "tap4", external_ids=PORT)
    assert ovsdb.read()["tpi-1"].instance_id == ""
    ovsdb.remove("tap4")
    ovsdb.add("tbr-1", "tap1", external_ids=VM)
    ovsdb.add("tbr-1", "tap5", external_ids=VM | {"vm-uuid": OTHER_INSTANCE})
    assert ovsdb.read()["tpi-1"].instance_id == ""
    ovsdb.remove("tap5")
    assert ovsdb.read()["tpi-1"].instance_id == INSTANCE
    ovsdb.change("tap1", external_ids=VM | {"vm-uuid": "web"})
    parent = ovsdb.read()["tpi-1"]
    assert (parent.state, parent.endpoint) == (PortState.BROKEN, None)
    assert "external_ids:vm-uuid='web'" in parent.fault


def test_a_subport_has_the_instance_of_its_own_row(ovsdb: Ovsdb) -> None:
    ovsdb.add("tbr-1", "tap1", external_ids=VM)
    subport = ovsdb.read()["spi-1"]
    assert (subport.kind, subport.segmentation_id) == (PortKind.SUBPORT, 100)
    assert (subport.parent, subport.instance_id, subport.vid) == ("tpi-1", "", 0)
    assert subport.endpoint == Endpoint(ovsdb.interface("spi-1").ofport[0])
    ids = ovsdb.interface("spi-1").external_ids
    for key in ("dfmeta-instance", "vm-uuid"):
        ovsdb.change("spi-1", external_ids=ids | {key: OTHER_INSTANCE.upper()})
        assert ovsdb.read()["spi-1"].instance_id == OTHER_INSTANCE
        ovsdb.change("spi-1", external_ids=ids | {key: "web"})
        broken = ovsdb.read()["spi-1"]
        assert broken.state is PortState.BROKEN
        assert f"external_ids:{key}='web'" in broken.fault


def test_a_subport_has_the_instance_of_its_entry_unless_its_row_has_one(ovsdb: Ovsdb) -> None:
    ovsdb.read()
    entry = {"vid": 100, "instance_id": INSTANCE, "project_id": "project", "mtu": 1442}
    ovsdb.change("tpi-1", external_ids=PORT | {KEY: json.dumps([entry])})
    ports = ovsdb.read()
    assert (ports["tpi-1"].mtu, ports["spi-1"].mtu) == (0, 1442)
    assert len(ovsdb.known) == 2, "its tags do not reach the bridge"
    ids = ovsdb.interface("spi-1").external_ids
    for row_ids, expected in (
        ({}, (INSTANCE, "project")),
        ({INSTANCE_KEY: OTHER_INSTANCE}, (OTHER_INSTANCE, "")),
        ({INSTANCE_KEY: INSTANCE.upper()}, (INSTANCE, "project")),
    ):
        ovsdb.change("spi-1", external_ids=ids | row_ids)
        subport = ovsdb.read()["spi-1"]
        assert (subport.instance_id, subport.project_id) == expected
    ovsdb.change("spi-1", external_ids=ids)
    ovsdb.port_row("spt-1").tag = [200]
    ovsdb.changes.append(ovsdb.port_row("spt-1"))
    subport = ovsdb.read()["spi-1"]
    assert (subport.instance_id, subport.segmentation_id) == ("", 200)


def test_a_list_of_a_port_on_the_bridge_makes_a_port_of_each_vlan(ovsdb: Ovsdb) -> None:
    entry = {"port_id": "c", "instance_id": OTHER_INSTANCE, "mac": GUEST_MAC, "mtu": 1442}
    entries = [{"vid": 100, **entry}, {"vid": 200}, {"vid": 9999}]
    ovsdb.add("br-int", "tap9", external_ids=VM | {KEY: json.dumps(entries)}, ofport=[9])
    parent = ovsdb.read()["tap9"]
    assert (parent.kind, parent.endpoint, parent.mtu) == (PortKind.PARENT, Endpoint(9), 0)
    assert ["9999" in fault for fault in parent.subport_faults] == [True]
    first, second = (ovsdb.known[PortId(parent.row, vid)] for vid in (100, 200))
    for subport, *expected in ((first, 100, OTHER_INSTANCE, "c", 1442), (second, 200, "", "", 0)):
        values = [subport.segmentation_id, subport.instance_id, subport.iface_id, subport.mtu]
        assert (values, subport.endpoint) == (expected, Endpoint(9, subport.vid))
        assert (subport.kind, subport.parent) == (PortKind.SUBPORT, "tap9")
    ovsdb.change("tap9", external_ids=VM | {KEY: json.dumps(entries[1:])})
    ovsdb.read()
    assert PortId(parent.row, 100) not in ovsdb.known
    ovsdb.change("tap9", external_ids=VM)
    assert ovsdb.read()["tap9"].kind is PortKind.PORT
    assert not any(port.vid for port in ovsdb.known.values())


def test_a_list_counts_at_the_vms_port_alone_and_whatever_the_vm_is(ovsdb: Ovsdb) -> None:
    listed = json.dumps([{"vid": 100, "instance_id": INSTANCE}])
    for name in ("spi-1", "tpt-1", "spt-1"):
        ovsdb.change(name, external_ids=ovsdb.interface(name).external_ids | {KEY: listed})
    ovsdb.add("br-int", "int-br-ex", type="patch", external_ids={KEY: listed})
    assert ovsdb.read()["spi-1"].instance_id == ""
    assert len(ovsdb.known) == 2
    ovsdb.add("br-int", "tap9", external_ids=VM | {"vm-uuid": "web", KEY: listed}, ofport=[9])
    assert ovsdb.read()["tap9"].state is PortState.BROKEN
    (subport,) = (port for port in ovsdb.known.values() if port.vid)
    assert (subport.state, subport.endpoint) == (PortState.SERVED, Endpoint(9, 100))


NAMES = {
    "tpi-1": ("br-int", "tpt-1", "p"),
    "tpi-2": ("br-int", "tpt-2", "q"),
    "spi-1": ("br-int", "spt-1", "s1"),
    "spi-2": ("br-int", "spt-2", "s2"),
    "tpt-1": ("tbr-1", "tpi-1", "p"),
    "tpt-2": ("tbr-2", "tpi-2", "q"),
    "spt-1": ("tbr-1", "spi-1", "s1"),
    "spt-2": ("tbr-2", "spi-2", "s2"),
}
LISTS = ["", "[]", '[{"vid":1,"port_id":"x"},{"vid":2}]', "odd", '[{"vid":1}]']


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ovsdb = Ovsdb()

    def there(self) -> Iterable[str]:
        return [row.name for row in self.ovsdb.tables["Interface"].rows.values()]

    @rule(name=st.sampled_from(["tbr-1", "tbr-2", "br-int"]))
    def toggle_bridge(self, name: str) -> None:
        if name in self.ovsdb.bridges():
            self.ovsdb.remove_bridge(name)
        else:
            self.ovsdb.bridge(name)

    @rule(
        name=st.sampled_from([*NAMES]),
        elsewhere=st.sampled_from(["", "", "", "tbr-1", "tbr-2"]),
        tag=st.sampled_from([0, 1, 2]),
        listed=st.sampled_from(LISTS),
    )
    def toggle_patch(self, name: str, elsewhere: str, tag: int, listed: str) -> None:
        bridge, peer, port_id = NAMES[name]
        bridge = elsewhere or bridge
        if name in self.there():
            self.ovsdb.remove(name)
        elif bridge in self.ovsdb.bridges():
            tag = tag if name[:3] == "spt" else 0
            self.ovsdb.patch(bridge, name, peer, port_id, tag=tag, listed=listed)

    @rule(
        name=st.sampled_from(["tap1", "tap2"]),
        bridge=st.sampled_from(["tbr-1", "tbr-2", "br-int"]),
        port_id=st.sampled_from(["p", "q"]),
        instance=st.sampled_from([INSTANCE, OTHER_INSTANCE, "", "odd"]),
    )
    def toggle_vm(self, name: str, bridge: str, port_id: str, instance: str) -> None:
        if name in self.there():
            self.ovsdb.remove(name)
        elif bridge in self.ovsdb.bridges():
            ids = VM | {"iface-id": port_id, "vm-uuid": instance}
            self.ovsdb.add(bridge, name, external_ids=ids)

    @precondition(lambda self: self.there())
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.there())))
        row = self.ovsdb.interface(name)
        key = data.draw(st.sampled_from([KEY, INSTANCE_KEY, "vm-uuid", "project-id", "iface-id"]))
        value = data.draw(st.sampled_from(LISTS if key == KEY else [INSTANCE, "", "odd", "p"]))
        self.ovsdb.change(name, external_ids=row.external_ids | {key: value})

    @precondition(lambda self: self.there())
    @rule(data=st.data(), bridge=st.sampled_from(["tbr-1", "tbr-2", "br-int"]))
    def move(self, data: st.DataObject, bridge: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.there())))
        if bridge not in self.ovsdb.bridges():
            return
        port = self.ovsdb.port_row(name)
        for row in self.ovsdb.bridges().values():
            if port in row.ports:
                row.ports.remove(port)
                self.ovsdb.changes.append(row)
        self.ovsdb.bridges()[bridge].ports.append(port)
        self.ovsdb.changes += [self.ovsdb.bridges()[bridge], port]

    @rule(order=st.sampled_from([1, -1]))
    def read(self, order: int) -> None:
        self.ovsdb.changes = self.ovsdb.changes[::order]
        self.ovsdb.read()
        assert self.ovsdb.known == self.ovsdb.anew()

    @invariant()
    def nothing_is_left_over(self) -> None:
        """What is kept of rows that are gone would grow as long as the daemon runs."""
        if not self.ovsdb.changes:
            trunks = self.ovsdb.reader._trunks
            assert {row for rows in trunks._followers.values() for row in rows} == {*trunks._keys}
            assert all(trunks._followers.values())


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)


PARENT = Port("tpi-1", "vm", 1, instance_id=INSTANCE, project_id="p", kind=PortKind.PARENT)
SUB = Port("spi-1", "sub", 2, kind=PortKind.SUBPORT, segmentation_id=100, parent="tpi-1")
NAMED = replace(SUB, instance_id=OTHER_INSTANCE)


class World:
    def __init__(self, *, own: bool = True) -> None:
        self.ports: dict[str, Port] = {}
        self.stage = Subports(self.take, self.drop, independent=own)

    def take(self, port: Port) -> None:
        self.ports[port.row] = port

    def drop(self, port_id: PortId) -> None:
        self.ports.pop(port_id.row, None)

    def put(self, *ports: Port) -> Port:
        for port in ports:
            self.stage.put(port)
        return self.ports["sub"]


def test_a_subport_gets_the_project_of_its_parent_and_not_its_instance() -> None:
    port = World().put(PARENT, NAMED)
    assert (port.instance_id, port.project_id) == (OTHER_INSTANCE, "p")
    assert port.sources["project_id"] == "parent"
    unnamed = World().put(PARENT, replace(SUB, unnamed=True))
    assert (unnamed.instance_id, unnamed.state) == ("", PortState.UNNAMED)


def test_a_project_of_its_own_comes_first_and_an_unverified_subport_gets_none() -> None:
    assert World().put(PARENT, replace(NAMED, project_id="q")).project_id == "q"
    assert World().put(PARENT, replace(NAMED, unverified=True)).project_id == ""
    guessed = replace(NAMED, project_id="q", sources={"project_id": "neutron (port)"})
    assert World().put(PARENT, guessed).project_id == "p"
    assert World().put(PARENT, replace(guessed, unverified=True)).project_id == "q"
    assert World().put(guessed).project_id == "q"


def test_a_change_and_the_end_of_a_parent_are_followed() -> None:
    world = World()
    assert world.put(NAMED).project_id == ""
    assert world.put(PARENT).project_id == "p"
    assert world.put(replace(PARENT, project_id="q")).project_id == "q"
    assert world.put(replace(PARENT, name="tpi-2")).project_id == "", "it is the parent of others"
    assert world.put(PARENT).project_id == "p"
    world.stage.forget(PARENT.id)
    assert world.ports["sub"].project_id == ""
    # Neither a subport nor the parent of another trunk is its parent.
    world.put(replace(PARENT, kind=PortKind.SUBPORT), NAMED)
    assert world.ports["sub"].project_id == ""
    world.put(replace(PARENT, name="tpi-2"), replace(NAMED, parent=""))
    assert world.ports["sub"].project_id == ""


def test_with_parent_a_subport_is_its_vm() -> None:
    world = World(own=False)
    vm = replace(PARENT, instance_name="web", unverified=True)
    port = world.put(replace(NAMED, project_id="q"), vm)
    values = (port.instance_id, port.project_id, port.instance_name, port.unverified)
    assert values == (INSTANCE, "p", "web", True)
    assert set(port.sources.values()) == {"parent"}
    assert world.put(replace(SUB, unnamed=True)).state is PortState.SERVED
    world.stage.forget(PARENT.id)
    assert world.ports["sub"].state is PortState.NO_INSTANCE


ANY = st.builds(
    Port,
    name=st.sampled_from(["a", "b", "c"]),
    row=st.sampled_from(["a", "b", "c"]),
    ofport=st.just(1),
    vid=st.sampled_from([0, 0, 7]),
    instance_id=st.sampled_from(["", INSTANCE, OTHER_INSTANCE]),
    project_id=st.sampled_from(["", "p", "q"]),
    kind=st.sampled_from(PortKind),
    parent=st.sampled_from(["", "a", "b"]),
)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(ANY | st.sampled_from(["a", "b", "c"]), max_size=12), st.booleans())
def test_ports_after_changes_are_those_of_a_new_reading(steps: list[Any], own: bool) -> None:
    delivered: dict[PortId, Port] = {}
    stage = Subports(lambda port: delivered.update({port.id: port}), delivered.pop, independent=own)
    present: dict[PortId, Port] = {}
    for step in steps:
        if isinstance(step, Port):
            # A name belongs to one row.
            step = replace(step, row=step.name)
            present[step.id] = step
            stage.put(step)
        elif PortId(step) in present:
            del present[PortId(step)]
            stage.forget(PortId(step))
    anew: dict[PortId, Port] = {}
    other = Subports(lambda port: anew.update({port.id: port}), anew.pop, independent=own)
    for port in present.values():
        other.put(port)
    assert delivered == anew
