"""The checks of host, daemon and switch, on facts that are right, and wrong in one way each."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv6Address
from typing import Any

from dfmeta.doctor import (
    checks_daemon,
    checks_flows,
    checks_guests,
    checks_host,
    checks_switch,
    checks_system,
    find_port,
)
from dfmeta.doctor.agent import DaemonFacts
from dfmeta.doctor.checks_daemon import FolderFacts, OptionFacts, Owners
from dfmeta.doctor.checks_host import Chain, firewall
from dfmeta.doctor.facts import HostSettings
from dfmeta.doctor.finding import CheckStatus, Finding, by_files, healthy, ok, unknown, wrong
from dfmeta.flows.family import IPV6
from dfmeta.flows.openflow import Foreign
from dfmeta.flows.port_down import NO_FWD, NO_RECV, PortBits, cut_of
from dfmeta.host.host_facts import HostFacts, LimitFacts
from dfmeta.host.ipv6 import Lack
from dfmeta.host.listeners import TcpListener
from dfmeta.host.system import ConntrackFacts
from dfmeta.model import Endpoint, Port, PortState
from dfmeta.ovsdb.rows import Bridge, Interface, Snapshot
from dfmeta.ovsdb.vif import GUEST_TYPES
from tests.core.unit.doctor.values import (
    HOST,
    INODE,
    IP,
    OK,
    PORT,
    SETTINGS,
    UNKNOWN,
    WARNING,
    WRONG,
    expect,
    status,
)

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
NAMES = {Endpoint(1): "tap1"}


def one(finding: Finding | None) -> Finding:
    """Of a check that has a line."""
    assert finding is not None
    return finding


def test_working_host_has_no_fault() -> None:
    findings = [
        checks_host.device(HOST, SETTINGS),
        checks_host.address(HOST, SETTINGS),
        checks_host.rule(HOST, SETTINGS, "from"),
        checks_host.rule(HOST, SETTINGS, "oif"),
        checks_host.route(HOST, SETTINGS),
        checks_host.way_back(HOST, SETTINGS),
        checks_host.neighbour(HOST, SETTINGS),
        checks_system.somaxconn(HOST.limits, backlog=4096),
        checks_system.syncookies(HOST.limits),
        checks_system.conntrack(ConntrackFacts(), rate=1000),
        checks_host.rp_filter(HOST, SETTINGS),
        checks_host.arp_ignore(HOST, SETTINGS),
        checks_host.checksum(HOST, "netdev", wanted=SETTINGS),
        checks_host.listener(HOST, SETTINGS, running=True),
        checks_switch.tap(TAP, Snapshot(), wanted=SETTINGS),
        *checks_switch.vlan([TAP]),
        checks_switch.bridge(Bridge("br-int"), SETTINGS),
        checks_daemon.user(0),
    ]
    assert [finding and status(finding) for finding in findings] == [OK] * len(findings)


def test_faults_of_the_host() -> None:
    device, address, ovsdb = checks_host.device, checks_host.address, checks_switch.ovsdb
    short = replace(HOST, addresses=(("tap-metadata", IPv4Interface(f"{IP}/16")),))
    both = replace(HOST, addresses=(*HOST.addresses, ("eth0", IPv4Interface(f"{IP}/32"))))
    astray = address(replace(both, way_back="eth1"), SETTINGS)
    limits = LimitFacts(somaxconn=128, syncookies=0)
    few = checks_system.somaxconn(limits, backlog=4096)
    cookies = checks_system.syncookies(limits)
    way_back = one(checks_host.way_back(replace(HOST, way_back="lo"), SETTINGS))
    foreign = replace(HOST, way_back="wg0", contender="7: from all lookup 52")
    late = one(checks_host.way_back(foreign, SETTINGS))
    no_next_hop = checks_host.neighbour(replace(HOST, neighbour=False), SETTINGS)
    lazy, silent = replace(HOST, tx_checksum=True), replace(HOST, tx_checksum=None)
    checksum = checks_host.checksum
    no_ipv6 = checks_host.ipv6(Lack("net.ipv6.conf.t.disable_ipv6 is 1", "`sysctl -w x=0`"))
    expect(
        [
            (device(replace(HOST, up=None), SETTINGS), WRONG, "no device"),
            (device(replace(HOST, up=False), SETTINGS), WRONG, "is down"),
            (device(replace(HOST, carrier=False), SETTINGS), WRONG, "no carrier"),
            (address(short, SETTINGS), WRONG, "does not have"),
            (address(both, SETTINGS), OK, "eth0 has it as well"),
            (astray, WRONG, "on eth0 as well"),
            (astray, WRONG, "but: eth1"),
            (way_back, WRONG, "but: lo", "before priority 32764"),
            (late, WRONG, "'7: from all lookup 52' of another program comes before dfmeta's"),
            (late, WRONG, f"'32764: from {IP} lookup 2'", "fixed priority"),
            (no_next_hop, WRONG, "", "128.0.0.0"),
            (few, WRONG, "", "somaxconn=4096"),
            (cookies, WRONG, "", "tcp_syncookies=1"),
            (checksum(lazy, "", wanted=SETTINGS), OK, ""),
            (checksum(lazy, "netdev", wanted=SETTINGS), WRONG, ""),
            (checksum(silent, "netdev", wanted=SETTINGS), UNKNOWN, ""),
            (no_ipv6, WARNING, "IPv4 only: net.ipv6.conf.t.disable_ipv6 is 1", "`sysctl -w x=0`"),
            (checks_switch.bridge(None, SETTINGS), WRONG, ""),
            (checks_daemon.user(1000), WRONG, "", "as root first"),
            (ovsdb("OVSDB: Permission denied", SETTINGS), WRONG, "", checks_switch.AS_ROOT),
            (ovsdb("Connection refused", SETTINGS), WRONG, "", "start Open vSwitch"),
        ]
    )
    assert healthy([no_ipv6, unknown("d")])
    assert not healthy([no_ipv6, few])
    other_route = replace(HOST, way_back="lo", route=False)
    assert checks_host.way_back(other_route, SETTINGS) is None, "the route's line says it"


def test_reverse_path_filter_drops_without_the_rule_from_the_service() -> None:
    for values, from_rule, expected, text in (
        ((0, 0), False, OK, "is 0"),
        ((1, 0), True, OK, "does no harm"),
        ((0, 2), True, OK, "is 2"),
        ((1, 0), False, WRONG, "and drops"),
        ((1, 2), False, WRONG, "may drop"),
    ):
        rules = (replace(HOST.rules[0], present=from_rule), HOST.rules[1])
        host = replace(HOST, rp_filter=values, rules=rules)
        expect([(checks_host.rp_filter(host, SETTINGS), expected, text)])


def test_table_of_conntrack_is_a_fault_when_it_is_nearly_full() -> None:
    none, of_proxy = "the host does not track connections", "of them by connections to the proxy"
    for facts, text in (
        (ConntrackFacts(), none),
        (ConntrackFacts(room=1000), none),
        (ConntrackFacts(room=0, count=70_000), "70000 entries of conntrack are taken, and it has"),
        (ConntrackFacts(room=240_000, count=1), "1 of 240000 entries of conntrack are taken"),
        (ConntrackFacts(room=262_144, count=9, guests=3), f"conntrack are taken, 3 {of_proxy}"),
        (ConntrackFacts(room=262_144, count=9, dropped=7), "the table was full before: 7 packets"),
        (ConntrackFacts(room=8192, count=9, guests=0), f"conntrack are taken, 0 {of_proxy}"),
        (ConntrackFacts(room=8192, count=31), "nf_conntrack_max=240000`"),
        (ConntrackFacts(room=8192, count=31, kept=30), "nf_conntrack_max=60000`"),
    ):
        finding = checks_system.conntrack(facts, rate=1000)
        expect([(finding, OK, text)])
        assert ("fill the table" in finding.text) == ("sysctl" in finding.text), facts
    for facts, text, room in (
        (ConntrackFacts(room=262_144, count=235_930), "235930 of 262144 entries", 524_288),
        (ConntrackFacts(room=8192, count=7373, guests=7000), "7000 of them by", 240_000),
        (ConntrackFacts(room=8192, count=9, dropped=1), "was full before: 1 packets", 240_000),
        (ConntrackFacts(room=8192, evicted=5), "and 5 unanswered connections", 240_000),
    ):
        remedy = f"`sysctl -w net.netfilter.nf_conntrack_max={room}`"
        mended = checks_system.conntrack(replace(facts, room=room), rate=1000)
        expect([(checks_system.conntrack(facts, rate=1000), WRONG, text, remedy), (mended, OK, "")])


def test_remedies_name_the_version_of_ip_that_they_are_for() -> None:
    other = replace(SETTINGS, host_ip6=IP6, ip6=("fe80::a9fe:a9fe",)).over(IPV6)
    bare = HostFacts(up=True, rules=tuple(replace(rule, present=False) for rule in HOST.rules))
    checks: tuple[Callable[[HostFacts, HostSettings], Finding | None], ...] = (
        *(checks_host.address, checks_host.route, checks_host.neighbour),
        *(partial(checks_host.rule, selector=each) for each in ("from", "oif")),
    )
    for wanted, command in ((SETTINGS, "`ip "), (other, "`ip -6 ")):
        findings = [one(check(bare, wanted)) for check in checks]
        assert [status(finding) for finding in findings] == [WRONG] * len(findings)
        assert all(finding.remedy.startswith(command) for finding in findings)
        next_hop = wanted.keys.next_hop(wanted.version)
        assert all(next_hop in finding.remedy for finding in findings[1:3])
    assert f"replace {IP6}/128 dev tap-metadata" in checks_host.address(HOST, other).remedy
    astray = one(checks_host.way_back(replace(HOST, way_back="lo"), other))
    assert "or to fd00:a9fe:a9fe:a9fe::/64" in astray.remedy


def test_listener_of_ipv6_is_not_that_of_ipv4() -> None:
    wanted = replace(SETTINGS, host_ip6=IP6, ip6=("fe80::a9fe:a9fe",), listener6=99).over(IPV6)
    listener = checks_host.listener
    six = replace(HOST, listeners=(TcpListener(IPv6Address(IP6), 18080, 99),))
    another = replace(HOST, listeners=(TcpListener(IPv6Address("::"), 18080, 7),))
    expect(
        [
            (listener(six, wanted, running=True), OK, f"[{IP6}]:18080"),
            (listener(six, wanted, running=False), OK, f"[{IP6}]:18080"),
            (listener(HOST, wanted, running=True), WRONG, f"no process listens on [{IP6}]:18080"),
            (listener(another, wanted, running=True), WRONG, "program listens on [::]:18080"),
        ]
    )


def test_chains_that_drop_are_listed_for_each_version_of_ip() -> None:
    chains = (Chain("nftables' chain inet f c", (4, 6)), Chain("iptables' chain INPUT", (4,)))
    expect(
        [
            (firewall(chains, 4), OK, "nftables' chain inet f c, iptables' chain INPUT:"),
            (firewall(chains, 6), OK, "are dropped by nftables' chain inet f c:"),
            (firewall(chains[1:], 6), OK, "no base chain"),
            (firewall(None, 4), UNKNOWN, "neither nft nor iptables"),
            (firewall(None, 4, firewalld=True), OK, "are dropped by firewalld:"),
            (firewall(chains[1:], 4, firewalld=True), OK, "by firewalld, iptables' chain INPUT:"),
        ]
    )


def test_listener_is_the_one_that_the_daemon_remembers() -> None:
    another = replace(HOST, listeners=(TcpListener(IPv4Address(0), 18080, INODE + 1),))
    none = replace(HOST, listeners=(TcpListener(IPv4Address(IP), 80, INODE),))
    listener = checks_host.listener
    expect(
        [
            (listener(another, SETTINGS, running=True), WRONG, "listens on 0.0.0.0:18080"),
            (listener(none, SETTINGS, running=True), WRONG, "", "wait until"),
            (listener(none, SETTINGS, running=False), WRONG, "", "start"),
            (listener(HOST, SETTINGS, running=False), OK, "kept open"),
            (listener(HOST, replace(SETTINGS, port=None), running=True), UNKNOWN, ""),
        ]
    )


def test_faults_of_tap_metadata_in_ovsdb() -> None:
    for tap, others, *texts in (
        (None, (), "tap-metadata is not a port of br-int"),
        (None, (replace(TAP, bridge="br-ex"),), "tap-metadata is a port of br-ex, not of br-int"),
        (replace(TAP, external_ids={}), (), "lacks dfmeta's mark"),
        (replace(TAP, ofport=None, error="E"), (), "given tap-metadata no port number: E"),
        (replace(TAP, type="system", tag=None), (), "", ""),
    ):
        findings = [checks_switch.tap(tap, Snapshot(interfaces=others), wanted=SETTINGS)]
        findings += checks_switch.vlan([tap]) if tap is not None else []
        faults = [finding.text for finding in findings if status(finding) is WRONG]
        assert len(faults) == len(texts), tap
        assert all(text in fault for text, fault in zip(texts, faults, strict=True)), tap
    cut = cut_of(PortBits(config=NO_FWD), TAP.name, bridge="br-int")
    finding = checks_switch.tap(TAP, Snapshot(), wanted=SETTINGS, cut=cut)
    text = "cut off, so no guest is served: the switch sends no frames to it"
    remedy = "`ovs-ofctl -O OpenFlow13 mod-port br-int tap-metadata forward`"
    expect([(finding, WRONG, text, remedy)])


def test_foreign_flow_before_ours_is_named_with_its_port() -> None:
    flow = Foreign(0xBAD, 300, {"in_port": 1}, "drop")
    for flows, expected, text in (
        ([flow], WRONG, "takes packets of tap1 to"),
        ([replace(flow, priority=299)], OK, ""),
        ([replace(flow, hands_on=True)], OK, ""),
        ([replace(flow, match={"in_port": 2})], OK, ""),
        (None, UNKNOWN, ""),
    ):
        (finding,) = checks_flows.foreign_flows(flows, NAMES, wanted=SETTINGS)
        expect([(finding, expected, text)])
    (finding,) = checks_flows.our_flows(None, "", bridge="br-int")
    assert status(finding) is UNKNOWN


def test_port_that_waits_for_its_guest_by_live_migration_has_no_fault() -> None:
    pause = Foreign(0xA880F609, 1000, {"in_port": 1}, "drop")
    announcements = Foreign(0xA880F609, 1010, {"in_port": 1, "eth_type": 0x8035}, "output:1")
    arp = replace(announcements, match={"in_port": 1, "eth_type": 0x806})
    flows = [pause, announcements, arp]
    waits, rest = checks_flows.foreign_flows(flows, NAMES, wanted=SETTINGS)
    expect(
        [
            (waits, OK, "waits for activation (live migration): tap1"),
            (rest, OK, "no other program's flow"),
        ]
    )
    for flows in (
        [pause],
        [pause, replace(announcements, match={"in_port": 2, "eth_type": 0x8035})],
        [pause, replace(announcements, match={"in_port": 1, "eth_type": 0x86DD})],
        [replace(pause, match={"in_port": 1, "eth_type": 0x800}), announcements],
    ):
        (finding,) = checks_flows.foreign_flows(flows, NAMES, wanted=SETTINGS)
        expect([(finding, WRONG, "takes packets of tap1 to")])


def test_ports_that_could_be_a_guests_and_are_not_are_one_line() -> None:
    assert GUEST_TYPES - {"internal"} == find_port.DEVICE_TYPES
    others = [Interface(f"eth{n}", "br-int", type="system") for n in range(10)]
    none = [
        Interface("tap1", "br-int", ports=(Port("tap1", "row", 1),)),
        TAP,
        Interface("br-int", "br-int", type="internal"),
        Interface("tapd", "br-int", type="internal"),
        Interface("eth9", "br-ex"),
        *(Interface(f"x-{kind}", "br-int", type=kind) for kind in ("patch", "vxlan", "dpdk")),
    ]
    assert not list(checks_guests.other_ports(Snapshot(interfaces=tuple(none)), SETTINGS))
    (many,) = checks_guests.other_ports(Snapshot(interfaces=(*none, *others)), SETTINGS)
    (single,) = checks_guests.other_ports(Snapshot(interfaces=(others[3],)), SETTINGS)
    expect(
        [
            (many, OK, "ports of br-int that are not guests' ports (10): eth0, eth1"),
            (many, OK, "eth7 and 2 more"),
            (many, OK, "`ovs-vsctl set Interface eth0 external_ids:vm-uuid="),
            (single, OK, "(1): eth3. That is right for an uplink"),
        ]
    )


def test_daemon_that_does_not_run_or_is_not_ready() -> None:
    def daemon(**facts: Any) -> Finding:
        return checks_daemon.daemon(DaemonFacts(**facts), SETTINGS)

    down = "dfmeta-agent is not running: no answer from 127.0.0.1:9697: Connection refused"
    taken = daemon(running=False, cause="no JSON", other=True)
    listens = "another program listens at 127.0.0.1:9697: no JSON"
    waiting = daemon(running=True, missing=("flows", "novelty"))
    expect(
        [
            (daemon(running=False, cause="Connection refused"), WRONG, down),
            (taken, WRONG, listens, "`ss -ltnp sport = :9697`"),
            (waiting, WRONG, "has not confirmed its flows; novelty"),
            (daemon(running=True), WRONG, "gives no reason"),
            (daemon(running=True, ready=True), OK, ""),
        ]
    )


def test_state_path_is_a_folder_of_the_daemon_or_of_root() -> None:
    def judged(of: Owners, **facts: Any) -> Finding:
        return checks_daemon.state_path(FolderFacts(**facts), SETTINGS.state_path, owners=of)

    assert status(judged(Owners(), exists=True)) is OK
    for facts in (
        {"exists": False},
        {"exists": True, "mode": 0o750},
        {"exists": True, "folder": False},
        {"exists": True, "error": "Permission denied"},
    ):
        assert status(judged(Owners(), **facts)) is WRONG, facts
    remedy = "`chown -R root: /var/lib/dfmeta`"
    for daemon, worker, uid, *texts in (
        (None, None, 1000),
        (None, 65534, 1000),
        (1000, 65534, 1000),
        (1000, 65534, 0),
        (None, 65534, 65534, "/var/lib/dfmeta (user 65534)", remedy),
        (0, 65534, 1000, "/var/lib/dfmeta (user 1000)", remedy),
    ):
        owners = Owners(daemon=daemon, worker=worker)
        finding = judged(owners, exists=True, owners={"/var/lib/dfmeta": uid})
        expect([(finding, WRONG if texts else OK, *(texts or [""]))])


def test_values_of_the_daemon_are_compared_with_those_of_its_files() -> None:
    def found(*, running: bool = True, **facts: Any) -> list[Finding]:
        return list(checks_daemon.configuration(OptionFacts(**facts), running=running))

    for running, cause, states in (
        (True, "", [OK]),
        (False, "no", [OK]),
        (True, "no", [OK, UNKNOWN]),
    ):
        assert [status(finding) for finding in found(running=running, cause=cause)] == states
    restart, again = found(restart=["[a] b"], reload=["[c] d", "[e] f"])
    (files,) = found(restart=["[a] b"], files=["/one", "/two"])
    (none,) = found(reload=["[a] b"], files=[])
    expect(
        [
            (restart, WRONG, "for [a] b;", "`systemctl restart dfmeta-agent`"),
            (again, WRONG, "for [c] d, [e] f;", "`systemctl reload dfmeta-agent`"),
            (files, WRONG, "", "`dfmeta doctor --config-file /one --config-file /two`"),
            (none, WRONG, "", "start dfmeta-agent with these files"),
        ]
    )


def test_answer_to_a_secret_that_is_not_the_daemons_is_unknown() -> None:
    fine, bad = ok("it answers"), wrong("it refuses", "fix it")
    assert by_files(fine, []) is fine
    assert status(by_files(fine, ["[b] c"])) is UNKNOWN
    expect([(by_files(bad, ["[b] c"]), WRONG, "the daemon may have another value", "fix it")])


def test_ports_in_each_state() -> None:
    def texts(*states: PortState) -> list[tuple[CheckStatus, str]]:
        ports = [replace(PORT, name=f"t{n}", state=s, fault="odd") for n, s in enumerate(states)]
        return [(status(f), f.text) for f in checks_guests.ports(ports, SETTINGS, running=True)]

    served = "1 of 2 guests' ports on br-int served"
    assert texts() == [(OK, "0 of 0 guests' ports on br-int served")]
    assert texts(PortState.SERVED, PortState.DEAD) == [
        (OK, f"{served}; switched off by their owner: t1")
    ]
    assert texts(PortState.SERVED, PortState.UNNAMED) == [
        (OK, f"{served}; subports without an instance, which get 404: 1")
    ]
    lines = texts(PortState.BROKEN, PortState.NO_INSTANCE, PortState.NO_OFPORT, PortState.SERVED)
    assert [(status_, text.split(":")[0]) for status_, text in lines] == [
        (WRONG, "broken"),
        (WRONG, "no instance is known for t1"),
        (WRONG, "Open vSwitch has given no port number to t2"),
    ]


def test_nova_answers_no_port_without_a_project() -> None:
    nova = replace(SETTINGS, needs_project=True, sources=("ovsdb", "libvirt"))
    missed = replace(PORT, state=PortState.NO_PROJECT)
    none = "no project is known for tap1"
    for port, wanted, running, expected, *texts in (
        (PORT, nova, True, WRONG, none, "ovsdb, libvirt does not know it"),
        (missed, SETTINGS, True, WRONG, none),
        (PORT, nova, False, OK, ""),
        (replace(PORT, project="p"), nova, True, OK, ""),
    ):
        (finding,) = checks_guests.ports([port], wanted, running=running)
        expect([(finding, expected, text) for text in texts])


def test_ports_that_are_cut_off_are_named_with_what_ends_it() -> None:
    cut = cut_of(PortBits(config=NO_RECV), "t0", bridge="br-int")
    off = replace(PORT, name="t0", state=PortState.CUT_OFF, cut=cut, fault=str(cut))
    reported = replace(PORT, name="t1", state=PortState.CUT_OFF, fault="told")
    (both,) = checks_guests.ports([PORT, off, reported], SETTINGS, running=True)
    (single,) = checks_guests.ports([reported], SETTINGS, running=True)
    text = "cut off: t0 (the switch accepts no frames from it (no-receive)), t1 (told)"
    remedy = "`ovs-ofctl -O OpenFlow13 mod-port br-int t0 receive`"
    expect([(both, WRONG, text, remedy), (single, WRONG, "", "show br-int")])


def test_guests_without_a_connection_have_the_remedy_of_their_kind() -> None:
    silent = [replace(PORT, name="tap1", state=PortState.NO_CONNECTION)]
    namespace, machine = "tx off` in the guest", "`<driver name='qemu'><host csum"
    for datapath, values, *kinds in (
        # An internal port of this datapath is a tap device; a vhost-user port has no device.
        ("netdev", {"driver": "veth"}, namespace),
        ("netdev", {"driver": "tun"}, machine),
        ("netdev", {"type": "internal", "driver": "tun"}, namespace),
        ("netdev", {"type": "dpdkvhostuserclient"}, machine),
        ("netdev", {}, namespace, machine),
        ("", {"driver": "tun"}),
        ("system", {"driver": "tun"}),
    ):
        row = Interface("tap1", "br-int", **values)
        snapshot = Snapshot((Bridge("br-int", datapath),), (row,))
        (finding,) = checks_guests.ports(silent, SETTINGS, running=True, snapshot=snapshot)
        assert status(finding) is WRONG
        assert [kind for kind in (namespace, machine) if kind in finding.remedy] == kinds, row
    (finding,) = checks_guests.ports(silent, SETTINGS, running=True)
    assert finding.remedy.startswith("check in this order: a packet filter of the host")
