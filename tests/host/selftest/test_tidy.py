"""Nothing of the harness should outlive its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import netns
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

SCRIPT = """
import sys, time
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.postgres import Postgres
host, server = OpenvSwitch(), Postgres()
guest = Guest(host)
print(host.namespace.name, guest.namespace.name, host.rundir, server.folder,
      *host.namespace.processes(), *server.processes(), flush=True)
sys.stdin.read()
"""


def namespaces() -> set[str]:
    return {path.name for path in Path("/run/netns").glob("*")}


def alive(pid: str) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_guests_and_processes_go_with_their_host(host: OpenvSwitch, make_guest: MakeGuest) -> None:
    guest, rundir = make_guest(), host.rundir
    process = host.namespace.spawn(["sleep", "infinity"])
    pids = host.namespace.processes()
    with pytest.raises(ZeroDivisionError), host:
        raise ZeroDivisionError
    assert not {guest.namespace.name, host.namespace.name} & namespaces()
    assert process.wait() == -signal.SIGKILL
    assert not rundir.exists()
    assert not any(alive(str(pid)) for pid in pids)


def test_killed_process_takes_its_daemons_along_and_the_rest_is_removed_later() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=netns.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        host, guest, rundir, database, *pids = process.stdout.readline().split()
        assert {host, guest} <= namespaces()
        assert len(pids) > 5
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in pids), "switch and database to end")
    netns.remove_stale()
    assert not {host, guest} & namespaces()
    assert not Path(rundir).exists()
    assert not Path(database).exists()
