"""haproxy as its operator sees it: doctor's lines for faults that are really there, and SIGHUP."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dfmeta.host.process import read_haproxy
from dfmeta.proxy.haproxy.runtime import Runtime
from tests.harness import netns
from tests.harness.agent import HAPROXY, Agent
from tests.harness.guest import Guest
from tests.harness.nova import SECRET, RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    asks_own,
    failures,
    open_connection,
    project_ids,
    put_nova,
)
from tests.host.e2e.test_haproxy import NAME, NOBODY, OPTIONS, by_daemon, pid, pids

CHECKS = ("haproxy", "haproxy-process", "haproxy-files", "haproxy-connections", "haproxy-map")
OPEN = 50
"""Connections beside which haproxy's own descriptors are few."""
LEAST = 64
"""The least value of maxconn."""
_PIDFD_GETFD = 438
_MAP = re.compile(r"\((/proc/self/fd/[0-9]+)\)")
_PAIR = re.compile(r"\* ([0-9]+)\s+\* ([0-9]+)\s+users:\((.*)\)")
_USER = re.compile(r"pid=([0-9]+),fd=([0-9]+)")

Lines = dict[str, list[dict[str, str]]]

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record


@pytest.fixture(scope="module")
def binary() -> Iterator[Path]:
    """A haproxy of the test's own, which its user may run."""
    folder = netns.temporary_folder("haproxy")
    folder.chmod(0o755)
    yield Path(shutil.copy(HAPROXY, folder / "haproxy"))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, nova: RecordingNova, binary: Path) -> Iterator[Agent]:
    """A daemon with that haproxy."""
    del nova
    # Connections without a request stay while a busy machine runs doctor.
    patient = {"guest_limits": {"header_timeout": 120}}
    with Agent(host, {**OPTIONS, **patient, "haproxy": {"binary": binary}}) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture(scope="module")
def guest(agent: Agent, nova: RecordingNova) -> Iterator[Guest]:
    """A guest of all tests, whose address is in the map."""
    with Guest(agent.host, "one", ids=project_ids("one")) as one:
        put_nova(nova, one)
        asks_own(one)
        yield one


def examine(agent: Agent) -> Lines:
    """Doctor's lines about haproxy by check; no line has a secret."""
    done = agent.ctl("doctor", "--format", "json", "--root", str(agent.folder), check=False)
    assert SECRET not in done.stdout
    found: Lines = {}
    for line in json.loads(done.stdout):
        if line["check"] in CHECKS:
            found.setdefault(line["check"], []).append(line)
    assert tuple(found) == CHECKS
    return found


def only(agent: Agent, check: str, status: str) -> dict[str, str]:
    """The one line of a check."""
    (line,) = examine(agent)[check]
    assert line["status"] == status, line
    return line


@contextmanager
def stand_in(binary: Path, text: str | None) -> Iterator[None]:
    """Another program, or none, in the place of haproxy, which runs on."""
    kept = binary.with_name("kept")
    binary.rename(kept)
    try:
        if text is not None:
            binary.write_text(f"#!/bin/sh\n{text}\n")
            binary.chmod(0o755)
        yield
    finally:
        kept.rename(binary)


def old(version: str) -> str:
    return f"echo 'HAProxy version {version} 2023/05/02 - https://haproxy.org/'"


def reload(agent: Agent) -> str:
    """What the log has after a SIGHUP about it."""
    before = len(agent.log())
    agent.signal(signal.SIGHUP)
    said = wait_for(
        lambda: re.search(r".*(?:Reloaded|Not reloaded).*", agent.log()[before:]), "the reload"
    )
    return said[0]


def row(agent: Agent, guest: Guest) -> dict[str, Any]:
    (found,) = [one for one in agent.admin("/ports").json() if one["port"] == guest.port]
    return dict(found)


# What is in order


