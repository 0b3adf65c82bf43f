"""SQLite: a file of this host.

The file and its ``-wal`` and ``-shm`` belong to their owner alone (mode 0600): they hold user-data,
which often holds secrets. A reader never waits for a writer (WAL). A commit that was answered has
reached the disk (``synchronous=FULL``).
"""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, NullPool, create_engine, event
from sqlalchemy.exc import DBAPIError

from dfmeta.exceptions import (
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from dfmeta.store.db.urls import in_use, wrong_url

BUSY_STEP_MS: Final = 250
"""How long SQLite itself waits for another process' lock before it says so, milliseconds."""
FILE_MODE: Final = 0o600
CUT: Final = "it has been cut to 0 bytes"
FOLDER_MODE: Final = 0o700
_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes keep the primary one in the low byte."""
_KINDS: Final[dict[int, type[StoreError]]] = {
    sqlite3.SQLITE_CORRUPT: StoreDamagedError,
    sqlite3.SQLITE_NOTADB: StoreDamagedError,
    sqlite3.SQLITE_ERROR: StoreDamagedError,
    sqlite3.SQLITE_READONLY: StoreReadOnlyError,
    sqlite3.SQLITE_FULL: StoreFullError,
    sqlite3.SQLITE_BUSY: StoreBusyError,
    sqlite3.SQLITE_LOCKED: StoreBusyError,
    sqlite3.SQLITE_CANTOPEN: StoreAccessError,
    sqlite3.SQLITE_PERM: StoreAccessError,
}
"""SQLITE_ERROR is a table or column that is missing: the file is another program's, or was changed
by hand."""


class Sqlite:
    """See :class:`~dfmeta.store.db.database.Dialect`.

    :raises ConfigError: the URL names no file.
    """

    def __init__(self, url: URL) -> None:
        self.path = _path_of(url)
        self.shown = str(self.path)
        self.engine = create_engine(
            f"sqlite:///{self.path}",
            hide_parameters=True,
            poolclass=NullPool,
            connect_args={"check_same_thread": False},
        )
        event.listen(self.engine, "connect", _prepare_connection)
        self._file: tuple[int, int] | None = None
        self._watch: sqlite3.Connection | None = None

    def follow(self) -> bool:
        """Notice a file that was put in the place of ours: a back-up restored, for one.

        A missing file is an error and not an empty store: between an operator's ``rm`` and
        ``cp`` no guest is to hear that it has no metadata. So is one of 0 bytes: SQLite would take
        it for a new database, remove the log and keep what is written in no file at all
        (https://www.sqlite.org/src/file/src/pager.c, pagerOpenWalIfPresent).

        :raises StoreDamagedError: it has 0 bytes.
        """
        found = self.path.stat()
        if self._file is not None and not found.st_size:
            raise StoreDamagedError(cause=f"{self.path}: {CUT}")
        return (found.st_dev, found.st_ino) != self._file

    def check_usable(self) -> None:
        """Guard the file; the first time, create it if it is missing.

        :raises StoreError: it is none, may not be read and written, or has no write-ahead log.
        """
        self.close()
        if self._file is None:
            _ensure_file(self.path)
        found = self.path.stat()
        _guard_files(self.path)
        with self.engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise StoreError(cause=f"{self.path}: no write-ahead log here, only {mode!r}")
        self._watch = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._watch.execute("PRAGMA busy_timeout=0")
        self._file = (found.st_dev, found.st_ino)

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Take the write lock, or have all statements see the same moment."""
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def lock_schema(self, connection: Connection) -> None:
        """Nothing: the transaction has the write lock."""

    def insist_on_being_alone(self, connection: Connection) -> None:
        """Take the file for this connection alone, until it is closed.

        Whoever has a file with a write-ahead log open holds a shared lock on it for as long
        (https://www.sqlite.org/pragma.html, locking_mode).

        :raises StoreError: another process has it open.
        """
        self.close()
        connection.exec_driver_sql("PRAGMA locking_mode=EXCLUSIVE")
        try:
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
            connection.exec_driver_sql("ROLLBACK")
        except DBAPIError as error:
            if not self.conflicts(error):
                raise
            raise in_use(self.shown) from error

    def version(self) -> object | None:
        """SQLite's ``data_version`` on a connection that never writes.

        It reads the log's index, which is mapped into memory (https://www.sqlite.org/pragma.html,
        data_version).
        """
        if self._watch is None:
            return None
        try:
            return self._watch.execute("PRAGMA data_version").fetchone()[0]  # type: ignore[no-any-return]  # sqlite3 gives tuples of Any
        except sqlite3.Error:
            return None

    def conflicts(self, error: DBAPIError) -> bool:
        """Whether another process was writing."""
        code: int = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & _PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def is_away(self, error: DBAPIError) -> bool:
        """Never: a file is there or is not."""
        del error
        return False

    def cause(self, error: DBAPIError) -> str:
        """See :meth:`~dfmeta.store.db.database.Dialect.cause`."""
        return CUT if self._cut(error) else str(error.orig)

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """See :meth:`~dfmeta.store.db.database.Dialect.kind`."""
        if self._cut(error):
            return StoreDamagedError
        return kind_of(getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK))

    def _cut(self, error: DBAPIError) -> bool:
        """Whether what looks like a lock is a file that was cut off while others have it open."""
        try:
            return self.conflicts(error) and not self.path.stat().st_size
        except OSError:
            return False

    def interrupt(self, connection: Connection) -> None:
        """See :meth:`~dfmeta.store.db.database.Dialect.interrupt`."""
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            driver.interrupt()

    def close(self) -> None:
        """Close the connection that watches."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def kind_of(code: int) -> type[StoreError]:
    """Return which error of ours one of SQLite's result codes is."""
    return _KINDS.get(code & _PRIMARY_CODE, StoreError)


def _path_of(url: URL) -> Path:
    """Return the absolute path that a URL names."""
    name = url.database or ""
    if not name or name.startswith((":", "file:")) or url.query:
        raise wrong_url(url, "it names no file")
    return Path(name).absolute()


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
            remedy = "Name a file in [store] connection: sqlite:////path/to/store.db"
            raise StoreAccessError(cause=f"{path}: not a regular file", remedy=remedy) from None


def _guard_files(path: Path) -> None:
    """See that we ourselves can read and write, and take all rights from group and others."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise StoreReadOnlyError(cause=f"{path}: its disk is mounted for reading alone")
    if not _may(path, os.R_OK | os.W_OK) or not _may(path.parent, os.W_OK | os.X_OK):
        raise StoreAccessError(cause=f"{path}: this user may not read and write it and its folder")
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if name.exists() and stat.S_IMODE(name.stat().st_mode) & ~FILE_MODE:
            name.chmod(FILE_MODE)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _prepare_connection(connection: sqlite3.Connection, _record: Any) -> None:
    """Set what SQLite forgets between connections; transactions begin when we say so."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_STEP_MS}")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
