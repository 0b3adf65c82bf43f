"""Rows of OVSDB should become what the rest of the daemon knows, one odd row alone."""

from dataclasses import replace
from errno import ECONNREFUSED
from types import SimpleNamespace
from typing import Any

import pytest
from ovs.db.idl import Idl
from ovs.jsonrpc import EOF, Message
from ovs.reconnect import Reconnect

from dfmeta.identity.registry import Registry
from dfmeta.model import TAP_MAC, TAP_MTU, Endpoint, MetaNames, Port, PortId
from dfmeta.ovsdb import bridge_reader, rows, vif
from dfmeta.ovsdb.bridge_reader import BridgeReader, TapPort, Update
from dfmeta.ovsdb.idl import Noticing
from dfmeta.ovsdb.meta_bridge import MetaRows
from dfmeta.ovsdb.rows import Bridge, ControllerRow, Interface
from dfmeta.ovsdb.trunks import Lead
from dfmeta.ovsdb.watcher import OvsdbWatcher
from tests.core.unit.support import GUEST_MAC, INSTANCE, IdlRow


def interface(name: str, **columns: Any) -> Any:
    base = {
        "uuid": f"uuid-of-{name}",
        "name": name,
        "type": "",
        "ofport": [5],
        "external_ids": {"iface-id": name, "attached-mac": GUEST_MAC, "vm-uuid": INSTANCE},
        "mac_in_use": [GUEST_MAC],
        "options": {},
        "mtu": [1500],
        "mtu_request": [],
    }
    return IdlRow(**base | columns, _table=SimpleNamespace(name="Interface"))


def port_row(*interfaces: Any, **columns: Any) -> Any:
    base = {"tag": [], "vlan_mode": [], "cvlans": [], "other_config": {}}
    base["interfaces"] = list(interfaces)
    row = IdlRow(**base | columns, _table=SimpleNamespace(name="Port"))
    row.uuid = "port-of-" + ",".join(interface_row.name for interface_row in row.interfaces)
    return row


def tap_row(**columns: Any) -> Any:
    tap = {
        "type": "internal",
        "ofport": [9],
        "external_ids": {"dfmeta": "tap"},
        "mac_in_use": [TAP_MAC],
        "mtu_request": [TAP_MTU],
    }
    return interface("tap-metadata", **tap | columns)


def read_tap(port: Any, tap: Any) -> TapPort:
    return bridge_reader._read_tap(rows.read_interface("br-int", port, tap))


def tap_port(**columns: Any) -> Any:
    base = {"tag": [4095], "vlan_mode": ["dot1q-tunnel"], "cvlans": [1]}
    return port_row(**base | columns)


def bridge_row(*ports: Any, name: str = "br-int", **columns: Any) -> Any:
    base = {"name": name, "uuid": f"bridge-{name}", "ports": list(ports)}
    base["datapath_id"] = ["0000aabbccddeeff"]
    base |= {"controller": [], "datapath_type": "", "fail_mode": [], "external_ids": {}}
    return IdlRow(**base | columns, _table=SimpleNamespace(name="Bridge"))


def idl(*bridges: Any) -> Any:
    ports = {port.uuid: port for bridge in bridges for port in bridge.ports}
    root = SimpleNamespace(other_config={}, external_ids={})
    bridge_rows = {bridge.uuid: bridge for bridge in bridges}
    tables = {"Open_vSwitch": {"root": root}, "Bridge": bridge_rows, "Port": ports}
    return SimpleNamespace(
        tables={name: SimpleNamespace(rows=rows) for name, rows in tables.items()}
    )


@pytest.fixture
def watcher() -> OvsdbWatcher:
    return OvsdbWatcher("unix:/none", "br-int", "tap-metadata", deliver=lambda _update: None)


@pytest.mark.parametrize(
    ("datapath_id", "number"), [(["0000aabbccddeeff"], 0xAABBCCDDEEFF), ([], None), ([""], None)]
)
def test_a_bridges_datapath_id_is_a_number(datapath_id: list[str], number: int | None) -> None:
    controllers = [IdlRow(is_connected=connected) for connected in (False, True)]
    row = bridge_row(datapath_id=datapath_id, controller=controllers)
    assert rows.read_bridge(row).datapath_id == number
    assert [controller.connected for controller in rows.read_bridge(row).controllers] == [
        False,
        True,
    ]
    for kind in ("", "system", "netdev"):
        row.datapath_type = kind
        assert rows.read_bridge(row).userspace is (kind == "netdev")


