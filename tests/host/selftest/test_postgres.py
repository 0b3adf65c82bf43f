"""PostgreSQL should be the one that was unpacked, do what a test asks of it, and leave nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from tests.harness import netns
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres

SCRIPT = """
import sys
from tests.harness.postgres import Postgres
server = Postgres()
print(server.folder, *server.processes(), flush=True)
sys.stdin.read()
"""


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(plain(url), autocommit=True)


def plain(url: str) -> str:
    return url.replace("+psycopg", "")


def write(url: str, value: int) -> None:
    with connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
        connection.execute("INSERT INTO kept VALUES (%s)", [value])


def values(url: str) -> list[int]:
    with connect(url) as connection:
        return [value for (value,) in connection.execute("SELECT value FROM kept ORDER BY 1")]


def alive(pid: str | int) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", str(pid), "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


# What runs


def test_the_unpacked_programs_run_and_find_what_belongs_to_them(postgres: Postgres) -> None:
    with postgres.admin() as connection:
        places = dict(connection.execute("SELECT name, setting FROM pg_config()").fetchall())
        zones = connection.execute("SELECT count(*) > 300 FROM pg_timezone_names").fetchone()
    assert zones == (True,)
    for name in ("BINDIR", "PKGLIBDIR", "SHAREDIR"):
        assert Path(places[name]).is_relative_to(postgres.folder)


# Databases


@pytest.mark.parametrize("_again", [1, 2])
def test_every_test_gets_an_empty_database_of_either_kind(database_url: str, _again: int) -> None:
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        assert url.database
        Path(url.database).parent.mkdir()
    engine = create_engine(url)
    assert inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (value int)"))
    engine.dispose()


# Stopping, killing, pausing


def test_a_server_that_was_killed_has_all_that_was_committed_and_no_more() -> None:
    with Postgres() as server:
        url = server.create_database()
        write(url, 1)
        with connect(url) as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO kept VALUES (2)")
            pids = server.processes()
            server.kill()
            assert not any(alive(pid) for pid in pids)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("COMMIT")
        server.start()
        assert values(url) == [1]


# What stays


@pytest.mark.parametrize("last", [Postgres.processes, Postgres.pause, Postgres.kill, Postgres.stop])
def test_nothing_stays(last: Callable[[Postgres], object]) -> None:
    with Postgres() as server:
        pids = server.processes()
        write(server.create_database(), 1)
        last(server)
    assert not any(alive(pid) for pid in pids)
    assert not server.folder.exists()


def test_a_killed_process_takes_its_server_along_and_the_rest_is_found_later() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=netns.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split()
        assert len(pids) > 3
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in pids), "the server to end")
    netns.remove_stale()
    assert not list(Path(folder).parent.glob(f"{netns.PREFIX}{process.pid}-*"))
