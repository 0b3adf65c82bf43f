"""The checks of Meta IPs on facts that are right, and wrong in one way each."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest

from dfmeta.cli import doctor_host
from dfmeta.flows.family import IPV6
from dfmeta.inspect import checks_host, checks_meta, checks_path, checks_switch
from dfmeta.inspect.checks_path import PathFacts
from dfmeta.inspect.cuts import LINK_DOWN, NO_RECV, PortBits
from dfmeta.inspect.facts import Foreign, HostFacts, Interface, Listener, Snapshot
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import MetaIds, PortState
from tests.core.unit.inspect.values import (
    INODE,
    META,
    META_IP,
    META_IP6,
    META_MAC,
    META_PORT,
    META_SETTINGS,
    META_SNAPSHOT,
)

HOST = HostFacts(
    up=True,
    addresses=(("tap-meta", IPv4Interface("240.0.0.1/32")),),
    route=True,
    neighbour=True,
    way_back="tap-meta",
    rp_filter=(1, 0),
    arp_ignore=1,
    listeners=(Listener(IPv4Address("240.0.0.1"), 80, INODE),),
)
STORED = {"tap1": MetaIds(META_IP, META_MAC, META_IP6)}


def changed(name: str, **values: Any) -> Snapshot:
    """The host with one other interface, or with one other bridge."""
    interfaces = tuple(
        replace(one, **values) if one.name == name else one for one in META_SNAPSHOT.interfaces
    )
    bridges = tuple(
        replace(one, **values) if one.name == name else one for one in META_SNAPSHOT.bridges
    )
    return Snapshot(bridges, interfaces)


def without(name: str) -> Snapshot:
    return Snapshot(
        tuple(one for one in META_SNAPSHOT.bridges if one.name != name),
        tuple(one for one in META_SNAPSHOT.interfaces if one.name != name),
    )


def faults(*findings: Finding) -> list[str]:
    """What is wrong; a finding has a remedy if and only if it has a fault."""
    for one in findings:
        assert bool(one.remedy) == (one.status in (Status.WRONG, Status.WARNING))
    return [one.text for one in findings if one.status is Status.WRONG]


def test_a_host_as_dfmeta_makes_it_has_no_fault() -> None:
    found = [
        checks_meta.bridge(META_SNAPSHOT, META_SETTINGS, META),
        *checks_meta.patch(META_SNAPSHOT, META_SETTINGS, META),
        *checks_meta.mappings(META_SNAPSHOT, (), META),
        checks_meta.room([META_PORT], META_SETTINGS, running=True),
        checks_meta.ids([META_PORT], STORED, running=True),
        *checks_switch.tap_port(
            META_SNAPSHOT.interface("tap-meta", "br-meta"), META_SNAPSHOT, wanted=META_SETTINGS
        ),
        *(one for one in doctor_host.way(HOST, META_SETTINGS, None) if one.check != "firewall"),
        checks_host.listener(HOST, META_SETTINGS, running=True),
    ]
    assert faults(*found) == []
    checks = [one.check for one in found]
    assert not {"rule-from", "rule-oif"} & {*checks}
    assert {"route", "way-back", "neighbour", "tap", "tap-vlan", "meta-patch-vlan"} <= {*checks}


@pytest.mark.parametrize(
    ("snapshot", "cause", "text"),
    [
        (without("br-meta"), "", "there is no bridge br-meta"),
        (changed("br-meta", fail_mode=""), "", "br-meta has fail_mode=standalone"),
        (changed("br-meta", datapath_type=""), "", "br-meta has datapath_type=system and br-int"),
        (META_SNAPSHOT, "the bridge does not speak OpenFlow 1.3", "br-meta: the bridge does not"),
    ],
)
def test_the_second_bridge(snapshot: Snapshot, cause: str, text: str) -> None:
    (found,) = faults(checks_meta.bridge(snapshot, META_SETTINGS, META, cause=cause))
    assert found.startswith(text)


def test_a_bridge_of_others_keeps_its_fail_mode_and_its_datapath() -> None:
    port = Interface("eth9", "br-meta")
    theirs = changed("br-meta", fail_mode="", external_ids={})
    theirs = replace(theirs, interfaces=(*theirs.interfaces, port))
    found = checks_meta.bridge(theirs, META_SETTINGS, META)
    assert (found.status, "fail_mode=standalone, and ports of others: eth9" in found.text) == (
        Status.OK,
        True,
    )
    other = replace(changed("br-meta", datapath_type=""), interfaces=theirs.interfaces)
    lost = checks_meta.bridge(other, META_SETTINGS, META)
    assert "[df_metadata] meta_bridge to another name, or remove the ports of" in lost.remedy


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        (without("int-br-meta"), "int-br-meta is not a port of br-int"),
        (without("phy-br-meta"), "phy-br-meta is not a port of br-meta"),
        (changed("phy-br-meta", bridge="br-ex"), "phy-br-meta is a port of br-ex, not of br-meta"),
        (changed("int-br-meta", type=""), "int-br-meta is not a patch port with the peer phy-br-"),
        (changed("phy-br-meta", options={"peer": "x"}), "phy-br-meta is not a patch port with the"),
        (changed("phy-br-meta", ofport=None), "Open vSwitch has given phy-br-meta no port number"),
        (changed("int-br-meta", tag=None, vlan_mode="", cvlans=()), "int-br-meta has tag=None"),
        (changed("phy-br-meta", cvlans=()), "phy-br-meta has tag=4095 vlan_mode=dot1q-tunnel cvl"),
    ],
)
def test_the_patch(snapshot: Snapshot, text: str) -> None:
    (found,) = faults(*checks_meta.patch(snapshot, META_SETTINGS, META))
    assert found.startswith(text)


def test_a_patch_port_from_which_the_switch_takes_no_frames() -> None:
    bits = {"br-meta": {2: PortBits(config=NO_RECV, state=LINK_DOWN)}, "br-int": {3: PortBits()}}
    (found, vlan) = checks_meta.patch(META_SNAPSHOT, META_SETTINGS, META, bits)
    (text,) = faults(found, vlan)
    assert text.startswith("phy-br-meta is cut off, so no guest is served: the switch accepts no")
    assert "mod-port br-meta phy-br-meta receive" in found.remedy


@pytest.mark.parametrize(
    ("tap", "text"),
    [
        (None, "tap-meta is not a port of br-meta"),
        ({"type": ""}, "tap-meta is not internal"),
        ({"mac_in_use": "02:00:00:00:00:01"}, "tap-meta has the MAC 02:00:00:00:00:01, not fa:16"),
        ({"ofport": None}, "Open vSwitch has given tap-meta no port number"),
    ],
)
def test_tap_meta(tap: dict[str, Any] | None, text: str) -> None:
    found: Interface | None = None
    if tap is not None:
        found = changed("tap-meta", **tap).interface("tap-meta", "br-meta")
    snapshot = META_SNAPSHOT if tap is not None else without("tap-meta")
    (fault,) = faults(*checks_switch.tap_port(found, snapshot, wanted=META_SETTINGS))
    assert fault.startswith(text)


def test_a_route_and_an_address_that_are_missing_have_their_commands() -> None:
    bare = replace(HOST, route=False, addresses=())
    (route,) = [checks_host.route(bare, META_SETTINGS)]
    assert "`ip route add 240.0.0.0/16 via 240.0.255.255 dev tap-meta onlink`" in route.remedy
    six = checks_host.route(bare, META_SETTINGS.over(IPV6))
    assert "[METADATA] provider_cidr to another network" in route.remedy
    assert "`ip -6 route add fd00:a9fe:a9fe:a9fe::/64 via " in six.remedy
    assert len(faults(route, six, checks_host.address(bare, META_SETTINGS))) == 2 + 1


def test_a_route_of_another_program_is_found_by_the_way_back() -> None:
    (found,) = checks_host.way_back(replace(HOST, way_back="eth0"), META_SETTINGS)
    assert found.text == "answers to guests do not leave by tap-meta but: eth0"
    assert "no rule before that of the main table may match" in found.remedy
    assert "`ip route show root 240.0.0.0/16`" in found.remedy


def test_remedies_name_the_options_of_meta_ips() -> None:
    other = replace(HOST, listeners=(Listener(IPv4Address("240.0.0.1"), 80, INODE + 1),))
    found = checks_host.listener(other, META_SETTINGS, running=True)
    assert "[METADATA] host_proxy_listen_port" in found.remedy
    twice = (*HOST.addresses, ("eth0", IPv4Interface("240.0.0.1/32")))
    lost = checks_host.address(replace(HOST, addresses=twice, way_back="eth0"), META_SETTINGS)
    assert "[METADATA] provider_cidr to another network" in lost.remedy
    path = checks_path.path(PathFacts(cause="no"), META_SETTINGS)
    assert (
        "the lines meta-patch, flows, rp_filter, route, neighbour, listener and firewall name"
        in (path.remedy)
    )
    assert "rule-" not in checks_path.path(PathFacts(cause="no"), META_SETTINGS.over(IPV6)).remedy


@pytest.mark.parametrize(
    ("flow", "status"),
    [
        (Foreign(0x1, 0, {}, "NORMAL"), Status.WARNING),
        (Foreign(0x1, 2, {"in_port": 2}, "drop"), Status.OK),
        (Foreign(0x1, 201, {"in_port": 2}, "goto_table:80"), Status.OK),
        (Foreign(0x1, 300, {"in_port": 9}, "NORMAL"), Status.OK),
        (Foreign(0x1, 300, {"in_port": 2}, "drop"), Status.WRONG),
        (Foreign(0x1, 400, {}, "NORMAL"), Status.WRONG),
        (Foreign(0x1, 201, {}, "drop", 80), Status.WRONG),
        (Foreign(0x1, 202, {}, "drop", 91), Status.WRONG),
        (Foreign(0x1, 202, {}, "drop", 7), Status.OK),
    ],
)
def test_flows_of_other_programs(flow: Foreign, status: Status) -> None:
    found = list(checks_meta.mappings(META_SNAPSHOT, (flow,), META))
    assert [one.status for one in found] == [status]
    faults(*found)
    if status is not Status.OK:
        assert "meta:br-meta from [ovs] bridge_mappings" in found[0].remedy
        assert f'"cookie=0x1/-1,table={flow.table}"' in found[0].remedy


def test_a_mapping_in_ovsdb_is_a_warning() -> None:
    mapped = replace(META_SNAPSHOT, external_ids={"ovn-bridge-mappings": "a:br-ex, meta:br-meta"})
    (found,) = checks_meta.mappings(mapped, (), META)
    assert (found.status, "the network meta to br-meta" in found.text) == (Status.WARNING, True)
    other = replace(
        META_SNAPSHOT, external_ids={"ovn-bridge-mappings": "a:br-ex", "x": "a:br-meta"}
    )
    (fine,) = checks_meta.mappings(other, (), META)
    assert fine.status is Status.OK
    (unread,) = checks_meta.mappings(META_SNAPSHOT, None, META)
    assert unread.status is Status.UNKNOWN


def test_ports_without_a_meta_ip_are_named() -> None:
    late = replace(META_PORT, name="late", state=PortState.NO_META_IP, key="", label="")
    found = checks_meta.room([META_PORT, late], META_SETTINGS, running=True)
    (text,) = faults(found)
    assert text.endswith("so 1 ports have none and their guests are not served: late")
    assert "[METADATA] provider_cidr" in found.remedy
    (text,) = faults(checks_meta.room([replace(late, vid=7)], META_SETTINGS, running=True))
    assert text.endswith(": late (VID 7)")
    asked = checks_meta.room([META_PORT], META_SETTINGS, running=False)
    assert asked.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (MetaIds(), "tap1 (none, in use: 240.0.0.3)"),
        (MetaIds("240.0.0.9", META_MAC), "tap1 (240.0.0.9, in use: 240.0.0.3)"),
        (
            MetaIds(META_IP, "fa:16:ee:00:00:09", META_IP6),
            "tap1 (fa:16:ee:00:00:09, in use: fa:16:ee:00:00:03)",
        ),
        (MetaIds(META_IP, META_MAC), "tap1 (none, in use: fd00:a9fe:a9fe:a9fe::3)"),
        (
            MetaIds(META_IP, META_MAC, "fd00::9"),
            "tap1 (fd00::9, in use: fd00:a9fe:a9fe:a9fe::3)",
        ),
    ],
)
def test_meta_ips_that_ovsdb_has_not(stored: MetaIds, text: str) -> None:
    found = checks_meta.ids([META_PORT], {"tap1": stored}, running=True)
    assert text in faults(found)[0]
    assert "dfmeta-meta-ip6" in found.remedy
    assert checks_meta.ids([META_PORT], {}, running=True).status is Status.OK
    assert checks_meta.ids([META_PORT], STORED, running=False).status is Status.UNKNOWN
