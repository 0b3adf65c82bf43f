"""Attachments that do not work, entries without a subport, and subports without a trunk."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dfmeta.doctor import checks_guests, checks_trunks
from dfmeta.doctor.checks_trunks import AttachmentFacts, AttachmentOptions, AttachmentRow
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import CheckStatus, Finding
from dfmeta.model import Port, PortKind, PortState
from dfmeta.ovsdb.rows import Bridge, Interface, Snapshot
from tests.core.unit.doctor.values import OK, SETTINGS, WARNING, WRONG, expect
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
    rows: list[tuple[dict[str, Any], CheckStatus, *tuple[str, ...]]] = [
        ({}, OK, ""),
        ({"options": {"peer": "gone"}}, WRONG, "tpi-1 (peer gone)", "ovs-vsctl del-port tpi-1"),
        ({"options": {}}, WRONG, "nowhere: tpi-1 (peer not set)", "ovs-vsctl del-port tpi-1"),
        ({"tag": None, "vlan_mode": ""}, WARNING, untagged, "ovs-vsctl set Port tpi-1 tag="),
        ({"tag": None, "vlan_mode": "trunk"}, WARNING, untagged),
        ({"tag": None, "vlan_mode": "access"}, OK, ""),
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
        ports_ = [replace(PARENT, name="tap1"), replace(SUBPORT, name="tap1", parent="tap1")]
        (line,) = checks_trunks.trunks(ports_, snapshot, "br-int")
        assert line.status is status


def test_parent_without_its_vm_leads_to_the_trunks_bridge() -> None:
    lost = replace(PARENT, state=PortState.NO_INSTANCE, instance="", iface_id="p")
    plain = replace(lost, name="tap1", kind=PortKind.PORT)
    snapshot = Snapshot(
        interfaces=(Interface("tpi-1", "br-int", type="patch"), Interface("tap1", "br-int"))
    )
    lines = list(checks_guests.ports([lost, plain], SETTINGS, running=True, snapshot=snapshot))
    assert [line.status for line in lines] == [WRONG] * 2
    assert lines[0].text.startswith("no instance is known for tap1")
    assert "trunk parents: tpi-1 (iface-id p)" in lines[1].text
    assert "ovs-vsctl find Interface external_ids:iface-id=p" in lines[1].remedy


NOW = 1000.0
ROW = AttachmentRow(
    id="a1",
    port="tpi-1",
    container="c1",
    vid=100,
    network="pods",
    state="active",
    boot_id="",
    changed=0.0,
)
OPTIONS = AttachmentOptions(most=10, networks={"pods": 1400})
FACTS = AttachmentFacts(rows=[ROW], options=OPTIONS)
TRUNK = (Bridge("tbr-1", external_ids={"dfmeta": "trunk"}),)
VM = (
    Interface("tpi-1", "br-int", type="patch", options={"peer": "tpt-1"}, external_ids=IFACE),
    Interface("tpt-1", "tbr-1", type="patch", external_ids=IFACE),
    Interface("tap1", "tbr-1", external_ids=IFACE, mtu=1500),
)
LARGE, REMOTE = replace(OPTIONS, networks={"pods": 1501}), replace(OPTIONS, local=False)
NAME = "c1 of tpi-1 (VID 100)"


def ends(*ids: str) -> Sequence[Interface]:
    return [
        Interface(
            f"{kind}{attachment}",
            bridge,
            type="patch",
            external_ids={"dfmeta-attachment": attachment},
            options={"peer": f"{peer}{attachment}"},
        )
        for attachment in ids
        for kind, bridge, peer in (("spi-", "br-int", "spt-"), ("spt-", "tbr-1", "spi-"))
    ]


def line(
    facts: AttachmentFacts = FACTS, *others: Interface, ids: Sequence[str] = ("a1",)
) -> Finding:
    snapshot = Snapshot(bridges=TRUNK, interfaces=(*VM, *ends(*ids), *others))
    (finding,) = checks_trunks.attachments(facts, snapshot, "br-int", now=NOW)
    return finding


def test_attachments_in_order_are_counted_and_faults_named() -> None:
    first, peer = ends("a1")
    no_ports = f"attachments without their patch ports: {NAME}"
    nine = [f"a{number}" for number in range(9)]
    many = replace(FACTS, rows=[replace(ROW, id=attachment) for attachment in nine])
    large = line(replace(FACTS, options=LARGE))
    expect(
        [
            (line(), OK, "1 attachments of 1 VMs"),
            (line(replace(FACTS, options=replace(OPTIONS, networks={"pods": 1500}))), OK, ""),
            (large, WARNING, "pods (1501, tpi-1: 1500)", "[attachment_network:pods] to 1500"),
            (line(replace(FACTS, rows=[], options=LARGE), ids=[]), WARNING, large.text),
            (line(replace(many, rows=many.rows[:8]), ids=nine[:8]), OK, ""),
            (line(many, ids=nine), WARNING, ""),
            (
                line(replace(FACTS, options=replace(OPTIONS, networks={}))),
                *(WARNING, f"{NAME} on pods", "[attachment_network:pods]"),
            ),
            (line(ids=[]), WRONG, no_ports),
            (line(FACTS, first, ids=[]), WRONG, no_ports),
            (line(FACTS, first, replace(peer, options={}), ids=[]), WRONG, no_ports),
            (line(replace(FACTS, options=REMOTE), ids=[]), OK, ""),
            (line(ids=["a1", "a9"]), WARNING, ": a9"),
            (line(AttachmentFacts(cause="it is away")), WRONG, "it is away"),
        ]
    )


def test_attachment_that_waits_for_a_minute_is_named() -> None:
    for state in ("wanted", "made", "leaving", ""):
        fresh = [replace(ROW, state=state, changed=NOW - 59)] if state else []
        if state:
            late = replace(FACTS, rows=[replace(ROW, state=state)])
            expect([(line(late), WRONG, f"{NAME} is {state}")])
            expect([(line(replace(FACTS, rows=fresh)), OK, "")])
        # It comes or goes while doctor looks.
        for facts in (replace(FACTS, before=fresh), replace(FACTS, rows=fresh, before=[ROW])):
            expect([(line(facts, ids=ids), OK, "") for ids in ([], ["a1"])])


def test_attachments_of_an_earlier_boot_are_named() -> None:
    rows = [
        replace(ROW, boot_id="old", changed=1.0),
        replace(ROW, id="a2", container="c2", boot_id="new", changed=2.0),
        replace(ROW, id="a3", container="c3"),
    ]
    finding = line(replace(FACTS, rows=rows), ids=["a1", "a2", "a3"])
    expect([(finding, WARNING, f": {NAME}", "dfmeta attachment delete a1")])
    assert finding.text.endswith(NAME)
    rows = [replace(rows[0], state="leaving", changed=NOW), rows[1]]
    expect([(line(replace(FACTS, rows=rows), ids=["a1", "a2"]), OK, "")])


def tagged(entries: Mapping[int, str]) -> Interface:
    """Return a VM's interface whose tags reach the bridge, with VLAN id → attachment."""
    ports = [
        Port("tap9", "r", 9, vid=vid, attached=attachment) for vid, attachment in entries.items()
    ]
    vm = Port("tap9", "r", 9)
    return Interface("tap9", "br-int", listed_vids=tuple(entries), ports=(vm, *ports))


