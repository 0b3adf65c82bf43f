"""A database should reach the schema of the code from wherever it is, once, and never backwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, make_url, text

from dfmeta.exceptions import StoreError
from dfmeta.store.db import database, migrations, schema
from dfmeta.store.db.repository import Repository
from tests.harness import nursery

RACE = """
import sys
from dfmeta.store.db.repository import Repository
sys.stdin.readline()
with Repository(sys.argv[1]) as repository:
    repository.put(sys.argv[2])
"""


FIRST_START = """
import sys
from dfmeta.store.db.repository import Repository
with Repository(sys.argv[1]) as repository:
    repository.get("web1")
print([name for name in sys.modules if name.startswith("alembic")])
"""

RECORD = text(
    "INSERT INTO records (id, userdata, seed, created_at, updated_at)"
    " VALUES (:id, :userdata, :seed, '2026-01-01', '2026-01-02')"
).bindparams(userdata=b"\x00\xff", seed=b"\x01")
"""A record as each release could write it."""


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """In one transaction, as the store runs its migrations."""
    path = Path(make_url(database_url).database or "")
    if database_url.startswith("sqlite"):
        path.parent.mkdir()
    engine = create_engine(database_url)
    with engine.begin() as opened:
        yield opened
    engine.dispose()


def test_an_empty_database_is_brought_to_the_head(connection: Connection) -> None:
    assert migrations.current_revision(connection) is None
    migrations.ensure_schema(connection)
    assert migrations.current_revision(connection) == schema.HEAD


def test_a_second_time_changes_nothing(connection: Connection) -> None:
    migrations.ensure_schema(connection)
    connection.execute(RECORD, {"id": "a"})
    migrations.ensure_schema(connection)
    assert connection.execute(text("SELECT id FROM records")).scalars().all() == ["a"]


def test_the_head_is_the_newest_script(connection: Connection) -> None:
    scripts = ScriptDirectory.from_config(migrations.configuration(connection))
    assert scripts.get_heads() == [schema.HEAD]
    assert tuple(migrations.known_revisions(connection)) == schema.REVISIONS


def test_the_migrations_build_what_the_code_declares(connection: Connection) -> None:
    command.upgrade(migrations.configuration(connection), "head")
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    assert compare_metadata(context, schema.metadata) == []
    assert inspect(connection).get_pk_constraint("records")["name"] == "pk_records"


def described(connection: Connection) -> dict[str, Any]:
    """Everything that is known of each table."""
    there = inspect(connection)
    return {
        name: (
            [{**one, "type": str(one["type"])} for one in there.get_columns(name)],
            there.get_pk_constraint(name),
            *(
                sorted(found, key=str)
                for found in (
                    there.get_foreign_keys(name),
                    there.get_indexes(name),
                    there.get_unique_constraints(name),
                    there.get_check_constraints(name),
                )
            ),
        )
        for name in there.get_table_names()
    }


def test_an_empty_database_gets_the_tables_that_the_migrations_build(
    connection: Connection,
) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "head")
    migrated = described(connection)
    command.downgrade(config, "base")
    connection.execute(text("DROP TABLE alembic_version"))
    migrations.ensure_schema(connection)
    assert described(connection) == migrated
    assert {"alembic_version", "records", "attachments"} < {*migrated}


def test_a_first_start_does_not_wait_for_the_import_of_alembic(database_url: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FIRST_START, database_url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_database_without_tables_but_alembics_gets_the_rest(connection: Connection) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "head")
    command.downgrade(config, "base")
    migrations.ensure_schema(connection)
    assert migrations.current_revision(connection) == schema.HEAD


def test_down_and_up_again(connection: Connection) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "head")
    command.downgrade(config, "base")
    assert inspect(connection).get_table_names() == ["alembic_version"]
    command.upgrade(config, "head")
    assert "records" in inspect(connection).get_table_names()


def test_records_of_before_tokens_stay_and_leave_them_to_the_configuration(
    connection: Connection,
) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "0001")
    connection.execute(RECORD, {"id": "a"})
    command.upgrade(config, "0002")
    found = connection.execute(text("SELECT userdata, http_tokens FROM records")).one()
    assert (bytes(found.userdata), found.http_tokens) == (b"\x00\xff", None)


def test_going_back_before_tokens_keeps_the_records(connection: Connection) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "0001")
    before = {column["name"] for column in inspect(connection).get_columns("records")}
    command.upgrade(config, "0002")
    connection.execute(RECORD, {"id": "a"})
    connection.execute(text("UPDATE records SET http_tokens = 'off'"))
    command.downgrade(config, "0001")
    assert {column["name"] for column in inspect(connection).get_columns("records")} == before
    assert connection.execute(text("SELECT id FROM records")).all() == [("a",)]


@pytest.mark.parametrize("released", ["0001", "0002"])
def test_the_records_of_each_release_come_along_and_go_back(
    connection: Connection, released: str
) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, released)
    connection.execute(RECORD, {"id": "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"})
    before = connection.execute(text("SELECT * FROM records")).mappings().one()
    command.upgrade(config, "head")
    after = connection.execute(text("SELECT * FROM records")).mappings().one()
    assert {name: after[name] for name in before} == before
    assert [after[name] for name in after if name not in before] == [None] * (
        len(after) - len(before)
    )
    connection.execute(RECORD, {"id": "default:project:" + "f" * 32})
    connection.execute(
        text("INSERT INTO addresses VALUES ('192.0.2.1/32', :id, 32, 0)"), {"id": before["id"]}
    )
    command.downgrade(config, released)
    assert connection.execute(text("SELECT * FROM records")).mappings().all() == [before]
    assert "addresses" not in inspect(connection).get_table_names()


def test_an_operator_can_go_back_and_forth(database_url: str) -> None:
    with Repository(database_url) as repository:
        repository.put("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01", userdata=b"u")
    for revision in ("0001", "0004", "0003", "0002"):
        database.move_schema(database_url, revision)
        assert database.schema_of(database_url) == revision
    with Repository(database_url) as repository:
        assert repository.get("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01") is not None
    assert database.schema_of(database_url) == schema.HEAD


HOLD = """
import sys
from dfmeta.store.db.repository import Repository
with Repository(sys.argv[1]) as repository:
    print(len(list(repository.list())), flush=True)
    sys.stdin.readline()
