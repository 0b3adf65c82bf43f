"""Rows of OVSDB should become what the rest of the daemon knows, one odd row alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ovs.db.data import Atom
from ovs.db.idl import Idl
from ovs.db.types import UuidType
from ovs.jsonrpc import Message

from dfmeta.model import TAP_MAC, Endpoint, Port, PortId
from dfmeta.ports import bridge_reader, vif
from dfmeta.ports.bridge_reader import Bridge, TapPort, Update
from dfmeta.ports.idl import Noticing
from dfmeta.ports.ovsdb import OvsdbWatcher
from dfmeta.ports.trunks import Lead
from dfmeta.registry import Registry
from tests.core.unit.support import GUEST_MAC, INSTANCE


def interface(name: str, **columns: Any) -> Any:
    base = {
        "uuid": f"uuid-of-{name}",
        "name": name,
        "type": "",
        "ofport": [5],
        "external_ids": {"iface-id": name, "attached-mac": GUEST_MAC, "vm-uuid": INSTANCE},
        "mac_in_use": [GUEST_MAC],
        "options": {},
    }
    return SimpleNamespace(**base | columns, _table=SimpleNamespace(name="Interface"))


def port_row(*interfaces: Any, **columns: Any) -> Any:
    base = {"tag": [], "vlan_mode": [], "cvlans": [], "other_config": {}}
    base["interfaces"] = list(interfaces)
    row = SimpleNamespace(**base | columns, _table=SimpleNamespace(name="Port"))
    row.uuid = "port-of-" + ",".join(one.name for one in row.interfaces)
    return row


def tap_row(**columns: Any) -> Any:
    tap = {
        "type": "internal",
        "ofport": [9],
        "external_ids": {"dfmeta": "tap"},
        "mac_in_use": [TAP_MAC],
    }
    return interface("tap-metadata", **tap | columns)


def tap_port(**columns: Any) -> Any:
    base = {"tag": [4095], "vlan_mode": ["dot1q-tunnel"], "cvlans": [1]}
    return port_row(**base | columns)


class BridgeRow(SimpleNamespace):
    """A row of Bridge that knows its ports by their ids as well, as the IDL's does."""

    _table = SimpleNamespace(name="Bridge")

    @property
    def _data(self) -> dict[str, Any]:
        ids = {Atom(UuidType, port.uuid): None for port in self.ports}
        return {"ports": SimpleNamespace(values=ids)}


def bridge_row(*ports: Any, name: str = "br-int", **columns: Any) -> Any:
    base = {"name": name, "uuid": f"bridge-{name}", "ports": list(ports)}
    base["datapath_id"] = ["0000aabbccddeeff"]
    return BridgeRow(**base | {"controller": [], "datapath_type": ""} | columns)


def idl(*bridges: Any) -> Any:
    ports = {port.uuid: port for bridge in bridges for port in bridge.ports}
    tables = {"Bridge": {one.uuid: one for one in bridges}, "Port": ports}
    return SimpleNamespace(
        tables={name: SimpleNamespace(rows=rows) for name, rows in tables.items()}
    )


@pytest.fixture
def watcher() -> Iterator[OvsdbWatcher]:
    made = OvsdbWatcher("unix:/none", "br-int", "tap-metadata", deliver=lambda _update: None)
    yield made
    for fd in (*made._to_hub, *made._to_thread):
        os.close(fd)


@pytest.mark.parametrize(
    ("datapath_id", "number"), [(["0000aabbccddeeff"], 0xAABBCCDDEEFF), ([], None), ([""], None)]
)
def test_a_bridges_datapath_id_is_a_number(datapath_id: list[str], number: int | None) -> None:
    row = bridge_row(datapath_id=datapath_id, controller=["one", "two"])
    assert bridge_reader._read_bridge(row) == Bridge(number, controllers=2)
    for kind in ("", "system", "netdev"):
        row.datapath_type = kind
        assert bridge_reader._read_bridge(row).userspace is (kind == "netdev")


