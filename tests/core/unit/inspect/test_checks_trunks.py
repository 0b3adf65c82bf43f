"""doctor should name each entry without a subport, each subport without a trunk, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dfmeta.inspect import checks_daemon, checks_trunks
from dfmeta.inspect.facts import Interface, KnownPort, Snapshot
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import Port, PortKind, PortState
from tests.core.unit.inspect.values import SETTINGS
from tests.core.unit.support import INSTANCE

PARENT = KnownPort("tpi-1", 1, PortState.SERVED, instance=INSTANCE, kind=PortKind.PARENT)
IFACE = {"iface-id": "p"}
SUBPORT = KnownPort(
    *("spi-1", 2, PortState.SERVED),
    instance=INSTANCE,
    iface_id="s",
    kind=PortKind.SUBPORT,
    segmentation_id=100,
    parent="tpi-1",
)


def found(ports: Sequence[KnownPort], *vids: int) -> list[Finding]:
    snapshot = Snapshot(interfaces=(Interface("tpi-1", "br-int", listed_vids=vids),))
    return list(checks_trunks.trunks(ports, snapshot, "br-int"))


def test_a_host_without_trunks_has_no_line() -> None:
    assert found([replace(PARENT, kind=PortKind.PORT)], 100) == []


def test_a_trunk_in_order_is_counted() -> None:
    (line,) = found([PARENT, SUBPORT, replace(SUBPORT, name="x", instance="")], 100)
    assert (line.status, line.text) == (
        *(Status.OK, "1 trunks with 2 subports, 1 of them with an instance"),
    )


def test_an_entry_without_a_subport_is_named() -> None:
    for ports in ([PARENT], [PARENT, replace(SUBPORT, parent="tpi-2")]):
        line = found(ports, 100)[0]
        assert line.status is Status.WRONG
        assert line.text == "entries without a subport on the trunk: tpi-1 (VID 100)"
        assert "dfmeta subport delete tpi-1 --vid 100" in line.remedy
        assert "segmentation-id=100" in line.remedy


def test_a_subport_without_a_trunk_is_named() -> None:
    for loose in (replace(SUBPORT, segmentation_id=0), replace(SUBPORT, parent="")):
        (line,) = found([PARENT, loose])
        assert line.status is Status.WRONG
        assert "spi-1 (iface-id s)" in line.text
        assert "ovs-vsctl del-port spi-1" in line.remedy


def patched(**fields: Any) -> list[Finding]:
    """Check a trunk with a bridge of its own, with other values of the parent's patch port."""
    subport = Port("spi-1", "row s", 2, kind=PortKind.SUBPORT, segmentation_id=100, parent="tpi-1")
    mtu = fields.pop("mtu", 0)
    values: dict[str, Any] = {
        "type": "patch",
        "tag": 7,
        "options": {"peer": "tpt-1"},
        "external_ids": IFACE,
    }
    snapshot = Snapshot(
        interfaces=(
            Interface("tpi-1", "br-int", **(values | fields)),
            Interface("spi-1", "br-int", type="patch", ports=(replace(subport, mtu=mtu),)),
            Interface("tpt-1", "tbr-1", type="patch", external_ids=IFACE),
            Interface("tap1", "tbr-1", external_ids=IFACE, mtu=1500),
            Interface("tap2", "tbr-1", mtu=9000),
            Interface("tap3", "tbr-2", external_ids=IFACE, mtu=9000),
        )
    )
    return list(checks_trunks.trunks([PARENT, SUBPORT], snapshot, "br-int"))


def test_a_patch_of_a_parent_that_leads_nowhere_is_named() -> None:
    assert [one.status for one in patched()] == [Status.OK]
    for options, peer in (({"peer": "gone"}, "gone"), ({}, "not set")):
        (line,) = patched(options=options)
        assert (line.status, f"nowhere: tpi-1 (peer {peer})" in line.text) == (Status.WRONG, True)
        assert "ovs-vsctl del-port tpi-1" in line.remedy
    assert [one.status for one in patched(options={}, type="")] == [Status.OK], "no patch"


def test_a_parent_that_carries_its_tags_to_other_ports_is_named() -> None:
    for mode in ("", "trunk"):
        (line,) = patched(tag=None, vlan_mode=mode)
        assert line.status is Status.WARNING
        assert "without a local VLAN: tpi-1: where br-int forwards with" in line.text
        assert "ovs-vsctl set Port tpi-1 tag=" in line.remedy
    for fields in ({"vlan_mode": "access"}, {"type": ""}):
        assert [one.status for one in patched(tag=None, **fields)] == [Status.OK]


def test_a_subport_with_a_larger_mtu_than_its_parent_is_named() -> None:
    for mtu in (0, 1442, 1500):
        assert [one.status for one in patched(mtu=mtu)] == [Status.OK]
    (line,) = patched(mtu=1501)
    assert line.status is Status.WARNING
    assert "of their parent: tpi-1 (VID 100: 1501, parent: 1500): larger" in line.text
    assert "`dfmeta subport add tpi-1 --vid 100 --mtu 1500`" in line.remedy
    assert [one.status for one in patched(mtu=9000, type="")] == [Status.OK], "not known"
    assert [one.status for one in patched(mtu=9000, external_ids={})] == [Status.OK], "no VM"


def test_an_mtu_behind_a_vm_on_the_bridge_is_compared_with_its_interface() -> None:
    vm = Port("tap1", "row", 1, kind=PortKind.PARENT)
    behind = replace(vm, vid=100, kind=PortKind.SUBPORT, segmentation_id=100, parent="tap1")
    for mtu, status in ((1442, Status.OK), (1443, Status.WARNING)):
        ports = (vm, replace(behind, mtu=mtu), replace(behind, vid=7, parent="", mtu=9000))
        snapshot = Snapshot(interfaces=(Interface("tap1", "br-int", mtu=1442, ports=ports),))
        known = [replace(PARENT, name="tap1"), replace(SUBPORT, name="tap1", parent="tap1")]
        (line,) = checks_trunks.trunks(known, snapshot, "br-int")
        assert line.status is status


def test_a_wrong_entry_is_shown_with_its_cause() -> None:
    (line,) = found([replace(PARENT, kind=PortKind.PORT, subport_faults=("odd",))])
    assert (line.status, "tpi-1 (odd)" in line.text) == (Status.WRONG, True)
    assert "dfmeta subport add tpi-1 --vid <VID>" in line.remedy


def test_a_parent_without_its_vm_leads_to_the_trunks_bridge() -> None:
    lost = replace(PARENT, state=PortState.NO_INSTANCE, instance="", iface_id="p")
    plain = replace(lost, name="tap1", kind=PortKind.PORT)
    snapshot = Snapshot(
        interfaces=(Interface("tpi-1", "br-int", type="patch"), Interface("tap1", "br-int"))
    )
    lines = list(checks_daemon.ports([lost, plain], SETTINGS, running=True, snapshot=snapshot))
    assert [line.status for line in lines] == [Status.WRONG] * 2
    assert lines[0].text.startswith("no instance is known for tap1")
    assert "trunk parents: tpi-1 (iface-id p)" in lines[1].text
    assert "ovs-vsctl find Interface external_ids:iface-id=p" in lines[1].remedy
