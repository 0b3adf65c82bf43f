"""Brings a database to the schema of this version of the code.

The scripts are Alembic's and are found beside this file in every installation; ``alembic.ini`` is
not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table, inspect, select

from dfmeta.errors import StoreSchemaError
from dfmeta.store.db import HEAD, schema

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

_VERSION: Final = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as Alembic creates it."""


def current_revision(connection: Connection) -> str | None:
    """Return the revision of the database, None for an empty one."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.execute(select(_VERSION.c.version_num)).scalar()
    return revision


def configuration(connection: Connection) -> Config:
    """Return Alembic's configuration for these scripts, bound to an open connection."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def ensure_schema(connection: Connection) -> None:
    """Bring the database to :data:`~dfmeta.store.db.HEAD`, unless it has that schema.

    A process runs one migration at a time: Alembic keeps it in module globals.

    :param connection: inside a transaction that locks out other writers, so that the second of two
        processes finds the migration done.
    :raises StoreSchemaError: the database has a revision that this version does not know.
    """
    revision = current_revision(connection)
    if revision is None:
        # All tables at once: the import of Alembic takes ten times as long.
        schema.metadata.create_all(connection, checkfirst=False)
        _VERSION.create(connection, checkfirst=True)
        connection.execute(_VERSION.insert().values(version_num=HEAD))
    elif revision != HEAD:
        _upgrade(connection, revision)


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.util import CommandError

    try:
        command.upgrade(configuration(connection), HEAD)
    except CommandError as error:
        cause = f"the database has schema {revision}, this version of dfmeta knows up to {HEAD}"
        raise StoreSchemaError(cause=cause) from error
