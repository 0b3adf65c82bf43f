"""Trunks in a real OVSDB, through the daemon's own watcher and the command's own writer."""

import json
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from dfmeta.model import Port, PortId, PortState
from dfmeta.ovsdb import subport_list
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.ovsdb.idl import OvsdbClient
from dfmeta.ovsdb.snapshot import read_snapshot
from dfmeta.ovsdb.subport_list import KEY, ListEntry, write_list
from dfmeta.ovsdb.watcher import OvsdbWatcher
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, let_hub_run, until
from tests.harness.ovs import BRIDGE, OpenvSwitch

VIF = {"iface-id": "p", "attached-mac": "fa:16:3e:00:00:05", "vm-uuid": INSTANCE}


class Watch:
    """A watcher, and the ports that it has told."""

    def __init__(self, host: OpenvSwitch) -> None:
        self.host = host
        self.ports: dict[PortId, Port] = {}
        self.readings = 0
        self.connected = False
        self.watcher = OvsdbWatcher(
            host.ovsdb_connection, BRIDGE, "tap-metadata", deliver=self._take
        )

    def _take(self, update: Update) -> None:
        self.readings += 1
        self.connected = update.connected
        for port_id in update.gone:
            del self.ports[port_id]
        self.ports |= {port.id: port for port in update.changed}

    def of(self, name: str, vid: int = 0) -> Port:
        """Return a port; one without a number if there is none."""
        ports = [port for port in self.ports.values() if (port.name, port.vid) == (name, vid)]
        return ports[0] if ports else Port("none", "none", None)

    def named(self) -> dict[tuple[str, int], tuple[str, int, str]]:
        """Return the ports with what commands have to read in the same way."""
        return {
            (port.name, port.vid): (port.instance_id, port.segmentation_id, port.parent)
            for port in self.ports.values()
        }


@pytest.fixture(scope="module")
def host() -> Iterator[OpenvSwitch]:
    with OpenvSwitch() as switch:
        yield switch


@pytest.fixture
def watch(host: OpenvSwitch) -> Iterator[Watch]:
    made = Watch(host)
    made.watcher.start()
    until(lambda: made.connected, "the first reading")
    yield made
    made.watcher.stop()
    let_hub_run()
    host.vsctl("--if-exists", "del-br", "tbr-1", wait=False)
    for name in host.ports():
        host.vsctl("del-port", BRIDGE, name, wait=False)


def patch(inner: str, outer: str, port_id: str, vid: int = 0) -> list[str]:
    """Return ovs-vsctl's words for both ends of a patch."""
    ids = f'external_ids:iface-id="{port_id}"'
    return [
        *("--", "add-port", BRIDGE, inner, "tag=5", "--", "set", "Interface", inner),
        *("type=patch", f"options:peer={outer}", ids),
        *("--", "add-port", "tbr-1", outer, *([f"tag={vid}"] if vid else [])),
        *("--", "set", "Interface", outer, "type=patch", f"options:peer={inner}", ids),
    ]


def make_trunk(host: OpenvSwitch, *vids: int) -> None:
    """Make a trunk in one transaction, with its VM's interface."""
    words = [
        *("add-br", "tbr-1", "--", "add-port", "tbr-1", "tap1", "--", "set", "Interface", "tap1"),
        *("type=internal", *(f'external_ids:{key}="{value}"' for key, value in VIF.items())),
        *patch("tpi-1", "tpt-1", "p"),
    ]
    for vid in vids:
        words += patch(f"spi-{vid}", f"spt-{vid}", f"s{vid}", vid)
    host.vsctl(*words, wait=False)


def test_a_command_and_the_daemon_read_a_trunk_alike(host: OpenvSwitch, watch: Watch) -> None:
    make_trunk(host, 100, 200)
    until(lambda: watch.of("tpi-1").state is PortState.SERVED, "the parent")
    listed = json.dumps(json.dumps([ListEntry(100, instance_id=OTHER_INSTANCE).members()]))
    host.vsctl("set", "Interface", "tpi-1", f"external_ids:{KEY}={listed}", wait=False)
    until(lambda: watch.of("spi-100").instance_id == OTHER_INSTANCE, "the entry")
    assert watch.named() == {
        ("tpi-1", 0): (INSTANCE, 0, ""),
        ("spi-100", 0): (OTHER_INSTANCE, 100, "tpi-1"),
        ("spi-200", 0): ("", 200, "tpi-1"),
    }
    snapshot = read_snapshot(host.ovsdb_connection)
    ports = [port for at in snapshot.interfaces if at.bridge == BRIDGE for port in at.ports]
    assert {
        (port.name, port.vid): (port.instance_id, port.segmentation_id, port.parent)
        for port in ports
    } == watch.named()
    assert {port.id for port in ports} == watch.ports.keys()
    host.vsctl("del-br", "tbr-1", wait=False)
    until(lambda: watch.of("tpi-1").instance_id == "", "the VM to be gone")
    assert watch.of("spi-100").parent == ""


def test_the_removal_of_lists_leaves_the_keys_of_others(host: OpenvSwitch, watch: Watch) -> None:
    make_trunk(host, 100)
    ids = (f'external_ids:{KEY}="[]"', "external_ids:dfmeta-instance=x")
    for name in ("tpi-1", "spi-100", "tap1"):
        host.vsctl("set", "Interface", name, *ids, wait=False)
    watch.watcher.remove_keys([KEY])
    for name, left in (("tpi-1", False), ("spi-100", False), ("tap1", True)):
        printed = host.vsctl("get", "Interface", name, "external_ids", wait=False)
        assert (KEY in printed) == left, "tap1 is not on br-int"
        assert "dfmeta-instance=x" in printed


def test_a_change_between_reading_and_writing_is_not_lost(host: OpenvSwitch, watch: Watch) -> None:
    make_trunk(host)
    until(lambda: watch.of("tpi-1").row != "none", "the parent")
    row, before = watch.of("tpi-1").row, list[str]()

    def change(text: str) -> str:
        before.append(text)
        if len(before) == 1:
            other = json.dumps(subport_list.with_entry("", ListEntry(7)))
            host.vsctl("set", "Interface", "tpi-1", f"external_ids:{KEY}={other}", wait=False)
        return subport_list.with_entry(text, ListEntry(100))

    database = OvsdbClient(host.ovsdb_connection, {"Interface": ("external_ids",)})

    def write(change: Callable[[str], str]) -> bool:
        return database.run(
            lambda idl, _txn: write_list(idl.tables["Interface"].rows[UUID(row)], change)
        )

    assert write(change)
    assert before == ["", '[{"vid":7}]']
    printed = host.vsctl("get", "Interface", "tpi-1", f"external_ids:{KEY}", wait=False)
    assert json.loads(json.loads(printed)) == [{"vid": 7}, {"vid": 100}]
    assert "iface-id=p" in host.vsctl("get", "Interface", "tpi-1", "external_ids", wait=False)
    assert not write(lambda text: text)
    assert write(lambda _text: "")
    printed = host.vsctl("get", "Interface", "tpi-1", "external_ids", wait=False)
    assert KEY not in printed
