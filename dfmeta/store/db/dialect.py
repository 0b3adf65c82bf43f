"""The databases of the store: SQLite and PostgreSQL. Errors do not show a database's password.

Only the owner of an SQLite file may read it and its ``-wal`` and ``-shm`` (mode 0600): they contain
user-data, which often contains secrets. A reader never waits for a writer (WAL). A commit has
reached the disk when it returns (``synchronous=FULL``).

The driver of PostgreSQL is psycopg 3. A server that does not answer must not block a thread
indefinitely, and neither libpq nor the driver has a timeout for this. Instead, another thread shuts
the connection's socket down, and the driver gets the error of a lost connection.
"""

import abc
import contextlib
import errno
import logging
import os
import socket
import sqlite3
import stat
import threading
from collections import deque
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util.queue import Empty, QueueCommon

from dfmeta import errors

REMEDY: Final = "Give sqlite:////path/to/store.db, or postgresql://USER@HOST/DATABASE"
_OF_SYSTEM: Final[dict[int, type[errors.StoreError]]] = {
    errno.EACCES: errors.StoreAccessError,
    errno.EPERM: errors.StoreAccessError,
    errno.EROFS: errors.StoreReadOnlyError,
    errno.ENOSPC: errors.StoreFullError,
    errno.EDQUOT: errors.StoreFullError,
    errno.EISDIR: errors.StoreAccessError,
    errno.ENOTDIR: errors.StoreAccessError,
}

BUSY_STEP_MS: Final = 250
"""Milliseconds that SQLite itself waits for another process' lock before it reports an error."""
FILE_MODE: Final = stat.S_IRUSR | stat.S_IWUSR
CUT: Final = "it was truncated to 0 bytes"
PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes keep the primary one in the low byte."""
_SQLITE_KINDS: Final[dict[int, type[errors.StoreError]]] = {
    sqlite3.SQLITE_CORRUPT: errors.StoreDamagedError,
    sqlite3.SQLITE_NOTADB: errors.StoreDamagedError,
    sqlite3.SQLITE_ERROR: errors.StoreDamagedError,
    sqlite3.SQLITE_READONLY: errors.StoreReadOnlyError,
    sqlite3.SQLITE_FULL: errors.StoreFullError,
    sqlite3.SQLITE_IOERR_SHMSIZE: errors.StoreFullError,
    sqlite3.SQLITE_BUSY: errors.StoreBusyError,
    sqlite3.SQLITE_LOCKED: errors.StoreBusyError,
    sqlite3.SQLITE_CANTOPEN: errors.StoreAccessError,
    sqlite3.SQLITE_PERM: errors.StoreAccessError,
}
"""SQLITE_IOERR_SHMSIZE means that the disk has no room for the log's index. SQLITE_ERROR means that
a table or column is missing: the file belongs to another program, or was changed by hand."""

CONNECT_SECONDS: Final = 3
"""libpq's connect_timeout, for each address of the server."""
_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""A server that vanishes without closing its connections is detected after 25 s (tcp(7)), on idle
connections too."""
APPLICATION: Final = "dfmeta"
"""Name of dfmeta's connections at the server."""
_SCHEMA_LOCK: Final = 0x64666D657461
"""Key of the advisory lock for changes of the schema: "dfmeta" in ASCII."""
_CONFLICTS: Final = frozenset({"40001", "40P01"})
"""serialization_failure and deadlock_detected (PostgreSQL, appendix A)."""
_AWAY: Final = ("08", "57P", "57014")
"""SQLSTATE classes of connection exceptions and of a server that shuts down or starts, and
query_canceled, for a statement that took too long."""
_PG_KINDS: Final[dict[str, type[errors.StoreError]]] = {
    "25006": errors.StoreReadOnlyError,
    "42501": errors.StoreAccessError,
    "42P01": errors.StoreDamagedError,
    "53100": errors.StoreFullError,
    "XX001": errors.StoreDamagedError,
    "XX002": errors.StoreDamagedError,
}
"""read_only_sql_transaction, insufficient_privilege, undefined_table, disk_full, data_corrupted and
index_corrupted (PostgreSQL, appendix A)."""


class IdleConnections(QueueCommon[ConnectionPoolEntry]):
    """The idle connections of a pool; the one used last is taken first.

    SQLAlchemy's own queue takes locks, which belong to the hub in a daemon: OS threads must not
    wait for those. A deque needs none.
    """

    def __init__(self, maxsize: int = 0, use_lifo: bool = True) -> None:
        self.maxsize, self.use_lifo = maxsize, use_lifo
        self._entries: deque[ConnectionPoolEntry] = deque()

    def qsize(self) -> int:
        """Return the number of idle connections."""
        return len(self._entries)

    def put(
        self, item: ConnectionPoolEntry, block: bool = True, timeout: float | None = None
    ) -> None:
        """Add a connection; the number is limited by the threads that use them."""
        self._entries.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> ConnectionPoolEntry:
        """Take a connection.

        :raises Empty: none is idle. The pool opens another one.
        """
        try:
            return self._entries.pop()
        except IndexError:
            raise Empty from None


