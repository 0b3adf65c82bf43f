"""Neutron's subports should be added where OVSDB has none, and leave with their parent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import eventlet
import pytest

from dfmeta import hub
from dfmeta.exceptions import SourceError
from dfmeta.model import Endpoint, Port, PortId, PortKind
from dfmeta.ports.neutron import LIST_FROM
from dfmeta.ports.neutron_api import Row
from dfmeta.ports.trunk_details import FIELDS, FRESH, TrunkDetails, subports_of
from tests.core.unit.support import GUEST_MAC, INSTANCE


def uuid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def port(number: int = 1, **more: Any) -> Port:
    fields = {"name": f"tap{number}", "row": str(number), "ofport": number}
    return Port(**fields | {"iface_id": uuid(number), "instance_id": INSTANCE} | more)


def details(*vids: int, **more: Any) -> dict[str, Any]:
    listed = [
        {
            "segmentation_id": vid,
            "segmentation_type": "vlan",
            "port_id": uuid(vid),
            "mac_address": GUEST_MAC.upper(),
        }
        | more
        for vid in vids
    ]
    return {"trunk_details": {"trunk_id": "t", "sub_ports": listed}}


class World:
    """Neutron, the stage, and the ports that it has handed on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rows: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fault: Exception | None = None
        self.ports: dict[PortId, Port] = {}
        self.handed = 0
        self.stage = TrunkDetails(
            self, self.update, self.ports.pop, timeout=0.2, clock=lambda: self.now
        )

    def update(self, one: Port) -> None:
        self.ports[one.id] = one
        self.handed += 1

    def on_host(self, fields: Sequence[str]) -> list[Row]:
        return self._call("host", fields, list(self.rows))

    def by_id(self, ids: Sequence[str], fields: Sequence[str]) -> list[Row]:
        return self._call(f"{len(ids)} ids", fields, ids)

    def _call(self, what: str, fields: Sequence[str], ids: Sequence[str]) -> list[Row]:
        assert fields == FIELDS
        self.calls.append(what)
        if self.fault is not None:
            raise self.fault
        return [{"id": one, **self.rows[one]} for one in ids if one in self.rows]

    def vids(self, number: int = 1) -> list[int]:
        return sorted(one.vid for one in self.ports if one.row == str(number) and one.vid)


@pytest.fixture
def world() -> World:
    made = World()
    made.rows[uuid(1)] = details(100, 200)
    made.stage.update(port())
    return made


def test_subports_have_their_parents_place_and_no_more_of_it(world: World) -> None:
    assert world.vids() == []
    assert world.stage.round() == FRESH
    found = world.ports[PortId("1", 100)]
    assert (found.endpoint, found.kind, found.parent) == (
        *(Endpoint(1, 100), PortKind.SUBPORT, "tap1"),
    )
    assert (found.iface_id, found.mac, found.segmentation_id) == (uuid(100), GUEST_MAC, 100)
    assert (found.instance_id, found.sources) == ("", {})
    assert world.ports[PortId("1")].kind is PortKind.PARENT
    assert world.vids() == [100, 200]


def test_an_entry_of_ovsdb_comes_first(world: World) -> None:
    mine = port(vid=100, kind=PortKind.SUBPORT, iface_id="mine", parent="tap1")
    world.stage.update(mine)
    world.stage.round()
    assert world.ports[mine.id] == mine
    assert world.vids() == [100, 200]
    other = replace(mine, vid=200)
    world.stage.update(other)
    assert world.ports[other.id] == other
    world.now += FRESH
    world.stage.round()
    assert world.ports[other.id] == other
    world.stage.forget(mine.id)
    assert world.ports[mine.id].iface_id == uuid(100), "Neutron's again"


def test_an_attachment_that_leaves_ovsdb_leaves_at_once(world: World) -> None:
    """Neutron is told of it last, and asked again later."""
    ours = port(vid=100, kind=PortKind.SUBPORT, iface_id="mine", parent="tap1", attached="a")
    changed = replace(ours, vid=200)
    for one in (ours, changed, replace(changed, attached="")):
        world.stage.update(one)
    world.stage.round()
    for one in (ours, changed):
        world.stage.forget(one.id)
    assert world.vids() == [200], "Neutron's again"
    world.now += FRESH
    world.stage.round()
    assert world.vids() == [100, 200], "it stayed in Neutron"
    world.stage.update(ours)
    world.stage.forget(PortId("1"))
    world.stage.forget(ours.id)
    assert world.ports == {}


def test_subports_follow_their_parent_and_go_with_it(world: World) -> None:
    world.stage.round()
    world.stage.update(port(ofport=9))
    assert world.ports[PortId("1", 100)].endpoint == Endpoint(9, 100)
    assert world.ports[PortId("1")].kind is PortKind.PARENT
    world.now += FRESH
    world.fault = SourceError(source="neutron", cause="away")
    with pytest.raises(SourceError):
        world.stage.round()
    assert world.vids() == [100, 200], "while Neutron is away"
    world.stage.forget(PortId("1"))
    assert world.ports == {}


def test_a_trunks_changes_are_seen_at_the_next_round(world: World) -> None:
    world.stage.round()
    world.rows[uuid(1)] = details(200, 300)
    world.stage.round()
    assert (world.vids(), world.calls) == ([100, 200], ["1 ids"])
    world.now += FRESH
    handed = world.handed
    world.stage.round()
    assert (world.vids(), world.handed - handed) == ([200, 300], 1)
    del world.rows[uuid(1)]
    world.now += FRESH
    world.stage.round()
    assert (world.vids(), world.ports[PortId("1")].kind) == ([], PortKind.PORT)


def test_many_ports_are_asked_about_in_one_call_unless_their_tags_do_not_come() -> None:
    world = World()
    for one in (
        port(1, name="tpi-1", kind=PortKind.PARENT),
        port(2, kind=PortKind.SUBPORT),
        port(3, fault="odd"),
        port(4, iface_id="no-uuid"),
    ):
        world.stage.update(one)
    assert (world.stage.round(), world.calls) == (FRESH, [])
    for number in range(1, LIST_FROM + 1):
        world.rows[uuid(number)] = details(100)
        world.stage.update(port(number))
    world.stage.round()
    assert world.calls == ["host"]
    assert all(world.vids(number) == [100] for number in range(1, LIST_FROM + 1))


def test_the_loop_asks_about_a_new_port_soon_and_outlives_neutron(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fault = SourceError(source="neutron", cause="away")
    world.stage.start()
    eventlet.sleep(0.1)
    assert (world.calls, world.vids()) == (["1 ids"], [])
    assert "Neutron does not give the subports of trunks (away); known ones stay" in caplog.text
    world.fault = None
    eventlet.sleep(FRESH)
    world.rows[uuid(2)] = details(7)
    world.stage.update(port(2))
    eventlet.sleep(0.1)
    assert (world.vids(), world.vids(2)) == ([100, 200], [7])
    hub.VITAL.release()


NO_SUBPORTS: list[Row] = [
    {},
    {"trunk_details": None},
    {"trunk_details": []},
    {"trunk_details": {"sub_ports": "x"}},
    {"trunk_details": {"sub_ports": [5]}},
    details(0),
    details(4095),
    details(100, 100),
    details(100, segmentation_type="inherit"),
    details(100, port_id=7),
    details(100, mac_address="odd"),
]


def test_a_row_without_subports_gives_none() -> None:
    for row in NO_SUBPORTS:
        assert subports_of(row) == {}, row
