"""doctor should name attachments that do not work, and those that soon cannot be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dfmeta.inspect import checks_attachments
from dfmeta.inspect.checks_attachments import AttachmentFacts, Row
from dfmeta.inspect.facts import Bridge, Interface, Snapshot
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import Port

NOW = 1000.0
ONE = Row(
    id="a1",
    port="tpi-1",
    container="c1",
    vid=100,
    network="pods",
    state="active",
    boot_id="",
    changed=0.0,
)
FACTS = AttachmentFacts(rows=[ONE], most=10, networks={"pods": 1400})
IFACE = {"iface-id": "p"}
TRUNK = (Bridge("tbr-1", external_ids={"dfmeta": "trunk"}),)
VM = (
    Interface("tpi-1", "br-int", type="patch", options={"peer": "tpt-1"}, external_ids=IFACE),
    Interface("tpt-1", "tbr-1", type="patch", external_ids=IFACE),
    Interface("tap1", "tbr-1", external_ids=IFACE, mtu=1500),
)


def ends(*ids: str) -> Sequence[Interface]:
    return [
        Interface(
            f"{kind}{one}",
            bridge,
            type="patch",
            external_ids={"dfmeta-attachment": one},
            options={"peer": f"{peer}{one}"},
        )
        for one in ids
        for kind, bridge, peer in (("spi-", "br-int", "spt-"), ("spt-", "tbr-1", "spi-"))
    ]


def found(
    facts: AttachmentFacts = FACTS, *others: Interface, ids: Sequence[str] = ("a1",)
) -> list[Finding]:
    snapshot = Snapshot(bridges=TRUNK, interfaces=(*VM, *ends(*ids), *others))
    return list(checks_attachments.attachments(facts, snapshot, "br-int", now=NOW))


def test_attachments_in_order_are_counted() -> None:
    (line,) = found()
    assert (line.status, line.text) == (Status.OK, "1 attachments of 1 VMs")


@pytest.mark.parametrize("state", ["wanted", "made", "leaving"])
def test_one_that_waits_is_named_after_a_minute(state: str) -> None:
    late = replace(FACTS, rows=[replace(ONE, state=state)])
    (line,) = found(late)
    assert line.status is Status.WRONG
    assert f"c1 of tpi-1 (VID 100) is {state}" in line.text
    fresh = replace(FACTS, rows=[replace(ONE, state=state, changed=NOW - 59)])
    assert [one.status for one in found(fresh)] == [Status.OK]


@pytest.mark.parametrize("count", [8, 9])
def test_a_vm_that_has_nearly_all_is_named(count: int) -> None:
    ids = [f"a{number}" for number in range(count)]
    rows = [replace(ONE, id=one) for one in ids]
    statuses = [one.status for one in found(replace(FACTS, rows=rows), ids=ids)]
    assert statuses == ([Status.OK] if count < 9 else [Status.WARNING])


def test_a_network_that_is_gone_is_named() -> None:
    (line,) = found(replace(FACTS, networks={}))
    assert line.status is Status.WARNING
    assert "c1 of tpi-1 (VID 100) on pods" in line.text
    assert "[attachment_network:pods]" in line.remedy


def test_attachments_of_an_earlier_boot_are_named() -> None:
    rows = [
        replace(ONE, boot_id="old", changed=1.0),
        replace(ONE, id="a2", container="c2", boot_id="new", changed=2.0),
        replace(ONE, id="a3", container="c3"),
    ]
    (line,) = found(replace(FACTS, rows=rows), ids=["a1", "a2", "a3"])
    assert line.status is Status.WARNING
    assert line.text.endswith(": c1 of tpi-1 (VID 100)")
    assert "dfmeta attachment delete a1" in line.remedy


def test_an_earlier_boot_that_leaves_is_no_fault() -> None:
    rows = [
        replace(ONE, boot_id="old", state="leaving", changed=NOW),
        replace(ONE, id="a2", boot_id="new", changed=2.0),
    ]
    assert [one.status for one in found(replace(FACTS, rows=rows), ids=["a1", "a2"])] == [Status.OK]


@pytest.mark.parametrize("state", ["wanted", "made", "leaving", ""])
def test_one_that_comes_or_goes_meanwhile_is_no_fault(state: str) -> None:
    other = [replace(ONE, state=state, changed=NOW)] if state else []
    for facts in (replace(FACTS, before=other), replace(FACTS, rows=other, before=[ONE])):
        for ids in ([], ["a1"]):
            assert [one.status for one in found(facts, ids=ids)] == [Status.OK]


def test_ports_that_are_left_where_attachments_are_off_are_named() -> None:
    assert list(checks_attachments.left(Snapshot(interfaces=VM))) == []
    (line,) = checks_attachments.left(Snapshot(interfaces=(*VM, *ends("a1"))))
    assert line.status is Status.WARNING
    assert "are left: spi-a1, spt-a1: no program" in line.text
    assert "`ovs-vsctl del-port spi-a1`" in line.remedy


@pytest.mark.parametrize(
    "half", [[], ends("a1")[:1], [ends("a1")[0], replace(ends("a1")[1], options={})]]
)
def test_one_without_its_ports_is_named(half: Sequence[Interface]) -> None:
    (line,) = found(FACTS, *half, ids=[])
    assert line.status is Status.WRONG
    assert line.text.startswith("attachments without their patch ports: c1 of tpi-1 (VID 100)")
    assert found(replace(FACTS, local=False), *half, ids=[])[0].status is Status.OK


def test_ports_of_no_attachment_are_named() -> None:
    (line,) = found(ids=["a1", "a9"])
    assert (line.status, line.text.rpartition(": ")[2]) == (Status.WARNING, "a9")


def tagged(entries: Mapping[int, str]) -> Interface:
    """Return a VM's interface whose tags reach the bridge, with VLAN id → attachment."""
    ports = [Port("tap9", "r", 9, vid=vid, attached=one) for vid, one in entries.items()]
    vm = Port("tap9", "r", 9)
    return Interface("tap9", "br-int", listed_vids=tuple(entries), ports=(vm, *ports))


