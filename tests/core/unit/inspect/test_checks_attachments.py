"""doctor should name attachments that do not work, and those that soon cannot be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dfmeta.inspect import checks_attachments
from dfmeta.inspect.checks_attachments import AttachmentFacts, Row
from dfmeta.inspect.facts import Bridge, Interface, Snapshot
from dfmeta.inspect.finding import Finding
from dfmeta.model import Port
from tests.core.unit.inspect.values import OK, UNKNOWN, WARNING, WRONG, expect

NOW = 1000.0
ROW = Row(
    id="a1",
    port="tpi-1",
    container="c1",
    vid=100,
    network="pods",
    state="active",
    boot_id="",
    changed=0.0,
)
FACTS = AttachmentFacts(rows=[ROW], most=10, networks={"pods": 1400})
IFACE = {"iface-id": "p"}
TRUNK = (Bridge("tbr-1", external_ids={"dfmeta": "trunk"}),)
VM = (
    Interface("tpi-1", "br-int", type="patch", options={"peer": "tpt-1"}, external_ids=IFACE),
    Interface("tpt-1", "tbr-1", type="patch", external_ids=IFACE),
    Interface("tap1", "tbr-1", external_ids=IFACE, mtu=1500),
)
NAME = "c1 of tpi-1 (VID 100)"


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


def line(
    facts: AttachmentFacts = FACTS, *others: Interface, ids: Sequence[str] = ("a1",)
) -> Finding:
    """The one line about attachments, of which these have their ports."""
    snapshot = Snapshot(bridges=TRUNK, interfaces=(*VM, *ends(*ids), *others))
    (finding,) = checks_attachments.attachments(facts, snapshot, "br-int", now=NOW)
    return finding


def test_attachments_in_order_are_counted_and_faults_named() -> None:
    first, peer = ends("a1")
    no_ports = f"attachments without their patch ports: {NAME}"
    nine = [f"a{number}" for number in range(9)]
    many = replace(FACTS, rows=[replace(ROW, id=one) for one in nine])
    large = line(replace(FACTS, networks={"pods": 1501}))
    expect(
        [
            (line(), OK, "1 attachments of 1 VMs"),
            (line(replace(FACTS, networks={"pods": 1500})), OK, ""),
            (large, WARNING, "pods (1501, tpi-1: 1500)", "[attachment_network:pods] to 1500"),
            (line(replace(FACTS, rows=[], networks={"pods": 1501}), ids=[]), WARNING, large.text),
            (line(replace(many, rows=many.rows[:8]), ids=nine[:8]), OK, ""),
            (line(many, ids=nine), WARNING, ""),
            (
                line(replace(FACTS, networks={})),
                *(WARNING, f"{NAME} on pods", "[attachment_network:pods]"),
            ),
            (line(ids=[]), WRONG, no_ports),
            (line(FACTS, first, ids=[]), WRONG, no_ports),
            (line(FACTS, first, replace(peer, options={}), ids=[]), WRONG, no_ports),
            (line(replace(FACTS, local=False), ids=[]), OK, ""),
            (line(ids=["a1", "a9"]), WARNING, ": a9"),
            (line(AttachmentFacts(cause="it is away")), WRONG, "it is away"),
            (checks_attachments.silent(), UNKNOWN, ""),
        ]
    )
    for facts in (FACTS, replace(FACTS, local=False)):
        (unseen,) = checks_attachments.attachments(facts, None, "br-int", now=NOW)
        expect([(unseen, UNKNOWN, "")])


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
    found = line(replace(FACTS, rows=rows), ids=["a1", "a2", "a3"])
    expect([(found, WARNING, f": {NAME}", "dfmeta attachment delete a1")])
    assert found.text.endswith(NAME)
    rows = [replace(rows[0], state="leaving", changed=NOW), rows[1]]
    expect([(line(replace(FACTS, rows=rows), ids=["a1", "a2"]), OK, "")])


def tagged(entries: Mapping[int, str]) -> Interface:
    """Return a VM's interface whose tags reach the bridge, with VLAN id → attachment."""
    ports = [Port("tap9", "r", 9, vid=vid, attached=one) for vid, one in entries.items()]
    vm = Port("tap9", "r", 9)
    return Interface("tap9", "br-int", listed_vids=tuple(entries), ports=(vm, *ports))


def test_entries_are_compared_where_tags_reach_the_bridge() -> None:
    facts = replace(FACTS, local=False, rows=[replace(ROW, port="tap9")])
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
    left = checks_attachments.left
    assert list(left(Snapshot(interfaces=VM))) == []
    assert list(left(Snapshot(interfaces=(tagged({7: ""}),)))) == []
    (ports,) = left(Snapshot(interfaces=(*VM, *ends("a1"))))
    (entries,) = left(Snapshot(interfaces=(tagged({7: "", 100: "a1"}),)))
    delete = "`dfmeta subport delete tap9 --vid 100`"
    expect(
        [
            (
                *(ports, WARNING, "are left: spi-a1, spt-a1: no program"),
                "`ovs-vsctl del-port spi-a1`",
            ),
            (entries, WARNING, "are left: tap9 (VID 100): no program", delete),
        ]
    )
