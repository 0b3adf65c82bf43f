"""SQLite: a file of this host.

Only their owner may read the file and its ``-wal`` and ``-shm`` (mode 0600): they contain
user-data, which often contains secrets. A reader never waits for a writer (WAL). A commit has
reached the disk when it returns (``synchronous=FULL``).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, event
from sqlalchemy.exc import DBAPIError

from dfmeta.errors import (
    StoreAccessError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from dfmeta.store.db.dialect import Dialect, engine_of, wrong_url

BUSY_STEP_MS: Final = 250
"""Milliseconds that SQLite itself waits for another process' lock before it reports an error."""
FILE_MODE: Final = 0o600
CUT: Final = "it was truncated to 0 bytes"
FOLDER_MODE: Final = 0o700
PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes keep the primary one in the low byte."""
_KINDS: Final[dict[int, type[StoreError]]] = {
    sqlite3.SQLITE_CORRUPT: StoreDamagedError,
    sqlite3.SQLITE_NOTADB: StoreDamagedError,
    sqlite3.SQLITE_ERROR: StoreDamagedError,
    sqlite3.SQLITE_READONLY: StoreReadOnlyError,
    sqlite3.SQLITE_FULL: StoreFullError,
    sqlite3.SQLITE_IOERR_SHMSIZE: StoreFullError,
    sqlite3.SQLITE_BUSY: StoreBusyError,
    sqlite3.SQLITE_LOCKED: StoreBusyError,
    sqlite3.SQLITE_CANTOPEN: StoreAccessError,
    sqlite3.SQLITE_PERM: StoreAccessError,
}
"""SQLITE_IOERR_SHMSIZE means that the disk has no room for the log's index. SQLITE_ERROR means that
a table or column is missing: the file belongs to another program, or was changed by hand."""


class Sqlite(Dialect):
    """A file of this host.

    :raises ConfigError: the URL does not name a file.
    """

    def __init__(self, url: URL) -> None:
        self.path = _path_of(url)
        self.shown = str(self.path)
        self.engine = engine_of(f"sqlite:///{self.path}", check_same_thread=False)
        event.listen(self.engine, "connect", _prepare_connection)
        self._file: tuple[int, int] | None = None
        self._watch: sqlite3.Connection | None = None
        self._turn = threading.Lock()

    def follow(self) -> bool:
        """Return whether another file has replaced the opened one, such as a restored backup.

        A missing file is an error and not an empty store: between an operator's ``rm`` and ``cp``
        guests must not get the answer that they have no metadata. A file of 0 bytes is an error
        too: SQLite would take it for a new database, remove the log, and store later writes in no
        file at all (https://www.sqlite.org/src/file/src/pager.c, pagerOpenWalIfPresent).

        :raises StoreDamagedError: the file has 0 bytes.
        """
        found = self.path.stat()
        if self._file is not None and not found.st_size:
            raise StoreDamagedError(cause=f"{self.path}: {CUT}")
        return (found.st_dev, found.st_ino) != self._file

    def check_usable(self) -> None:
        """Check and restrict the file's permissions; the first time, create it if it is missing.

        :raises StoreError: it is not a regular file, cannot be read and written, or cannot have a
            write-ahead log.
        """
        self.close()
        if self._file is None:
            _ensure_file(self.path)
        found = self.path.stat()
        _guard_files(self.path)
        with self.engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise StoreError(cause=f"{self.path}: SQLite uses {mode!r}, not a write-ahead log")
        self._watch = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self._watch.execute("PRAGMA busy_timeout=0")
        self._file = (found.st_dev, found.st_ino)

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Take the write lock, or begin a transaction that reads one consistent snapshot."""
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def version(self) -> object | None:
        """Return SQLite's ``data_version`` of a connection that never writes.

        SQLite reads it from the log's index, which is mapped into memory
        (https://www.sqlite.org/pragma.html, data_version).
        """
        # One thread at a time: all statements of a connection share one snapshot, and a statement
        # that another thread has begun before a commit would give its version after it, too.
        with self._turn:
            if self._watch is None:
                return None
            try:
                ((version,),) = self._watch.execute("PRAGMA data_version").fetchall()
            except sqlite3.Error:
                return None
        return int(version)

    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether another process was writing."""
        code: int = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def cause(self, error: DBAPIError) -> str:
        """See :meth:`.Dialect.cause`."""
        return CUT if self._cut(error) else str(error.orig)

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """See :meth:`.Dialect.kind`."""
        if self._cut(error):
            return StoreDamagedError
        return kind_of(getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK))

    def _cut(self, error: DBAPIError) -> bool:
        """Return whether an apparent lock is a file that was truncated while others use it."""
        try:
            return self.conflicts(error) and not self.path.stat().st_size
        except OSError:
            return False

    def interrupt(self, driver: sqlite3.Connection) -> None:
        """See :meth:`.Dialect.interrupt`."""
        driver.interrupt()

    def close(self) -> None:
        """Close all connections, with the one that reads ``data_version``."""
        with self._turn:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        super().close()


def kind_of(code: int) -> type[StoreError]:
    """Return our error class for one of SQLite's result codes."""
    return _KINDS.get(code) or _KINDS.get(code & PRIMARY_CODE, StoreError)


def _path_of(url: URL) -> Path:
    """Return the absolute path of the file that a URL names."""
    name = url.database or ""
    if not name or name.startswith((":", "file:")) or url.query:
        raise wrong_url(url, "it does not name a file")
    return Path(name).absolute()


def _ensure_file(path: Path) -> None:
    """Create the file with mode 0600, and its directory with 0700, unless they exist.

    An existing file is not opened: closing it would release this process' SQLite locks on it
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
    """Check that this process can read and write, and remove permissions of group and others."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise StoreReadOnlyError(cause=f"{path}: its file system is mounted read-only")
    if not _may(path, os.R_OK | os.W_OK) or not _may(path.parent, os.W_OK | os.X_OK):
        cause = f"{path}: this user may not read and write the file and its directory"
        raise StoreAccessError(cause=cause)
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if name.exists() and stat.S_IMODE(name.stat().st_mode) & ~FILE_MODE:
            name.chmod(FILE_MODE)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _prepare_connection(connection: sqlite3.Connection, _record: Any) -> None:
    """Set the options that SQLite keeps per connection; transactions begin only explicitly."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_STEP_MS}")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
