"""The checks of Meta IPs on facts that are right, and wrong in one way each."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from dfmeta.doctor import checks_flows, checks_host, checks_switch
from dfmeta.doctor.facts import HostSettings, PathFacts
from dfmeta.doctor.finding import Finding
from dfmeta.flows.family import IPV6
from dfmeta.flows.openflow import Foreign
from dfmeta.flows.port_down import LINK_DOWN, NO_RECV, PortBits
from dfmeta.host.host_facts import HostFacts
from dfmeta.host.listeners import TcpListener
from dfmeta.model import MetaIds, PortState
from dfmeta.ovsdb.rows import Bridge, Interface, Snapshot
from tests.core.unit.doctor.values import (
    INODE,
    META,
    META_IP,
    META_IP6,
    META_MAC,
    META_PORT,
    META_SETTINGS,
    META_SNAPSHOT,
    OK,
    UNKNOWN,
    WARNING,
    WRONG,
    expect,
    status,
)

HOST = HostFacts(
    up=True,
    addresses=(("tap-meta", IPv4Interface("240.0.0.1/32")),),
    route=True,
    neighbour=True,
    way_back="tap-meta",
    rp_filter=(1, 0),
    arp_ignore=1,
    listeners=(TcpListener(IPv4Address("240.0.0.1"), 80, INODE),),
)
SIDE: tuple[Callable[[HostFacts, HostSettings], Finding | None], ...] = (
    *(checks_host.device, checks_host.address, checks_host.route, checks_host.way_back),
    *(checks_host.neighbour, checks_host.rp_filter),
)
STORED = {"tap1": MetaIds(META_IP, META_MAC, META_IP6)}


def changed(name: str, **values: Any) -> Snapshot:
    interfaces = tuple(
        replace(row, **values) if row.name == name else row for row in META_SNAPSHOT.interfaces
    )
    bridges = tuple(
        replace(row, **values) if row.name == name else row for row in META_SNAPSHOT.bridges
    )
    return Snapshot(bridges, interfaces)


def without(name: str) -> Snapshot:
    return Snapshot(
        tuple(row for row in META_SNAPSHOT.bridges if row.name != name),
        tuple(row for row in META_SNAPSHOT.interfaces if row.name != name),
    )


def faults(*findings: Finding) -> list[str]:
    return [finding.text for finding in findings if status(finding) is WRONG]


def test_host_as_dfmeta_makes_it_has_no_fault() -> None:
    findings = [
        checks_switch.meta_bridge(META_SNAPSHOT, META_SETTINGS, META),
        *checks_switch.meta_patch(META_SNAPSHOT, META_SETTINGS, META),
        *checks_switch.vlan(checks_switch.patch_ports(META_SNAPSHOT, META_SETTINGS, META)),
        *checks_flows.mappings(META_SNAPSHOT, (), META),
        checks_switch.meta_range([META_PORT], META_SETTINGS),
        checks_switch.meta_ids([META_PORT], STORED),
        checks_switch.tap(
            META_SNAPSHOT.interface("tap-meta", "br-meta"), META_SNAPSHOT, wanted=META_SETTINGS
        ),
        *(check(HOST, META_SETTINGS) for check in SIDE),
        checks_host.listener(HOST, META_SETTINGS, running=True),
    ]
    assert None not in findings
    assert faults(*filter(None, findings)) == []
    assert checks_host.rule(HOST, META_SETTINGS, "from") is None
    assert checks_host.rule(HOST, META_SETTINGS, "oif") is None


def bridge_with(*ports: str, ours: str = "", meta: str = "", fail_mode: str = "secure") -> Finding:
    """The finding on a second bridge of others with these ports and datapath types."""
    bridges = (Bridge("br-int", ours), Bridge("br-meta", meta, (), fail_mode))
    interfaces = (*(Interface(name, "br-meta") for name in ports), Interface("guest", "br-int"))
    return checks_switch.meta_bridge(Snapshot(bridges, interfaces), META_SETTINGS, META)


def test_second_bridge() -> None:
    bridge, no_openflow = checks_switch.meta_bridge, "the bridge does not speak OpenFlow 1.3"
    dfmeta_ports, uplink = ("br-meta", "tap-meta", "phy-br-meta"), "uplink"
    other = "[df_metadata] meta_bridge to another name, or remove the ports of"
    expect(
        [
            *(
                (bridge(snapshot, META_SETTINGS, META), WRONG, text)
                for snapshot, text in (
                    (without("br-meta"), "there is no bridge br-meta"),
                    (changed("br-meta", fail_mode=""), "br-meta has fail_mode=standalone"),
                    (changed("br-meta", datapath_type=""), "has datapath_type=system and br-int"),
                )
            ),
            (bridge(META_SNAPSHOT, META_SETTINGS, META, cause=no_openflow), WRONG, no_openflow),
            (bridge_with(*dfmeta_ports, fail_mode=""), WRONG, "fail_mode=standalone"),
            (bridge_with(*dfmeta_ports, fail_mode="standalone"), WRONG, "fail_mode=standalone"),
            (
                bridge_with(*dfmeta_ports, uplink, fail_mode=""),
                OK,
                "fail_mode=standalone, and ports of",
            ),
            (
                bridge_with(*dfmeta_ports, uplink, fail_mode="standalone"),
                OK,
                "ports of others: uplink",
            ),
            # An empty type is the kernel's datapath.
            (bridge_with(*dfmeta_ports, ours="", meta="system"), OK, ""),
            (bridge_with(*dfmeta_ports, ours="system", meta=""), OK, ""),
            (bridge_with(*dfmeta_ports, ours="netdev", meta="netdev"), OK, ""),
            (bridge_with(*dfmeta_ports, ours="netdev", meta="other"), WRONG, ""),
            (bridge_with(*dfmeta_ports, uplink, ours="netdev"), WRONG, "", other),
        ]
    )


def test_patch_between_the_bridges() -> None:
    for snapshot, text in (
        (without("int-br-meta"), "int-br-meta is not a port of br-int"),
        (without("phy-br-meta"), "phy-br-meta is not a port of br-meta"),
        (changed("phy-br-meta", bridge="br-ex"), "phy-br-meta is a port of br-ex, not of br-meta"),
        (changed("int-br-meta", type=""), "int-br-meta is not a patch port with the peer phy-br-"),
        (changed("phy-br-meta", options={"peer": "x"}), "phy-br-meta is not a patch port with the"),
        (changed("phy-br-meta", ofport=None), "Open vSwitch has given phy-br-meta no port number"),
        (changed("int-br-meta", tag=None, vlan_mode="", cvlans=()), "int-br-meta has tag=None"),
        (changed("phy-br-meta", cvlans=()), "phy-br-meta has tag=4095 vlan_mode=dot1q-tunnel cvl"),
    ):
        patch = checks_switch.meta_patch(snapshot, META_SETTINGS, META)
        vlan = checks_switch.vlan(checks_switch.patch_ports(snapshot, META_SETTINGS, META))
        (fault,) = faults(*patch, *vlan)
        assert fault.startswith(text), text


def test_patch_port_from_which_the_switch_takes_no_frames() -> None:
    bits = {"br-meta": {2: PortBits(config=NO_RECV, state=LINK_DOWN)}, "br-int": {3: PortBits()}}
    (finding,) = checks_switch.meta_patch(META_SNAPSHOT, META_SETTINGS, META, bits)
    (text,) = faults(finding)
    assert text.startswith("phy-br-meta is cut off, so no guest is served: the switch accepts no")
    assert "mod-port br-meta phy-br-meta receive" in finding.remedy


def test_tap_meta_has_the_mac_of_its_bridge() -> None:
    snapshot = changed("tap-meta", mac_in_use="02:00:00:00:00:01")
    row = snapshot.interface("tap-meta", "br-meta")
    (fault,) = faults(checks_switch.tap(row, snapshot, wanted=META_SETTINGS))
    assert fault.startswith("tap-meta has the MAC 02:00:00:00:00:01, not fa:16")


def test_remedies_are_those_of_meta_ips() -> None:
    bare, six = replace(HOST, route=False, addresses=()), META_SETTINGS.over(IPV6)
    other = replace(HOST, listeners=(TcpListener(IPv4Address("240.0.0.1"), 80, INODE + 1),))
    way_back = checks_host.way_back(replace(HOST, way_back="eth0"), META_SETTINGS)
    assert way_back is not None
    listener = checks_host.listener(other, META_SETTINGS, running=True)
    add = "`ip route add 240.0.0.0/16 via 240.0.255.255 dev tap-meta onlink mtu 1280`"
    rule = "no rule before that of the main table may match"
    silent = [checks_host.path(PathFacts(cause="no"), each) for each in (META_SETTINGS, six)]
    expect(
        [
            (checks_host.route(bare, META_SETTINGS), WRONG, "", add, "[METADATA] provider_cidr"),
            (checks_host.route(bare, six), WRONG, "", "`ip -6 route add fd00:a9fe:a9fe:a9fe::/64"),
            (way_back, WRONG, "by tap-meta but: eth0", rule),
            (listener, WRONG, "", "[METADATA] host_proxy_listen_port"),
            (silent[0], WRONG, "", "meta-patch, flows"),
        ]
    )
    assert not [each for each in silent if "rule-" in each.remedy]


def test_flows_of_other_programs_on_the_second_bridge() -> None:
    for flow, expected in (
        (Foreign(0x1, 0, {}, "NORMAL"), WARNING),
        (Foreign(0x1, 2, {"in_port": 2}, "drop"), OK),
        (Foreign(0x1, 201, {"in_port": 2}, "goto_table:80"), OK),
        (Foreign(0x1, 300, {"in_port": 9}, "NORMAL"), OK),
        (Foreign(0x1, 300, {"in_port": 2}, "drop"), WRONG),
        (Foreign(0x1, 400, {}, "NORMAL"), WRONG),
        (Foreign(0x1, 201, {}, "drop", 80), WRONG),
        (Foreign(0x1, 202, {}, "drop", 91), WRONG),
        (Foreign(0x1, 202, {}, "drop", 7), OK),
    ):
        (finding,) = checks_flows.mappings(META_SNAPSHOT, (flow,), META)
        delete = f'"cookie=0x1/-1,table={flow.table}"'
        remedies = [] if expected is OK else ["meta:br-meta from [ovs] bridge_mappings", delete]
        expect([(finding, expected, "", *remedies)])


def test_mapping_in_ovsdb_is_a_warning() -> None:
    for ids, flows, expected, text in (
        ({"ovn-bridge-mappings": "a:br-ex, meta:br-meta"}, (), WARNING, "network meta to br-meta"),
        ({"ovn-bridge-mappings": "a:br-ex", "x": "a:br-meta"}, (), OK, ""),
        ({}, None, UNKNOWN, ""),
    ):
        (finding,) = checks_flows.mappings(replace(META_SNAPSHOT, external_ids=ids), flows, META)
        assert (finding.status, text in finding.text) == (expected, True), ids


def test_ports_without_a_meta_ip_are_named() -> None:
    room = checks_switch.meta_range
    late = replace(META_PORT, name="late", state=PortState.NO_META_IP, key="", label="")
    lost = "so 1 ports have none and their guests are not served: late"
    expect(
        [
            (room([META_PORT, late], META_SETTINGS), *(WRONG, lost, "[METADATA] provider_cidr")),
            (room([replace(late, vid=7)], META_SETTINGS), WRONG, ": late (VID 7)"),
        ]
    )


def test_meta_ips_that_ovsdb_has_not_are_named() -> None:
    ids, six = checks_switch.meta_ids, "fd00:a9fe:a9fe:a9fe::3"
    for stored, text in (
        (MetaIds("240.0.0.9", META_MAC), "tap1 (240.0.0.9, in use: 240.0.0.3)"),
        (
            MetaIds(META_IP, "fa:16:ee:00:00:09", META_IP6),
            "tap1 (fa:16:ee:00:00:09, in use: fa:16:ee:00:00:03)",
        ),
        (MetaIds(META_IP, META_MAC, "fd00::9"), f"tap1 (fd00::9, in use: {six})"),
    ):
        finding = ids([META_PORT], {"tap1": stored})
        expect([(finding, WRONG, text, "dfmeta-meta-ip6")])
    expect([(ids([META_PORT], {}), OK, "")])
