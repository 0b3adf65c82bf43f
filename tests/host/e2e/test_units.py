"""Both services should do all their work in the sandboxes that their units describe."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.activator import Activator, Manager
from tests.harness.agent import ask, program
from tests.harness.central import Central
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.netns import ROOT, Namespace
from tests.harness.poll import wait_for
from tests.host.e2e import sandbox
from tests.host.e2e.support import asks_own, children, put, status_of

UNITS = ROOT / "etc/systemd"
HEADROOM = 8
"""How often what a small host takes fits into MemoryMax=."""
FILTERED = 2
"""SECCOMP_MODE_FILTER (proc(5), status)."""
COMPLAINTS = ("WARNING", "ERROR", "Traceback", "Operation not permitted", "Read-only file system")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(tmp_path / "notify") as manager:
        yield manager


def check_sandbox(pid: int, unit: Path) -> None:
    """The process has what the unit leaves it, and no more."""
    status = status_of(pid)
    kept = sandbox.capabilities(sandbox.read_unit(unit))
    assert {int(status[name], 16) for name in ("CapBnd", "CapPrm", "CapEff")} == {kept}
    assert (int(status["NoNewPrivs"]), int(status["Seccomp"])) == (1, FILTERED)


def check_memory(pid: int, unit: Path) -> None:
    """All that the process and its workers have had at most is a small part of what they may."""
    (most,) = sandbox.read_unit(unit)["MemoryMax"]
    peak = sum(
        int(status_of(process)["VmHWM"].split()[0]) << 10 for process in (pid, *children(pid))
    )
    assert HEADROOM * peak < int(most.removesuffix("G")) << 30


def said_nothing_of_it(log: str) -> None:
    assert [
        line for line in log.splitlines() if any(complaint in line for complaint in COMPLAINTS)
    ] == []


@pytest.fixture
def guest(make_guest: MakeGuest) -> Guest:
    return make_guest("one", route="gateway")


def test_agent_serves_in_its_sandbox(make_agent: MakeAgent, guest: Guest, manager: Manager) -> None:
    unit = UNITS / "dfmeta-agent.service"
    agent = make_agent({"df_metadata": {"proxy_workers": 2}}, start=False)
    agent.prefix = [
        *("env", f"NOTIFY_SOCKET={manager.path}"),
        *sandbox.prefix(unit, agent.state_path),
    ]
    agent.start()
    check_sandbox(agent.pid, unit)
    wait_for(lambda: manager.heard("READY=1"), "systemd to be told")
    assert len(manager.stored) == 2, "the guests' listeners"
    put(agent, guest)
    asks_own(guest)
    assert guest.curl("/latest/meta-data/hostname").status == 200
    said_nothing_of_it(agent.log())
    check_memory(agent.pid, unit)
    agent.stop()
    arguments = ["--config-file", str(agent.config_file), "--cleanup"]
    done = agent.host.namespace.run(
        [*sandbox.prefix(unit, agent.state_path), *program("dfmeta-agent"), *arguments], check=False
    )
    assert done.returncode == 0, done.stderr
    said_nothing_of_it(done.stderr)


def test_the_store_serves_on_port_80_in_its_sandbox_without_a_right() -> None:
    unit = UNITS / "dfmeta-store.service"
    with (
        Namespace("store") as namespace,
        Central({"store": {"guest_listen": "[::]:80"}}, namespace=namespace) as central,
        Activator(namespace, [("dfmeta-store-guests", ("::", 80))]) as activator,
    ):
        state = central.folder / "state"
        state.mkdir(mode=0o700)
        central.prefix = sandbox.prefix(unit, state)
        central.activator = activator
        central.start()
        check_sandbox(central.pid, unit)
        central.push(uuid_of("one"), "one", "127.0.0.1")
        answer = ask(namespace, ("127.0.0.1", 80), "/latest/meta-data/hostname")
        assert (answer.status, answer.text) == (200, "one")
        assert {"process_open_fds", "process_start_time_seconds"} <= central.metrics().keys()
        said_nothing_of_it(central.log())
        check_memory(central.pid, unit)
        central.stop()
