"""``dfmeta trunk`` should move a VM's interface in a real Open vSwitch, and back as it was."""

import pytest

from dfmeta.errors import OvsdbError, UsageError
from dfmeta.ovsdb import idl, trunk_bridge
from dfmeta.ovsdb.trunk_bridge import disable, enable, names_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.ovs import vms

NEXT_HOPS = "external_ids:dfmeta-next-hops=x"


def on(host: OpenvSwitch, name: str) -> trunk_bridge.Change:
    return enable(host.ovsdb_connection, BRIDGE, name)


def off(host: OpenvSwitch, name: str) -> trunk_bridge.Change:
    return disable(host.ovsdb_connection, BRIDGE, name)


def test_a_move_and_its_reverse_leave_no_trace(host: OpenvSwitch) -> None:
    for words in ((), ("tag=7",), ("tag=7", "vlan_mode=access"), ("tag=0",)):
        moved_and_back(host, words)
        vms.clear(host)


def moved_and_back(host: OpenvSwitch, words: tuple[str, ...]) -> None:
    vm = vms.plug(host, "tap1", *words)
    host.vsctl("set", "Interface", "tap1", NEXT_HOPS, "external_ids:other=1")
    vms.plug(host, "tap2", tag=9)
    before, bridges = vms.rows(host), vms.bridges(host)
    bridge, inner, outer = names_of(vm.port_id)
    assert on(host, "tap1") == trunk_bridge.Change(True, "tap1", bridge, inner)
    rows = vms.rows(host)
    assert {name: row["bridge"] for name, row in rows.items()} == {
        **{name: row["bridge"] for name, row in before.items()},
        **dict.fromkeys((bridge, outer, "tap1"), bridge),
        inner: BRIDGE,
    }
    assert rows["tap2"] == before["tap2"]
    moved, near, far = rows["tap1"], rows[inner], rows[outer]
    vlans = ("port tag", "port vlan_mode")
    assert [near[key] for key in vlans] == [before["tap1"][key] for key in vlans]
    assert [moved[key] for key in vlans] == [[], []]
    ids = dict(before["tap1"]["external_ids"])
    del ids["dfmeta-next-hops"]
    assert moved["external_ids"] == ids
    wired = {key: ids[key] for key in ("iface-id", "attached-mac")} | {"dfmeta": "trunk"}
    assert near["external_ids"] == wired | {"dfmeta-next-hops": "x"}
    assert far["external_ids"] == wired
    assert (far["port tag"], far["port trunks"]) == ([], 0)
    made = vms.bridges(host)[bridge]
    assert made["external_ids"] == {"dfmeta": "trunk"}
    assert (made["fail_mode"], made["controller"]) == ([], [])
    assert made["datapath_type"] == bridges[BRIDGE]["datapath_type"]
    # The switch has the bridge when it has numbered its ports.
    assert host.ofport(inner) > 0 < host.ofport(outer)
    assert host.flows(bridge)[0].endswith("actions=NORMAL")
    for name in ("tap1", inner):
        assert on(host, name) == trunk_bridge.Change(False, "tap1", bridge, inner)
    assert vms.rows(host) == rows
    assert off(host, inner) == trunk_bridge.Change(True, "tap1", bridge, inner)
    assert (vms.rows(host), vms.bridges(host)) == (before, bridges)
    assert off(host, "tap1") == trunk_bridge.Change(False, "tap1", "", "")
    assert (vms.rows(host), vms.bridges(host)) == (before, bridges)


def test_a_port_that_can_have_no_trunk_is_refused(host: OpenvSwitch) -> None:
    table: list[tuple[dict[str, str], tuple[str, ...], str]] = [
        ({"vm_uuid": ""}, (), "is no VM's port"),
        ({"iface_id": ""}, (), "has no external_ids:iface-id"),
        ({"dfmeta_subports": "[]"}, (), "whose tags reach br-int"),
        ({}, ("vlan_mode=native-untagged",), "carries VLANs of br-int"),
        ({}, ("trunks=5",), "carries VLANs of br-int"),
        ({}, ("other_config:net_uuid=x",), "other_config:net_uuid of the port tap1, of Neutron"),
    ]
    for ids, words, cause in table:
        vms.plug(host, "tap1", *words, **ids)
        before = vms.rows(host)
        with pytest.raises(UsageError, match=cause) as caught:
            on(host, "tap1")
        assert caught.value.remedy
        assert vms.rows(host) == before
        vms.clear(host)
    vms.plug(host, "tap1")
    host.vsctl("set", "Interface", "tap1", "type=internal")
    with pytest.raises(UsageError, match="type internal: Open vSwitch would delete its device"):
        on(host, "tap1")
    host.vsctl("set", "Interface", "tap1", "type=system")
    host.vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-remote=tcp:192.0.2.1:6642")
    with pytest.raises(UsageError, match="external_ids:ovn-remote of Open_vSwitch, of OVN"):
        on(host, "tap1")
    host.vsctl("remove", "Open_vSwitch", ".", "external_ids", "ovn-remote")
    host.vsctl("add-port", BRIDGE, "patch-tun", "--", "set", "Interface", "patch-tun", "type=patch")
    with pytest.raises(UsageError, match="the port patch-tun, of Neutron's agent"):
        on(host, "tap1")