@pytest.mark.parametrize(
    ("entries", "status", "text"),
    [
        ({100: "a1", 7: ""}, Status.OK, "1 attachments of 1 VMs"),
        ({7: ""}, Status.WRONG, "without an entry in the list of subports: c1 of tap9 (VID 100)"),
        ({100: ""}, Status.WARNING, "have the VLAN ids of attachments: c1 of tap9 (VID 100)"),
        ({100: "a1", 7: "a9"}, Status.WARNING, "that do not exist: tap9 (VID 7)"),
    ],
    ids=["whole", "none", "other", "stray"],
)
def test_entries_are_compared_where_tags_reach_the_bridge(
    entries: Mapping[int, str], status: Status, text: str
) -> None:
    facts = replace(FACTS, local=False, rows=[replace(ONE, port="tap9")])
    (line,) = found(facts, tagged(entries), ids=[])
    assert line.status is status
    assert text in line.text
    # The VM is away, or another host's; or the attachment has just come.
    assert [one.status for one in found(facts, ids=[])] == [Status.OK]
    if text.startswith("without"):
        assert [one.status for one in found(replace(facts, before=[]), tagged(entries))] == [
            Status.OK
        ]


def test_entries_that_are_left_where_attachments_are_off_are_named() -> None:
    assert list(checks_attachments.left(Snapshot(interfaces=(tagged({7: ""}),)))) == []
    (line,) = checks_attachments.left(Snapshot(interfaces=(tagged({7: "", 100: "a1"}),)))
    assert line.status is Status.WARNING
    assert "are left: tap9 (VID 100): no program" in line.text
    assert "`dfmeta subport delete tap9 --vid 100`" in line.remedy


@pytest.mark.parametrize(("mtu", "status"), [(1500, Status.OK), (1501, Status.WARNING)])
def test_a_network_with_larger_frames_than_the_vm_is_named(mtu: int, status: Status) -> None:
    (line,) = found(replace(FACTS, networks={"pods": mtu}))
    assert line.status is status
    if status is Status.WARNING:
        assert "pods (1501, tpi-1: 1500)" in line.text
        assert "mtu in [attachment_network:pods] to 1500" in line.remedy
        assert found(replace(FACTS, rows=[], networks={"pods": mtu}), ids=[]) == [line]


def test_a_database_and_a_switch_that_are_away() -> None:
    (line,) = found(AttachmentFacts(cause="the database does not answer"))
    assert line.status is Status.WRONG
    assert "the database does not answer" in line.text
    lines: Any = list(checks_attachments.attachments(FACTS, None, "br-int", now=NOW))
    assert [one.status for one in lines] == [Status.UNKNOWN]
    facts = replace(FACTS, local=False)
    assert list(checks_attachments.attachments(facts, None, "br-int", now=NOW)) == lines
    assert checks_attachments.silent().status is Status.UNKNOWN
