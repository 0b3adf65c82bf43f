"""Judgements on the daemon's process, meters, limits and the system around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from dfmeta.inspect.finding import Finding
from dfmeta.model import Endpoint
from tests.core.unit.inspect.values import OK, SETTINGS, UNKNOWN, WRONG, expect, status

ALL = sum(1 << bit for bit in CAPABILITIES.values())
DAEMON = ProcessFacts(1, capabilities=ALL, descriptors=9000, open=50, workers=(2, 3))
VERSIONS = VersionFacts("1.0", "1.0", "ovs-vswitchd (Open vSwitch) 3.1.0", "3.11")
RATE = RATES[Purpose.GUEST_SYN]


def without(name: str) -> ProcessFacts:
    return replace(DAEMON, capabilities=ALL - (1 << CAPABILITIES[name]))


# The process


def test_process_of_the_daemon() -> None:
    permissions, process = checks_process.permissions, checks_process
    sockets = [SocketFacts("/s", 0, 0, 0o700)]
    for finding in (
        *permissions(DAEMON, sockets, workers=2),
        process.open_files(DAEMON, 8448),
        *process.versions(VERSIONS),
    ):
        assert status(finding) is OK, finding
    for finding in (
        *permissions(None, (), workers=2),
        process.workers(None, 2),
        process.open_files(None, 1),
    ):
        assert status(finding) is UNKNOWN, finding
    lacking = without("CAP_SETUID")

    def first(daemon: ProcessFacts, workers: int) -> Finding:
        return next(iter(permissions(daemon, (), workers=workers)))

    # Workers need it, and root alone.
    expect(
        [
            (first(lacking, 0), OK, ""),
            (first(lacking, 1), WRONG, "lacks CAP_SETUID"),
            (first(replace(lacking, uid=7), 1), OK, ""),
            (process.workers(DAEMON, 3), WRONG, "2 of 3 workers"),
            (process.workers(DAEMON, 2), OK, "all 2 workers are alive"),
            (process.workers(DAEMON, 1), OK, "1 workers are alive, and 1 more are ending"),
            (process.open_files(DAEMON, 9001), WRONG, "", "LimitNOFILE=9001"),
        ]
    )


def test_socket_is_open_to_its_owner_its_group_or_all() -> None:
    daemon = replace(without("CAP_DAC_OVERRIDE"), uid=7, groups=(9,))
    for sock, expected in (
        (SocketFacts("/s", 7, 0, 0o200), OK),
        (SocketFacts("/s", 7, 0, 0o022), WRONG),
        (SocketFacts("/s", 0, 9, 0o020), OK),
        (SocketFacts("/s", 0, 9, 0o002), WRONG),
        (SocketFacts("/s", 0, 0, 0o002), OK),
        (SocketFacts("/s", 0, 0, 0o770), WRONG),
    ):
        _, finding = checks_process.permissions(daemon, [sock], workers=0)
        assert status(finding) is expected, sock


def test_versions_that_do_not_fit() -> None:
    for facts, wrong in (
        (replace(VERSIONS, running="0.9"), "version"),
        (replace(VERSIONS, ovs="ovs-vswitchd (Open vSwitch) 2.9.8"), "ovs-version"),
        (replace(VERSIONS, packages=(("click", "7", ">=8"),)), "packages"),
        (replace(VERSIONS, packages=(("click", "", ""),)), "packages"),
    ):
        found = list(checks_process.versions(facts))
        assert [one.check for one in found if status(one) is WRONG] == [wrong], facts
    for text, version in (
        ("ovs-vswitchd (Open vSwitch) 3.1.0", (3, 1, 0)),
        ("ovs-vswitchd (Open vSwitch) 2.17.9-dpdk", (2, 17, 9)),
        ("", ()),
        ("something else", ()),
    ):
        assert checks_process.ovs_version(text) == version
    _, found, _ = checks_process.versions(replace(VERSIONS, ovs=""))
    assert status(found) is UNKNOWN


# Meters and limits


def seen(ofport: int, meter: int | None) -> Seen:
    return Seen(guest_syn(Endpoint(ofport), meter=meter), 0, 300, 1)


def meters(flows: Sequence[Seen], there: Sequence[MeterFact] | None) -> Finding:
    return checks_meters.meters(flows, there, names={Endpoint(1): "tap1"}, wanted=SETTINGS)


def test_meters_count_drops_and_guests_without_one_are_named() -> None:
    counted = meters([seen(1, 5)], [MeterFact(5, RATE, 7, 1), MeterFact(6, 1, 100, 1)])
    expect(
        [
            (counted, OK, "0 first SYNs dropped, 7 SYNs dropped"),
            (meters([], []), OK, ""),
            (meters([Seen(None, 9, 0, 1)], []), OK, ""),
            (meters([seen(1, None)], ()), WRONG, "SYNs of tap1 are not limited"),
            (meters([seen(1, 5)], ()), WRONG, "SYNs of tap1 are not limited"),
            (meters([seen(2, None)], ()), WRONG, "SYNs of a removed port are not limited"),
            (meters([seen(1, 5)], (MeterFact(5, 3, 0, 1),)), WRONG, "changed dfmeta's meters: 5"),
            (meters([seen(1, 5)], None), WRONG, "has no meters"),
        ]
    )
    others = [MeterFact(7, RATE, 0, 0), MeterFact(65537, RATE, 0, 1), MeterFact(65538, 4321, 0, 0)]
    there = [MeterFact(5, RATE, 7, 1), *others]
    unused = [*there, MeterFact(131229, RATE, 0, 0), MeterFact(65693, RATE, 0, 0)]
    for flows in ([], [seen(1, 5)]):
        assert "no flow uses" not in meters(flows, there).text
        expect([(meters(flows, unused), OK, "no flow uses the meters 65693, 131229: ")])


def test_limits_of_the_host() -> None:
    neighbours, ports = checks_limits.neighbours, checks_limits.local_ports
    room = LimitFacts(neighbours=899, neighbours_max=1000)
    expect(
        [
            (neighbours(LimitFacts()), OK, ""),
            (neighbours(room), OK, ""),
            (neighbours(replace(room, neighbours=900)), WRONG, "", "gc_thresh3=2000"),
            (ports(LimitFacts(), needed=4096), OK, ""),
            (ports(LimitFacts(local_ports=100), needed=4096), WRONG, ""),
        ]
    )


# The system


def test_clock_is_wrong_where_that_does_harm() -> None:
    for text, skew in (
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:02:00 -0000", 20.0),
        ("yesterday", None),
        ("", None),
    ):
        assert checks_system.skew(text, 100.0) == skew
    for facts, needs, expected in (
        (ClockFacts(True), ("a",), OK),
        (ClockFacts(True, [("n", 59.0)]), ("a",), OK),
        (ClockFacts(True, [("n", 61.0)]), (), WRONG),
        (ClockFacts(False, [("n", -61.0)]), (), WRONG),
        (ClockFacts(False, [("n", 1.0)]), ("a",), OK),
        (ClockFacts(False), ("a",), WRONG),
        (ClockFacts(False), (), OK),
        (ClockFacts(None), ("a",), UNKNOWN),
    ):
        (finding,) = checks_system.clock(facts, needs)
        assert status(finding) is expected, facts
    ahead, behind = checks_system.clock(ClockFacts(True, [("n", -90.0), ("m", 90.0)]), ())
    assert "of n are 90 s apart (this host's is ahead)" in ahead.text
    assert "of m are 90 s apart (this host's is behind)" in behind.text


def test_networkd_is_wrong_while_it_runs_and_removes_routes_or_rules() -> None:
    networkd, on = checks_system.networkd, ("ManageForeignRoutes",)
    no = "[Network]\\nManageForeignRoutes=no\\n"
    expect(
        [
            (networkd(NetworkdFacts(False, on), SETTINGS), OK, ""),
            (networkd(NetworkdFacts(True), SETTINGS), OK, ""),
            (networkd(NetworkdFacts(True, on), SETTINGS), WRONG, "", no),
        ]
    )


def test_guest_of_a_cloud_needs_the_address_itself() -> None:
    elsewhere = replace(SETTINGS, host_ip="169.254.169.253")
    for facts in (CloudFacts(dmi="OpenStack"), CloudFacts(source="Ec2"), CloudFacts(route="eth0")):
        assert status(checks_system.cloud(facts, SETTINGS)) is WRONG, facts
        assert status(checks_system.cloud(facts, elsewhere)) is OK, facts
    assert status(checks_system.cloud(CloudFacts(), SETTINGS)) is OK


def test_files_with_secrets_are_for_their_owner_and_group() -> None:
    file, secret_files = SecretFile("/etc/a b", "secret", 0o640), checks_system.secret_files
    strange = secret_files([replace(file, uid=65534, strange=True)])
    expect(
        [
            (secret_files([file]), OK, ""),
            (secret_files([]), OK, ""),
            (
                secret_files([file, replace(file, mode=0o604)]),
                WRONG,
                "",
                "`chmod o-rwx '/etc/a b'`",
            ),
            (strange, WRONG, "/etc/a b (secret, user 65534)", "`chown root: '/etc/a b'`"),
        ]
    )


def test_socket_units_are_active_where_they_are_enabled() -> None:
    admin, guests = "dfmeta-agent-admin.socket", "dfmeta-agent-guests.socket"

    def sockets(*states: bool | None) -> Finding:
        units = zip((admin, guests), states, strict=False)
        return checks_system.sockets([SocketUnit(name, state) for name, state in units])

    commands = f"`systemctl stop dfmeta-agent.service && systemctl start {guests} dfmeta-agent"
    inactive = sockets(True, False)
    expect(
        [
            (sockets(), OK, ""),
            (sockets(True), OK, ""),
            (sockets(True, True), OK, ""),
            (sockets(True, None), UNKNOWN, ""),
            (sockets(None, False), WRONG, ""),
            (sockets(False, True), WRONG, ""),
            (sockets(False, False), WRONG, ""),
            (inactive, WRONG, f"{guests} is enabled and inactive: ", commands),
        ]
    )
