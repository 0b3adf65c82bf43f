"""Judgements on the daemon's process, meters, limits and the system around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dfmeta.flows.classify import guest_syn
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.inspect import checks_limits, checks_meters, checks_process, checks_system
from dfmeta.inspect.checks_process import CAPABILITIES, ProcessFacts, SocketFacts, VersionFacts
from dfmeta.inspect.checks_system import (
    ClockFacts,
    CloudFacts,
    NetworkdFacts,
    SecretFile,
    SocketUnit,
)
from dfmeta.inspect.facts import LimitFacts, MeterFact, Seen
from dfmeta.inspect.finding import Finding, Status
from dfmeta.model import Endpoint
from tests.core.unit.inspect.test_checks import status
from tests.core.unit.inspect.values import SETTINGS

ALL = sum(1 << bit for bit in CAPABILITIES.values())
DAEMON = ProcessFacts(1, capabilities=ALL, descriptors=9000, open=50, workers=(2, 3))
VERSIONS = VersionFacts("1.0", "1.0", "ovs-vswitchd (Open vSwitch) 3.1.0", "3.11")
RATE = RATES[Purpose.GUEST_SYN]


def without(*names: str) -> ProcessFacts:
    return replace(DAEMON, capabilities=ALL - sum(1 << CAPABILITIES[one] for one in names))


def states(findings: Sequence[Finding]) -> list[Status]:
    return [status(one) for one in findings]


# The process


def test_a_daemon_that_may_do_all_it_has_to() -> None:
    sockets = [SocketFacts("/s", 0, 0, 0o700)]
    found = [
        *checks_process.permissions(DAEMON, sockets, workers=2),
        checks_process.workers(DAEMON, 2),
        checks_process.workers(DAEMON, 1),
        checks_process.open_files(DAEMON, 8448),
        *checks_process.versions(VERSIONS),
    ]
    assert set(states(found)) == {Status.OK}


def test_a_daemon_that_cannot_be_seen_is_no_fault_of_its() -> None:
    found = [
        *checks_process.permissions(None, (), workers=2),
        checks_process.workers(None, 2),
        checks_process.open_files(None, 1),
    ]
    assert set(states(found)) == {Status.UNKNOWN}


def test_what_workers_need_is_asked_for_with_workers_and_of_root_alone() -> None:
    lacking = without("CAP_SETUID")
    assert states(list(checks_process.permissions(lacking, (), workers=0)))[0] is Status.OK
    first, _ = checks_process.permissions(lacking, (), workers=1)
    assert status(first) is Status.WRONG
    assert "lacks CAP_SETUID" in first.text
    other = replace(lacking, uid=7)
    assert states(list(checks_process.permissions(other, (), workers=1)))[0] is Status.OK


@pytest.mark.parametrize(
    ("sock", "may"),
    [
        (SocketFacts("/s", 7, 0, 0o200), True),
        (SocketFacts("/s", 7, 0, 0o022), False),
        (SocketFacts("/s", 0, 9, 0o020), True),
        (SocketFacts("/s", 0, 9, 0o002), False),
        (SocketFacts("/s", 0, 0, 0o002), True),
        (SocketFacts("/s", 0, 0, 0o770), False),
    ],
)
def test_a_socket_is_open_to_its_owner_its_group_or_all(sock: SocketFacts, may: bool) -> None:
    daemon = replace(without("CAP_DAC_OVERRIDE"), uid=7, groups=(9,))
    _, finding = checks_process.permissions(daemon, [sock], workers=0)
    assert status(finding) is (Status.OK if may else Status.WRONG)


def test_too_few_workers_and_too_few_descriptors() -> None:
    assert "2 of 3 workers" in checks_process.workers(DAEMON, 3).text
    assert "LimitNOFILE=9001" in checks_process.open_files(DAEMON, 9001).remedy


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        (replace(VERSIONS, running="0.9"), "version"),
        (replace(VERSIONS, ovs="ovs-vswitchd (Open vSwitch) 2.9.8"), "ovs-version"),
        (replace(VERSIONS, packages=(("click", "7", ">=8"),)), "packages"),
        (replace(VERSIONS, packages=(("click", "", ""),)), "packages"),
    ],
)
def test_a_version_that_does_not_fit(facts: VersionFacts, wrong: str) -> None:
    found = list(checks_process.versions(facts))
    assert [one.check for one in found if status(one) is Status.WRONG] == [wrong]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ovs-vswitchd (Open vSwitch) 3.1.0", (3, 1, 0)),
        ("ovs-vswitchd (Open vSwitch) 2.17.9-dpdk", (2, 17, 9)),
        ("", ()),
        ("something else", ()),
    ],
)
def test_the_version_in_its_own_words(text: str, expected: tuple[int, ...]) -> None:
    assert checks_process.ovs_version(text) == expected


def test_an_open_vswitch_that_does_not_answer_has_no_version() -> None:
    _, found, _ = checks_process.versions(replace(VERSIONS, ovs=""))
    assert status(found) is Status.UNKNOWN


# Meters and limits


def seen(ofport: int, meter: int | None) -> Seen:
    return Seen(guest_syn(Endpoint(ofport), meter=meter), 0, 300, 1)


def meters(flows: Sequence[Seen], there: Sequence[MeterFact] | None) -> Finding:
    return checks_meters.meters(flows, there, names={Endpoint(1): "tap1"}, wanted=SETTINGS)


def test_meters_count_what_they_have_dropped() -> None:
    finding = meters([seen(1, 5)], [MeterFact(5, RATE, 7, 1), MeterFact(6, 1, 100, 1)])
    assert status(finding) is Status.OK
    assert "0 first SYNs dropped, 7 SYNs dropped" in finding.text
    assert status(meters([], [])) is Status.OK
    assert status(meters([Seen(None, 9, 0, 1)], [])) is Status.OK


@pytest.mark.parametrize("flows", [[], [seen(1, 5)]])
def test_meters_that_no_flow_uses_are_named(flows: list[Seen]) -> None:
    others = [MeterFact(7, RATE, 0, 0), MeterFact(65537, RATE, 0, 1), MeterFact(65538, 4321, 0, 0)]
    there = [MeterFact(5, RATE, 7, 1), *others]
    assert "no flow uses" not in meters(flows, there).text
    found = meters(flows, [*there, MeterFact(131229, RATE, 0, 0), MeterFact(65693, RATE, 0, 0)])
    assert status(found) is Status.OK
    assert "no flow uses the meters 65693, 131229: " in found.text


@pytest.mark.parametrize(
    ("flows", "there", "text"),
    [
        ([seen(1, None)], (), "SYNs of tap1 are not limited"),
        ([seen(1, 5)], (), "SYNs of tap1 are not limited"),
        ([seen(2, None)], (), "SYNs of a removed port are not limited"),
        ([seen(1, 5)], (MeterFact(5, 3, 0, 1),), "changed dfmeta's meters: 5"),
        ([seen(1, 5)], None, "has no meters"),
    ],
)
def test_guests_that_are_not_limited(
    flows: Sequence[Seen], there: Sequence[MeterFact] | None, text: str
) -> None:
    finding = meters(flows, there)
    assert status(finding) is Status.WRONG
    assert text in finding.text


def test_the_neighbour_table() -> None:
    assert status(checks_limits.neighbours(LimitFacts())) is Status.OK
    room = LimitFacts(neighbours=899, neighbours_max=1000)
    assert status(checks_limits.neighbours(room)) is Status.OK
    full = checks_limits.neighbours(replace(room, neighbours=900))
    assert status(full) is Status.WRONG
    assert "gc_thresh3=2000" in full.remedy


def test_ports_of_connections_to_the_backend() -> None:
    assert status(checks_limits.local_ports(LimitFacts(), needed=4096)) is Status.OK
    few = checks_limits.local_ports(LimitFacts(local_ports=100), needed=4096)
    assert status(few) is Status.WRONG


# The system


def test_dates_of_others_are_compared_with_the_clock() -> None:
    assert checks_system.skew("Thu, 01 Jan 1970 00:02:00 GMT", 100.0) == 20.0
    assert checks_system.skew("Thu, 01 Jan 1970 00:02:00 -0000", 100.0) == 20.0
    assert checks_system.skew("yesterday", 100.0) is None
    assert checks_system.skew("", 100.0) is None


@pytest.mark.parametrize(
    ("facts", "needs", "expected"),
    [
        (ClockFacts(True), ("a",), Status.OK),
        (ClockFacts(True, [("n", 59.0)]), ("a",), Status.OK),
        (ClockFacts(True, [("n", 61.0)]), (), Status.WRONG),
        (ClockFacts(False, [("n", -61.0)]), (), Status.WRONG),
        (ClockFacts(False, [("n", 1.0)]), ("a",), Status.OK),
        (ClockFacts(False), ("a",), Status.WRONG),
        (ClockFacts(False), (), Status.OK),
        (ClockFacts(None), ("a",), Status.UNKNOWN),
    ],
)
def test_a_clock_is_wrong_where_that_does_harm(
    facts: ClockFacts, needs: Sequence[str], expected: Status
) -> None:
    (finding,) = checks_system.clock(facts, needs)
    assert status(finding) is expected


def test_who_is_ahead_is_said() -> None:
    ahead, behind = checks_system.clock(ClockFacts(True, [("n", -90.0), ("m", 90.0)]), ())
    assert "of n are 90 s apart (this host's is ahead)" in ahead.text
    assert "of m are 90 s apart (this host's is behind)" in behind.text


def test_networkd_is_wrong_while_it_runs_and_removes_something() -> None:
    on = ("ManageForeignRoutes",)
    assert status(checks_system.networkd(NetworkdFacts(False, on), SETTINGS)) is Status.OK
    assert status(checks_system.networkd(NetworkdFacts(True), SETTINGS)) is Status.OK
    finding = checks_system.networkd(NetworkdFacts(True, on), SETTINGS)
    assert status(finding) is Status.WRONG
    assert "[Network]\\nManageForeignRoutes=no\\n" in finding.remedy


@pytest.mark.parametrize(
    "facts", [CloudFacts(dmi="OpenStack"), CloudFacts(source="Ec2"), CloudFacts(route="eth0")]
)
def test_a_clouds_guest_needs_the_address_itself(facts: CloudFacts) -> None:
    assert status(checks_system.cloud(facts, SETTINGS)) is Status.WRONG
    elsewhere = replace(SETTINGS, host_ip="169.254.169.253")
    assert status(checks_system.cloud(facts, elsewhere)) is Status.OK
    assert status(checks_system.cloud(CloudFacts(), SETTINGS)) is Status.OK


def test_files_with_secrets_are_for_their_owner_and_group() -> None:
    files = [SecretFile("/etc/a b", "secret", 0o640)]
    assert status(checks_system.secret_files(files)) is Status.OK
    assert status(checks_system.secret_files([])) is Status.OK
    finding = checks_system.secret_files([*files, replace(files[0], mode=0o604)])
    assert status(finding) is Status.WRONG
    assert "`chmod o-rwx '/etc/a b'`" in finding.remedy
    finding = checks_system.secret_files([replace(files[0], uid=65534, strange=True)])
    assert status(finding) is Status.WRONG
    assert "/etc/a b (secret, user 65534)" in finding.text
    assert "`chown root: '/etc/a b'`" in finding.remedy


# systemd's socket units


def units(*states: bool | None) -> list[SocketUnit]:
    names = ("dfmeta-agent-admin.socket", "dfmeta-agent-guests.socket")
    return [SocketUnit(name, state) for name, state in zip(names, states, strict=False)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Status.OK),
        (units(True), Status.OK),
        (units(True, True), Status.OK),
        (units(True, None), Status.UNKNOWN),
        (units(None, False), Status.WRONG),
        (units(False, True), Status.WRONG),
        (units(False, False), Status.WRONG),
    ],
)
def test_socket_units(found: list[SocketUnit], expected: Status) -> None:
    assert status(checks_system.sockets(found)) is expected


def test_an_inactive_socket_unit_is_named_with_the_commands_that_start_it() -> None:
    finding = checks_system.sockets(units(True, False))
    assert finding.text.startswith("dfmeta-agent-guests.socket is enabled and inactive: ")
    assert finding.remedy is not None
    stop, start = finding.remedy.split("`")[1].split(" && ")
    assert stop == "systemctl stop dfmeta-agent.service"
    assert start == "systemctl start dfmeta-agent-guests.socket dfmeta-agent.service"
