"""A database should reach the schema of the code from each release; on PostgreSQL see host."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, make_url, text

from dfmeta.errors import StoreError
from dfmeta.store.db import database, migrations, schema
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import INSTANCE

RECORD = text(
    "INSERT INTO records (id, userdata, seed, created_at, updated_at)"
    " VALUES (:id, :userdata, :seed, '2026-01-01', '2026-01-02')"
).bindparams(userdata=b"\x00\xff", seed=b"\x01")
"""A record as each release could write it."""


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """In one transaction, as the store runs its migrations."""
    if url.startswith("sqlite"):
        Path(make_url(url).database or "").parent.mkdir()
    engine = create_engine(url)
    with engine.begin() as opened:
        yield opened
    engine.dispose()


def test_any_empty_database_is_brought_to_the_head_once(connection: Connection) -> None:
    assert migrations.current_revision(connection) is None
    config = migrations.configuration(connection)
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]
    assert tuple(migrations.known_revisions(connection)) == schema.REVISIONS
    command.upgrade(config, "head")
    command.downgrade(config, "base")
    assert inspect(connection).get_table_names() == ["alembic_version"]
    migrations.ensure_schema(connection)
    assert migrations.current_revision(connection) == schema.HEAD
    connection.execute(RECORD, {"id": "a"})
    migrations.ensure_schema(connection)
    assert connection.execute(text("SELECT id FROM records")).scalars().all() == ["a"]


def described(connection: Connection) -> dict[str, Any]:
    """Return all properties of each table."""
    there = inspect(connection)
    return {
        name: (
            [{**one, "type": str(one["type"])} for one in there.get_columns(name)],
            there.get_pk_constraint(name),
            *(
                sorted(properties, key=str)
                for properties in (
                    there.get_foreign_keys(name),
                    there.get_indexes(name),
                    there.get_unique_constraints(name),
                    there.get_check_constraints(name),
                )
            ),
        )
        for name in there.get_table_names()
    }


def test_migrations_and_an_empty_database_have_the_tables_of_the_code(
    connection: Connection,
) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, "head")
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    assert compare_metadata(context, schema.metadata) == []
    assert inspect(connection).get_pk_constraint("records")["name"] == "pk_records"
    (key,) = inspect(connection).get_foreign_keys("addresses")
    assert (key["referred_table"], key["options"]) == ("records", {"ondelete": "CASCADE"})
    migrated = described(connection)
    command.downgrade(config, "base")
    connection.execute(text("DROP TABLE alembic_version"))
    migrations.ensure_schema(connection)
    assert described(connection) == migrated
    assert {"alembic_version", "records", "attachments"} < {*migrated}


@pytest.mark.parametrize("released", ["0001", "0002"])
def test_the_records_of_each_release_come_along_and_go_back(
    connection: Connection, released: str
) -> None:
    config = migrations.configuration(connection)
    command.upgrade(config, released)
    connection.execute(RECORD, {"id": INSTANCE})
    before = connection.execute(text("SELECT * FROM records")).mappings().one()
    command.upgrade(config, "head")
    after = connection.execute(text("SELECT * FROM records")).mappings().one()
    assert {name: after[name] for name in before} == before
    assert {after[name] for name in after if name not in before} == {None}
    connection.execute(RECORD, {"id": "default:project:" + "f" * 32})
    connection.execute(
        text("INSERT INTO addresses VALUES ('192.0.2.1/32', :id, 32, 0)"), {"id": before["id"]}
    )
    connection.execute(text("UPDATE records SET http_tokens = 'off' WHERE id LIKE 'default%'"))
    command.downgrade(config, released)
    assert connection.execute(text("SELECT * FROM records")).mappings().all() == [before]
    assert "addresses" not in inspect(connection).get_table_names()


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    Repository(url).close()
    engine = create_engine(url)
    with engine.begin() as opened:
        opened.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match="schema 9999, this version of dfmeta knows up to"):
        Repository(url)
    assert database.schema_of(url) == "9999"
