"""The driver ``local`` should make attachments in a real Open vSwitch, whole or not at all."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from dfmeta.attach.drivers.local import LocalDriver, names_of
from dfmeta.attach.model import Attachment, AttachmentDriver, Found, Network, Parent
from dfmeta.errors import AttachDriverError
from dfmeta.ovsdb.idl import OvsdbClient
from dfmeta.ovsdb.trunk_bridge import disable, enable
from dfmeta.ovsdb.vswitchd import Vswitchd
from dfmeta.ovsdb.watcher import COLUMNS
from tests.harness.guest import uuid_of
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.ovs import vms

SUBNET = IPv4Network("10.9.0.0/24")
NETWORKS = {
    "red": Network(name="red", subnet=SUBNET, local_vlan=11),
    "flat": Network(name="flat", subnet=SUBNET),
}
INSTANCE = uuid_of("container")


@pytest.fixture
def driver(host: OpenvSwitch) -> LocalDriver:
    made: AttachmentDriver = LocalDriver(
        OvsdbClient(host.ovsdb_connection, COLUMNS), Vswitchd(host.rundir), BRIDGE, NETWORKS
    )
    assert isinstance(made, LocalDriver)
    return made


@pytest.fixture
def parent(host: OpenvSwitch) -> Parent:
    return trunk(host, "tap1")


def trunk(host: OpenvSwitch, name: str) -> Parent:
    vm = vms.plug(host, name, tag=7)
    enable(host.ovsdb_connection, BRIDGE, name)
    return vm


def found_of(attachment: Attachment) -> Found:
    return Found(id=attachment.id, parent=attachment.parent, vid=attachment.vid)


def bridge_of(host: OpenvSwitch, parent: Parent) -> str:
    return str(vms.rows(host)[parent.port_name.replace("tpi-", "tpt-")]["bridge"])


def test_both_ends_come_and_go(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    before = vms.rows(host)
    assert driver.ready(parent) == ""
    attachment = vms.attachment(parent, 100, instance=INSTANCE)
    two = vms.attachment(parent, 4094, network="flat")
    driver.make(parent, [attachment, two])
    rows = vms.rows(host)
    for each, vlan in ((attachment, 11), (two, [])):
        inner, outer = names_of(each.id)
        wired = {"iface-id": each.port_id, "attached-mac": each.mac, "dfmeta-attachment": each.id}
        own = {"dfmeta-address": str(each.ip)}
        own |= {"dfmeta-instance": INSTANCE} if each is attachment else {}
        near, far = rows[inner], rows[outer]
        assert (near["bridge"], near["type"], near["port tag"], near["port vlan_mode"]) == (
            *(BRIDGE, "patch", vlan, []),
        )
        assert (near["external_ids"], near["options"]) == (wired | own, {"peer": outer})
        assert (far["bridge"], far["type"], far["port tag"], far["port vlan_mode"]) == (
            *(bridge_of(host, parent), "patch", each.vid, "access"),
        )
        assert (far["external_ids"], far["options"]) == (wired, {"peer": inner})
        assert host.ofport(inner) > 0
        assert host.ofport(outer) > 0
    assert sorted(driver.found(), key=lambda each: each.vid) == [
        found_of(attachment),
        found_of(two),
    ]
    driver.make(parent, [attachment, two])
    assert vms.rows(host) == rows
    driver.remove([attachment])
    assert driver.found() == [found_of(two)]
    driver.remove([attachment, two])
    driver.remove([attachment, two])
    assert vms.rows(host) == before
    driver.make(parent, [])
    driver.remove([])


def test_vm_is_ready_as_its_trunk(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    other = trunk(host, "tap2")
    driver.make(other, [vms.attachment(other, 100)])
    vm = replace(vms.plug(host, "tap3"), port_name="tap3")
    for guest, cause in ((parent, ""), (vm, "tap3 is not on a trunk")):
        assert driver.ready(guest).partition(":")[0] == cause


def test_half_a_pair_is_repaired(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    before = vms.rows(host)
    first, second = (vms.attachment(parent, vid) for vid in (100, 200))
    for gone in (0, 1):
        driver.make(parent, [first, second])
        whole = vms.rows(host)
        host.vsctl("del-port", names_of(first.id)[gone])
        half = Found(id=first.id, parent="", vid=100 if gone == 0 else 0)
        assert {result.id: result for result in driver.found()} == {
            first.id: half,
            second.id: found_of(second),
        }
        driver.make(parent, [first])
        assert vms.rows(host) == whole
        host.vsctl("del-port", names_of(first.id)[gone])
        driver.remove([first, second])
        assert vms.rows(host) == before


def test_peer_comes_after_the_check(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    seen = list[object]()

    def changes() -> int:
        return int(host.vsctl("get", "Open_vSwitch", ".", "next_cfg"))

    def await_checks(names: Sequence[str]) -> None:
        rows = vms.rows(host)
        seen.extend((name, f"spt-{name[4:]}" in rows) for name in names)

    driver._await_checks = await_checks
    first, second = vms.attachment(parent, 100), vms.attachment(parent, 101)
    before = changes()
    driver.make(parent, [first])
    driver.make(parent, [first, second])
    # The error of a new port without its peer is not waited for.
    assert changes() == before + 4
    (inner, outer), (other, later) = names_of(first.id), names_of(second.id)
    # One that stands keeps its peer. Peers in one VLAN would flood each other's frames in a loop.
    assert seen == [(inner, False), (inner, True), (other, False)]
    assert [vms.rows(host)[name]["port tag"] for name in (outer, later)] == [100, 101]


def test_changed_ports_are_restored(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    attachment = vms.attachment(parent, 100)
    driver.make(parent, [attachment])
    inner, outer = names_of(attachment.id)
    whole = vms.rows(host)
    host.vsctl(
        *("set", "Port", inner, "tag=99", "--", "set", "Port", outer, "trunks=3", "--", "set"),
        *("Interface", inner, "options:peer=other", "external_ids:attached-mac=x"),
        *("external_ids:dfmeta-instance=x", "external_ids:other=1"),
    )
    driver.make(parent, [attachment])
    rows = vms.rows(host)
    assert rows[inner]["external_ids"].pop("other") == "1"
    assert rows == whole
    # Without the address of its source, as of an earlier version, it is made again.
    host.vsctl("remove", "Interface", inner, "external_ids", "dfmeta-address")
    assert [result.whole for result in driver.found()] == [False]
    driver.make(parent, [attachment])
    assert [result.whole for result in driver.found()] == [True]
    # An end on a former trunk is moved.
    host.vsctl("remove", "Interface", inner, "external_ids", "other")
    host.vsctl("add-br", "tbr-old", "--", "del-port", outer, "--", "add-port", "tbr-old", outer)
    ids = (f'external_ids:dfmeta-attachment="{attachment.id}"', f"options:peer={inner}")
    host.vsctl("set", "Interface", outer, "type=patch", *ids)
    driver.make(parent, [attachment])
    host.vsctl("del-br", "tbr-old")
    assert vms.rows(host) == whole
    # A port of another name is no attachment.
    copied = f"external_ids:dfmeta-attachment={attachment.id}"
    host.vsctl("add-port", BRIDGE, "copy", "--", "set", "Interface", "copy", copied)
    assert driver.found() == [found_of(attachment)]
    driver.remove([attachment])
    assert driver.found() == []
    assert "copy" in vms.rows(host)


def test_names_in_use_are_reported(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    bridge = bridge_of(host, parent)
    host.vsctl("add-port", bridge, "other", "tag=100")
    driver.make(parent, [vms.attachment(parent, 200)])
    before = vms.rows(host)
    message = f"VLAN id 100 of the trunk is used by the port other of {bridge}"
    with pytest.raises(AttachDriverError, match=message):
        driver.make(parent, [vms.attachment(parent, 101), vms.attachment(parent, 100)])
    with pytest.raises(AttachDriverError, match="VLAN id 200 of the trunk is used by the port spt"):
        driver.make(parent, [vms.attachment(parent, 200, salt="another container")])
    taken = vms.attachment(parent, 300)
    host.vsctl("add-port", BRIDGE, names_of(taken.id)[0])
    with pytest.raises(AttachDriverError, match="of br-int belongs to another program"):
        driver.make(parent, [taken])
    host.vsctl("del-port", names_of(taken.id)[0])
    assert vms.rows(host) == before


def test_foreign_trunk_is_not_ready(host: OpenvSwitch, driver: LocalDriver, parent: Parent) -> None:
    plain = vms.plug(host, "tap2")
    unplugged = vms.parent("tap3", "x", "y")
    tap = vms.parent("tap2", plain.port_id, plain.instance_id)
    assert driver.ready(tap) == "tap2 is not on a trunk: run `dfmeta trunk enable tap2`"
    assert driver.ready(unplugged) == "br-int has no port tap3"
    host.vsctl("set", "Port", "tap2", "other_config:net_uuid=x")
    assert "the driver local cannot be used beside it" in driver.ready(tap)
    bridge = bridge_of(host, parent)
    host.vsctl("clear", "Bridge", bridge, "external_ids")
    before = vms.rows(host)
    message = f"on {bridge} is Neutron's or another program's"
    assert message in driver.ready(parent)
    with pytest.raises(AttachDriverError, match=message):
        driver.make(parent, [vms.attachment(parent, 100)])
    assert vms.rows(host) == before


def test_writers_at_once_lose_nothing(host: OpenvSwitch, driver: LocalDriver) -> None:
    """Several threads make and remove attachments of two trunks, and want the same VLAN ids."""
    parents = [trunk(host, name) for name in ("tap1", "tap2")]
    before = vms.rows(host)
    kept = [vms.attachment(of, vid) for of in parents for vid in range(100, 108)]
    passing = [vms.attachment(of, vid) for of in parents for vid in range(200, 208)]
    by_id = {of.port_id: of for of in parents}

    def work(attachment: Attachment) -> None:
        driver.make(by_id[attachment.parent], [attachment])
        if attachment in passing:
            driver.remove([attachment])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [*kept, *passing]))
    assert set(driver.found()) == {found_of(attachment) for attachment in kept}
    for of in parents:
        with pytest.raises(Exception, match="has subports"):
            disable(host.ovsdb_connection, BRIDGE, of.port_name)
    with ThreadPoolExecutor(2) as pool:
        rivals = [vms.attachment(parents[0], 300, salt=salt) for salt in "ab"]
        refused = list(pool.map(lambda rival: _refusal(driver, parents[0], rival), rivals))
    assert sorted(bool(error) for error in refused) == [False, True]
    driver.remove([*kept, *rivals])
    assert vms.rows(host) == before


def _refusal(driver: LocalDriver, parent: Parent, attachment: Attachment) -> str:
    try:
        driver.make(parent, [attachment])
    except AttachDriverError as error:
        return error.cause
    return ""
