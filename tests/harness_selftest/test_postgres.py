"""PostgreSQL should be the one that was unpacked, do what a test asks of it, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from tests.harness import netns
from tests.harness.poll import wait_for
from tests.harness.postgres import Mode, Postgres

SCRIPT = """
import sys
from tests.harness.postgres import Postgres
server = Postgres()
print(server.folder, *server.processes(), flush=True)
sys.stdin.read()
"""
ASK = "import psycopg, sys; print(psycopg.connect(sys.argv[1]).execute('SELECT 6 * 7').fetchone())"


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server that a test may kill."""
    with Postgres() as server:
        yield server


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


def test_it_runs_as_nobody(postgres: Postgres) -> None:
    assert set(owners(postgres)) == {pwd.getpwnam("nobody").pw_uid}


def owners(postgres: Postgres) -> Iterator[int]:
    """The users of its processes; a session that has ended since the listing has none."""
    for pid in postgres.processes():
        with contextlib.suppress(FileNotFoundError):
            yield Path("/proc", str(pid)).stat().st_uid


def test_settings_are_a_tests_own() -> None:
    with (
        Postgres(settings={"max_connections": "7"}) as server,
        connect(server.create_database()) as connection,
    ):
        assert connection.execute("SHOW max_connections").fetchone() == ("7",)
        assert connection.execute("SHOW fsync").fetchone() == ("off",)


def test_a_durable_server_writes_to_the_disk() -> None:
    with (
        Postgres(durable=True) as server,
        connect(server.create_database()) as connection,
    ):
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert server.folder.parent == Path("/tmp")


# Databases


def test_each_database_is_its_own(postgres: Postgres, postgres_url: str) -> None:
    write(postgres_url, 1)
    other = postgres.create_database()
    with connect(other) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)
    postgres.drop_database(other)


def test_a_copy_has_what_its_template_has(postgres: Postgres, postgres_url: str) -> None:
    write(postgres_url, 1)
    copy = postgres.create_database(make_url(postgres_url).database or "")
    write(copy, 2)
    assert (values(postgres_url), values(copy)) == ([1], [1, 2])
    postgres.drop_database(copy)


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


# Addresses


def test_it_listens_in_a_namespace() -> None:
    with netns.Namespace("database") as namespace:
        namespace.ip("addr add 192.0.2.1/32 dev lo")
        with Postgres(address="192.0.2.1", namespace=namespace) as server:
            url = plain(server.create_database())
            assert namespace.run([sys.executable, "-c", ASK, url]).stdout == "(42,)\n"
            assert set(server.processes()) <= set(namespace.processes())


def test_its_port_stays_its_own_while_it_is_away() -> None:
    with Postgres(address="127.0.0.1") as server, socket.socket() as other:
        url = server.create_database()
        server.stop()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(url)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))
        server.start()
        write(url, 1)
        assert values(url) == [1]


# Stopping, killing, pausing


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_was_stopped_has_all_that_was_committed(own: Postgres, mode: Mode) -> None:
    url = own.create_database()
    write(url, 1)
    with connect(url):
        assert own.stop(mode) == 0
    assert not own.running
    own.start()
    assert values(url) == [1]


@pytest.mark.parametrize("durable", [False, True])
def test_a_server_that_was_killed_has_all_that_was_committed_and_no_more(durable: bool) -> None:
    with Postgres(durable=durable) as server:
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


def test_a_paused_server_hangs_until_it_goes_on(own: Postgres) -> None:
    with connect(own.create_database()) as connection, ThreadPoolExecutor() as threads:
        own.pause()
        query = threads.submit(connection.execute, "SELECT 42")
        with pytest.raises(TimeoutError):
            query.result(0.2)
        own.resume()
        assert query.result(5).fetchone() == (42,)


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
    wait_for(lambda: not any(alive(pid) for pid in pids), 5, "the server to end")
    netns.remove_stale()
    assert not list(Path(folder).parent.glob(f"{netns.PREFIX}{process.pid}-*"))
