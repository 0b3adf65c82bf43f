"""Guests on the kernel's datapath should be served as on the userspace one."""

import json
from collections.abc import Iterator

import pytest

from tests.harness.poll import wait_for
from tests.soak.real.node import Guest, Node

WEB = Guest("web", "10.0.0.5", "fa:16:3e:00:00:05")
TWIN = Guest("twin", WEB.ip, WEB.mac)
INTERNAL = Guest("internal", WEB.ip, WEB.mac)


@pytest.fixture(scope="module")
def guests(_installed: Node) -> Iterator[tuple[Guest, ...]]:
    """Three of one MAC and one address, one of them behind a port that is no device."""
    _installed.put(WEB, TWIN, INTERNAL)
    _installed.plug(WEB)
    _installed.plug(TWIN)
    _installed.plug_internal(INTERNAL)
    yield WEB, TWIN, INTERNAL
    for guest in (WEB, TWIN, INTERNAL):
        _installed.unplug(guest)


def test_each_guest_gets_its_own_by_the_kernel(node: Node, guests: tuple[Guest, ...]) -> None:
    for guest in guests:
        assert node.ask(guest) == guest.name
        document = json.loads(node.ask(guest, "/openstack/latest/meta_data.json"))
        assert document["uuid"] == guest.instance
    assert "system@ovs-system" in node.text("ovs-appctl dpctl/dump-dps")
    assert node.text("ovs-vsctl get Bridge br-int datapath_type") == "system"


def test_each_guest_gets_its_own_over_ipv6(node: Node, guests: tuple[Guest, ...]) -> None:
    for guest, device in zip(guests, ("eth0", "eth0", INTERNAL.port), strict=True):
        assert node.ask(guest, host=f"[fe80::a9fe:a9fe%25{device}]") == guest.name
        text = node.text(f"ip -n {guest.name} -6 neigh show fe80::a9fe:a9fe")
        assert "02:64:66:6d:65:fe" in text


def test_checksums_are_completed(node: Node, guests: tuple[Guest, ...]) -> None:
    # Left on: the guest leaves its checksums to a card that it does not have.
    features = node.text(f"ip netns exec {WEB.name} ethtool -k eth0")
    assert "tx-checksumming: on" in features
    before = node.text("nstat -az TcpInCsumErrors")
    assert node.ask(WEB) == WEB.name
    assert node.text("nstat -az TcpInCsumErrors") == before


def test_known_guests_need_no_vswitchd(node: Node, guests: tuple[Guest, ...]) -> None:
    # The datapath's flows are the kernel's own. With the userspace datapath they end with vswitchd.
    assert node.ask(WEB) == WEB.name
    node.run("systemctl kill -s STOP ovs-vswitchd.service")
    try:
        assert node.ask(WEB) == WEB.name
    finally:
        node.run("systemctl kill -s CONT ovs-vswitchd.service")


def test_doctor_finds_nothing(node: Node, guests: tuple[Guest, ...]) -> None:
    """Not even the connections in the host's conntrack."""
    # doc/source/doctor.rst, "conntrack": since when they are not in it, and what they cost.
    assert node.ask(WEB) == WEB.name
    listed = node.text("conntrack -L -p tcp 2>/dev/null | grep 'src=128.0.' || true")
    linux = tuple(map(int, node.text("uname -r").split(".")[:2]))
    assert ("dport=18080" in listed) == (linux < (6, 12))
    doctor = node.doctor()
    assert doctor.keys() >= {"conntrack"}
    assert {name: row for name, row in doctor.items() if row["status"] != "ok"} == {}


def test_a_port_that_gets_another_instance_tells_nothing_of_the_one_before(
    node: Node, guests: tuple[Guest, ...]
) -> None:
    assert node.ask(TWIN) == TWIN.name
    after = Guest("after", TWIN.ip, TWIN.mac)
    node.put(after)
    node.run(f"ovs-vsctl set Interface {TWIN.port} external_ids:vm-uuid={after.instance}")
    wait_for(lambda: node.ask(TWIN) == after.name, "the answer of the other instance")
    node.run(f"ovs-vsctl set Interface {TWIN.port} external_ids:vm-uuid={TWIN.instance}")
    wait_for(lambda: node.ask(TWIN) == TWIN.name, "the answer of the first instance")


@pytest.mark.long
def test_a_restart_of_vswitchd_refuses_nobody(node: Node, guests: tuple[Guest, ...]) -> None:
    since = node.now()
    with node.load(WEB, INTERNAL) as load:
        wait_for(lambda: node.ask(TWIN) == TWIN.name, "a quiet answer")
        node.run("systemctl restart ovs-vswitchd.service")
        node.wait_ready()
        assert node.ask(TWIN) == TWIN.name
    assert load.faults() == []
    assert load.count() > 10
    assert "flows of ours" not in node.journal(since)