"""


def test_the_schema_stays_while_another_process_has_the_database_open(database_url: str) -> None:
    with Repository(database_url) as repository:
        repository.put("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01", userdata=b"u")
    with subprocess.Popen(
        nursery.in_shell(["dfmeta", database_url], HOLD),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        with pytest.raises(StoreError, match="another program has it open") as raised:
            database.move_schema(database_url, "0002")
        assert database.schema_of(database_url) == schema.HEAD
        other.communicate("\n", timeout=30)
    assert "Stop every dfmeta-agent and dfmeta-store" in raised.value.line
    database.move_schema(database_url, "0002")
    assert database.schema_of(database_url) == "0002"
    with Repository(database_url) as repository:
        assert repository.get("6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01") is not None


def test_an_address_cannot_outlive_its_record(connection: Connection) -> None:
    migrations.ensure_schema(connection)
    (key,) = inspect(connection).get_foreign_keys("addresses")
    assert (key["referred_table"], key["options"]) == ("records", {"ondelete": "CASCADE"})


def test_a_newer_schema_is_refused_and_left_alone(database_url: str) -> None:
    url = database_url
    Repository(url).close()
    engine = create_engine(url)
    with engine.begin() as opened:
        opened.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match="schema 9999, this version of dfmeta knows up to"):
        Repository(url)
    with engine.connect() as opened:
        assert migrations.current_revision(opened) == "9999"
    engine.dispose()


def test_processes_that_open_a_fresh_database_at_once_all_succeed(database_url: str) -> None:
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(6)]
    racers = [
        subprocess.Popen(
            nursery.in_shell(["dfmeta", database_url, record_id], RACE),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for record_id in ids
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    errors = [racer.communicate(timeout=60)[1] for racer in racers]
    assert errors == [""] * len(ids)
    with Repository(database_url) as repository:
        assert [summary.id for summary in repository.list()] == ids
