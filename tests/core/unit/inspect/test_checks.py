"""Each check on facts that are right, and wrong in one way each."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any

import pytest

from dfmeta.cli import doctor_host
from dfmeta.flows.family import IPV6
from dfmeta.inspect import checks_daemon, checks_host, checks_limits, checks_switch, which
from dfmeta.inspect.checks_daemon import DaemonFacts, FolderFacts, OptionFacts, Owners
from dfmeta.inspect.cuts import NO_FWD, NO_RECV, PortBits, cut_of
from dfmeta.inspect.facts import (
    Bridge,
    ConntrackFacts,
    Foreign,
    HostFacts,
    Interface,
    LimitFacts,
    Listener,
    Snapshot,
)
from dfmeta.inspect.finding import Finding, Status, by_files, healthy, listed, ok, unknown, wrong
from dfmeta.inspect.firewall import Syn
from dfmeta.inspect.overlap import takes
from dfmeta.model import Endpoint, GuestAddress, Port, PortKind, PortState
from dfmeta.ports.vif import GUEST_TYPES
from tests.core.unit.inspect.values import ADDRESS, HOST, INODE, INSTANCE, IP, PORT, SETTINGS

IP6 = "fd00:a9fe:a9fe:a9fe::a9fe"
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
    assert bool(finding.remedy) == (finding.status in (Status.WRONG, Status.WARNING))
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
        checks_limits.conntrack(ConntrackFacts(), rate=1000),
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
    assert "before priority 32764" in finding.remedy
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
    ("facts", "words"),
    [
        (ConntrackFacts(), "the host does not track connections"),
        (ConntrackFacts(room=1000), "the host does not track connections"),
        (
            ConntrackFacts(room=0, count=70_000),
            "70000 entries of conntrack are taken, and it has no",
        ),
        (ConntrackFacts(room=240_000, count=1), "1 of 240000 entries of conntrack are taken"),
        (
            ConntrackFacts(room=262_144, count=9, guests=3),
            "9 of 262144 entries of conntrack are taken, 3 of them by connections to the proxy",
        ),
        (
            ConntrackFacts(room=262_144, count=9, dropped=7),
            "9 of 262144 entries of conntrack are taken; the table was full before: 7 packets",
        ),
        (
            ConntrackFacts(room=8192, count=9, guests=0),
            "9 of 8192 entries of conntrack are taken, 0 of them by connections to the proxy",
        ),
    ],
)
def test_connection_tracking_has_room(facts: ConntrackFacts, words: str) -> None:
    finding = checks_limits.conntrack(facts, rate=1000)
    assert status(finding) is Status.OK
    assert finding.text.startswith(words)
    assert "fill the table" not in finding.text


@pytest.mark.parametrize("guests", [None, 2])
def test_a_small_table_is_no_fault_and_the_line_says_the_cost(guests: int | None) -> None:
    """A host with 1 GB of memory and the kernel's datapath has such a table."""
    small = ConntrackFacts(room=8192, count=31, guests=guests)
    finding = checks_limits.conntrack(small, rate=1000)
    assert status(finding) is Status.OK
    assert "keeps its entry until 120 s after its end" in finding.text
    assert "nf_conntrack_max=240000`" in finding.text
    soon = checks_limits.conntrack(replace(small, kept=30), rate=1000)
    assert "until 30 s" in soon.text
    assert "nf_conntrack_max=60000`" in soon.text


@pytest.mark.parametrize(
    ("facts", "words", "room"),
    [
        (ConntrackFacts(room=262_144, count=235_930), "235930 of 262144 entries", 524_288),
        (ConntrackFacts(room=8192, count=7373, guests=7000), "7000 of them by", 240_000),
        (ConntrackFacts(room=8192, count=9, dropped=1), "was full before: 1 packets", 240_000),
        (ConntrackFacts(room=8192, evicted=5), "and 5 unanswered connections", 240_000),
    ],
)
def test_a_full_table_is_a_fault(facts: ConntrackFacts, words: str, room: int) -> None:
    finding = checks_limits.conntrack(facts, rate=1000)
    assert status(finding) is Status.WRONG
    assert words in finding.text
    assert f"`sysctl -w net.netfilter.nf_conntrack_max={room}`" in finding.remedy
    mended = replace(facts, room=room)
    assert status(checks_limits.conntrack(mended, rate=1000)) is Status.OK, "the remedy is one"


