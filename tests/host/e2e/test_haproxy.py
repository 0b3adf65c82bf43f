"""haproxy as the engine: it answers plain requests, the daemon the others, and identity holds."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import sandbox
from tests.harness.agent import HAPROXY, Agent, Options
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.netns import ROOT
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    asks_own,
    children,
    failures,
    open_connection,
    project_ids,
    put_nova,
    read_all,
    read_answer,
    status_of,
    uuid_in,
)

OPTIONS: Options = {
    "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
    "df_metadata": {"backend": "nova", "engine": "haproxy", "proxy_workers": 0},
    "haproxy": {"binary": HAPROXY},
}
UNIT = ROOT / "etc/systemd/dfmeta-agent.service"
NOBODY = "65534"
REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n".encode()
NAME = "/latest/meta-data/hostname"

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record
agent = shared.nova_agent_with(OPTIONS)


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    return made(agent, nova, make_guest, "one")


def made(agent: Agent, nova: RecordingNova, make_guest: MakeGuest, name: str) -> Guest:
    """A guest with an instance at Nova, whose address is in the map."""
    del agent
    one = make_guest(name, ids=project_ids(name))
    put_nova(nova, one)
    asks_own(one)
    return one


def pids(agent: Agent) -> list[int]:
    """Process ids of the daemon's haproxy; another one while it is replaced."""
    return [one for one in children(agent.pid) if "haproxy" in comm(one)]


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def pid(agent: Agent) -> int:
    """The process id of the one haproxy."""
    wait_for(lambda: len(pids(agent)) == 1 and agent.ready(), "one haproxy")
    return pids(agent)[0]


def knows(agent: Agent, instance: str) -> bool:
    """Whether the daemon has read of that instance in OVSDB."""
    return uuid_of(instance) in agent.admin("/ports").text


def by_daemon(agent: Agent) -> float:
    """How many requests the daemon has answered itself."""
    return agent.metric("dfmeta_request_seconds_count")


def test_a_plain_request_is_haproxys(agent: Agent, nova: RecordingNova, guest: Guest) -> None:
    before = by_daemon(agent)
    nova.clear()
    asks_own(guest)
    assert guest.curl(META_DATA, "--head").status == 200
    assert by_daemon(agent) == before
    asked = nova.requests()
    assert [one.method for one in asked] == ["GET", "HEAD"]
    for one in asked:
        assert one.instance_id == guest.instance_id
        assert one.header("X-Tenant-ID") == guest.ids.project_id
        assert one.header("X-Forwarded-For") == guest.ip
        assert one.header("X-Instance-ID-Signature") == nova.signature(guest.instance_id)


@pytest.mark.parametrize(
    "options",
    [
        (f"{META_DATA}?a",),
        ("/latest%2fmeta-data/",),
        ("//latest/meta-data/",),
        (META_DATA, "-X", "POST", "--data", "x"),
        (META_DATA, "-H", "X-aws-ec2-metadata-token: x"),
        (META_DATA, *(word for n in range(40) for word in ("-H", f"X-{n}: 1"))),
        ("/healthz",),
    ],
    ids=["query", "percent", "slashes", "body", "token", "many headers", "path of the daemon"],
)
def test_any_other_request_is_the_daemons(
    agent: Agent, guest: Guest, options: tuple[str, ...]
) -> None:
    before = by_daemon(agent)
    reply = guest.curl(*options)
    assert reply.status
    assert by_daemon(agent) == before + 1


@pytest.mark.parametrize("accept", ["", "Accept: a/b\r\n"], ids=["any", "accept"])
@pytest.mark.parametrize(
    "names",
    [
        ("X-Instance-ID", "x_instance_id", "X-Tenant-ID", "X-Metadata-Provider", "Cookie"),
        ("Range",),
        ("0-a", "~a", "_a"),
    ],
    ids=["identity", "one more", "odd letters"],
)
def test_headers_of_the_guest_do_not_reach_nova_in_any_spelling(
    nova: RecordingNova, guest: Guest, names: tuple[str, ...], accept: str
) -> None:
    nova.clear()
    with open_connection(guest) as connection:
        lines = "".join(f"{name}: evil\r\n" for name in names)
        connection.sendall(
            f"GET {META_DATA} HTTP/1.1\r\nHost: 169.254.169.254\r\n{lines}{accept}"
            "Connection: close, X-Tenant-ID\r\n\r\n".encode()
        )
        assert read_all(connection).startswith(b"HTTP/1.1 200")
    (asked,) = nova.requests()
    assert "evil" not in str(asked.headers)
    assert asked.instance_id == guest.instance_id
    assert asked.header("Accept") == ("a/b" if accept else None)