def test_bridge_without_its_controllers_fails_open_unless_it_is_secure() -> None:
    away, connected_row = (IdlRow(is_connected=connected) for connected in (False, True))
    for controllers, mode, fails_open in (
        ([], [], False),
        ([away], ["secure"], False),
        ([away, connected_row], ["standalone"], False),
        ([away, away], ["standalone"], True),
        ([away], [], True),
    ):
        row = bridge_row(controller=controllers, fail_mode=mode)
        assert rows.read_bridge(row).fails_open is fails_open, (controllers, mode)


def test_ports_that_could_have_a_guest_are_read(watcher: OvsdbWatcher) -> None:
    uplink, tunnel, local = (
        interface(name, type=kind, external_ids={})
        for name, kind in (("vnet8", ""), ("vx", "vxlan"), ("br-int", "internal"))
    )
    ports = [port_row(row) for row in (interface("tap1"), uplink, tunnel, local)]
    bridge = bridge_row(*ports)
    assert watcher._reader.read(idl(bridge)).others == ("vnet8",)
    uplink.external_ids = {"vm-uuid": "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"}
    assert watcher._reader.read(idl(bridge), [uplink]).others == ()
    uplink.external_ids = {}
    assert watcher._reader.read(idl(bridge), [uplink]).others == ("vnet8",)
    bridge.ports = ports[:1]
    assert watcher._reader.read(idl(bridge)).others == ()


def test_wait_for_a_restoration_of_flows_is_read(watcher: OvsdbWatcher) -> None:
    for config, waits in ({}, False), ({"flow-restore-wait": "true"}, True):
        database = idl(bridge_row())
        database.tables["Open_vSwitch"].rows["root"].other_config = config
        assert watcher._reader.read(database).restore_wait is waits


def test_request_of_tap_is_no_smaller_than_the_mtu_of_all_other_ports() -> None:
    reader = BridgeReader("br-int", "tap-metadata")
    tap = port_row(tap_row(), **VLAN)
    internal = port_row(interface("mgmt0", type="internal", mtu=[9000]))
    guests = [port_row(interface(f"tap{n}", mtu=[mtu])) for n, mtu in ((1, 9000), (2, 1450))]
    for ports, least in (([internal], 0), (guests, 1450), (guests[:1], 9000)):
        update = reader.read(idl(bridge_row(tap, *ports)))
        assert update.tap is not None
        assert (reader.least_mtu, update.tap.sound) == (least, least <= TAP_MTU)
    larger = port_row(tap_row(mtu_request=[9000]), **VLAN)
    update = reader.read(idl(bridge_row(larger, guests[0])))
    assert update.tap is not None
    assert update.tap.sound


def test_tap_is_ours_by_its_mark_and_in_order_by_its_vlan() -> None:
    sound = TapPort(9, mac=TAP_MAC, sound=True, marked=True, mtu_request=TAP_MTU)
    assert read_tap(tap_port(), tap_row()) == sound
    for columns in (
        {"tag": []},
        {"tag": [5]},
        {"vlan_mode": []},
        {"vlan_mode": ["access"]},
        {"cvlans": []},
    ):
        read = read_tap(tap_port(**columns), tap_row())
        assert (read.sound, read.marked) == (False, True), columns
    for request, is_sound in (([], False), ([1279], False), ([1280], True), ([9000], True)):
        read = read_tap(tap_port(), tap_row(mtu_request=request))
        assert (read.sound, read.marked) == (is_sound, True), request
    foreign = read_tap(tap_port(), tap_row(external_ids={}))
    assert (foreign.sound, foreign.marked) == (False, False)
    for ofport in ([], [-1], [0]):
        read = read_tap(tap_port(), tap_row(ofport=ofport, mac_in_use=[]))
        assert (read.ofport, read.mac) == (None, ""), ofport


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
    assert update.tap.sound
    assert update.bridge == Bridge("br-int", datapath_id=0xAABBCCDDEEFF)
    assert update.gone == ()