class ThreadPool(QueuePool):
    """SQLAlchemy's pool, for OS threads of a process with a hub.

    It logs nothing: a logger's lock belongs to the hub, and an OS thread that waits for it stops
    the daemon.
    """

    _queue_class = IdleConnections
    _sqla_logger_namespace = "sqlalchemy.pool"


logging.getLogger(ThreadPool._sqla_logger_namespace).disabled = True


def engine_of(url: URL | str, **arguments: Any) -> Engine:
    """Return an engine whose pool keeps all connections, and whose errors show no values.

    :param arguments: of the driver, for each connection.
    """
    return create_engine(
        url,
        hide_parameters=True,
        poolclass=ThreadPool,
        pool_size=0,
        # Each transaction ends before its connection goes back.
        pool_reset_on_return=None,
        connect_args=arguments,
    )


class DatabaseDialect(abc.ABC):
    """One kind of database. The methods with a body are those that one of the databases needs."""

    shown: str
    """The database as errors show it: a path or a server's URL, never with a password."""
    engine: Engine

    def follow(self) -> bool:
        """Return whether another database has replaced the one that was opened. Must not block.

        :raises OSError: the database no longer exists.
        :raises StoreDamagedError: the file is no longer a database.
        """
        return False

    def check_usable(self) -> None:
        """Check that the database can be used, before its schema is read."""
        return

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Begin a transaction's work on a connection."""
        return

    def lock_schema(self, connection: Connection) -> None:
        """Keep other processes from changing the schema until the transaction ends."""
        return

    def version(self) -> object | None:
        """Return a value that changes with each write by another connection. Must not block.

        None: only the rows themselves can show a change.
        """
        return None

    @abc.abstractmethod
    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether the same transaction may succeed when it is repeated."""

    @abc.abstractmethod
    def error(self, error: DBAPIError) -> errors.StoreError:
        """Return our error for one of the driver, with the database's message in one line.

        The message contains no values of the statement. StoreAwayError: the server could not be
        reached, or was too slow.
        """

    @abc.abstractmethod
    def interrupt(self, driver: Any) -> None:
        """Interrupt the statement that runs on a connection of the driver, in another thread."""

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def parse_url(url: str) -> URL:
    """Return the parts of a URL.

    :raises ConfigError: it is not a URL.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise wrong_url(url, "it is not a URL") from None


def wrong_url(url: URL | str, cause: str, remedy: str = REMEDY) -> errors.ConfigError:
    """Return the error for a URL that cannot work.

    :param url: a string is shown only if it cannot contain a password.
    """
    if isinstance(url, URL):
        shown = url.render_as_string(hide_password=True)
    else:
        shown = "(hidden)" if "@" in url else url
    return errors.ConfigError(option="[store] connection", value=shown, cause=cause, remedy=remedy)


def of_system(error: OSError, shown: str, *, opened: bool = False) -> errors.StoreError:
    """Return our error for an error of the operating system on the database's file.

    :param shown: the path that the error shows.
    :param opened: the file existed before.
    """
    kind = _OF_SYSTEM.get(error.errno or 0, errors.StoreError)
    if isinstance(error, FileNotFoundError) and opened:
        kind = errors.StoreGoneError
    return kind(cause=f"{shown}: {error.strerror or error}")


class Sqlite(DatabaseDialect):
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
        self._watching = threading.Lock()
        """Taken by callers of the database, and never by a step in an OS thread: in a daemon it is
        a lock of the hub."""

    def follow(self) -> bool:
        """Return whether another file has replaced the opened one, such as a restored backup.

        A missing file is an error and not an empty store: between an operator's ``rm`` and ``cp``
        guests must not get the answer that they have no metadata. A file of 0 bytes is an error
        too: SQLite would take it for a new database, remove the log, and store later writes in no
        file at all (https://www.sqlite.org/src/file/src/pager.c, pagerOpenWalIfPresent).

        :raises StoreDamagedError: the file has 0 bytes.
        """
        status = self.path.stat()
        if self._file is not None and not status.st_size:
            raise errors.StoreDamagedError(cause=f"{self.path}: {CUT}")
        return (status.st_dev, status.st_ino) != self._file

    def check_usable(self) -> None:
        """Check and restrict the file's permissions; the first time, create it if it is missing.

        :raises StoreError: it is not a regular file, cannot be read and written, or cannot have a
            write-ahead log.
        """
        if self._file is None:
            _ensure_file(self.path)
        status = self.path.stat()
        _guard_files(self.path)
        with self.engine.connect() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode=WAL").scalar()
        if mode != "wal":
            raise errors.StoreError(
                cause=f"{self.path}: SQLite uses {mode!r}, not a write-ahead log"
            )
        watch = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        watch.execute("PRAGMA busy_timeout=0")
        previous, self._watch = self._watch, watch
        if previous is not None:
            # Of an attempt that another writer has disturbed: no caller has used it.
            previous.close()
        self._file = (status.st_dev, status.st_ino)

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
        with self._watching:
            if self._watch is not None:
                with contextlib.suppress(sqlite3.Error):
                    ((version,),) = self._watch.execute("PRAGMA data_version").fetchall()
                    return int(version)
        return None

    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether another process was writing."""
        code: int = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK)
        return code & PRIMARY_CODE in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def error(self, error: DBAPIError) -> errors.StoreError:
        """See :meth:`DatabaseDialect.error`."""
        # A file that was truncated while others use it looks like a locked one.
        with contextlib.suppress(OSError):
            if self.conflicts(error) and not self.path.stat().st_size:
                return errors.StoreDamagedError(cause=f"{self.shown}: {CUT}")
        kind = kind_of(getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_OK))
        return kind(cause=f"{self.shown}: {error.orig}")

    def interrupt(self, driver: sqlite3.Connection) -> None:
        """See :meth:`.DatabaseDialect.interrupt`."""
        driver.interrupt()

    def close(self) -> None:
        """Close all connections, with the one that reads ``data_version``."""
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        super().close()


def kind_of(code: int) -> type[errors.StoreError]:
    """Return our error class for one of SQLite's result codes."""
    return _SQLITE_KINDS.get(code) or _SQLITE_KINDS.get(code & PRIMARY_CODE, errors.StoreError)


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
    path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        if not stat.S_ISREG(path.stat().st_mode):
            remedy = "Name a file in [store] connection: sqlite:////path/to/store.db"
            raise errors.StoreAccessError(
                cause=f"{path}: not a regular file", remedy=remedy
            ) from None