def test_tap_is_ours_by_its_mark_and_in_order_by_its_vlan() -> None:
    sound = TapPort(9, mac=TAP_MAC, ours=True, marked=True)
    assert bridge_reader._read_tap(tap_port(), tap_row()) == sound
    for columns in (
        {"tag": []},
        {"tag": [5]},
        {"vlan_mode": []},
        {"vlan_mode": ["access"]},
        {"cvlans": []},
    ):
        read = bridge_reader._read_tap(tap_port(**columns), tap_row())
        assert (read.ours, read.marked) == (False, True), columns
    foreign = bridge_reader._read_tap(tap_port(), tap_row(external_ids={}))
    assert (foreign.ours, foreign.marked) == (False, False)
    for ofport in ([], [-1], [0]):
        read = bridge_reader._read_tap(tap_port(), tap_row(ofport=ofport, mac_in_use=[]))
        assert (read.ofport, read.mac) == (None, ""), ofport


def test_changes_before_an_exception_are_delivered_after_it(
    watcher: OvsdbWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    taps = [port_row(interface(f"tap{n}", ofport=[n])) for n in range(1, 5)]
    watcher._reader.read(idl(bridge_row(*taps[:2])))
    read = bridge_reader._interface_row

    def broken(port: Any, row: Any) -> Any:
        if row.name == "tap3":
            raise ZeroDivisionError
        return read(port, row)

    # tap1 goes, tap2 changes; the port of tap4 comes before the odd one, or after it.
    changed = port_row(interface("tap2", ofport=[12]))
    for order in ([taps[3], taps[2]], [taps[2], taps[3]]):
        monkeypatch.setattr(bridge_reader, "_interface_row", broken)
        with pytest.raises(ZeroDivisionError):
            watcher._reader.read(idl(bridge_row(changed, *order)))
        monkeypatch.setattr(bridge_reader, "_interface_row", read)
    update = watcher._reader.read(idl(bridge_row(changed, taps[2], taps[3])))
    assert {(one.name, one.ofport) for one in update.changed} == {
        ("tap2", 12),
        ("tap3", 3),
        ("tap4", 4),
    }
    assert update.gone == (PortId("uuid-of-tap1"),)
    again = watcher._reader.read(idl(bridge_row(changed, taps[2], taps[3])))
    assert (again.changed, again.gone) == ((), ())


def test_the_bridges_guests_and_its_tap_are_read(watcher: OvsdbWatcher) -> None:
    update = watcher._reader.read(
        idl(
            bridge_row(port_row(interface("other")), name="br-ex"),
            bridge_row(
                port_row(interface("tap1")),
                port_row(interface("patch", type="patch")),
                port_row(interface("bond-a", external_ids={}), interface("bond-b", ofport=[6])),
                tap_port(interfaces=[tap_row()]),
            ),
        )
    )
    assert [port.name for port in update.changed] == ["tap1", "bond-b"]
    assert update.tap is not None
    assert update.tap.ours
    assert update.bridge == Bridge(0xAABBCCDDEEFF, controllers=0)
    assert update.gone == ()


class Counting:
    """Rows of Port that count how often one is asked for."""

    def __init__(self, rows: dict[str, Any]) -> None:
        self.rows, self.asked = rows, 0

    def get(self, uuid: str) -> Any:
        self.asked += 1
        return self.rows.get(uuid)


@pytest.mark.parametrize("others", [3, 300])
def test_a_change_of_one_port_reads_that_port_alone(watcher: OvsdbWatcher, others: int) -> None:
    ports = [port_row(interface(f"tap{n}", ofport=[n])) for n in range(1, others)]
    bridge = bridge_row(*ports, tap_port(interfaces=[tap_row()]))
    database = idl(bridge)
    assert len(watcher._reader.read(database).changed) == others - 1
    counting = database.tables["Port"].rows = Counting(database.tables["Port"].rows)

    changed = ports[1].interfaces[0]
    changed.ofport = [999]
    update = watcher._reader.read(database, [changed])
    assert [(port.name, port.ofport) for port in update.changed] == [("tap2", 999)]
    ports[0].tag = [4095]
    update = watcher._reader.read(database, [ports[0]])
    assert [(port.name, port.dead) for port in update.changed] == [("tap1", True)]
    bridge.controller = ["one"]
    update = watcher._reader.read(database, [bridge])
    assert (update.changed, update.gone, update.bridge) == ((), (), Bridge(0xAABBCCDDEEFF, 1))
    assert update.tap is not None
    bridge.ports = bridge.ports[1:]
    update = watcher._reader.read(database, [bridge, ports[0], ports[0].interfaces[0]])
    assert (update.changed, update.gone) == ((), (PortId("uuid-of-tap1"),))
    ports[1].interfaces[0].external_ids = {}
    assert watcher._reader.read(database, [changed]).gone == (PortId("uuid-of-tap2"),)
    assert counting.asked == 3
    stranger = port_row(interface("elsewhere"))
    assert watcher._reader.read(database, [stranger, stranger.interfaces[0]]).changed == ()
    assert counting.asked == 3


def test_without_the_bridge_all_its_ports_are_gone(watcher: OvsdbWatcher) -> None:
    watcher._reader.read(idl(bridge_row(port_row(interface("tap1")))))
    update = watcher._reader.read(idl())
    assert (update.bridge, update.tap, update.gone) == (None, None, (PortId("uuid-of-tap1"),))
    assert update.connected


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_an_interface_that_changes_its_port_stays_a_guest(
    watcher: OvsdbWatcher, order: slice
) -> None:
    mine, bond = interface("tap1"), interface("other", external_ids={})
    first, second = port_row(mine, bond), port_row(interface("third", external_ids={}))
    bridge = bridge_row(first, second)
    watcher._reader.read(idl(bridge))
    first.interfaces, second.interfaces = [bond], [*second.interfaces, mine]
    update = watcher._reader.read(idl(bridge), [first, second][order])
    kept = watcher._reader._known.keys()
    assert kept == {"uuid-of-tap1"}
    assert not update.gone or [port.name for port in update.changed] == ["tap1"]


class Session:
    """The IDL's session, and its notices."""

    def __init__(self) -> None:
        self.number, self.notices = 1, list[Any]()
        self._session = SimpleNamespace(get_seqno=lambda: self.number)

    def take(self) -> list[Any]:
        return self.notices


def test_after_a_reconnect_everything_is_read(watcher: OvsdbWatcher) -> None:
    """What went while OVSDB was away is in no notice."""
    session = Session()
    assert watcher._changes(session) is None
    assert watcher._changes(session) == []
    session.number, session.notices = 2, ["a row"]
    assert watcher._changes(session) is None
    assert watcher._changes(session) == ["a row"]


def with_vlans(monkeypatch: pytest.MonkeyPatch, *vids: int) -> None:
    """Have each guest's row give a port for each of *vids*."""

    def many(row: vif.InterfaceRow, lead: Lead) -> tuple[Port, ...]:
        return tuple(replace(one, vid=vid) for one in vif.vifs(row, lead) for vid in vids)

    monkeypatch.setattr(bridge_reader, "vifs", many)


@pytest.mark.parametrize("goes", ["port", "interface", "guest"])
def test_all_ports_of_a_row_go_with_it(
    watcher: OvsdbWatcher, monkeypatch: pytest.MonkeyPatch, goes: str
) -> None:
    row, other = port_row(interface("tap1")), port_row(interface("tap2", ofport=[6]))
    bridge = bridge_row(row, other)
    with_vlans(monkeypatch, 0, 100, 4094)
    registry = Registry()
    for port in watcher._reader.read(idl(bridge)).changed:
        registry.set_port(port)
    assert len(registry.endpoints()) == 6
    if goes == "port":
        bridge.ports.remove(row)
    elif goes == "interface":
        row.interfaces = []
    else:
        row.interfaces[0].external_ids = {}
    update = watcher._reader.read(idl(bridge))
    assert update.changed == ()
    assert update.gone == tuple(PortId("uuid-of-tap1", vid) for vid in (0, 100, 4094))
    for port_id in update.gone:
        registry.remove_port(port_id)
    assert registry.endpoints() == [Endpoint(6), Endpoint(6, 100), Endpoint(6, 4094)]


def test_repeated_update_is_delivered_once(watcher: OvsdbWatcher) -> None:
    for connected in (True, True, False, False, True):
        watcher._tell(Update(connected=connected))
    assert [update.connected for update in watcher._updates] == [True, False, True]


class Wire:
    """A session to OVSDB whose messages a test hands over."""

    def __init__(self) -> None:
        self.number = 1
        self.rpc: Any = None
        self.sent: list[Any] = []
        self.received: list[Any] = []

    def get_seqno(self) -> int:
        return self.number

    def is_connected(self) -> bool:
        return True

    def send(self, message: Any) -> int:
        self.sent.append(message)
        return 0

    def recv(self) -> Any:
        return self.received.pop(0) if self.received else None


@pytest.fixture
def wire() -> Wire:
    """What the IDL of :func:`noticing` goes by."""
    return Wire()


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> Any:
    """An IDL that hears of changes, without its parts."""

    def init(self: Any, _remote: str, _helper: Any) -> None:
        self._session, self.state = wire, Idl.IDL_S_MONITORING

    monkeypatch.setattr(Idl, "__init__", init)
    made = Noticing("unix:/none", None)
    made.run = lambda: [None for _ in iter(made._session.recv, None)]
    return made


def answers(watcher: OvsdbWatcher) -> list[int]:
    """Questions that are answered."""
    return [update.answered for update in watcher._updates if update.answered]


def test_one_echo_is_under_way_whatever_is_asked(
    watcher: OvsdbWatcher, noticing: Any, wire: Wire
) -> None:
    watcher._tell(Update(connected=True))
    for _ in range(100):
        watcher.ask()
        watcher._echo(noticing)
    assert [message.method for message in wire.sent] == ["echo"]
    wire.received = [Message.create_reply([], 9999), Message.create_reply([], wire.sent[0].id)]
    noticing.run()
    watcher._echo(noticing)
    assert answers(watcher) == [1], "asked after the echo had been sent"
    assert len(wire.sent) == 2
    wire.received = [Message.create_reply([], wire.sent[1].id)]
    noticing.run()
    watcher._echo(noticing)
    assert answers(watcher) == [1, 100]
    watcher._echo(noticing)
    assert len(wire.sent) == 2


def test_question_without_ovsdb_is_answered_by_the_next_session(
    watcher: OvsdbWatcher, noticing: Any, wire: Wire
) -> None:
    watcher._tell(Update(connected=True))
    watcher.ask()
    watcher._echo(noticing)
    lost = wire.sent[0].id
    wire.number, noticing.state = 2, Idl.IDL_S_DATA_MONITOR_COND_SINCE_REQUESTED
    watcher._echo(noticing)
    assert len(wire.sent) == 1, "before the changes meanwhile are read, an answer says nothing"
    noticing.state = Idl.IDL_S_MONITORING
    watcher._echo(noticing)
    assert len(wire.sent) == 2
    wire.received = [Message.create_reply([], lost)]
    noticing.run()
    watcher._echo(noticing)
    assert answers(watcher) == []
    wire.received = [Message.create_reply([], wire.sent[1].id)]
    noticing.run()
    watcher._echo(noticing)
    assert answers(watcher) == [1]
