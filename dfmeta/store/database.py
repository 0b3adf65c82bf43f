"""The database under the repository: its file, its connections and its transactions.

SQLite in a file. The file and its ``-wal`` and ``-shm`` belong to their owner alone (mode 0600):
they hold user-data, which often holds secrets. A writer that finds the database locked waits with
``time.sleep``, which under a monkey-patched hub lets others run; a reader never waits for a
writer (WAL).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from dfmeta.exceptions import ConfigError, StoreError
from dfmeta.store.migrations import ensure_schema

BUSY_SECONDS: Final = 5.0
"""How long an operation waits for another process' write before it fails."""
BUSY_STEP_MS: Final = 5
"""How long SQLite itself may wait, milliseconds: it blocks the whole process meanwhile."""
FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_RETRY_SECONDS: Final = 0.02
_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes keep the primary one in the low byte."""

T = TypeVar("T")


class Database:
    """An open SQLite database at the newest schema.

    :param url: an SQLAlchemy URL, ``sqlite:///path``; the operator's word.
    :raises ConfigError: the URL is of another kind, or names no file.
    :raises StoreError: the file cannot be created, read and written, or is not a database of this
        or an older version.
    """

    def __init__(self, url: str) -> None:
        self.path = _path_of(url)
        self._file: tuple[int, int] | None = None
        self._engine = create_engine(f"sqlite:///{self.path}", hide_parameters=True)
        self._writer = self._engine.execution_options(dfmeta_write=True)
        event.listen(self._engine, "connect", _prepare_connection)
        event.listen(self._engine, "begin", _begin)
        self._call(self._open)

    def run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """Run ``work`` in one transaction and return what it returns.

        :param work: called again from its beginning when another writer was in the way.
        :param write: keep other writers out from the transaction's first statement on.
        :raises StoreError: the database failed, or stayed locked for :data:`BUSY_SECONDS`.
        """
        engine = self._writer if write else self._engine

        def transaction() -> T:
            self._follow_file()
            with engine.begin() as connection:
                return work(connection)

        return self._call(transaction)

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        self._engine.dispose()

    def _call(self, step: Callable[[], T]) -> T:
        """Run a step, again while the database is busy, and name the file in its errors."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return step()
            except DBAPIError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise StoreError(cause=f"{self.path}: {error.orig}") from error
            except SQLAlchemyError as error:
                raise StoreError(cause=f"{self.path}: {type(error).__name__}") from error
            except OSError as error:
                raise StoreError(cause=f"{self.path}: {error.strerror}") from error
            time.sleep(_RETRY_SECONDS)

    def _open(self) -> None:
        """Create the file if it is missing, guard it, and bring its schema up to date."""
        _ensure_file(self.path)
        self._adopt(self.path.stat())

    def _follow_file(self) -> None:
        """Notice a file that was put in the place of ours: a back-up restored, for one.

        A missing file is an error and not an empty store: between an operator's ``rm`` and
        ``cp`` no guest is to hear that it has no metadata.
        """
        found = self.path.stat()
        if (found.st_dev, found.st_ino) != self._file:
            self._engine.dispose()
            self._adopt(found)

    def _adopt(self, found: os.stat_result) -> None:
        _guard_files(self.path)
        with self._engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise StoreError(cause=f"{self.path}: no write-ahead log here, only {mode!r}")
        with self._writer.begin() as connection:
            ensure_schema(connection)
        self._file = (found.st_dev, found.st_ino)


def _path_of(url: str) -> Path:
    """Return the absolute path that a URL names."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise _wrong_url("(hidden)" if "@" in url else url, "it is not a URL") from None
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() != "sqlite":
        raise _wrong_url(shown, f"this version cannot use {parsed.get_backend_name()}")
    name = parsed.database or ""
    if not name or name.startswith((":", "file:")) or parsed.query:
        raise _wrong_url(shown, "it names no file")
    return Path(name).absolute()


def _wrong_url(shown: str, cause: str) -> ConfigError:
    return ConfigError(
        option="[store] connection",
        value=shown,
        cause=cause,
        remedy="Give sqlite:////path/to/store.db",
    )


def _ensure_file(path: Path) -> None:
    """Create the file with mode 0600, and its folder with 0700, unless they are there.

    An existing file is not opened: closing it again would drop this process' SQLite locks on it
    (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StoreError(cause=f"{path}: not a regular file") from None


def _guard_files(path: Path) -> None:
    """See that we ourselves can read and write, and take all rights from group and others."""
    if not _may(path, os.R_OK | os.W_OK) or not _may(path.parent, os.W_OK | os.X_OK):
        raise StoreError(
            cause=f"{path}: this user may not read and write it and its folder. "
            "Run the command as the file's owner"
        )
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if name.exists() and stat.S_IMODE(name.stat().st_mode) & ~FILE_MODE:
            name.chmod(FILE_MODE)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _prepare_connection(connection: sqlite3.Connection, _record: Any) -> None:
    """Set what SQLite forgets between connections; transactions begin when we say so."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_STEP_MS}")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Connection) -> None:
    """Begin a writer's transaction with the lock taken; a reader's single statement needs none."""
    if connection.get_execution_options().get("dfmeta_write"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _is_busy(error: DBAPIError) -> bool:
    code: int = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK)
    return code & _PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