def _guard_files(path: Path) -> None:
    """Check that this process can read and write, and remove permissions of group and others."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise errors.StoreReadOnlyError(cause=f"{path}: its file system is mounted read-only")
    if not _may(path, os.R_OK | os.W_OK) or not _may(path.parent, os.W_OK | os.X_OK):
        cause = f"{path}: this user may not read and write the file and its directory"
        raise errors.StoreAccessError(cause=cause)
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


class Postgresql(DatabaseDialect):
    """A server.

    :param seconds: time limit of a statement. The server ends a statement whose client waits no
        longer, with the locks that it holds.
    :raises ConfigError: the URL cannot work, or the driver is not installed.
    """

    def __init__(self, url: URL, seconds: float) -> None:
        if url.drivername not in ("postgresql", "postgresql+psycopg"):
            raise wrong_url(url, "only the driver psycopg is supported", "Write postgresql://...")
        if not url.database:
            remedy = "Give postgresql://USER@HOST/DATABASE"
            raise wrong_url(url, "it does not name a database", remedy)
        # Our own errors include its messages about lost connections, and a logger takes locks.
        logging.getLogger("psycopg").disabled = True
        self.shown = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        arguments = {"connect_timeout": CONNECT_SECONDS, **_KEEPALIVES}
        arguments = {name: value for name, value in arguments.items() if name not in url.query}
        try:
            self.engine = engine_of(
                url.set(drivername="postgresql+psycopg"),
                application_name=APPLICATION,
                **arguments,
            )
        except (ImportError, NoSuchModuleError) as error:
            remedy = "Install dfmeta with PostgreSQL support: dfmeta[postgresql]"
            raise wrong_url(url, "psycopg is not installed", remedy) from error
        limit = f"SET statement_timeout = {max(round(seconds * 1000), 1)}"
        # Not among libpq's options: PgBouncer refuses a connection that has some.
        event.listen(self.engine, "connect", lambda driver, _record: _execute(driver, limit))

    def lock_schema(self, connection: Connection) -> None:
        """Take an advisory lock until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether the error is a deadlock or a serialization failure."""
        return _state(error) in _CONFLICTS

    def error(self, error: DBAPIError) -> errors.StoreError:
        """See :meth:`DatabaseDialect.error`."""
        # Not the server's details, which may contain values.
        primary = getattr(getattr(error.orig, "diag", None), "message_primary", None)
        state = _state(error)
        away = state.startswith(_AWAY) if state else isinstance(error, OperationalError)
        away = away or error.connection_invalidated
        kind = errors.StoreAwayError if away else _PG_KINDS.get(state, errors.StoreError)
        return kind(cause=f"{self.shown}: {' '.join(str(primary or error.orig).split())}")

    def interrupt(self, driver: Any) -> None:
        """Shut the socket down, so that a thread that waits for it returns immediately."""
        # If the connection is being closed at this moment, no thread waits for it.
        with (
            contextlib.suppress(OSError, self.engine.dialect.loaded_dbapi.Error),
            socket.socket(fileno=os.dup(driver.fileno())) as plug,
        ):
            plug.shutdown(socket.SHUT_RDWR)


def _execute(driver: Any, statement: str) -> None:
    driver.execute(statement)
    driver.commit()


def _state(error: DBAPIError) -> str:
    """Return the SQLSTATE; empty if the error does not come from a server."""
    return str(getattr(error.orig, "sqlstate", None) or "")
