"""doctor should name each attachment that does not work, and each VM that can get no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dfmeta.inspect.checks_attachments import End, Facts, Row, attachments, silent, switched_off
from dfmeta.inspect.finding import Finding, Status

ONE = Row("a1", "tpi-1", 2, "pods", "active", created=1)
ENDS = (End("spi-a1", "a1", "spt-a1"), End("spt-a1", "a1", "spi-a1"))
FACTS = Facts(
    before=(ONE,), after=(ONE,), ends=ENDS, networks={"pods": 1450}, parents={"tpi-1": 1500}
)


def found(facts: Facts = FACTS, **fields: Any) -> list[Finding]:
    return list(attachments(replace(facts, **fields)))


def the(status: Status, **fields: Any) -> Finding:
    (line,) = found(**fields)
    assert (line.check, line.status) == ("attachments", status)
    return line


def rows(*more: Row) -> dict[str, Any]:
    """Return the facts of a host whose ports are not compared."""
    return {"before": more, "after": more, "ends": None}


def test_attachments_in_order_are_counted() -> None:
    assert the(Status.OK).text == "1 attachments of 1 VMs; most has tpi-1: 1 of 256"
    assert the(Status.OK, **rows()).text == "0 attachments of 0 VMs"


def test_an_attachment_on_a_network_that_was_removed_is_named() -> None:
    line = the(Status.WRONG, networks={"blue": 1450})
    assert "tpi-1 (VID 2, network pods, a1)" in line.text
    assert "[attachment_network:pods]" in line.remedy
    assert "dfmeta attachment delete" in line.remedy
    assert the(Status.OK, networks={}, **rows(replace(ONE, state="leaving")))


def test_an_attachment_without_ports_is_named() -> None:
    line = the(Status.WRONG, ends=())
    assert "without ports in OVSDB: tpi-1 (VID 2, network pods, a1)" in line.text
    assert "`dfmeta attachment gc`" in line.remedy


def test_an_attachment_that_comes_or_goes_meanwhile_is_no_fault() -> None:
    for state in ("wanted", "made", "leaving"):
        waits = replace(ONE, state=state)
        assert the(Status.OK, ends=(), before=(waits,))
        assert the(Status.OK, ends=(), after=(waits,))
    assert the(Status.OK, ends=(), before=())
    assert the(Status.OK, before=())
    assert the(Status.OK, after=())


def test_ports_are_not_compared_where_others_make_them() -> None:
    assert the(Status.OK, ends=None)


def test_a_port_without_its_peer_is_named() -> None:
    inner, outer = ENDS
    for ends, peer in (
        ((inner,), "spt-a1"),
        ((replace(inner, peer=""),), "not set"),
        ((inner, replace(outer, peer="spi-else")), "spt-a1"),
        ((inner, replace(outer, attachment="a2")), "spt-a1"),
    ):
        line = found(ends=ends)[0]
        assert line.status is Status.WRONG
        assert f"without their peer: spi-a1 (peer {peer})" in line.text
        assert "`ovs-vsctl del-port spi-a1`" in line.remedy


def test_a_port_without_a_row_is_named() -> None:
    more = (End("spi-a2", "a2", "spt-a2"), End("spt-a2", "a2", "spi-a2"))
    line = the(Status.WRONG, ends=(*ENDS, *more))
    assert "does not have: spi-a2 (a2), spt-a2 (a2)" in line.text
    assert "[attachments] connection" in line.remedy


def test_attachments_of_an_earlier_boot_are_named() -> None:
    old, new = replace(ONE, boot_id="b1"), replace(ONE, id="a2", vid=3, boot_id="b2", created=2)
    line = the(Status.WARNING, **rows(new, old))
    assert "(VID 2, network pods, a1)" in line.text
    assert "a2" not in line.text
    assert the(Status.OK, **rows(new, replace(old, state="leaving")))
    assert the(Status.OK, **rows(new, replace(old, boot_id="")))
    assert the(Status.OK, **rows(new, replace(old, port="tpi-2")))


def test_a_vm_with_nearly_all_its_attachments_is_named() -> None:
    nine = [replace(ONE, id=f"a{vid}", vid=vid) for vid in range(2, 11)]
    line = the(Status.WARNING, quota=10, **rows(*nine))
    assert "tpi-1 (9 of 10 attachments)" in line.text
    assert "quota" in line.remedy
    assert the(Status.OK, quota=10, **rows(*nine[1:]))
    assert the(Status.OK, quota=10, **rows(*nine[1:], replace(nine[0], port="tpi-2")))


def test_a_trunk_with_nearly_all_its_vlan_ids_is_named() -> None:
    few = [replace(ONE, id=f"a{vid}", vid=vid) for vid in range(2, 6)]
    for foreign, status in (({7, 8, 9, 10, 11}, Status.WARNING), ({8, 9, 10, 11, 99}, Status.OK)):
        others = {"tpi-1": frozenset(foreign), "tpi-2": frozenset(range(2, 12))}
        line = the(status, vids=range(2, 12), foreign=others, **rows(*few))
        assert ("tpi-1 (9 of 10 VLAN ids)" in line.text) is (status is Status.WARNING)


def test_a_network_with_a_larger_mtu_than_a_vm_is_named() -> None:
    line = the(Status.WARNING, parents={"tpi-1": 1449, "tpi-2": 1450, "tpi-3": 0})
    assert "interfaces: pods (1450; tpi-1: 1449): dfmeta-cni" in line.text
    assert "set mtu = 1449 in [attachment_network:pods]" in line.remedy


def test_a_database_that_does_not_answer_is_named() -> None:
    line = silent("the database of attachments does not answer")
    assert (line.status, "the database of attachments" in line.text) == (Status.WRONG, True)
    assert "journalctl -u dfmeta-agent" in line.remedy


def test_ports_that_are_left_where_attachments_are_off_are_named() -> None:
    assert list(switched_off(())) == []
    (line,) = switched_off(ENDS)
    assert line.status is Status.WARNING
    assert "2 of their ports are left: spi-a1, spt-a1" in line.text
    assert "`ovs-vsctl del-port spi-a1`" in line.remedy
