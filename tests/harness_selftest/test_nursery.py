"""A program that begins with everything imported should look like the installed one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import nursery
from tests.harness.agent import Agent
from tests.harness.netns import CommandError
from tests.harness.ovs import OpenvSwitch

INSTANCE = "6a7b1c1e-0d5f-4e0e-8d61-1f5b1f6f3f10"


@pytest.fixture(autouse=True)
def _enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "enabled", True)


@pytest.fixture
def agent(host: OpenvSwitch) -> Iterator[Agent]:
    with Agent(host) as one:
        yield one


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_bytes().rstrip(b"\0\n").decode()


def test_a_daemon_has_its_own_name_line_and_namespace(agent: Agent) -> None:
    agent.start()
    assert of_process(agent.pid, "comm") == "dfmeta-agent"
    _python, program, *arguments = of_process(agent.pid, "cmdline").split("\0")
    assert program.endswith("/dfmeta-agent")
    assert arguments == ["--config-file", str(agent.config_file)]
    assert agent.pid in agent.host.namespace.processes()


def test_its_signals_and_exit_status_are_its_own(agent: Agent) -> None:
    agent.start()
    agent.stop()
    assert agent.exit_status() == 0
    agent.start()
    agent.signal(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    assert not agent.running
    agent.configure({"df_metadata": {"host_ip": "nonsense"}})
    agent.start(wait=False)
    assert agent.wait(20) == 2
    assert "host_ip" in agent.tail()


def test_a_command_has_its_streams_and_its_status(agent: Agent) -> None:
    done = agent.ctl("store", "put", INSTANCE, "--json", "-", stdin='{"hostname": "given"}')
    assert (done.returncode, done.stderr) == (0, "")
    assert "given" in agent.ctl("store", "get", INSTANCE).stdout
    failed = agent.ctl("no-such-command", check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "no-such-command" in failed.stderr
    with pytest.raises(CommandError, match="no-such-command"):
        agent.ctl("no-such-command")
