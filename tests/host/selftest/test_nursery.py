"""A program that begins with everything imported should look like the installed one."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import nursery
from tests.harness.agent import Agent
from tests.harness.ovs import OpenvSwitch

NEVER = 1 << 30
"""Larger than any process id (proc(5), pid_max)."""


@pytest.fixture(autouse=True)
def _enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "enabled", True)


@pytest.fixture
def agent(host: OpenvSwitch) -> Iterator[Agent]:
    with Agent(host) as one:
        yield one


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_bytes().rstrip(b"\0\n").decode()


def status_of(pid: int, field: str) -> str:
    lines = of_process(pid, "status").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))


def open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed
            found.add(os.readlink(descriptor))
    return found


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_daemon_has_its_own_name_line_and_namespace(agent: Agent) -> None:
    agent.start()
    assert of_process(agent.pid, "comm") == "dfmeta-agent"
    _python, program, *arguments = of_process(agent.pid, "cmdline").split("\0")
    assert program.endswith("/dfmeta-agent")
    assert arguments == ["--config-file", str(agent.config_file)]
    assert agent.pid in agent.host.namespace.processes()


def test_each_daemon_has_a_hub_of_its_own(agent: Agent) -> None:
    """Forks that share an epoll instance wake for the events of each other."""
    agent.start()
    prepared = int(status_of(agent.pid, "PPid"))
    assert of_process(prepared, "cmdline").startswith(f"{sys.executable}\0-m\0")
    assert "anon_inode:[eventpoll]" in open_files(agent.pid)
    assert "anon_inode:[eventpoll]" not in open_files(prepared)


@pytest.mark.parametrize("prepared", [True, False])
def test_a_program_of_the_harness_is_a_fork_or_itself(
    host: OpenvSwitch, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    monkeypatch.setattr(nursery, "enabled", prepared)
    for address, status in (("127.0.0.1", 0), ("192.0.2.1", 1)):
        echo = nursery.script("echo", address, "1", "5", namespace=host.namespace)
        assert isinstance(echo, nursery.Forked) == prepared
        assert echo.wait(30) == status


def test_a_signal_to_a_child_whose_end_is_not_told_yet_is_none() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        child = nursery.Forked("true", NEVER, ours)
        child.terminate()
        theirs.send(b"0")
        assert child.wait(30) == 0


def test_a_worker_is_a_fork_that_looks_like_the_installed_one(host: OpenvSwitch) -> None:
    with Agent(host, {"df_metadata": {"proxy_workers": 1}}) as agent:
        seen = []
        for forked in (True, False):
            agent.forks_workers = forked
            agent.start()
            (worker,) = (
                one
                for one in children_of(agent.pid)
                if "dfmeta.cmd.worker" in of_process(one, "cmdline")
            )
            python, option, module, *numbers = of_process(worker, "cmdline").split("\0")
            assert (python, option, module) == (sys.executable, "-m", "dfmeta.cmd.worker")
            assert all(number.isdecimal() for number in numbers)
            assert status_of(worker, "PPid") == str(agent.pid)
            kinds = sorted(one.partition(":[")[0] for one in open_files(worker))
            signals = [status_of(worker, name) for name in ("SigBlk", "SigIgn", "SigCgt")]
            seen.append((of_process(worker, "comm"), len(numbers), kinds, signals))
            agent.stop()
            assert not Path(f"/proc/{worker}").exists()
        assert seen[0] == seen[1]