def test_the_trunk_of_another_program_stays(host: OpenvSwitch) -> None:
    vm = vms.plug(host, "tap1")
    on(host, "tap1")
    bridge = names_of(vm.port_id)[0]
    host.vsctl("clear", "Bridge", bridge, "external_ids")
    before = vms.rows(host)
    for command in (on, off):
        with pytest.raises(UsageError, match=f"on {bridge} was made by another program"):
            command(host, vm.port_name)
    assert vms.rows(host) == before


def test_names_in_use_and_broken_trunks_are_named(host: OpenvSwitch) -> None:
    vm = vms.plug(host, "tap1")
    bridge, inner, outer = names_of(vm.port_id)
    host.vsctl("add-br", bridge)
    with pytest.raises(UsageError, match=f"{bridge} exists already"):
        on(host, "tap1")
    host.vsctl("del-br", bridge)
    on(host, "tap1")
    host.vsctl("set", "Interface", inner, "external_ids:dfmeta-subports=[]")
    with pytest.raises(UsageError, match="has a list of subports"):
        off(host, "tap1")
    host.vsctl("del-port", bridge, "tap1")
    with pytest.raises(UsageError, match=f"{bridge} has 0 interfaces of the VM of {inner}"):
        off(host, inner)
    host.vsctl("del-port", bridge, outer)
    with pytest.raises(UsageError, match="without a trunk's bridge behind it"):
        off(host, inner)
    vms.clear(host)
    with pytest.raises(UsageError, match="there is no port tap1"):
        on(host, "tap1")
    host.vsctl("add-br", "br-x", "--", "add-port", "br-x", "tap1")
    with pytest.raises(UsageError, match="tap1 is on br-x, and no port tpi-"):
        on(host, "tap1")


@pytest.mark.parametrize("again", [True, False])
def test_replugged_vm_gets_its_trunk_again_or_leaves_it(host: OpenvSwitch, again: bool) -> None:
    vm = vms.plug(host, "tap1", tag=7)
    host.vsctl("set", "Interface", "tap1", NEXT_HOPS)
    on(host, "tap1")
    bridge, inner, _outer = names_of(vm.port_id)
    rows = vms.rows(host)
    host.vsctl("add-port", bridge, "spt-1", "tag=5")
    host.vsctl("del-port", "tap1")
    vms.plug(host, "tap1", tag=8)
    host.vsctl("set", "Interface", "tap1", "external_ids:dfmeta-next-hops=y")
    plugged = vms.rows(host)
    with pytest.raises(UsageError, match="has subports on"):
        off(host, "tap1")
    if again:
        assert on(host, "tap1") == trunk_bridge.Change(True, "tap1", bridge, inner)
        host.vsctl("del-port", "spt-1")
        rows[inner]["port tag"] = 8
        rows[inner]["external_ids"]["dfmeta-next-hops"] = "y"
        assert vms.rows(host) == rows
    else:
        host.vsctl("del-port", "spt-1")
        assert off(host, "tap1") == trunk_bridge.Change(True, "tap1", bridge, inner)
        left = vms.rows(host)
        assert left == {name: plugged[name] for name in (BRIDGE, "tap1")}


def test_meanwhile_change_is_read_again(host: OpenvSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = vms.plug(host, "tap1", tag=7)
    original, changes = trunk_bridge.Rows, [f"external_ids:other={n}" for n in range(3)]
    monkeypatch.setattr(idl, "TRIES", 3)

    def rows(database: object) -> trunk_bridge.Rows:
        if changes:
            host.vsctl("set", "Port", "tap1", "tag=8")
            host.vsctl("set", "Interface", "tap1", changes.pop())
        return original(database)

    monkeypatch.setattr(trunk_bridge, "Rows", rows)
    with pytest.raises(OvsdbError, match="all the time"):
        on(host, "tap1")
    assert on(host, "tap1").changed
    assert vms.rows(host)[vm.port_name]["port tag"] == 8
    with pytest.raises(OvsdbError):
        enable("unix:/nowhere", BRIDGE, "tap1")