def test_the_device() -> None:
    assert "no device" in checks_host.device(replace(HOST, up=None), SETTINGS).text
    assert "is down" in checks_host.device(replace(HOST, up=False), SETTINGS).text
    assert "no carrier" in checks_host.device(replace(HOST, carrier=False), SETTINGS).text


def test_the_address_is_a_32_on_tap_metadata_alone() -> None:
    short = replace(HOST, addresses=(("tap-metadata", IPv4Interface(f"{IP}/16")),))
    assert "does not have" in checks_host.address(short, SETTINGS).text
    both = replace(HOST, addresses=(*HOST.addresses, ("eth0", IPv4Interface(f"{IP}/32"))))
    assert status(checks_host.address(both, SETTINGS)) is Status.OK
    assert "eth0 has it as well" in checks_host.address(both, SETTINGS).text
    astray = checks_host.address(replace(both, way_back="eth1"), SETTINGS)
    assert status(astray) is Status.WRONG
    assert "on eth0 as well" in astray.text
    assert "but: eth1" in astray.text


def test_remedies_name_the_version_of_ip_that_they_are_for() -> None:
    other = replace(SETTINGS, host_ip6=IP6, ip6=("fe80::a9fe:a9fe",)).over(IPV6)
    bare = HostFacts(up=True, rules=tuple(replace(rule, there=False) for rule in HOST.rules))
    checks = (checks_host.address, checks_host.route, checks_host.neighbour)
    for wanted, command in ((SETTINGS, "`ip "), (other, "`ip -6 ")):
        found = [check(bare, wanted) for check in checks] + [*checks_host.rules(bare, wanted)]
        assert [status(one) for one in found] == [Status.WRONG] * len(found)
        assert all(one.remedy.startswith(command) for one in found)
        found += checks_host.way_back(replace(HOST, way_back="lo"), wanted)
        next_hop = wanted.keys.next_hop(wanted.family.version)
        assert all(next_hop in one.remedy for one in found[1:3])
    strict = checks_host.rp_filter(replace(bare, rp_filter=(1, 1)), SETTINGS)
    assert status(strict) is Status.WRONG
    assert strict.remedy.startswith("`ip rule")
    remedy = checks_host.address(HOST, other).remedy
    assert f"replace {IP6}/128 dev tap-metadata nodad noprefixroute`" in remedy
    (astray,) = checks_host.way_back(replace(HOST, way_back="lo"), other)
    assert "or to fd00:a9fe:a9fe:a9fe::/64" in astray.remedy
    twice = HostFacts(up=True, addresses=(("eth0", IPv6Interface(f"{IP6}/128")),), way_back="eth0")
    assert "set [df_metadata] host_ip6 to another" in checks_host.address(twice, other).remedy


def test_a_working_host_with_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Syn] = []
    monkeypatch.setattr(doctor_host, "read_filters", lambda syn: asked.append(syn) or ())
    wanted = replace(SETTINGS, host_ip6=IP6, ip6=("fe80::a9fe:a9fe",), listener6=99).over(IPV6)
    host = replace(
        HOST,
        addresses=(("tap-metadata", IPv6Interface(f"{IP6}/128")),),
        listeners=(Listener(IPv6Address(IP6), 18080, 99),),
    )
    names = ("address", "rule-from", "rule-oif", "route", "way-back", "neighbour", "firewall")
    for running in (True, False):
        found = list(doctor_host.beside(host, wanted, running=running))
        assert [one.check for one in found] == [f"{name}-ipv6" for name in (*names, "listener")]
        assert [status(one) for one in found] == [Status.OK] * len(found)
        assert f"[{IP6}]:18080" in found[-1].text
    assert {(str(one.address), str(one.keys)) for one in asked} == {
        (IP6, "fd00:a9fe:a9fe:a9fe::/64"),
    }
    # The listener of IPv4 is none of IPv6.
    found = list(doctor_host.beside(HOST, wanted, running=True))
    assert found[-1].text == f"no process listens on [{IP6}]:18080"
    anothers = replace(host, listeners=(Listener(IPv6Address("::"), 18080, 7),))
    found = list(doctor_host.beside(anothers, wanted, running=True))
    assert found[-1].text == "another program listens on [::]:18080"


