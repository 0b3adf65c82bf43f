"""Migrates a database to the schema of this version of the code.

The scripts are Alembic's and are found beside this file in every installation; ``alembic.ini`` is
not needed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table, inspect, text

from dfmeta.errors import StoreSchemaError
from dfmeta.store.db import schema

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

# Alembic keeps the running migration in module globals, so a process runs one at a time.
_alembic_lock: Final = threading.Lock()
_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as Alembic creates it."""


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the database, None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def configuration(connection: Connection) -> Config:
    """Return Alembic's configuration for these scripts, bound to an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def ensure_schema(connection: Connection) -> None:
    """Bring the database to :data:`~dfmeta.store.db.schema.HEAD`, unless it has that schema.

    :param connection: inside a transaction that locks out other writers, so that the second of two
        processes finds the migration done.
    :raises StoreError: the database has a revision that this version does not know.
    """
    found = current_revision(connection)
    if found is None:
        _create(connection)
    elif found != schema.HEAD:
        _upgrade(connection, found)


def known_revisions(connection: Connection) -> list[str]:
    """Return the revisions to which this version can migrate a database, the oldest first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(configuration(connection)).walk_revisions()
    return [script.revision for script in scripts][::-1]


def move(connection: Connection, revision: str) -> None:
    """Migrate the database to *revision*, forward or back.

    :param connection: inside a transaction that locks out other writers.
    :param revision: one of :func:`known_revisions`.
    :raises StoreError: the database has a revision that this version does not know.
    """
    found, known = current_revision(connection), known_revisions(connection)
    _check_known(found, known)
    if found is not None and known.index(revision) < known.index(found):
        _run("downgrade", connection, revision)
    elif found != revision:
        _run("upgrade", connection, revision)


def _create(connection: Connection) -> None:
    """Create all tables at once: the import of Alembic takes ten times as long."""
    schema.metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=True)
    connection.execute(_VERSION.insert().values(version_num=schema.HEAD))


def _upgrade(connection: Connection, found: str) -> None:
    _check_known(found, known_revisions(connection))
    _run("upgrade", connection, schema.HEAD)


def _check_known(found: str | None, known: list[str]) -> None:
    if found is not None and found not in known:
        raise StoreSchemaError(
            cause=f"the database has schema {found}, this version of dfmeta knows up to "
            f"{schema.HEAD}"
        )


def _run(what: str, connection: Connection, revision: str) -> None:
    """Run migrations. Alembic is imported here because its import is slow and rarely needed."""
    from alembic import command

    with _alembic_lock:
        getattr(command, what)(configuration(connection), revision)
