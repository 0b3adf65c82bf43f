"""Read-only inspection of a store's database for commands: nothing is created or migrated."""

import contextlib
import importlib
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dfmeta.errors import StoreError


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Result of an inspection."""

    shown: str
    """The database's path or URL, without a password."""
    file: bool
    """Whether the database is a file of this host."""
    exists: bool = True
    cut: bool = False
    """Whether the file has 0 bytes."""
    cause: str = ""
    """Why the database cannot be read; empty if it can be read."""
    revision: str | None = None
    open_files: tuple[str, ...] = ()
    """The database's files that users other than their owner may read or write."""
    owners: tuple[tuple[str, int], ...] = ()
    """Each of the database's files, with the number of the user that owns it."""


def load_driver(url: str) -> None:
    """Import what :func:`look` needs: this takes up to a second, which is not the server's time."""
    if not url.startswith("sqlite"):
        with contextlib.suppress(ImportError):  # look() says so
            importlib.import_module("dfmeta.store.db.database")
            importlib.import_module("sqlalchemy.dialects.postgresql.psycopg")
            importlib.import_module("psycopg")


def look(url: str) -> DatabaseFacts:
    """Inspect the database that *url* names.

    :param url: an SQLAlchemy URL that the operator has configured.
    :raises ConfigError: the URL cannot work.
    """
    kind, sign, path = url.partition(":///")
    if kind == "sqlite" and sign and path and "?" not in path:
        # The usual case, without the slow import of SQLAlchemy.
        return _look_at_file(Path(path).absolute())
    return _look_at_server(url)


def _look_at_server(url: str) -> DatabaseFacts:
    from dfmeta.store.db.database import schema_of
    from dfmeta.store.db.dialect import parse_url

    parsed = parse_url(url)
    shown = parsed.set(drivername=parsed.get_backend_name(), query={})
    name = shown.render_as_string(hide_password=True)
    try:
        return DatabaseFacts(name, file=False, revision=schema_of(url))
    except StoreError as error:
        return DatabaseFacts(name, file=False, cause=error.cause.removeprefix(f"{name}: "))


def _look_at_file(path: Path) -> DatabaseFacts:
    shown = str(path)
    try:
        if not path.exists():
            return DatabaseFacts(shown, file=True, exists=False)
        files = [path, Path(f"{path}-wal"), Path(f"{path}-shm")]
        present = [(str(file), file.stat()) for file in files if file.exists()]
        exposed = [
            name for name, status in present if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        ]
        owners = tuple((name, status.st_uid) for name, status in present)
        if not path.is_file():
            return DatabaseFacts(shown, file=True, cause="it is not a regular file")
        if not path.stat().st_size:
            return DatabaseFacts(shown, file=True, cut=True, open_files=tuple(exposed))
        revision = _revision(path, logged=files[1].exists())
    except (OSError, sqlite3.Error) as error:
        cause = getattr(error, "strerror", None) or str(error)
        return DatabaseFacts(shown, file=True, cause=cause)
    return DatabaseFacts(
        shown, file=True, revision=revision, open_files=tuple(exposed), owners=owners
    )


def _revision(path: Path, *, logged: bool) -> str | None:
    # Without a log no process has the file open, and SQLite would create a log to read it
    # (wal.html, "Read-Only Databases").
    how = "mode=ro" if logged else "immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True)
    with contextlib.closing(connection):
        tables = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
        if connection.execute(tables).fetchone() is None:
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    return str(row[0]) if row else None