def test_a_host_without_ipv6_gives_one_line_that_is_no_fault() -> None:
    finding = checks_host.no_ipv6("net.ipv6.conf.t.disable_ipv6 is 1", "`sysctl -w x=0`")
    assert status(finding) is Status.WARNING
    assert healthy([finding])
    assert "IPv4 only: net.ipv6.conf.t.disable_ipv6 is 1" in finding.text
    assert finding.remedy.startswith("`sysctl -w x=0`")


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
    (finding,) = checks_switch.foreign_flows(None, {Endpoint(1): "tap1"}, wanted=SETTINGS)
    assert status(finding) is Status.UNKNOWN
    (finding,) = checks_switch.our_flows(None, "", bridge="br-int")
    assert status(finding) is Status.UNKNOWN


def test_a_foreign_flow_is_named_with_its_port() -> None:
    flow = Foreign(0xBAD, 300, {"in_port": 1}, "drop")
    (finding,) = checks_switch.foreign_flows([flow], {Endpoint(1): "tap1"}, wanted=SETTINGS)
    assert "takes packets of tap1 to" in finding.text
    for other in (
        replace(flow, priority=299),
        replace(flow, hands_on=True),
        replace(flow, match={"in_port": 2}),
    ):
        (finding,) = checks_switch.foreign_flows([other], {Endpoint(1): "tap1"}, wanted=SETTINGS)
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
    assert takes(match, {Endpoint(1)}, ip=IP) is taken


def test_the_daemon() -> None:
    down = checks_daemon.daemon(DaemonFacts(running=False, cause="Connection refused"), SETTINGS)
    assert down.text == (
        "dfmeta-agent is not running: no answer from 127.0.0.1:9697: Connection refused"
    )
    taken = DaemonFacts(running=False, cause="no JSON", other="python3, pid 7")
    finding = checks_daemon.daemon(taken, SETTINGS)
    assert "another program (python3, pid 7) listens at 127.0.0.1:9697" in finding.text
    assert "`ss -ltnp sport = :9697`" in finding.remedy
    waiting = DaemonFacts(running=True, missing=("flows", "novelty"))
    assert "has not confirmed its flows; novelty" in checks_daemon.daemon(waiting, SETTINGS).text
    mute = checks_daemon.daemon(DaemonFacts(running=True), SETTINGS)
    assert "gives no reason" in mute.text
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
        finding = checks_daemon.state_path(facts, SETTINGS, owners=Owners())
        assert status(finding) is expected


@pytest.mark.parametrize(
    ("owners", "uid", "right"),
    [
        (Owners(), 1000, True),
        (Owners(worker=65534), 65534, False),
        (Owners(worker=65534), 1000, True),
        (Owners(worker=65534, daemon=0), 1000, False),
        (Owners(worker=65534, daemon=1000), 1000, True),
        (Owners(worker=65534, daemon=1000), 0, True),
    ],
)
def test_state_path_belongs_to_the_daemon_or_root(owners: Owners, uid: int, right: bool) -> None:
    facts = FolderFacts(there=True, owners={"/var/lib/dfmeta": uid})
    finding = checks_daemon.state_path(facts, SETTINGS, owners=owners)
    assert status(finding) is (Status.OK if right else Status.WRONG)
    if not right:
        assert f"/var/lib/dfmeta (user {uid})" in finding.text
        assert "`chown -R root: /var/lib/dfmeta`" in finding.remedy