def test_a_change_of_one_port_reads_that_port_alone(watcher: OvsdbWatcher) -> None:
    ports = [port_row(interface(f"tap{n}", ofport=[n])) for n in (1, 2)]
    bridge = bridge_row(*ports, tap_port(interfaces=[tap_row()]))
    database = idl(bridge)
    assert len(watcher._reader.read(database).changed) == 2

    changed = ports[1].interfaces[0]
    changed.ofport = [999]
    update = watcher._reader.read(database, [changed])
    assert [(port.name, port.ofport) for port in update.changed] == [("tap2", 999)]
    ports[0].tag = [4095]
    update = watcher._reader.read(database, [ports[0]])
    assert [(port.name, port.dead) for port in update.changed] == [("tap1", True)]
    bridge.controller = [IdlRow(is_connected=True)]
    update = watcher._reader.read(database, [bridge])
    connected = replace(
        update.bridge or Bridge(""), controllers=(ControllerRow("", connected=True),)
    )
    assert (update.changed, update.gone, update.bridge) == ((), (), connected)
    assert update.tap is not None
    bridge.ports = bridge.ports[1:]
    update = watcher._reader.read(database, [bridge, ports[0], ports[0].interfaces[0]])
    assert (update.changed, update.gone) == ((), (PortId("uuid-of-tap1"),))
    ports[1].interfaces[0].external_ids = {}
    assert watcher._reader.read(database, [changed]).gone == (PortId("uuid-of-tap2"),)
    stranger = port_row(interface("elsewhere"))
    assert watcher._reader.read(database, [stranger, stranger.interfaces[0]]).changed == ()


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_interface_at_another_port_stays_a_guest(watcher: OvsdbWatcher, order: slice) -> None:
    guest, bond = interface("tap1"), interface("other", external_ids={})
    first, second = port_row(guest, bond), port_row(interface("third", external_ids={}))
    bridge = bridge_row(first, second)
    watcher._reader.read(idl(bridge))
    first.interfaces, second.interfaces = [bond], [*second.interfaces, guest]
    update = watcher._reader.read(idl(bridge), [first, second][order])
    kept = watcher._reader._known.keys()
    assert kept == {"uuid-of-tap1"}
    assert not update.gone or [port.name for port in update.changed] == ["tap1"]


def with_vlans(monkeypatch: pytest.MonkeyPatch, *vids: int) -> None:
    """Have each guest's row give a port for each of *vids*."""

    def many(row: Interface, lead: Lead) -> tuple[Port, ...]:
        return tuple(replace(port, vid=vid) for port in vif.vifs(row, lead) for vid in vids)

    monkeypatch.setattr(bridge_reader, "vifs", many)


@pytest.mark.parametrize("goes", ["port", "interface", "guest"])
def test_rows_ports_go(watcher: OvsdbWatcher, monkeypatch: pytest.MonkeyPatch, goes: str) -> None:
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


class Wire:
    def __init__(self) -> None:
        self.number = 1
        self.rpc: Any = None
        self.reconnect: Any = None
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
    return Wire()


