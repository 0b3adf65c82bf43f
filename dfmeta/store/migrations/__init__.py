"""Bringing a database to the schema that this version of the code knows.

The scripts are Alembic's and are found beside this file, wherever the package is installed; no
``alembic.ini`` is needed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import inspect, text

from dfmeta.exceptions import StoreError
from dfmeta.store import schema

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

# Alembic keeps the running migration in module globals: one at a time in a process.
_alembic_lock: Final = threading.Lock()


def current_revision(connection: Connection) -> str | None:
    """Return the revision that the database is at, None for an empty one."""
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
    """Bring the database to :data:`~dfmeta.store.schema.HEAD`; do nothing when it is there.

    :param connection: inside a transaction that keeps other writers out, so that the second of
        two processes finds the work done.
    :raises StoreError: the database is at a revision that this version does not know.
    """
    found = current_revision(connection)
    if found != schema.HEAD:
        _upgrade(connection, found)


def _upgrade(connection: Connection, found: str | None) -> None:
    """Run the missing migrations. Alembic is imported here: it is slow and seldom needed."""
    from alembic import command
    from alembic.script import ScriptDirectory

    config = configuration(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            cause=f"the database has schema {found}, this version of dfmeta knows up to "
            f"{schema.HEAD}. Install the newer dfmeta that wrote it, or restore a back-up"
        )
    with _alembic_lock:
        command.upgrade(config, schema.HEAD)