def test_doctor_names_the_program_the_process_and_the_map(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    del guest
    found = examine(agent)
    assert {one["status"] for lines in found.values() for one in lines} == {"ok"}
    texts = {check: lines[0]["text"] for check, lines in found.items()}
    assert re.fullmatch(rf"haproxy [0-9]\S+, {binary}", texts["haproxy"])
    process = f"haproxy (pid {pid(agent)}) runs as user nobody without capabilities"
    assert texts["haproxy-process"] == process
    assert re.match(r"[0-9]+ of [0-9]+ files", texts["haproxy-files"])
    assert re.match(r"guests have [0-9]+ of 4096 connections", texts["haproxy-connections"])
    assert re.search("has the [1-9][0-9]* addresses", texts["haproxy-map"])
    assert f"process {pid(agent)}" in agent.admin("/").text


# The program


def test_a_program_that_is_gone_while_haproxy_runs_and_after_its_end(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    before = pid(agent)
    with stand_in(binary, None):
        line = only(agent, "haproxy", "wrong")
        assert "there is no such program; the one that runs goes on" in line["text"]
        assert "Install the package haproxy, version 2.6 or later" in line["remedy"]
        asks_own(guest)
        os.kill(before, signal.SIGKILL)
        found: Lines = {}

        def gone() -> bool:
            found.update(examine(agent))
            return "ended at its start" in found["haproxy-process"][0]["text"]

        wait_for(gone, "doctor to see that no haproxy runs")
        assert found["haproxy-process"][0]["status"] == "wrong"
        assert "journalctl -u dfmeta-agent" in found["haproxy-process"][0]["remedy"]
        assert {found[one][0]["status"] for one in CHECKS[2:]} == {"unknown"}
        assert f"cannot run {binary}: No such file or directory" in agent.log()
        assert "Traceback" not in agent.log()
    wait_for(lambda: pids(agent) and agent.ready(), "haproxy")
    asks_own(guest)
    lines = examine(agent)["haproxy-process"]
    assert [one["status"] for one in lines] == ["warning"]
    assert "it ended with status -9" in lines[0]["text"]


def test_an_old_program_is_named_and_not_taken_at_a_reload(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    before = pid(agent)
    with stand_in(binary, old("2.4.22")):
        line = only(agent, "haproxy", "wrong")
        assert "has version 2.4.22" in line["text"]
        said = reload(agent)
        assert "Not reloaded, the configuration in force stays" in said
        assert "[haproxy] binary" in said
        assert "Install the package haproxy" in said
        asks_own(guest)
    assert pid(agent) == before


def test_another_version_is_named_and_runs_after_a_reload(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    before = pid(agent)
    kept = binary.with_name("kept")
    with stand_in(binary, f'[ "$1" = -vv ] && {old("2.9.15")} && exit; exec {kept} "$@"'):
        line = only(agent, "haproxy", "warning")
        assert re.search(r"haproxy 2\.9\.15 is installed, but [23]\.[0-9.]+", line["text"])
        assert "systemctl reload dfmeta-agent" in line["remedy"]
        assert "Reloaded" in reload(agent)
        wait_for(lambda: before not in pids(agent), "another haproxy")
        asks_own(guest)
    reload(agent)


# The map


def command(agent: Agent, *lines: str) -> str:
    """Send commands to haproxy behind the daemon's back, as only root can: by its descriptor."""
    (process,) = pids(agent)
    listed = agent.namespace.run(["ss", "-Hxp"]).stdout
    ends: dict[str, tuple[str, list[tuple[int, int]]]] = {}
    for found in map(_PAIR.search, listed.splitlines()):
        if found is not None:
            users = [(int(one), int(fd)) for one, fd in _USER.findall(found[3])]
            ends[found[1]] = found[2], users
    # Connections of haproxy's have haproxy itself at one end too; the pair's stays the lowest.
    (mine, *_) = sorted(
        fd
        for peer, users in ends.values()
        if any(one == process for one, _fd in ends.get(peer, ("", []))[1])
        for one, fd in users
        if one == agent.pid
    )
    with ExitStack() as stack:
        pidfd = os.pidfd_open(agent.pid)
        stack.callback(os.close, pidfd)
        taken = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, mine, 0)
        assert taken >= 0, os.strerror(ctypes.get_errno())
        runtime = Runtime(stack.enter_context(socket.socket(fileno=taken)))
        name = _MAP.search(runtime.ask_at_once("show map", timeout=5))
        assert name is not None
        return "".join(runtime.ask_at_once(one.format(name[1]), timeout=5) for one in lines)


def test_a_map_that_was_changed_behind_the_daemons_back(agent: Agent, guest: Guest) -> None:
    key = row(agent, guest)["key"]
    found: dict[str, str] = {}

    def seen() -> bool:
        # The daemon compares the map itself now and then, and replaces haproxy.
        pid(agent)
        command(agent, f"del map {{}} {key}", "add map {} 128.9.9.9 x|y")
        found.update(examine(agent)["haproxy-map"][0])
        return found["status"] == "wrong"

    wait_for(seen, "doctor to see the change")
    assert "1 missing, 1 superfluous" in found["text"]
    assert guest.instance_id not in json.dumps(found)
    assert "replaces haproxy within 30 seconds" in found["remedy"]
    process = pid(agent)
    os.kill(process, signal.SIGKILL)
    wait_for(lambda: process not in pids(agent), "its end")
    pid(agent)
    assert only(agent, "haproxy-map", "ok")
    asks_own(guest)


# The process


def test_a_haproxy_that_hung_is_named_with_its_restart(agent: Agent, guest: Guest) -> None:
    before = pid(agent)
    os.kill(before, signal.SIGSTOP)
    wait_for(lambda: before not in pids(agent), "the end of the one that hangs")
    pid(agent)
    asks_own(guest)
    line = only(agent, "haproxy-process", "warning")
    assert re.search("started again .* after a fault, the last time .* ago: it hangs", line["text"])
    assert "restarted" in agent.admin("/").text


def test_files_that_are_nearly_all_open(agent: Agent, guest: Guest) -> None:
    process = pid(agent)
    before = read_haproxy(process, agent.pid)
    assert before is not None
    with ExitStack() as stack:
        for _ in range(OPEN):
            stack.enter_context(open_connection(guest))
        wait_for(lambda: files(process) > OPEN, "haproxy to accept them")
        limit = files(process) + 3
        allow_files(process, limit)
        stack.callback(allow_files, process, before.descriptors)
        line = only(agent, "haproxy-files", "warning")
        assert f" of {limit} files of haproxy are open" in line["text"]
        assert "raise [haproxy] maxconn above 4096" in line["remedy"]


def allow_files(process: int, count: int) -> None:
    """Change the soft limit as its own user, who may do so without a capability."""
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    netns.run([*user, "prlimit", f"--pid={process}", f"--nofile={count}:"])


def files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_a_daemon_that_does_not_run(agent: Agent, guest: Guest) -> None:
    agent.stop()
    try:
        found = examine(agent)
        assert found["haproxy"][0]["status"] == "ok"
        assert {found[one][0]["status"] for one in CHECKS[1:]} == {"unknown"}
    finally:
        agent.start()
    asks_own(guest)


# Failures, and the log


def test_a_guest_that_nova_refuses_by_haproxy_is_shown_with_cause_and_remedy(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    nova.fault(status=403)
    before = by_daemon(agent)
    assert guest.curl(META_DATA).status == 403
    assert by_daemon(agent) == before
    failure = wait_for(lambda: row(agent, guest)["last_failure"], "the failure")
    assert (failure["status"], failure["path"], failure["failing"]) == (403, "openstack", True)
    assert failure["reason"].startswith("nova answered 403. metadata_proxy_shared_secret differs")
    assert "set metadata_proxy_shared_secret to its value in nova.conf" in failure["remedy"]
    said = f"{guest.port} ({guest.instance_id}): backend nova answered 403. metadata_proxy_shared"
    assert said in agent.log()
    assert "1 guest fails" in agent.admin("/").text
    nova.mend()
    asks_own(guest)
    found = row(agent, guest)
    assert not found["last_failure"]["failing"]
    assert found["requests"]["last_status"] == 200


def test_with_debug_each_request_of_haproxys_has_its_line(
    agent: Agent, nova: RecordingNova, guest: Guest
) -> None:
    line = f"{guest.port} {guest.instance_id} GET {META_DATA}: 200, "
    before = agent.log().count(line)
    agent.configure({"DEFAULT": {"debug": True}})
    try:
        assert "[DEFAULT] debug" in reload(agent)
        pid(agent)
        answered = by_daemon(agent)
        asks_own(guest)
        assert by_daemon(agent) == answered
        wait_for(lambda: agent.log().count(line) == before + 1, "the line")
        assert SECRET not in agent.log()
        assert nova.signature(guest.instance_id) not in agent.log()
    finally:
        agent.configure({"DEFAULT": {"debug": None}})
        reload(agent)
    pid(agent)
    asks_own(guest)


# SIGHUP


def test_a_reload_changes_maxconn_threads_and_user_and_no_request_is_lost(
    agent: Agent, guest: Guest
) -> None:
    before = pid(agent)
    batch = guest.start_many(200, path=NAME)
    agent.configure({"haproxy": {"maxconn": LEAST, "threads": 2, "user": "daemon"}})
    try:
        said = reload(agent)
        assert "[haproxy] maxconn" in said
        assert "[haproxy] user" in said
        process = pid(agent)
        assert process != before
        assert failures({guest: batch.samples()}) == {}
        threads = os.listdir(f"/proc/{process}/task")
        assert len(threads) == 2
        assert "user daemon" in only_process(agent)
        with ExitStack() as stack:
            # Of the 64 places, 16 served and 48 that wait are what one port may have.
            for _ in range(LEAST - 4):
                stack.enter_context(open_connection(guest))
            line = only(agent, "haproxy-connections", "warning")
            assert f"guests have {LEAST - 4} of {LEAST} connections" in line["text"]
            assert "raise [haproxy] maxconn" in line["remedy"]
    finally:
        agent.configure({"haproxy": {"maxconn": None, "threads": None, "user": None}})
        reload(agent)
    asks_own(guest)


def only_process(agent: Agent) -> str:
    """The text of the line on the process."""
    return " ".join(one["text"] for one in examine(agent)["haproxy-process"])


WRONG: tuple[tuple[str, object, str], ...] = (
    ("binary", "/none/haproxy", "there is no such program"),
    ("binary", "/bin/true", "is not haproxy, or does not run"),
    ("user", "root", "it is root"),
    ("user", "no-such-user", "there is no such user"),
    ("threads", 0, "threads"),
    ("maxconn", 1 << 20, "maxconn"),
)


def test_a_wrong_value_at_a_reload_keeps_what_is_in_force(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    before = pid(agent)
    for option, value, said in WRONG:
        agent.configure({"haproxy": {option: value}})
        try:
            line = reload(agent)
        finally:
            agent.configure({"haproxy": {option: binary if option == "binary" else None}})
        assert "Not reloaded, the configuration in force stays" in line
        assert f"[haproxy] {option}" in line
        assert said in line
    assert pid(agent) == before
    asks_own(guest)
    assert "no option that can be reloaded has changed" in reload(agent)


def test_what_haproxy_cannot_have_on_this_host_keeps_what_is_in_force(
    agent: Agent, guest: Guest, binary: Path
) -> None:
    before = pid(agent)
    binary.chmod(0o700)
    try:
        line = reload(agent)
    finally:
        binary.chmod(0o755)
    assert "Not reloaded" in line
    assert "does not run as user nobody" in line
    agent.configure({"haproxy": {"maxconn": 65536}})
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (9000, 9000))
    try:
        line = reload(agent)
    finally:
        agent.configure({"haproxy": {"maxconn": None}})
    assert "Not reloaded" in line
    assert "it needs 131584 open files, and dfmeta-agent may have 9000" in line
    assert "LimitNOFILE=131584" in line
    assert pid(agent) == before
    asks_own(guest)
    # A hard limit can be raised only with a capability that not every host gives to tests.
    agent.restart()
    asks_own(guest)


def test_the_report_has_no_value_of_the_map(agent: Agent, guest: Guest) -> None:
    answer = agent.admin("/haproxy")
    found: dict[str, Any] = answer.json()
    assert found["pid"] == pid(agent)
    assert found["map"]["entries"] >= 1
    for secret in (SECRET, guest.instance_id, guest.ids.project_id, guest.ip):
        assert str(secret) not in answer.text