def test_the_values_of_the_daemon() -> None:
    def found(*, running: bool = True, **facts: Any) -> list[Finding]:
        return list(checks_daemon.configuration(OptionFacts(**facts), running=running))

    assert [status(one) for one in found()] == [Status.OK]
    (away,) = found(running=False, cause="no")
    assert "no daemon answers" in away.text
    assert [status(one) for one in found(cause="no")] == [Status.OK, Status.UNKNOWN]
    restart, again = found(restart=["[a] b"], reload=["[c] d", "[e] f"])
    assert "for [a] b;" in restart.text
    assert "`systemctl restart dfmeta-agent`" in restart.remedy
    assert "for [c] d, [e] f;" in again.text
    assert "`systemctl reload dfmeta-agent`" in again.remedy
    (files,) = found(restart=["[a] b"], files=["/one", "/two"])
    assert "`dfmeta doctor --config-file /one --config-file /two`" in files.remedy
    (none,) = found(reload=["[a] b"], files=[])
    assert "start dfmeta-agent with these files" in none.remedy


def test_what_was_asked_with_a_secret_that_is_not_the_daemons_is_unknown() -> None:
    fine, bad = ok("a", "it answers"), wrong("a", "it refuses", "fix it")
    assert by_files(fine, []) is fine
    told = by_files(fine, ["[b] c"])
    assert status(told) is Status.UNKNOWN
    assert told.text == "it answers, with [b] c of the files; the daemon has another value"
    told = by_files(bad, ["[b] c"])
    assert (status(told), told.remedy) == (Status.WRONG, "fix it")
    assert "the daemon has another value" in told.text


def test_whoever_is_not_root_is_told_so() -> None:
    assert status(checks_daemon.user(0)) is Status.OK
    assert "as root first" in checks_daemon.user(1000).remedy
    for finding in (
        checks_switch.ovsdb("OVSDB: Permission denied", SETTINGS),
        checks_switch.vswitchd("", "ovs-vswitchd: Permission denied"),
        checks_switch.management_socket("nobody: Permission denied", SETTINGS),
    ):
        assert finding.remedy == checks_switch.AS_ROOT
    assert "start Open vSwitch" in checks_switch.ovsdb("Connection refused", SETTINGS).remedy


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
    assert texts(PortState.SERVED, PortState.UNNAMED) == [
        (
            Status.OK,
            "1 of 2 guests' ports on br-int served; subports without an instance, which get 404: 1",
        )
    ]
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
    assert "ovsdb, libvirt does not know it" in finding.text
    for port, running in ((PORT, False), (replace(PORT, project="p"), True)):
        (finding,) = checks_daemon.ports([port], nova, running=running)
        assert status(finding) is Status.OK


def test_ports_that_are_cut_off_are_named_with_what_ends_it() -> None:
    cut = cut_of(PortBits(config=NO_RECV), "t0", bridge="br-int")
    off = replace(PORT, name="t0", state=PortState.CUT_OFF, cut=cut, fault=str(cut))
    told = replace(PORT, name="t1", state=PortState.CUT_OFF, fault="told")
    (finding,) = checks_daemon.ports([PORT, off, told], SETTINGS, running=True)
    assert status(finding) is Status.WRONG
    assert finding.text == (
        "cut off: t0 (the switch accepts no frames from it (no-receive)), t1 (told)"
    )
    assert finding.remedy == "`ovs-ofctl -O OpenFlow13 mod-port br-int t0 receive`"
    (finding,) = checks_daemon.ports([told], SETTINGS, running=True)
    assert "show br-int" in finding.remedy


@pytest.mark.parametrize(
    ("interfaces", "namespace", "machine"),
    [
        ({"tap1": "veth"}, True, False),
        ({"tap1": "tun"}, False, True),
        ({"tap1": "veth", "tap2": "tun"}, True, True),
        ({"tap1": ""}, True, True),
    ],
    ids=["a namespace", "a machine", "one of each", "not known"],
)
def test_guests_without_a_connection_on_a_userspace_datapath_have_their_kinds_remedy(
    interfaces: dict[str, str], namespace: bool, machine: bool
) -> None:
    rows = tuple(Interface(name, "br-int", driver=one) for name, one in interfaces.items())
    remedy = without_connection(Snapshot((Bridge("br-int", "netdev"),), rows), *interfaces)
    assert remedy.startswith("check in this order: complete TCP checksums")
    assert ("`ethtool -K DEVICE tx off` in the guest, on its own end" in remedy) is namespace
    assert ("`<driver name='qemu'><host csum='off'" in remedy) is machine


