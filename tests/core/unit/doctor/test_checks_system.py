"""Judgements on the daemon's process, the system, Nova, Neutron, libvirt, the store and haproxy."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dfmeta.doctor import (
    checks_daemon,
    checks_flows,
    checks_services,
    checks_switch,
    checks_system,
)
from dfmeta.doctor.checks_daemon import (
    DiskFacts,
    EngineFacts,
    MapFacts,
    Owners,
    ProgramFacts,
    SecretFile,
)
from dfmeta.doctor.checks_services import LibvirtFacts, LookupFacts, NeutronFacts
from dfmeta.doctor.facts import KnownPort
from dfmeta.doctor.finding import Finding
from dfmeta.errors import TokenFileError
from dfmeta.flows.family import bare_request
from dfmeta.flows.integration_bridge import first_syn, guest_fragment, guest_syn
from dfmeta.flows.openflow import Flow, Seen
from dfmeta.host.host_facts import LimitFacts
from dfmeta.host.process import CAPABILITIES, AccountFacts, ChildFacts, ProcessFacts, SocketFacts
from dfmeta.host.system import NetworkdFacts, OvnMetadataFacts, read_ovn_metadata
from dfmeta.model import Endpoint
from dfmeta.ovsdb.rows import Interface, Snapshot
from dfmeta.proxy.backends.nova_requests import NovaFact
from dfmeta.store.auth.tokens import StaticToken
from dfmeta.store.db import HEAD
from dfmeta.store.db.database_facts import DatabaseFacts
from tests.core.unit.doctor.values import (
    INSTANCE,
    OK,
    PORT,
    SETTINGS,
    UNKNOWN,
    WARNING,
    WRONG,
    expect,
    status,
)

ALL = sum(1 << bit for bit in CAPABILITIES.values())
DAEMON = ProcessFacts(1, capabilities=ALL, descriptors=9000, open=50, workers=(2, 3))


def without(name: str) -> ProcessFacts:
    return replace(DAEMON, capabilities=ALL - (1 << CAPABILITIES[name]))


def test_process_of_the_daemon() -> None:
    permissions, workers = checks_daemon.permissions, checks_daemon.workers
    lacking, open_files = without("CAP_SETUID"), checks_daemon.open_files
    # Workers need it, and root alone.
    expect(
        [
            (permissions(DAEMON, workers=2), OK, ""),
            (permissions(lacking, workers=0), OK, ""),
            (permissions(lacking, workers=1), WRONG, "lacks CAP_SETUID"),
            (permissions(replace(lacking, uid=7), workers=1), OK, ""),
            (workers(DAEMON, 3), WRONG, "2 of 3 workers"),
            (workers(DAEMON, 2), OK, "all 2 workers are alive"),
            (workers(DAEMON, 1), OK, "1 workers are alive, and 1 more are ending"),
            (open_files(DAEMON, 4096), OK, ""),
            (open_files(DAEMON, 4373), WRONG, "", "LimitNOFILE=9002"),
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
        assert status(checks_daemon.sockets(daemon, [sock])) is expected, sock


def test_versions_that_do_not_fit() -> None:
    version, ovs = checks_daemon.version, checks_switch.ovs_version
    expect(
        [
            (version("1.0", "1.0", "3.11"), OK, "dfmeta 1.0, Python 3.11"),
            (version("1.0", "", "3.11"), OK, ""),
            (version("1.0", "0.9", "3.11"), WRONG, "dfmeta-agent 0.9 runs"),
            (ovs("ovs-vswitchd (Open vSwitch) 3.1.0"), OK, "Open vSwitch 3.1.0"),
            (ovs("ovs-vswitchd (Open vSwitch) 2.8.8"), WRONG, "older than 2.9"),
            (ovs(""), UNKNOWN, ""),
            (ovs("something else"), UNKNOWN, ""),
        ]
    )
    parse = checks_switch.parse_version
    assert parse("ovs-vswitchd (Open vSwitch) 2.17.9-dpdk") == (2, 17, 9)


def seen(*flows: Flow) -> list[Seen]:
    return [Seen(flow, 0, 300, 1) for flow in flows]


def test_guests_that_flood_are_named_once() -> None:
    def floods(*flows: Flow) -> Finding:
        return checks_flows.floods(seen(*flows), {Endpoint(1): "tap1"})

    calm, endpoint, other = guest_syn(Endpoint(1)), Endpoint(1), Endpoint(2)
    both = guest_syn(endpoint, floods=True), first_syn(endpoint, floods=True)
    expect(
        [
            (floods(), OK, "no guest floods"),
            (floods(calm, guest_fragment(endpoint)), OK, "no guest floods"),
            (checks_flows.floods([Seen(None, 9, 0, 1)], {}), OK, "no guest floods"),
            (floods(*both), WARNING, "tap1: the guest sends too many SYNs"),
            (floods(calm, bare_request(endpoint, floods=True)), WARNING, "tap1: "),
            (floods(*both, guest_syn(other, floods=True)), WARNING, "ofport 2, tap1: "),
        ]
    )


def test_limits_of_the_host() -> None:
    neighbours, ports = checks_system.neighbours, checks_system.local_ports
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


def test_clock_is_wrong_where_that_does_harm() -> None:
    for text, skew in (
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:02:00 -0000", 20.0),
        ("yesterday", None),
    ):
        assert checks_system.skew(text, 100.0) == skew
    for synchronised, skews, needs, expected in (
        (True, [("n", 59.0)], ("a",), OK),
        (True, [("n", 61.0)], (), WRONG),
        (False, [("n", -61.0)], (), WRONG),
        (False, [("n", 1.0)], ("a",), OK),
        (False, [], ("a",), WRONG),
        (False, [], (), OK),
        (None, [], ("a",), UNKNOWN),
    ):
        (finding,) = checks_system.clock(synchronised, skews, needs)
        assert status(finding) is expected, (synchronised, skews, needs)
    ahead, behind = checks_system.clock(True, [("n", -90.0), ("m", 90.0)], ())
    assert "of n are 90 s apart (this host's is ahead)" in ahead.text
    assert "of m are 90 s apart (this host's is behind)" in behind.text


def test_networkd_is_wrong_while_it_runs_and_removes_routes_or_rules() -> None:
    networkd, on = checks_system.networkd, ("ManageForeignRoutes",)
    no = "[Network]\\nManageForeignRoutes=no\\n"
    taken = networkd(NetworkdFacts(True, network="/etc/a.network"), "tap-x")
    expect(
        [
            (networkd(NetworkdFacts(False, on), "tap-x"), OK, ""),
            (networkd(NetworkdFacts(True), "tap-x"), OK, ""),
            (networkd(NetworkdFacts(True, on), "tap-x"), WRONG, "", no),
            (taken, WRONG, "configures tap-x by /etc/a.network", "Name=tap-x\\n[Link]"),
        ]
    )


def test_network_manager_is_wrong_while_it_manages_the_device() -> None:
    manager, line = checks_system.network_manager, "unmanaged-devices+=interface-name:tap-x\\n"
    expect(
        [
            (manager(None, "tap-x"), OK, "does not run"),
            (manager(False, "tap-x"), OK, "alone"),
            (manager(True, "tap-x"), WRONG, "manages tap-x", line),
        ]
    )


def test_devices_of_ovns_metadata_agent_are_wrong_while_it_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "run/netns/ovnmeta-b1f51a51-1f1d-40cd-848b-8f8598db32e6").mkdir(parents=True)
    (tmp_path / "run/netns/qdhcp-b1f51a51-1f1d-40cd-848b-8f8598db32e6").mkdir()
    devices = read_ovn_metadata(tmp_path).devices
    assert read_ovn_metadata(tmp_path / "none").devices == ()

    def judge(*, running: bool, snapshot: Snapshot) -> Finding | None:
        return checks_system.ovn_metadata(OvnMetadataFacts(devices, running), snapshot, SETTINGS)

    assert judge(running=False, snapshot=Snapshot()) is None
    plugged = Snapshot(interfaces=(Interface("tapb1f51a51-10", "br-int"),))
    beside, left = (judge(running=running, snapshot=plugged) for running in (True, False))
    assert beside
    assert left
    expect([(beside, OK, "(1): tapb1f51a51-10;"), (left, WRONG, "does not run", "port br-int`")])


def test_guest_of_a_cloud_needs_the_address_itself() -> None:
    elsewhere = replace(SETTINGS, host_ip="169.254.169.253")
    cloud, answered = checks_system.cloud, replace(SETTINGS, host_service=True)
    expect(
        [
            (cloud("eth0", SETTINGS), WRONG, "leads through eth0"),
            (cloud("", answered), WRONG, "a server answered this host"),
            (cloud("eth0", elsewhere), OK, ""),
            (cloud("", SETTINGS), OK, ""),
        ]
    )


def test_files_with_secrets_are_for_their_owner_and_group() -> None:
    file, secret_files = SecretFile("/etc/a b", "secret", 0o640), checks_daemon.secret_files
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


URL = "http://n:8775"
GOOD = NovaFact("n:8775", 404, 400)
STORE = DatabaseFacts("/s/store.db", file=True, revision=HEAD)
SERVER = replace(STORE, shown="postgresql://h/d", file=False)


def nova(fact: NovaFact, *, real: bool = False) -> Finding:
    instance = INSTANCE if real else ""
    return checks_services.nova(fact, URL, instance=instance, project="p" if real else "")


def test_nova_is_judged_by_its_answers_with_and_without_a_signature() -> None:
    def fact(status: int = 0, unsigned: int = 0) -> NovaFact:
        return NovaFact("n:8775", status, unsigned)

    gone = NovaFact("n:8775", cause="gone", remedy="Look")
    off = "service_metadata_proxy is off"
    expect(
        [
            # A made-up instance that is not there shows that the signature was taken.
            (nova(GOOD), OK, ""),
            (nova(fact(200), real=True), OK, ""),
            (nova(fact(403)), WRONG, "_secret here differs", "reload dfmeta-agent"),
            (nova(fact(404, 404)), WRONG, off, "nova-api-metadata"),
            (nova(fact(404, 200), real=True), WRONG, off, "nova-api-metadata"),
            (
                nova(GOOD, real=True),
                *(WRONG, f"has no instance {INSTANCE} in project p", "openstack server show"),
            ),
            (nova(fact(200)), WRONG, "answers 200", "curl"),
            (nova(fact(400), real=True), WRONG, "drops dfmeta's headers", "curl"),
            (nova(fact(502), real=True), WRONG, "has failed (502)", "its log"),
            (nova(gone), WRONG, "n:8775: gone", f"curl -sv {URL}"),
        ]
    )
    for answer in (GOOD, fact(200)):
        assert answer.takes_signature, "only such a host says which instances Nova has"
    for answer_ in (fact(403), fact(404, 404), fact(404, 200), fact(500), gone):
        assert not answer_.takes_signature, answer_


def test_guests_that_nova_does_not_have_are_named() -> None:
    def guest(name: str, status: int) -> tuple[KnownPort, int]:
        return replace(PORT, name=name, project="p"), status

    guests, good = checks_services.nova_guests, [guest(f"tap{number}", 200) for number in range(8)]
    lost = guests([*good, guest("tap8", 404), guest("tap9", 404)], of=200)
    show = f"`openstack server show {INSTANCE} -c project_id`"
    whole = "each of 8 queried guests, of 200 with a project"
    expect(
        [
            (guests([*good, guest("tap8", 0)], of=200), OK, whole),
            (lost, WRONG, "(404) for 2 of 10 queried guests, of 200 with", show),
            (lost, WRONG, f"tap8 (instance {INSTANCE}, project p), tap9 ("),
            (guests([*good, guest("tap8", 500)], of=9), WRONG, "tap8 (500)"),
            (guests([guest("tap8", 0)], of=9), UNKNOWN, ""),
            (guests([], of=9), UNKNOWN, ""),
        ]
    )


def test_libvirt_may_be_missing_unless_it_is_wanted() -> None:
    missing = LibvirtFacts(missing=("/run/libvirt/qemu",))
    present = LibvirtFacts(folders=("/run/libvirt/qemu",), domains=2, active=1)
    denied = checks_services.libvirt(LibvirtFacts(error="/etc/q: denied"), wanted=False)
    expect(
        [
            (checks_services.libvirt(missing, wanted=False), OK, ""),
            (checks_services.libvirt(missing, wanted=True), WRONG, ""),
            (checks_services.libvirt(present, wanted=True), OK, "2 domains"),
            (denied, WRONG, "", "`namei -l /etc/q`"),
        ]
    )


def test_neutrons_ports_are_those_of_this_host() -> None:
    def judged(**facts: Any) -> Finding:
        return checks_services.neutron(NeutronFacts(**facts), "h")

    queried = {"id": "tap1"}
    expect(
        [
            (judged(), OK, ""),
            (judged(queried=queried), WRONG, ""),
            # An account that sees ports and not their hosts is no fault; one may be migrating.
            *(
                (judged(queried=queried, seen=seen), OK, "")
                for seen in ({"id": ""}, {"id": "h"}, {"id": "h", "other": "else"})
            ),
            (judged(queried=queried, seen={"id": "else"}), WRONG, "", "[neutron] host = else"),
            *(
                (judged(cause="no", status=code), WRONG, "", word)
                for code, word in ((401, "token issue"), (403, "role add"), (0, "list"))
            ),
        ]
    )


def test_database_of_the_store() -> None:
    database, schema = checks_services.store, checks_services.store_schema
    gone, cut = replace(STORE, exists=False), replace(STORE, cut=True)
    expect(
        [
            (database(STORE, running=True), OK, ""),
            (database(SERVER, running=True), OK, ""),
            (checks_services.store_files(STORE, Owners()), OK, ""),
            (database(gone, running=False), OK, ""),
            (database(gone, running=True), WRONG, "", "store restore"),
            (database(cut, running=True), WRONG, "truncated to 0 bytes", "store restore FILE`"),
            (database(replace(STORE, cause="no"), running=True), WRONG, "", "sqlite3"),
            (database(replace(SERVER, cause="no"), running=True), WRONG, "", "pg_isready"),
            (schema(STORE, running=True), OK, ""),
            *(
                (schema(replace(STORE, revision=revision), running=running), expected, "")
                for revision, running, expected in (
                    (None, False, OK),
                    (None, True, WRONG),
                    ("newer", False, WRONG),
                    ("newer", True, WRONG),
                )
            ),
        ]
    )
    remedy = database(cut, running=True).remedy
    assert remedy.startswith("restore a backup: "), "it is not begun anew"


def test_store_that_ours_asks_and_tokens() -> None:
    lookup = checks_services.lookup
    expect([(lookup(LookupFacts("u", code)), OK, "") for code in (200, 404)])
    expect([(lookup(LookupFacts("u", code)), WRONG, str(code)) for code in (401, 403, 302, 500)])
    expect([(lookup(LookupFacts("u", cause="gone")), WRONG, "cannot be queried: gone")])
    moments = (datetime.fromtimestamp(seconds, UTC) for seconds in (1, 3))
    old, new = (StaticToken("t", "", ("read",), expires=moment) for moment in moments)
    unreadable = TokenFileError(path="/t", cause="line 1", remedy="Mend")
    for tokens, expected in (
        ([new], OK),
        ([new, old], OK),
        ([old], WRONG),
        ([], WRONG),
        (unreadable, WRONG),
    ):
        assert status(checks_services.tokens("/t", tokens, now=2.0)) is expected, tokens


def test_room_on_the_disk() -> None:
    for facts, expected in (
        (DiskFacts(10 << 30, 20 << 30), OK),
        (DiskFacts(10 << 30, 20 << 30, inodes=1000), OK),
        (DiskFacts(100 << 20, 20 << 30), WRONG),
        (DiskFacts(10 << 30, 20 << 30, inodes=1), WRONG),
        # A small one of its own is not to be half empty.
        (DiskFacts(10 << 20, 100 << 20), OK),
    ):
        assert status(checks_daemon.disk(facts, "/var/lib/dfmeta")) is expected, facts


NOW = datetime(2026, 11, 25, tzinfo=UTC)
USER = "dfmeta-haproxy"
PROGRAM = ProgramFacts(binary="/usr/sbin/haproxy", version="2.6.12")
ENGINE = EngineFacts(pid=7, version="2.6.12", connections=5, maxconn=100, map=MapFacts(entries=3))
CHILD = ChildFacts(user=USER, uid=990, capabilities=0, descriptors=712, open=30)


def process(
    engine: EngineFacts = ENGINE, child: ChildFacts | None = CHILD, *, wanted: str = USER
) -> Finding:
    (finding,) = checks_daemon.haproxy_process(engine, child, wanted=wanted, now=NOW)
    return finding


def test_haproxy_in_order() -> None:
    findings = [
        checks_daemon.haproxy(PROGRAM, ENGINE),
        process(),
        checks_daemon.haproxy_files(ENGINE, CHILD),
        checks_daemon.haproxy_connections(ENGINE),
        checks_daemon.haproxy_map(ENGINE),
    ]
    assert {status(finding) for finding in findings} == {OK}


def test_program_that_cannot_be_used_or_was_upgraded() -> None:
    lacking, newer = ProgramFacts(cause="it is gone", remedy="Install"), "2.6.13"
    for engine, goes_on in ((ENGINE, True), (None, False), (EngineFacts(), False)):
        finding = checks_daemon.haproxy(lacking, engine)
        expect([(finding, WRONG, "it is gone", "Install")])
        assert ("the one that runs goes on" in finding.text) == goes_on
        text = f"haproxy {newer} is installed, but 2.6.12 runs" if goes_on else ""
        remedies = ["systemctl reload dfmeta-agent"] if goes_on else []
        upgraded = checks_daemon.haproxy(replace(PROGRAM, version=newer), engine)
        expect([(upgraded, WARNING if goes_on else OK, text, *remedies)])


def test_process_that_does_not_answer_or_has_privileges() -> None:
    unprivileged = replace(CHILD, user="dfmeta", uid=900)
    ended = EngineFacts(fault="it ended at its start")
    mute, failed = replace(ENGINE, fault="no answer"), replace(ENGINE, failed_replacement="ended")
    for finding, text in (
        (process(ended, None), "no haproxy runs: it ended at its start"),
        (process(EngineFacts(), None), "no haproxy runs: dfmeta-agent is about to start it"),
        (process(mute, None), "(pid 7) does not answer dfmeta-agent: no answer"),
        (process(failed, None), "has not started: ended"),
        (process(child=replace(CHILD, user="root", uid=0)), "user root with no capability"),
        (process(child=replace(CHILD, capabilities=1 << 12)), "with capabilities 0x1000"),
        (process(child=replace(CHILD, user="daemon", uid=1)), f"has to run as user {USER}"),
    ):
        expect([(finding, WRONG, text)])
    expect(
        [
            (process(child=unprivileged, wanted=""), OK, ""),  # The daemon is not root.
            (process(child=None), UNKNOWN, ""),
        ]
    )


def test_account_of_another_program_is_a_fault() -> None:
    alone = AccountFacts(users=["61500", "61501"])
    shared = AccountFacts(users=["nobody"], sharers=["dnsmasq (pid 77)"])
    for facts, which, expected, text, *remedies in (
        (alone, "workers", OK, "workers run as user 61500, 61501, and no other program does"),
        (shared, "haproxy", WRONG, "runs as user nobody, and so does dnsmasq (pid 77)", "leave O"),
        (None, "haproxy", UNKNOWN, "the users of haproxy cannot be seen"),
    ):
        expect([(checks_daemon.account(facts, which=which, option="O"), expected, text, *remedies)])


def test_restart_after_a_fault_is_a_warning_for_an_hour() -> None:
    for times, ago, expected, text in (
        (2, timedelta(minutes=59), WARNING, "again 2 times after a fault, the last time 59 min"),
        (2, timedelta(minutes=61), OK, "it was started again 2 times after a fault"),
        (1, timedelta(seconds=-1), WARNING, "again once after a fault, the last time 0 s ago"),
    ):
        fault = replace(ENGINE, restarts=times, last_fault="hangs", last_restart=NOW - ago)
        expect([(process(fault), expected, text)])


def test_limits_are_named_before_they_are_reached() -> None:
    for taken, expected in ((89, OK), (90, WARNING), (100, WRONG)):
        remedies = [] if expected is OK else ["raise [haproxy] maxconn"]
        for finding in (
            checks_daemon.haproxy_files(ENGINE, replace(CHILD, open=taken, descriptors=100)),
            checks_daemon.haproxy_connections(replace(ENGINE, connections=taken)),
        ):
            expect([(finding, expected, f"{taken} of 100", *remedies)])
    expect([(checks_daemon.haproxy_connections(replace(ENGINE, connections=None)), UNKNOWN, "")])


def test_map_that_differs_is_a_fault_in_numbers() -> None:
    other = MapFacts(entries=9, missing=1, superfluous=2, different=3)
    text = "1 missing, 2 superfluous, 3 different, of 9 entries"
    expect(
        [
            (checks_daemon.haproxy_map(replace(ENGINE, map=other)), WRONG, text),
            (checks_daemon.haproxy_map(replace(ENGINE, map=None)), UNKNOWN, ""),
        ]
    )
