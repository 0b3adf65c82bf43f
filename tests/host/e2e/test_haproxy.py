"""haproxy as the engine, with real guests: identity, privileges, replacement and faults.

tests/host/haproxy has haproxy itself, on loopback.
"""

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.host.accounts import NUMBERS
from tests.harness.agent import HAPROXY, Agent, Options
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.netns import ROOT
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.poll import wait_for
from tests.host.e2e import sandbox, shared
from tests.host.e2e.support import (
    META_DATA,
    asks_own,
    children,
    open_connection,
    project_ids,
    put_nova,
    status_of,
    uuid_in,
)

OPTIONS: Options = {
    "DEFAULT": {"metadata_proxy_shared_secret": SECRET},
    "df_metadata": {"backend": "nova", "engine": "haproxy", "proxy_workers": 0},
    "haproxy": {"binary": HAPROXY},
}
UNIT = ROOT / "etc/systemd/dfmeta-agent.service"
REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n".encode()
OF_HAPROXY = ("haproxy", "account")
"""Beginnings of the names of doctor's checks of haproxy."""

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record
# Connections without a request stay while a busy machine runs doctor.
agent = shared.nova_agent_with({**OPTIONS, "guest_limits": {"header_timeout": 120}})


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    return made(agent, nova, make_guest, "one")


def made(agent: Agent, nova: RecordingNova, make_guest: MakeGuest, name: str) -> Guest:
    """A guest with an instance at Nova, whose address is in the map."""
    del agent
    guest = make_guest(name, ids=project_ids(name))
    put_nova(nova, guest)
    asks_own(guest)
    return guest


def pids(agent: Agent) -> list[int]:
    """Process ids of the daemon's haproxy; another one while it is replaced."""
    return [child for child in children(agent.pid) if "haproxy" in comm(child)]


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
    responses = nova.requests()
    assert [response.method for response in responses] == ["GET", "HEAD"]
    for response in responses:
        assert response.instance_id == guest.instance_id
        assert response.header("X-Tenant-ID") == guest.ids.project_id
        assert response.header("X-Forwarded-For") == guest.ip
        assert response.header("X-Instance-ID-Signature") == nova.signature(guest.instance_id)


def test_haproxy_may_do_nothing_but_answer(agent: Agent, guest: Guest) -> None:
    folder = Path(f"/proc/{pid(agent)}")
    status = status_of(pid(agent))
    (uid,) = set(status["Uid"].split())
    assert int(uid) in NUMBERS
    assert status["Groups"] == ""
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert (folder / "environ").read_bytes() == b""
    words = (folder / "cmdline").read_bytes()
    assert guest.instance_id.encode() not in words
    assert SECRET.encode() not in words
    kinds = {os.readlink(path) for path in (folder / "fd").iterdir()}
    files = {kind for kind in kinds if kind.startswith("/") and not kind.startswith("/memfd:")}
    # haproxy 3.0 keeps the messages of its start in shared memory.
    expected = ("/dev/null", "haproxy_startup_logs", "/handover-")
    assert [file for file in files if not any(part in file for part in expected)] == []


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
    status = status_of(first)
    assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapBnd"], 16)) == ("2", "1", 0)
    asks_own(guest)
    assert by_daemon(sandboxed) == before
    os.kill(first, signal.SIGKILL)
    asks_own(guest)
    assert pid(sandboxed) != first
    assert "haproxy: " not in sandboxed.log(), "a complaint of haproxy's"


def test_no_answer_leaves_to_another(agent: Agent, nova: RecordingNova, guest: Guest) -> None:
    nova.fault(held=True)
    with open_connection(guest) as connection:
        connection.sendall(REQUEST)
        wait_for(nova.requests, "the request to reach Nova")
        guest.set_external_ids(vm_uuid=uuid_of("instance after"))
        wait_for(lambda: knows(agent, "instance after"), "the daemon to know it")
        nova.mend()
        wait_for(
            lambda: agent.metric("dfmeta_closed_connections_total", reason="changed") > 0,
            "the answer to be counted",
        )
        # A reset, or nothing where the flows of the guest before are gone.
        connection.setblocking(False)
        answer = b""
        with contextlib.suppress(OSError):
            answer = connection.recv(65536)
        assert answer == b""


def doctor(agent: Agent) -> dict[str, dict[str, str]]:
    """Check → line of doctor, for those of haproxy."""
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    assert SECRET not in done.stdout
    lines = [line for line in json.loads(done.stdout) if line["check"].startswith(OF_HAPROXY)]
    return {line["check"]: line for line in lines}


def test_doctor_and_the_report_name_program_process_and_map(agent: Agent, guest: Guest) -> None:
    process = pid(agent)
    uid = status_of(process)["Uid"].split()[0]
    texts = {check: line["text"] for check, line in doctor(agent).items()}
    assert re.fullmatch(rf"haproxy [0-9]\S+, {HAPROXY}", texts["haproxy"])
    assert f"haproxy (pid {process}) runs as user {uid} without" in texts["haproxy-process"]
    assert texts["account"] == f"haproxy runs as user {uid}, and no other program does"
    assert re.match(r"[0-9]+ of [0-9]+ files", texts["haproxy-files"])
    assert re.match(r"guests have [0-9]+ of 4096 connections", texts["haproxy-connections"])
    assert re.search("has the [1-9][0-9]* addresses", texts["haproxy-map"])
    answer = agent.admin("/haproxy")
    report = answer.json()
    assert report["pid"] == process
    assert report["map"]["entries"] >= 1
    for secret in (SECRET, guest.instance_id, guest.ids.project_id, guest.ip):
        assert str(secret) not in answer.text


def test_a_haproxy_that_is_killed_is_there_again(agent: Agent, guest: Guest) -> None:
    process = pid(agent)
    batch = guest.start_many(300, path=META_DATA)
    os.kill(process, signal.SIGKILL)
    samples = batch.samples()
    answered = [sample for sample in samples if sample.status == 200]
    assert all(uuid_in(response.body) == guest.instance_id for response in answered)
    assert len(samples) - len(answered) <= 1, "the one that it had begun"
    assert pid(agent) != process
    assert "haproxy ended with status -9" in agent.log()
