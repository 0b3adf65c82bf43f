"""doctor should name each entry without a subport, each subport without a trunk, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dfmeta.inspect import checks_daemon, checks_trunks
from dfmeta.inspect.facts import Interface, KnownPort, Snapshot
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import PortKind, PortState
from tests.unit.inspect.values import SETTINGS
from tests.unit.support import INSTANCE

PARENT = KnownPort("tpi-1", 1, PortState.SERVED, instance=INSTANCE, kind=PortKind.PARENT)
SUBPORT = KnownPort(
    *("spi-1", 2, PortState.SERVED),
    instance=INSTANCE,
    iface_id="s",
    kind=PortKind.SUBPORT,
    segmentation_id=100,
    parent="tpi-1",
)


def found(ports: Sequence[KnownPort], *vids: int) -> list[Finding]:
    snapshot = Snapshot(interfaces=(Interface("tpi-1", "br-int", type="patch", listed_vids=vids),))
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
