"""Each check on facts that are right, and wrong in one way each."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface

import pytest

from dfmeta.inspect import checks_daemon, checks_host, checks_limits, checks_switch, which
from dfmeta.inspect.checks_daemon import DaemonFacts, FolderFacts
from dfmeta.inspect.facts import (
    Bridge,
    Foreign,
    Interface,
    LimitFacts,
    Listener,
    Snapshot,
)
from dfmeta.inspect.finding import Finding, Status, healthy, listed, ok, unknown, wrong
from dfmeta.inspect.overlap import takes
from dfmeta.model import PortState
from tests.unit.inspect.values import HOST, INODE, INSTANCE, IP, PORT, SETTINGS

TAP = Interface(
    "tap-metadata",
    "br-int",
    type="internal",
    ofport=9,
    external_ids={"dfmeta": "tap"},
    mac_in_use="02:64:66:6d:65:fe",
    tag=4095,
    vlan_mode="dot1q-tunnel",
    cvlans=(1,),
)


def status(finding: Finding) -> Status:
    """Of a finding; what is wrong says what to do, and nothing else does."""
    assert bool(finding.remedy) == (finding.status is Status.WRONG)
    return finding.status


def test_unknown_is_no_fault() -> None:
    assert healthy([ok("a", "b"), unknown("c", "d")])
    assert not healthy([ok("a", "b"), wrong("c", "d", "e")])


def test_many_names_end_in_a_number() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(f"p{n}" for n in range(10)) == "p0, p1, p2, p3, p4, p5, p6, p7 and 2 more"


def test_a_host_as_it_ought_to_be() -> None:
    findings = [
        checks_host.device(HOST, SETTINGS),
        checks_host.address(HOST, SETTINGS),
        *checks_host.rules(HOST, SETTINGS),
        checks_host.route(HOST, SETTINGS),
        *checks_host.way_back(HOST, SETTINGS),
        checks_host.neighbour(HOST, SETTINGS),
        *checks_limits.queue(HOST.limits, backlog=4096),
        checks_limits.conntrack(HOST.limits, rate=1000),
        checks_host.rp_filter(HOST, SETTINGS),
        checks_host.arp_ignore(HOST, SETTINGS),
        checks_host.checksum(HOST, "netdev", wanted=SETTINGS),
        checks_host.listener(HOST, SETTINGS, running=True),
        *checks_switch.tap_port(TAP, Snapshot(), wanted=SETTINGS),
    ]
    assert [status(finding) for finding in findings] == [Status.OK] * len(findings)


def test_another_way_than_ours_is_told_only_where_ours_is_there() -> None:
    (finding,) = checks_host.way_back(replace(HOST, way_back="lo"), SETTINGS)
    assert status(finding) is Status.WRONG
    assert "but: lo" in finding.text
    assert "before 32764" in finding.remedy
    assert not list(checks_host.way_back(replace(HOST, way_back="lo", route=False), SETTINGS))


def test_the_next_hop() -> None:
    finding = checks_host.neighbour(replace(HOST, neighbour=False), SETTINGS)
    assert status(finding) is Status.WRONG
    assert "128.0.0.0" in finding.remedy


def test_the_queue_of_the_listener() -> None:
    short, cookies = checks_limits.queue(LimitFacts(somaxconn=128, syncookies=0), backlog=4096)
    assert (status(short), status(cookies)) == (Status.WRONG, Status.WRONG)
    assert "somaxconn=4096" in short.remedy
    assert "tcp_syncookies=1" in cookies.remedy


@pytest.mark.parametrize(
    ("count", "room", "words"),
    [
        (0, None, "does not track"),
        (0, 1000, "does not track"),
        (1, 262_144, "1 of 262144"),
        (1, 240_000, "1 of 240000"),
        (1, 65_536, "of which one guest can take 120000"),
        (255_000, 262_144, "255000 of 262144 entries of conntrack are taken: when it is full"),
    ],
)
def test_connection_tracking_has_room(count: int, room: int | None, words: str) -> None:
    limits = LimitFacts(conntrack_count=count, conntrack_max=room)
    finding = checks_limits.conntrack(limits, rate=1000)
    assert words in finding.text
    right = room is None or not count or (room >= 240_000 and count < 0.9 * room)
    assert status(finding) is (Status.OK if right else Status.WRONG)
    if not right:
        assert f"nf_conntrack_max={max(240_000, 2 * (room or 0))}" in finding.remedy


def test_the_device() -> None:
    assert "no device" in checks_host.device(replace(HOST, up=None), SETTINGS).text
    assert "is down" in checks_host.device(replace(HOST, up=False), SETTINGS).text
    assert "no carrier" in checks_host.device(replace(HOST, carrier=False), SETTINGS).text


def test_the_address_is_a_32_on_tap_metadata_alone() -> None:
    short = replace(HOST, addresses=(("tap-metadata", IPv4Interface(f"{IP}/16")),))
    assert "does not have" in checks_host.address(short, SETTINGS).text
    both = replace(HOST, addresses=(*HOST.addresses, ("eth0", IPv4Interface(f"{IP}/32"))))
    assert "on eth0 as well" in checks_host.address(both, SETTINGS).text


@pytest.mark.parametrize(
    ("values", "from_rule", "expected", "word"),
    [
        ((0, 0), False, Status.OK, "is 0"),
        ((1, 0), True, Status.OK, "does no harm"),
        ((0, 2), True, Status.OK, "is 2"),
        ((1, 0), False, Status.WRONG, "and drops"),
        ((1, 2), False, Status.WRONG, "may drop"),
    ],
)
def test_rp_filter(values: tuple[int, int], from_rule: bool, expected: Status, word: str) -> None:
    rules = (replace(HOST.rules[0], there=from_rule), HOST.rules[1])
    finding = checks_host.rp_filter(replace(HOST, rp_filter=values, rules=rules), SETTINGS)
    assert status(finding) is expected
    assert word in finding.text


def test_checksums_matter_on_a_userspace_datapath_only() -> None:
    lazy = replace(HOST, tx_checksum=True)
    assert status(checks_host.checksum(lazy, "", wanted=SETTINGS)) is Status.OK
    assert status(checks_host.checksum(lazy, "netdev", wanted=SETTINGS)) is Status.WRONG
    silent = replace(HOST, tx_checksum=None)
    assert status(checks_host.checksum(silent, "netdev", wanted=SETTINGS)) is Status.UNKNOWN


def test_the_listener_is_the_one_that_the_daemon_remembers() -> None:
    another = replace(HOST, listeners=(Listener(IPv4Address(0), 18080, INODE + 1),))
    finding = checks_host.listener(another, SETTINGS, running=True)
    assert "another program listens on 0.0.0.0:18080" in finding.text
    nobody = replace(HOST, listeners=(Listener(IPv4Address(IP), 80, INODE),))
    assert "wait until" in checks_host.listener(nobody, SETTINGS, running=True).remedy
    assert "start" in checks_host.listener(nobody, SETTINGS, running=False).remedy
    assert "kept open" in checks_host.listener(HOST, SETTINGS, running=False).text
    unnumbered = replace(SETTINGS, port=None)
    assert status(checks_host.listener(HOST, unnumbered, running=True)) is Status.UNKNOWN


def test_tap_metadata_in_ovsdb() -> None:
    def texts(found: Interface | None, *others: Interface) -> list[str]:
        return [
            finding.text
            for finding in checks_switch.tap_port(
                found, Snapshot(interfaces=others), wanted=SETTINGS
            )
            if status(finding) is Status.WRONG
        ]

    assert texts(None) == ["tap-metadata is not a port of br-int"]
    assert texts(None, replace(TAP, bridge="br-ex")) == [
        "tap-metadata is a port of br-ex, not of br-int"
    ]
    assert "lacks dfmeta's mark" in texts(replace(TAP, external_ids={}))[0]
    assert "given tap-metadata no port number: E" in texts(replace(TAP, ofport=None, error="E"))[0]
    assert len(texts(replace(TAP, type="system", tag=None))) == 2


def test_flows_that_cannot_be_read_are_unknown() -> None:
    (finding,) = checks_switch.foreign_flows(None, {1: "tap1"}, wanted=SETTINGS)
    assert status(finding) is Status.UNKNOWN
    (finding,) = checks_switch.our_flows(None, "", wanted=SETTINGS)
    assert status(finding) is Status.UNKNOWN


def test_a_foreign_flow_is_named_with_its_port() -> None:
    flow = Foreign(0xBAD, 300, {"in_port": 1}, "drop")
    (finding,) = checks_switch.foreign_flows([flow], {1: "tap1"}, wanted=SETTINGS)
    assert "takes packets of tap1 to" in finding.text
    for other in (
        replace(flow, priority=299),
        replace(flow, hands_on=True),
        replace(flow, match={"in_port": 2}),
    ):
        (finding,) = checks_switch.foreign_flows([other], {1: "tap1"}, wanted=SETTINGS)
        assert status(finding) is Status.OK


@pytest.mark.parametrize(
    ("match", "taken"),
    [
        ({}, True),
        ({"in_port": 1}, True),
        ({"in_port": 2}, False),
        ({"eth_type": 0x0800}, True),
        ({"eth_type": 0x86DD}, False),
        ({"eth_type": 0x0806}, True),
        ({"eth_type": 0x0806, "arp_op": 2}, False),
        ({"eth_type": 0x0806, "arp_tpa": "10.0.0.1"}, False),
        ({"eth_type": 0x0806, "arp_spa": "10.0.0.5"}, True),
        ({"eth_type": 0x0800, "ip_proto": 17}, False),
        ({"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": 80}, True),
        ({"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": 22}, False),
        ({"eth_type": 0x0800, "ip_proto": 6, "tcp_dst": (64, 0xFFC0)}, True),
        ({"eth_type": 0x0800, "ipv4_dst": ("169.254.0.0", "255.255.0.0")}, True),
        ({"eth_type": 0x0800, "ipv4_dst": ("10.0.0.0", "255.0.0.0")}, False),
        ({"eth_type": 0x0800, "ipv4_src": "10.0.0.5"}, True),
        ({"eth_src": "fa:16:3e:00:00:01"}, True),
        ({"vlan_vid": 0x1FFF}, False),
        ({"vlan_vid": (0x1000, 0x1000)}, False),
        ({"vlan_vid": 0}, True),
        ({"ct_state": (0x20, 0x20)}, False),
        ({"ct_state": (0, 0x20)}, True),
        ({"reg2": 5}, False),
        ({"reg2": 0}, True),
        ({"metadata": 1}, False),
        ({"icmpv4_type": 8}, False),
        ({"eth_type_nxm": 0x86DD}, False),
    ],
)
def test_which_matches_take_guests_packets(match: dict[str, int | str], taken: bool) -> None:
    assert takes(match, {1}, ip=IP) is taken


def test_the_daemon() -> None:
    down = checks_daemon.daemon(DaemonFacts(running=False, cause="Connection refused"), SETTINGS)
    assert down.text == (
        "dfmeta-agent is not running: nobody answers at 127.0.0.1:9697: Connection refused"
    )
    waiting = DaemonFacts(running=True, missing=("flows", "novelty"))
    assert "has not confirmed its flows; novelty" in checks_daemon.daemon(waiting, SETTINGS).text
    mute = checks_daemon.daemon(DaemonFacts(running=True), SETTINGS)
    assert "does not say why" in mute.text
    up = checks_daemon.daemon(DaemonFacts(running=True, ready=True), SETTINGS)
    assert status(up) is Status.OK


def test_state_path() -> None:
    for facts, expected in (
        (FolderFacts(there=True), Status.OK),
        (FolderFacts(there=False), Status.WRONG),
        (FolderFacts(there=True, mode=0o750), Status.WRONG),
        (FolderFacts(there=True, folder=False), Status.WRONG),
        (FolderFacts(there=True, error="Permission denied"), Status.WRONG),
    ):
        assert status(checks_daemon.state_path(facts, SETTINGS)) is expected


def test_ports_in_each_state() -> None:
    def texts(*states: PortState) -> list[tuple[Status, str]]:
        ports = [replace(PORT, name=f"t{n}", state=s, fault="odd") for n, s in enumerate(states)]
        return [(status(f), f.text) for f in checks_daemon.ports(ports, SETTINGS, running=True)]

    assert texts() == [(Status.OK, "0 of 0 guests' ports on br-int served")]
    assert texts(PortState.SERVED, PortState.DEAD) == [
        (Status.OK, "1 of 2 guests' ports on br-int served; switched off by their owner: t1")
    ]
    found = texts(PortState.BROKEN, PortState.NO_INSTANCE, PortState.NO_OFPORT, PortState.SERVED)
    assert [one for one, _ in found] == [Status.WRONG] * 3
    assert [text.split(":")[0] for _, text in found] == [
        "broken",
        "no instance is known for t1",
        "Open vSwitch has given no port number to t2",
    ]


def test_nova_answers_no_port_whose_project_the_daemon_does_not_know() -> None:
    nova = replace(SETTINGS, needs_project=True, sources=("ovsdb", "libvirt"))
    (finding,) = checks_daemon.ports([PORT], nova, running=True)
    assert status(finding) is Status.WRONG
    assert "no project is known for tap1" in finding.text
    assert "ovsdb, libvirt says none" in finding.text
    for port, running in ((PORT, False), (replace(PORT, project="p"), True)):
        (finding,) = checks_daemon.ports([port], nova, running=running)
        assert status(finding) is Status.OK


def test_a_port_is_meant_by_name_iface_id_or_instance() -> None:
    other = replace(PORT, name="tap2", iface_id="b")
    assert which.named([PORT, other], "tap1") == (PORT,)
    assert which.named([PORT, other], "a-port") == (PORT,)
    assert which.named([PORT, other], INSTANCE.upper()) == (PORT, other)
    assert which.named([replace(PORT, instance="")], "x") == ()


def test_an_empty_name_means_no_port() -> None:
    assert which.named([replace(PORT, instance="", iface_id="")], "") == ()


def test_why_a_port_has_no_flows() -> None:
    assert which.unusable(PORT) == ""
    assert "fault" in which.unusable(replace(PORT, state=PortState.BROKEN, fault="a fault"))
    assert "switched it off" in which.unusable(replace(PORT, state=PortState.DEAD))
    nowhere = replace(PORT, state=PortState.NO_OFPORT, ofport=None)
    assert "no port number" in which.unusable(nowhere)


def test_what_is_no_guests_port() -> None:
    def why(interface: Interface) -> str:
        return which.no_port(Snapshot(interfaces=(interface,)), interface.name, wanted=SETTINGS)

    assert "leads to the proxy" in why(TAP)
    assert "the bridge's own" in why(Interface("br-int", "br-int", type="internal"))
    assert "its type is vxlan" in why(Interface("vx0", "br-int", type="vxlan"))
    assert "an agent's" in why(Interface("tapd", "br-int", type="internal"))
    assert "neither an instance" in why(Interface("eth1", "br-int"))
    assert "is on br-ex" in why(Interface("eth1", "br-ex"))
    assert "there is no port" in which.no_port(Snapshot(), "x", wanted=SETTINGS)


def test_the_bridge() -> None:
    assert status(checks_switch.bridge(Bridge("br-int"), SETTINGS)) is Status.OK
    assert status(checks_switch.bridge(None, SETTINGS)) is Status.WRONG