@pytest.fixture
def noticing(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> Any:
    def init(self: Any, _remote: str, _helper: Any) -> None:
        self._session, self.state = wire, Idl.IDL_S_MONITORING

    monkeypatch.setattr(Idl, "__init__", init)
    made = Noticing("unix:/none", None)
    made.run = lambda: [None for _ in iter(made._session.recv, None)]
    return made


def answers(watcher: OvsdbWatcher) -> list[int]:
    return [update.answered for update in watcher._updates if update.answered]


def test_one_echo_is_under_way_at_a_time(watcher: OvsdbWatcher, noticing: Any, wire: Wire) -> None:
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


def test_next_session_answers_a_question(watcher: OvsdbWatcher, noticing: Any, wire: Wire) -> None:
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


def test_loss_after_rows_is_followed_by_the_first_pause(noticing: Any, wire: Wire) -> None:
    """The connection is silent after its rows, as that of a server without changes."""
    wire.reconnect = reconnect = Reconnect(0)
    reconnect.enable(0)
    pauses = []
    for now in range(0, 600_000, 60_000):
        reconnect.connected(now)
        reconnect.activity(now + 1)
        noticing.proved()
        reconnect.disconnected(now + 30_000, EOF)
        pauses.append(reconnect.backoff)
        # The server is not back at the first attempt.
        reconnect.connect_failed(now + 40_000, ECONNREFUSED)
        assert reconnect.backoff == 2 * reconnect.min_backoff
    assert set(pauses) == {reconnect.min_backoff}


def test_after_a_reconnect_everything_is_read(noticing: Any, wire: Wire) -> None:
    """What went while OVSDB was away is in no notice."""
    assert noticing.changes() is None
    assert noticing.changes() == []
    wire.number = 2
    noticing.notify("create", "a row")
    assert noticing.changes() is None
    noticing.notify("create", "a row")
    assert noticing.changes() == ["a row"]


NAMES = MetaNames("br-meta", "tap-meta", "int-br-meta", "phy-br-meta", "fa:16:ee:00:00:01")
VLAN = {"tag": [4095], "vlan_mode": ["dot1q-tunnel"], "cvlans": [1]}
MARK = {"dfmeta": "meta of br-int"}


def port(name: str, ofport: int, **columns: Any) -> Any:
    base = {"external_ids": MARK, "options": {}, "mac": [], "ofport": [ofport]}
    return port_row(interface(name, **base | columns), name=name, **VLAN)


def patch(name: str, peer: str, ofport: int) -> Any:
    return port(name, ofport, type="patch", options={"peer": peer})


class Host:
    """br-int with guests, the second bridge, and the reader of both."""

    def __init__(self, guests: int = 3, *others: Any, **columns: Any) -> None:
        self.near = patch("int-br-meta", "phy-br-meta", 5)
        self.far = patch("phy-br-meta", "int-br-meta", 6)
        macs = {"mac": [NAMES.mac], "mac_in_use": [NAMES.mac]}
        self.tap = port("tap-meta", 7, type="internal", mtu_request=[TAP_MTU], **macs)
        self.guests = [
            port_row(interface(f"tap{n}", ofport=[100 + n]), name=f"tap{n}") for n in range(guests)
        ]
        self.home = bridge_row(*self.guests, self.near)
        base = {"external_ids": MARK, "fail_mode": ["secure"]}
        self.meta = bridge_row(self.far, self.tap, *others, name="br-meta", **base | columns)
        self._reader = BridgeReader("br-int", "tap-metadata", NAMES)

    def read(self, changes: Any = None) -> MetaRows:
        meta = self._reader.read(idl(self.home, self.meta), changes).meta
        assert meta is not None
        return meta


def test_numbers_of_the_second_bridge_are_read() -> None:
    meta = Host().read()
    assert meta == MetaRows(
        datapath_id=0xAABBCCDDEEFF, tap=7, tap_mac=NAMES.mac, patch_int=5, patch_meta=6, sound=True
    )


def test_a_patch_port_that_goes_and_comes_is_noticed() -> None:
    host = Host()
    host.read()
    host.home.ports.remove(host.near)
    meta = host.read([host.home, host.near, *host.near.interfaces])
    assert (meta.patch_int, meta.sound) == (None, False)
    again = patch("int-br-meta", "phy-br-meta", 9)
    again.uuid = "made again"
    host.home.ports.append(again)
    meta = host.read([host.home, again, *again.interfaces])
    assert (meta.patch_int, meta.sound) == (9, True)


def test_a_bond_is_not_the_port_of_that_name() -> None:
    host = Host()
    host.tap.interfaces.append(interface("bonded"))
    meta = host.read()
    assert (meta.tap, meta.tap_mac, meta.sound) == (None, "", False)


@pytest.mark.parametrize("ofport", [[], [-1], [0]])
def test_ports_without_a_number_are_sound_and_have_none(ofport: list[int]) -> None:
    host = Host()
    for row in (host.tap, host.near, host.far):
        row.interfaces[0].ofport = ofport
    meta = host.read()
    assert (meta.tap, meta.patch_int, meta.patch_meta) == (None, None, None)
    assert meta.sound


def test_an_empty_datapath_type_is_the_kernels() -> None:
    for second, home, sound in (
        ("system", "", True),
        ("netdev", "netdev", True),
        ("", "netdev", False),
        ("netdev", "system", False),
    ):
        host = Host(datapath_type=second)
        host.home.datapath_type = home
        assert host.read().sound is sound, (second, home)


@pytest.mark.parametrize("fail_mode", [[], ["standalone"]])
def test_only_a_bridge_with_ports_of_others_may_have_any_fail_mode(fail_mode: list[str]) -> None:
    uplink = port("uplink", 8)
    assert not Host(fail_mode=fail_mode).read().sound
    assert not Host(3, uplink, fail_mode=fail_mode).read().sound, "the bridge is dfmeta's"
    assert not Host(fail_mode=fail_mode, external_ids={}).read().sound
    assert Host(3, uplink, fail_mode=fail_mode, external_ids={}).read().sound