@pytest.mark.parametrize("kind", ["internal", "dpdkvhostuserclient"])
def test_the_type_of_an_interface_tells_a_machine_from_a_namespace(kind: str) -> None:
    """An internal port of this datapath is a tap device too; a vhost-user port has no device."""
    driver = "tun" if kind == "internal" else ""
    row = Interface("tap1", "br-int", type=kind, driver=driver)
    remedy = without_connection(Snapshot((Bridge("br-int", "netdev"),), (row,)), "tap1")
    assert ("<driver name='qemu'>" in remedy) is (kind != "internal")
    assert ("ethtool" in remedy) is (kind == "internal")


@pytest.mark.parametrize("datapath", ["", "system", None])
def test_guests_of_the_kernels_datapath_need_no_offload_turned_off(datapath: str | None) -> None:
    row = Interface("tap1", "br-int", driver="tun")
    there = None if datapath is None else Snapshot((Bridge("br-int", datapath),), (row,))
    remedy = without_connection(there, "tap1")
    assert remedy.startswith("check in this order: a packet filter of the host")
    assert "csum" not in remedy
    assert "ethtool" not in remedy


def without_connection(snapshot: Snapshot | None, *names: str) -> str:
    """The remedy for ports that no connection comes from."""
    silent = [replace(PORT, name=name, state=PortState.NO_CONNECTION) for name in names]
    (finding,) = checks_daemon.ports(silent, SETTINGS, running=True, snapshot=snapshot)
    assert status(finding) is Status.WRONG
    return finding.remedy


def test_a_port_whose_project_the_daemon_misses_is_named() -> None:
    port = replace(PORT, state=PortState.NO_PROJECT)
    (finding,) = checks_daemon.ports([port], SETTINGS, running=True)
    assert (status(finding), "no project is known for tap1" in finding.text) == (Status.WRONG, True)


def test_ports_that_could_be_a_guests_and_are_not_are_one_line() -> None:
    assert GUEST_TYPES - {"internal"} == which.DEVICE_TYPES
    others = [Interface(f"eth{n}", "br-int", type="system") for n in range(10)]
    known = Interface("tap1", "br-int", ports=(Port("tap1", "row", 1),))
    none = [
        known,
        TAP,
        Interface("br-int", "br-int", type="internal"),
        Interface("tapd", "br-int", type="internal"),
        Interface("eth9", "br-ex"),
        *(Interface(f"x-{kind}", "br-int", type=kind) for kind in ("patch", "vxlan", "dpdk")),
    ]
    assert not list(checks_switch.other_ports(Snapshot(interfaces=tuple(none)), SETTINGS))
    snapshot = Snapshot(interfaces=(*none, *others))
    (finding,) = checks_switch.other_ports(snapshot, SETTINGS)
    assert status(finding) is Status.OK
    assert finding.text.startswith("ports of br-int that are not guests' ports (10): eth0, eth1")
    assert "eth7 and 2 more" in finding.text
    assert "`ovs-vsctl set Interface eth0 external_ids:vm-uuid=" in finding.text
    (finding,) = checks_switch.other_ports(Snapshot(interfaces=(others[3],)), SETTINGS)
    assert "(1): eth3. That is right for an uplink" in finding.text


def test_tap_metadata_that_the_switch_cuts_off() -> None:
    cut = cut_of(PortBits(config=NO_FWD), TAP.name, bridge="br-int")
    finding, _ = checks_switch.tap_port(TAP, Snapshot(), wanted=SETTINGS, cut=cut)
    assert "cut off, so no guest is served: the switch sends no frames to it" in finding.text
    assert finding.remedy == "`ovs-ofctl -O OpenFlow13 mod-port br-int tap-metadata forward`"