def test_haproxy_may_do_nothing_but_answer(agent: Agent, guest: Guest) -> None:
    process = Path(f"/proc/{pid(agent)}")
    found = status_of(pid(agent))
    assert found["Uid"].split() == [NOBODY] * 4
    assert found["Groups"] == ""
    assert {int(found[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert found["NoNewPrivs"] == "1"
    assert (process / "environ").read_bytes() == b""
    words = (process / "cmdline").read_bytes()
    assert guest.instance_id.encode() not in words
    assert SECRET.encode() not in words
    kinds = {os.readlink(one) for one in (process / "fd").iterdir()}
    files = {one for one in kinds if one.startswith("/") and not one.startswith("/memfd:")}
    # haproxy 3.0 keeps the messages of its start in shared memory.
    assert {one for one in files if "haproxy_startup_logs" not in one} == {"/dev/null"}


@pytest.fixture
def sandboxed(agent: Agent) -> Iterator[Agent]:
    """The daemon in the sandbox of its unit."""
    agent.stop()
    agent.prefix = sandbox.prefix(UNIT, agent.state_path)
    agent.start()
    yield agent
    agent.stop()
    agent.prefix = []
    agent.start()


def test_haproxy_answers_inside_the_units_sandbox(sandboxed: Agent, guest: Guest) -> None:
    first, before = pid(sandboxed), by_daemon(sandboxed)
    found = status_of(first)
    assert (found["Seccomp"], found["NoNewPrivs"], int(found["CapBnd"], 16)) == ("2", "1", 0)
    asks_own(guest)
    assert by_daemon(sandboxed) == before
    os.kill(first, signal.SIGKILL)
    asks_own(guest)
    assert pid(sandboxed) != first
    assert "haproxy: " not in sandboxed.log(), "a complaint of haproxy's"


def test_an_answer_does_not_leave_to_another_guest_of_the_port(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.fault(held=True)
    with open_connection(guest) as connection:
        connection.sendall(REQUEST)
        wait_for(nova.requests, "the request to reach Nova")
        guest.set_external_ids(vm_uuid=uuid_of("instance after"))
        wait_for(lambda: knows(agent, "instance after"), "the daemon to know it")
        nova.mend()
        connection.settimeout(1.5)
        answer = b""
        # The flows of the guest before are gone, and with them the end of the connection.
        with contextlib.suppress(TimeoutError):
            answer = read_all(connection)
        assert answer == b""
    wait_for(
        lambda: agent.metric("dfmeta_closed_connections_total", reason="changed") > 0,
        "the answer to be counted",
    )


def test_a_kept_connection_is_not_another_guests(agent: Agent, guest: Guest) -> None:
    with open_connection(guest) as kept:
        kept.sendall(REQUEST)
        assert guest.instance_id.encode() in read_answer(kept)
        guest.set_external_ids(vm_uuid=uuid_of("instance after"))
        wait_for(lambda: knows(agent, "instance after"), "the daemon to know it")
        kept.settimeout(1)
        answer = b""
        # A reset, or nothing where the flows of the one before are gone.
        with contextlib.suppress(OSError):
            kept.sendall(REQUEST)
            answer = kept.recv(65536)
        assert answer == b""


def test_what_haproxy_has_answered_is_counted_and_shown(agent: Agent, guest: Guest) -> None:
    before = agent.metric("dfmeta_requests_total", status="2xx", backend="nova")
    for _ in range(3):
        asks_own(guest)
    assert guest.curl("/latest/meta-data/none").status == 404
    # A reading that haproxy does not answer in time leaves its counts to the next one.
    wait_for(
        lambda: agent.metric("dfmeta_requests_total", status="2xx", backend="nova") == before + 3,
        "three answers to be counted",
    )

    def shown() -> bool:
        (row,) = [one for one in agent.admin("/ports").json() if one["port"] == guest.port]
        return row["requests"]["2xx"] >= 3 and row["requests"]["4xx"] == 1

    wait_for(shown, "the guest's answers to be shown")


def test_ports_come_and_go_under_load_and_haproxy_stays(
    agent: Agent, nova: RecordingNova, guest: Guest, make_guest: MakeGuest
) -> None:
    process = pid(agent)
    batch = guest.start_many(600, 2, path=NAME)
    others = {}
    for number in range(12):
        one = made(agent, nova, make_guest, f"p{number}")
        others[one] = one.http_many(5, path=NAME)
        one.close()
    samples = {guest: batch.samples(), **others}
    assert failures(samples) == {}
    assert pids(agent) == [process]


def test_a_haproxy_that_is_killed_is_there_again(agent: Agent, guest: Guest) -> None:
    process = pid(agent)
    batch = guest.start_many(300, path=META_DATA)
    os.kill(process, signal.SIGKILL)
    samples = batch.samples()
    answered = [one for one in samples if one.status == 200]
    assert all(uuid_in(one.body) == guest.instance_id for one in answered)
    assert len(samples) - len(answered) <= 1, "the one that it had begun"
    assert pid(agent) != process
    assert "haproxy ended with status -9" in agent.log()


def test_a_haproxy_that_hangs_is_replaced(agent: Agent, guest: Guest) -> None:
    process = pid(agent)
    os.kill(process, signal.SIGSTOP)
    wait_for(lambda: process not in pids(agent), "the end of the one that hangs")
    asks_own(guest)
    assert "haproxy hangs" in agent.log()


def test_another_guest_does_not_wait_for_a_haproxy_that_hangs(
    agent: Agent, nova: RecordingNova, guest: Guest, make_guest: MakeGuest
) -> None:
    after = make_guest("two", ids=project_ids("two"))
    put_nova(nova, after)
    process = pid(agent)
    os.kill(process, signal.SIGSTOP)
    asks_own(after)
    asks_own(guest)
    # The daemon has answered them itself, or the next haproxy: this one may still be ending.
    wait_for(lambda: process not in pids(agent), "the end of the one that hangs")


def test_sighup_changes_signatures_without_another_process(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    process = pid(agent)
    agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": "another"}})
    agent.signal(signal.SIGHUP)
    try:
        wait_for(lambda: guest.curl(META_DATA).status == 403, "another signature")
    finally:
        agent.configure({"DEFAULT": {"metadata_proxy_shared_secret": SECRET}})
        agent.signal(signal.SIGHUP)
    wait_for(lambda: guest.curl(META_DATA).status == 200, "the first signature")
    assert pids(agent) == [process]


def test_sighup_has_another_process_take_over_and_no_request_is_lost(
    agent: Agent, guest: Guest
) -> None:
    process = pid(agent)
    batch = guest.start_many(300, path=NAME)
    agent.configure({"df_metadata": {"hold_timeout": 7}})
    agent.signal(signal.SIGHUP)
    wait_for(lambda: process not in pids(agent), "another haproxy")
    assert failures({guest: batch.samples()}) == {}


def test_haproxy_ends_with_the_daemon(
    host: OpenvSwitch, agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    del host, nova
    process = pid(agent)
    agent.kill()
    wait_for(lambda: "haproxy" not in comm(process), "the end of haproxy")
    agent.start()
    asks_own(guest)


def test_a_request_waits_in_the_daemon_while_nova_is_away(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.away()
    batch = guest.start_many(1)
    wait_for(lambda: agent.metric("dfmeta_held_requests_total", why="backend") > 0, "the request")
    nova.back()
    (sample,) = batch.samples()
    assert (sample.status, uuid_in(sample.body)) == (200, guest.instance_id)


def test_guests_are_served_over_a_device_that_was_made_anew(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    process = pid(agent)
    batch = guest.start_many(200, path=NAME)
    before = agent.log().count(f"Configured {SIDE.tap}: ")
    host.vsctl("del-port", SIDE.bridge, SIDE.tap)
    wait_for(lambda: agent.log().count(f"Configured {SIDE.tap}: ") > before, "the repair")
    wrong = failures({guest: batch.samples()})
    # At most the one request that haproxy was waiting for when the device went.
    assert wrong.total() <= 1, wrong
    assert not any("refused" in kind or "ANOTHER" in kind for kind in wrong), wrong
    wait_for(lambda: process not in pids(agent), "another haproxy: the old one's connections")
    asks_own(guest)


@pytest.mark.parametrize("program", ["ovs-vswitchd", "ovsdb-server"])
def test_guests_are_served_after_a_restart_of_the_switch(
    host: OpenvSwitch, agent: Agent, guest: Guest, program: str
) -> None:
    process = pid(agent)
    batch = guest.start_many(200, path=META_DATA)
    host.restart(program)
    # The number of the port is in doubt for a moment, in which answers under way wait.
    assert {(one.status, uuid_in(one.body)) for one in batch.samples()} == {
        (200, guest.instance_id)
    }
    wait_for(agent.ready, "the daemon")
    asks_own(guest)
    assert pids(agent) == [process]


def test_guests_with_rate_limits_are_the_daemons(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    del nova
    agent.configure({"metadata_rate_limiting": {"rate_limit_enabled": True}})
    agent.signal(signal.SIGHUP)

    def handed_over() -> bool:
        before = by_daemon(agent)
        asks_own(guest)
        return by_daemon(agent) == before + 1

    try:
        wait_for(handed_over, "the requests to be the daemon's")
    finally:
        agent.configure({"metadata_rate_limiting": {"rate_limit_enabled": None}})
        agent.signal(signal.SIGHUP)
    wait_for(lambda: not handed_over(), "the requests to be haproxy's again")


def test_a_program_that_is_not_there_ends_the_start(
    host: OpenvSwitch, agent: Agent, make_agent: MakeAgent
) -> None:
    agent.stop()
    try:
        done = make_agent({**OPTIONS, "haproxy": {"binary": "/none/haproxy"}}, start=False).run()
    finally:
        agent.start()
    assert done.returncode == 2
    assert "Install the package haproxy" in done.stderr


def test_an_answer_is_within_the_time_of_its_request(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    del agent
    nova.fault(delay=60)
    begun = time.monotonic()
    assert guest.curl(NAME, timeout=30).status == 503
    assert time.monotonic() - begun < 20
