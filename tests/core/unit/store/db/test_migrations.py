"""A database should have the schema of the code, made now or before; on PostgreSQL see host."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, inspect, make_url, text

from dfmeta.errors import StoreError
from dfmeta.store.db import HEAD, database, migrations, schema
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import INSTANCE

RECORD = text(
    "INSERT INTO records (id, userdata, seed, created_at, updated_at)"
    " VALUES (:id, :userdata, :seed, '2026-01-01', '2026-01-02')"
).bindparams(userdata=b"\x00\xff", seed=b"\x01")
DATA = Path(__file__).parents[4] / "data" / "store"
"""The tables of each schema as SQL, as the version that made it wrote them."""


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """In one transaction, as the store runs its migrations."""
    if url.startswith("sqlite"):
        Path(make_url(url).database or "").parent.mkdir()
    engine = create_engine(url)
    with engine.begin() as opened:
        yield opened
    engine.dispose()


def make(connection: Connection, revision: str) -> None:
    """Make the tables of a schema without the code of this version."""
    path = DATA / f"{revision}-{connection.dialect.name}.sql"
    for statement in path.read_text(encoding="utf-8").split(";\n"):
        connection.execute(text(statement))


def test_an_empty_database_gets_the_newest_schema_once(connection: Connection) -> None:
    assert migrations.current_revision(connection) is None
    migrations.ensure_schema(connection)
    assert migrations.current_revision(connection) == HEAD
    config = migrations.configuration(connection)
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]
    connection.execute(RECORD, {"id": "a"})
    migrations.ensure_schema(connection)
    assert connection.execute(text("SELECT id FROM records")).scalars().all() == ["a"]


def described(connection: Connection) -> dict[str, Any]:
    """Return all properties of each table."""
    present = inspect(connection)
    return {
        name: (
            [{**column, "type": str(column["type"])} for column in present.get_columns(name)],
            present.get_pk_constraint(name),
            *(
                sorted(properties, key=str)
                for properties in (
                    present.get_foreign_keys(name),
                    present.get_indexes(name),
                    present.get_unique_constraints(name),
                    present.get_check_constraints(name),
                )
            ),
        )
        for name in present.get_table_names()
    }


def test_migrated_database_has_the_tables_of_the_code(connection: Connection) -> None:
    make(connection, HEAD)
    connection.execute(RECORD, {"id": INSTANCE})
    before = described(connection)
    migrations.ensure_schema(connection)
    assert described(connection) == before
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    assert compare_metadata(context, schema.metadata) == []
    assert connection.execute(text("SELECT id FROM records")).scalars().all() == [INSTANCE]
    schema.metadata.drop_all(connection)
    connection.execute(text("DROP TABLE alembic_version"))
    migrations.ensure_schema(connection)
    assert described(connection) == before


def test_a_newer_schema_is_refused_and_left_alone(url: str) -> None:
    Repository(url).close()
    engine = create_engine(url)
    with engine.begin() as opened:
        opened.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError) as refusal:
        Repository(url)
    opened = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
    assert make_url(url).database not in opened, "the refused database is closed again"
    assert "schema 9999, this version of dfmeta knows up to" in str(refusal.value)
    assert database.schema_of(url) == "9999"