def test_what_the_operator_gave_names_a_port_before_what_a_guest_chose() -> None:
    other = replace(PORT, name="tap2", mac="fa:16:3e:00:00:02", instance="i2", addresses={})
    ports = [PORT, other]
    assert which.named(ports, str(ADDRESS.ip)) == (PORT,)
    assert which.named(ports, "FA:16:3E:00:00:02") == (other,)
    liar = replace(other, addresses={0: GuestAddress("fa:16:3e:00:00:09", ADDRESS.ip)})
    assert which.named([PORT, liar], str(ADDRESS.ip)) == (PORT, liar), "both are traced"
    assert which.named([PORT, liar], "fa:16:3e:00:00:09") == (liar,)
    namesake = replace(other, instance_name="tap1")
    assert which.named([PORT, namesake], "tap1") == (PORT,)
    assert which.named([PORT, replace(other, instance_name="web1")], "web1")[0].name == "tap2"
    assert which.named([replace(PORT, mac="")], "web") == ()


def test_a_port_is_meant_by_name_iface_id_or_instance() -> None:
    other = replace(PORT, name="tap2", iface_id="b")
    assert which.named([PORT, other], "tap1") == (PORT,)
    assert which.named([PORT, other], "a-port") == (PORT,)
    assert which.named([PORT, other], INSTANCE.upper()) == (PORT, other)
    assert which.named([replace(PORT, instance="")], "x") == ()


def test_a_port_on_a_trunks_bridge_is_meant_by_any_of_its_names() -> None:
    ids = {"iface-id": "p1", "vm-uuid": INSTANCE}
    snapshot = Snapshot(
        interfaces=(
            Interface("tap9", "tbr-1", external_ids=ids),
            Interface("tpt-p1", "tbr-1", type="patch", external_ids={"iface-id": "p1"}),
            Interface("tpi-p1", "br-int", type="patch", external_ids={"iface-id": "p1"}),
        )
    )
    port = replace(PORT, name="tpi-p1", iface_id="p1", kind=PortKind.PARENT)
    other = replace(port, name="tpi-p2", iface_id="p2")
    for text in ("tap9", "tpt-p1", "p1", "P1", INSTANCE, INSTANCE.upper()):
        assert which.behind_trunk([PORT, port, other], snapshot, text, bridge="br-int") == (port,)
    for text in ("tap1", "", "p2"):
        assert which.behind_trunk([PORT, port, other], snapshot, text, bridge="br-int") == ()
    other_kind = replace(port, kind=PortKind.SUBPORT)
    assert which.behind_trunk([other_kind], snapshot, "tap9", bridge="br-int") == ()


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
        snapshot = Snapshot(interfaces=(interface,))
        return which.no_port(snapshot, interface.name, wanted=SETTINGS, running=True)

    assert "leads to the proxy" in why(TAP)
    assert "the bridge's own" in why(Interface("br-int", "br-int", type="internal"))
    for kind in ("vxlan", "geneve", "gre"):
        tunnel = why(Interface("t0", "br-int", type=kind))
        assert f"its type is {kind}: a tunnel to other hosts" in tunnel
    patch = Interface("int-br-ex", "br-int", type="patch", options={"peer": "phy-br-ex"})
    assert "it leads to another bridge (phy-br-ex), and a guest behind that" in why(patch)
    assert "its type is dpdk, and such a port" in why(Interface("nic0", "br-int", type="dpdk"))
    command = "`ovs-vsctl set Interface {} external_ids:vm-uuid=<instance's UUID>`"
    internal = why(Interface("tapd", "br-int", type="internal"))
    assert "belong to an agent" in internal
    assert command.format("tapd") in internal
    plain = why(Interface("eth1", "br-int"))
    assert "neither an instance" in plain
    assert command.format("eth1") in plain
    assert "is on br-ex, not on br-int" in why(Interface("eth1", "br-ex"))
    nothing = which.no_port(Snapshot(), "x", wanted=SETTINGS, running=True)
    assert nothing.startswith("no port of br-int has the name, iface-id, MAC, instance")
    assert "does not run" not in nothing
    assert "does not run" in which.no_port(Snapshot(), "x", wanted=SETTINGS, running=False)


def test_the_bridge() -> None:
    assert status(checks_switch.bridge(Bridge("br-int"), SETTINGS)) is Status.OK
    assert status(checks_switch.bridge(None, SETTINGS)) is Status.WRONG
