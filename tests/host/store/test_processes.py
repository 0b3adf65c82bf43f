"""Processes and threads that use one database at once should lose nothing, on either database."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path

import pytest

from dfmeta.exceptions import StoreError
from dfmeta.store.db import database, schema
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import Client, make_api
from tests.core.unit.store.support import document, read
from tests.core.unit.support import INSTANCE
from tests.harness.records import push

OPEN = """
import sys
from dfmeta.store.db.repository import Repository
sys.stdin.readline()
with Repository(sys.argv[1]) as repository:
    repository.put(sys.argv[2])
    print("open", flush=True)
    sys.stdin.readline()
"""
FIRST_START = """
import sys
from dfmeta.store.db.repository import Repository
with Repository(sys.argv[1]) as repository:
    repository.get("web1")
print([name for name in sys.modules if name.startswith("alembic")])
"""
UNPRIVILEGED = """
import os, sys
from dfmeta.exceptions import StoreError
from dfmeta.store.db import sqlite
from dfmeta.store.db.repository import Repository
os.setegid(65534)
os.seteuid(65534)
try:
    Repository(sys.argv[1])
except StoreError as error:
    print(error)
"""
WRITERS = 8


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def writers(database_url: str) -> Iterator[list[Repository]]:
    opened = [Repository(database_url, seconds=60) for _ in range(WRITERS)]
    yield opened
    for one in opened:
        one.close()


def at_once(step: Callable[[int], object]) -> list[object]:
    """Return the results of all writers, which begin together."""
    start = threading.Barrier(WRITERS)

    def run(number: int) -> object:
        start.wait()
        return step(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


# Processes


def test_processes_that_open_a_new_database_at_once_all_succeed(database_url: str) -> None:
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(3)]
    racers = [python(OPEN, database_url, record_id) for record_id in ids]
    for racer in racers:
        print(file=racer.stdin, flush=True)
    ends = [racer.communicate("\n") for racer in racers]
    assert ends == [("open\n", "")] * len(ids)
    with Repository(database_url) as repository:
        assert [row.id for row in repository.list()] == ids


def test_the_schema_stays_while_another_process_has_the_database_open(database_url: str) -> None:
    Repository(database_url).close()
    with python(OPEN, database_url, INSTANCE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="another program has it open") as raised:
            database.move_schema(database_url, "0002")
        assert database.schema_of(database_url) == schema.HEAD
        other.communicate("\n")
    assert "Stop every dfmeta-agent and dfmeta-store" in raised.value.line
    database.move_schema(database_url, "0002")
    assert database.schema_of(database_url) == "0002"
    with Repository(database_url) as repository:
        assert repository.get(INSTANCE) is not None


def test_a_first_start_imports_no_alembic(database_url: str) -> None:
    assert python(FIRST_START, database_url).communicate() == ("[]\n", "")


def test_a_file_that_may_not_be_written_is_named() -> None:
    # pytest's own folder is closed to other users.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state" / "store.db"
        Repository(f"sqlite:///{path}").close()
        Path(name).chmod(0o755)
        path.parent.chmod(0o555)
        path.chmod(0o400)
        printed, _ = python(UNPRIVILEGED, f"sqlite:///{path}").communicate()
    assert "may not read and write" in printed
    assert str(path) in printed


# Threads


def test_of_passwords_set_at_once_one_is_kept(writers: list[Repository]) -> None:
    writers[0].put(INSTANCE)
    kept = at_once(lambda number: writers[number].set_password(INSTANCE, b"p%d" % number))
    assert kept.count(True) == 1
    assert read(writers[0]).password == b"p%d" % kept.index(True)


def test_writers_of_the_same_addresses_leave_each_one_owner(writers: list[Repository]) -> None:
    names = [f"198.51.100.{number}" for number in range(12)] + ["198.51.100.0/28", "2001:db8::/64"]
    ids = [str(uuid.UUID(int=number)) for number in range(WRITERS)]
    last: dict[str, set[str]] = {}

    def write(number: int) -> None:
        chance = random.Random(number)
        for turn in range(25):
            networks = [
                ip_network(one) for one in chance.sample(names, chance.randint(0, len(names)))
            ]
            content = {"turn": turn}
            push(writers[number], Kind.METADATA, ids[number], content=content, networks=networks)
            if chance.random() < 0.1:
                writers[number].delete(ids[number])
                networks = []
            last[ids[number]] = {str(one) for one in networks}

    at_once(write)
    held = {one: writers[0].addresses(one) for one in ids}
    owned = [name for addresses in held.values() for name in addresses]
    assert len(owned) == len(set(owned))
    assert all(set(held[one]) <= last[one] for one in ids)
    assert any(set(held[one]) == last[one] for one in ids), "the last writer has all of its own"


def test_devices_attached_and_detached_at_once_lose_none(writers: list[Repository]) -> None:
    writers[0].put(INSTANCE, document={"hostname": "web1"})
    path = f"/device-metadata/{INSTANCE}/devices"

    def write(number: int) -> None:
        client = Client(make_api(writers[number]))
        for turn in range(6):
            serial = f"vol-{number}-{turn}"
            device = {"type": "disk", "bus": "none", "serial": serial, "tags": [serial]}
            assert client.ask("POST", path, json.dumps(device).encode()).status_int == 200
            if turn % 2:
                assert client.ask("DELETE", f"{path}?serial={serial}").status_int == 200

    at_once(write)
    expected = {f"vol-{number}-{turn}" for number in range(WRITERS) for turn in (0, 2, 4)}
    serials = [one["serial"] for one in document(writers[0])["devices"]]
    assert sorted(serials) == sorted(expected)
