"""doctor should name each entry without a subport, each subport without a trunk, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dfmeta.inspect import checks_daemon, checks_trunks
from dfmeta.inspect.facts import Interface, KnownPort, Snapshot
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import Port, PortKind, PortState
from tests.core.unit.inspect.values import OK, SETTINGS, WARNING, WRONG, expect
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


def test_trunks_are_counted_and_entries_without_a_subport_named() -> None:
    parent = replace(PARENT, kind=PortKind.PORT)
    assert found([parent], 100) == []
    subports = [SUBPORT, replace(SUBPORT, name="x", instance="")]
    (whole,) = found([PARENT, *subports], 100)
    (odd,) = found([replace(parent, subport_faults=("odd",))])
    entry = "entries without a subport on the trunk: tpi-1 (VID 100)"
    remedies = ("dfmeta subport delete tpi-1 --vid 100", "segmentation-id=100")
    expect(
        [
            (whole, OK, "1 trunks with 2 subports, 1 of them with an instance"),
            (odd, WRONG, "tpi-1 (odd)", "dfmeta subport add tpi-1 --vid <VID>"),
            (found([PARENT], 100)[0], WRONG, entry, *remedies),
            (found([PARENT, replace(SUBPORT, parent="tpi-2")], 100)[0], WRONG, entry, *remedies),
        ]
    )
    for loose in (replace(SUBPORT, segmentation_id=0), replace(SUBPORT, parent="")):
        (line,) = found([PARENT, loose])
        expect([(line, WRONG, "spi-1 (iface-id s)", "ovs-vsctl del-port spi-1")])


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


def test_patch_ports_of_a_parent() -> None:
    untagged = "without a local VLAN: tpi-1: where br-int forwards with"
    larger = "of their parent: tpi-1 (VID 100: 1501, parent: 1500): larger"
    add = "`dfmeta subport add tpi-1 --vid 100 --mtu 1500`"
    rows: list[tuple[dict[str, Any], Status, *tuple[str, ...]]] = [
        ({}, OK, ""),
        ({"options": {"peer": "gone"}}, WRONG, "tpi-1 (peer gone)", "ovs-vsctl del-port tpi-1"),
        ({"options": {}}, WRONG, "nowhere: tpi-1 (peer not set)", "ovs-vsctl del-port tpi-1"),
        ({"options": {}, "type": ""}, OK, ""),
        ({"tag": None, "vlan_mode": ""}, WARNING, untagged, "ovs-vsctl set Port tpi-1 tag="),
        ({"tag": None, "vlan_mode": "trunk"}, WARNING, untagged),
        ({"tag": None, "vlan_mode": "access"}, OK, ""),
        ({"tag": None, "type": ""}, OK, ""),
        *(({"mtu": mtu}, OK, "") for mtu in (0, 1442, 1500)),
        ({"mtu": 1501}, WARNING, larger, add),
        ({"mtu": 9000, "type": ""}, OK, ""),  # not known
        ({"mtu": 9000, "external_ids": {}}, OK, ""),  # no VM
    ]
    for fields, *judgement in rows:
        (line,) = patched(**fields)
        expect([(line, *judgement)])


def test_mtu_behind_a_vm_on_the_bridge_is_compared_with_its_interface() -> None:
    vm = Port("tap1", "row", 1, kind=PortKind.PARENT)
    behind = replace(vm, vid=100, kind=PortKind.SUBPORT, segmentation_id=100, parent="tap1")
    for mtu, status in ((1442, OK), (1443, WARNING)):
        ports = (vm, replace(behind, mtu=mtu), replace(behind, vid=7, parent="", mtu=9000))
        snapshot = Snapshot(interfaces=(Interface("tap1", "br-int", mtu=1442, ports=ports),))
        known = [replace(PARENT, name="tap1"), replace(SUBPORT, name="tap1", parent="tap1")]
        (line,) = checks_trunks.trunks(known, snapshot, "br-int")
        assert line.status is status


def test_parent_without_its_vm_leads_to_the_trunks_bridge() -> None:
    lost = replace(PARENT, state=PortState.NO_INSTANCE, instance="", iface_id="p")
    plain = replace(lost, name="tap1", kind=PortKind.PORT)
    snapshot = Snapshot(
        interfaces=(Interface("tpi-1", "br-int", type="patch"), Interface("tap1", "br-int"))
    )
    lines = list(checks_daemon.ports([lost, plain], SETTINGS, running=True, snapshot=snapshot))
    assert [line.status for line in lines] == [WRONG] * 2
    assert lines[0].text.startswith("no instance is known for tap1")
    assert "trunk parents: tpi-1 (iface-id p)" in lines[1].text
    assert "ovs-vsctl find Interface external_ids:iface-id=p" in lines[1].remedy
