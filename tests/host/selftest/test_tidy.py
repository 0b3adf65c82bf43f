"""Nothing of the harness should outlive its process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import netns
from tests.harness.fixtures import MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres

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


@pytest.mark.parametrize("last", [Postgres.processes, Postgres.pause, Postgres.kill, Postgres.stop])
def test_nothing_of_a_database_stays(last: Callable[[Postgres], object]) -> None:
    with Postgres() as server:
        pids = server.processes()
        server.create_database()
        last(server)
    assert not any(alive(str(pid)) for pid in pids)
    assert not server.folder.exists()


def test_the_unpacked_database_finds_what_belongs_to_it(postgres: Postgres) -> None:
    with postgres.admin() as connection:
        places = dict(connection.execute("SELECT name, setting FROM pg_config()").fetchall())
        zones = connection.execute("SELECT count(*) > 300 FROM pg_timezone_names").fetchone()
    assert zones == (True,)
    for name in ("BINDIR", "PKGLIBDIR", "SHAREDIR"):
        assert Path(places[name]).is_relative_to(postgres.folder)


def test_failing_command_is_an_error_with_its_output() -> None:
    with pytest.raises(netns.CommandError, match=r"exit 3: about it\nand more"):
        netns.run(["sh", "-c", "echo about it >&2; echo and more; exit 3"])


def test_wait_without_success_ends() -> None:
    with pytest.raises(TimeoutError, match=r"timed out after 0\.05 s waiting for Godot"):
        wait_for(lambda: False, "Godot", deadline=0.05)
