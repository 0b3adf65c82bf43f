"""The port that an operator means by a name, and why it has no flows."""

from __future__ import annotations

from dataclasses import replace

from dfmeta.inspect import which
from dfmeta.inspect.facts import Interface, Snapshot
from dfmeta.model import GuestAddress, PortKind, PortState
from tests.core.unit.inspect.values import ADDRESS, ADDRESS6, INSTANCE, PORT, PORT6, SETTINGS

OTHER = replace(PORT, name="tap2", iface_id="b", mac="fa:16:3e:00:00:02", addresses={})
SUBPORT = replace(PORT, vid=300)


def test_value_of_the_operator_names_a_port_before_one_that_a_guest_chose() -> None:
    other = replace(OTHER, instance="i2")
    liar = replace(other, addresses={0: GuestAddress("fa:16:3e:00:00:09", ADDRESS.ip)})
    namesake = replace(other, instance_name="tap1")
    for ports, text, expected in (
        ((PORT, other), str(ADDRESS.ip), (PORT,)),
        ((PORT, other), "FA:16:3E:00:00:02", (other,)),
        ((PORT, liar), str(ADDRESS.ip), (PORT, liar)),
        ((PORT, liar), "fa:16:3e:00:00:09", (liar,)),
        ((PORT, namesake), "tap1", (PORT,)),
        ((PORT, namesake), "TAP1", ()),
        ((replace(PORT, mac=""),), "web", ()),
        ((PORT, OTHER), "tap1", (PORT,)),
        ((PORT, OTHER), "a-port", (PORT,)),
        ((PORT, OTHER), INSTANCE.upper(), (PORT, OTHER)),
        ((replace(PORT, instance="", iface_id=""),), "", ()),
        ((PORT6, other), str(ADDRESS6.ip), (PORT6,)),
        ((PORT6, other), "FE80::F816:3EFF:FE00:1", (PORT6,)),
        ((PORT6, other), "fe80:0:0:0:f816:3eff:fe00:0001", (PORT6,)),
        ((PORT6, other), f"{ADDRESS6.ip}%eth0", (PORT6,)),
        ((PORT, other), str(ADDRESS6.ip), ()),
        ((PORT6,), "fe80::f816:3eff:fe00:2", ()),
    ):
        assert which.named(ports, text) == expected, text
    assert which.named([PORT, replace(other, instance_name="web1")], "web1")[0].name == "tap2"


def test_untagged_port_of_a_name_is_meant_unless_a_vlan_is_named() -> None:
    ports = [PORT, SUBPORT]
    assert which.with_vid(ports, None) == [PORT]
    assert which.with_vid(ports, 300) == [SUBPORT]
    assert which.with_vid(ports, 301) == []
    assert which.with_vid([SUBPORT], None) == [SUBPORT]


def test_port_on_a_trunks_bridge_is_meant_by_any_of_its_names() -> None:
    ids = {"iface-id": "p1", "vm-uuid": INSTANCE}
    snapshot = Snapshot(
        interfaces=(
            Interface("tap9", "tbr-1", external_ids=ids),
            Interface("tpt-p1", "tbr-1", type="patch", external_ids={"iface-id": "p1"}),
            Interface("tpi-p1", "br-int", type="patch", external_ids={"iface-id": "p1"}),
        )
    )
    port = replace(PORT, name="tpi-p1", iface_id="p1", kind=PortKind.PARENT)
    ports = [PORT, port, replace(port, name="tpi-p2", iface_id="p2")]
    for text in ("tap9", "tpt-p1", "p1", "P1", INSTANCE, INSTANCE.upper()):
        assert which.behind_trunk(ports, snapshot, text, bridge="br-int") == (port,), text
    for text in ("tap1", "", "p2"):
        assert which.behind_trunk(ports, snapshot, text, bridge="br-int") == (), text
    subport = replace(port, kind=PortKind.SUBPORT)
    assert which.behind_trunk([subport], snapshot, "tap9", bridge="br-int") == ()


def test_port_without_flows_has_a_cause() -> None:
    for port, cause in (
        (replace(PORT, state=PortState.BROKEN, fault="a fault"), "a fault"),
        (replace(PORT, state=PortState.DEAD), "switched it off"),
        (replace(PORT, state=PortState.NO_OFPORT, ofport=None), "no port number"),
    ):
        assert cause in which.unusable(port)
    assert which.unusable(PORT) == ""


def test_interface_that_is_no_guests_port_has_a_cause() -> None:
    command = "`ovs-vsctl set Interface {} external_ids:vm-uuid=<instance's UUID>`"
    patch = Interface("int-br-ex", "br-int", type="patch", options={"peer": "phy-br-ex"})
    tunnel = "its type is {}: a tunnel to other hosts"
    for interface, *causes in (
        (Interface("tap-metadata", "br-int", type="internal"), "leads to the proxy"),
        (Interface("br-int", "br-int", type="internal"), "the bridge's own"),
        *(
            (Interface("t0", "br-int", type=kind), tunnel.format(kind))
            for kind in ("vxlan", "geneve", "gre")
        ),
        (patch, "it leads to another bridge (phy-br-ex), and a guest behind that"),
        (Interface("nic0", "br-int", type="dpdk"), "its type is dpdk, and such a port"),
        (
            Interface("tapd", "br-int", type="internal"),
            *("belong to an agent", command.format("tapd")),
        ),
        (Interface("eth1", "br-int"), "neither an instance", command.format("eth1")),
        (Interface("eth1", "br-ex"), "is on br-ex, not on br-int"),
    ):
        snapshot = Snapshot(interfaces=(interface,))
        text = which.no_port(snapshot, interface.name, wanted=SETTINGS, running=True)
        assert all(cause in text for cause in causes), text
    nothing = which.no_port(Snapshot(), "x", wanted=SETTINGS, running=True)
    assert nothing.startswith("no port of br-int has the name, iface-id, MAC, instance")
    assert "does not run" not in nothing
    assert "does not run" in which.no_port(Snapshot(), "x", wanted=SETTINGS, running=False)