def test_entries_are_compared_where_tags_reach_the_bridge() -> None:
    facts = replace(FACTS, options=REMOTE, rows=[replace(ROW, port="tap9")])
    name = "c1 of tap9 (VID 100)"
    for entries, status, text in (
        ({100: "a1", 7: ""}, OK, "1 attachments of 1 VMs"),
        ({7: ""}, WRONG, f"without an entry in the list of subports: {name}"),
        ({100: ""}, WARNING, f"have the VLAN ids of attachments: {name}"),
        ({100: "a1", 7: "a9"}, WARNING, "that do not exist: tap9 (VID 7)"),
    ):
        expect([(line(facts, tagged(entries), ids=[]), status, text)])
    expect(
        [
            (line(facts, ids=[]), OK, ""),  # The VM is away, or another host's.
            (line(replace(facts, before=[]), tagged({7: ""})), OK, ""),  # It has just come.
        ]
    )


def test_remains_are_named_where_attachments_are_off() -> None:
    left = checks_trunks.left
    assert [*left(Snapshot(interfaces=VM)), *left(Snapshot(interfaces=(tagged({7: ""}),)))] == []
    (ports,) = left(Snapshot(interfaces=(*VM, *ends("a1"))))
    (entries,) = left(Snapshot(interfaces=(tagged({7: "", 100: "a1"}),)))
    delete, del_port = "`dfmeta subport delete tap9 --vid 100`", "`ovs-vsctl del-port spi-a1`"
    expect(
        [
            (ports, WARNING, "are left: spi-a1, spt-a1: no program", del_port),
            (entries, WARNING, "are left: tap9 (VID 100): no program", delete),
        ]
    )
