"""Nothing of the harness outlives its process."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import netns, poll
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

SCRIPT = """
import sys, time
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
host = OpenvSwitch()
guest = Guest(host)
print(host.namespace.name, guest.namespace.name, host.rundir,
      *host.namespace.processes(), flush=True)
sys.stdin.read()
"""


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("*")}


def own_namespaces() -> set[str]:
    """Those of this process: other modules run beside this one."""
    return {name for name in namespaces() if name.startswith(f"{netns.PREFIX}{os.getpid()}-")}


def alive(pid: str) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_everything_goes_after_an_exception() -> None:
    before = own_namespaces()
    host = OpenvSwitch()
    rundir = host.rundir
    assert own_namespaces() > before
    pids = host.namespace.processes()
    with pytest.raises(ZeroDivisionError), host:
        raise ZeroDivisionError
    assert own_namespaces() == before
    assert not rundir.exists()
    assert not any(alive(str(pid)) for pid in pids)


def test_guests_go_with_their_host(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    guest = make_guest()
    host.close()
    assert guest.namespace.name not in namespaces()


def test_what_runs_in_a_namespace_goes_with_it() -> None:
    with netns.Namespace("busy") as namespace:
        process = namespace.spawn(["sleep", "1000"])
        wait_for(lambda: process.pid in namespace.processes(), "sleep to run inside")
    assert process.wait(60) == -signal.SIGKILL


def test_a_killed_process_takes_its_daemons_along_and_the_rest_is_found_later() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=netns.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        host, guest, rundir, *pids = process.stdout.readline().split()
        assert len(pids) == 2
        assert {host, guest} <= namespaces()
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in pids), "both daemons to end")
    netns.remove_stale()
    assert not {host, guest} & namespaces()
    assert not Path(rundir).exists()


def test_a_command_that_fails_says_so() -> None:
    with pytest.raises(netns.CommandError, match=r"exit 3: about it\nand more"):
        netns.run(["sh", "-c", "echo about it >&2; echo and more; exit 3"])


def test_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "PATIENCE", 1)
    with pytest.raises(TimeoutError, match=r"timed out after 0\.05 s waiting for Godot"):
        wait_for(lambda: False, "Godot")


@pytest.mark.parametrize("busy", [True, False])
def test_a_wait_is_longer_while_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    idle = itertools.count(step=0 if busy else 1)
    monkeypatch.setattr(poll, "PATIENCE", 1)
    monkeypatch.setattr(poll, "_STRETCH", 1000)
    monkeypatch.setattr(poll, "_idle", lambda: float(next(idle)))
    due = time.monotonic() + (0.1 if busy else 20)
    with contextlib.nullcontext() if busy else pytest.raises(TimeoutError):
        wait_for(lambda: time.monotonic() >= due, "the moment")
    assert (time.monotonic() >= due) == busy
