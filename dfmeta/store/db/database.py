"""The database under the repository: its connections and its transactions.

SQLite in a file of this host, or PostgreSQL for a store that many hosts share. Blocking calls run
where :class:`~dfmeta.store.db.blocking.Apart` puts them. This module has a connection pool of its
own: SQLAlchemy's pool takes locks that belong to the hub in a daemon, and other threads must not
wait for those.

An operation runs as follows:

1. It takes a connection of the pool, or opens a new one. If the server has closed the pool's
   connection meanwhile, all connections of the pool are dropped, and the operation is repeated once
   on a new connection. It is not repeated after its commit has begun: the result of the commit is
   unknown, and the caller gets the error.
2. After a conflict with another transaction, the operation is repeated until the time limit.
3. At the time limit another thread interrupts the connection, which is then closed. A connection is
   also closed when its transaction has failed, or when its database was replaced meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dfmeta.errors import (
    StoreAccessError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
)
from dfmeta.runtime import clock
from dfmeta.runtime.backoff import Backoff
from dfmeta.store.db.blocking import Apart, at_once
from dfmeta.store.db.migrations import current_revision, ensure_schema, move
from dfmeta.store.db.urls import parse_url, wrong_url

SECONDS: Final = 5.0
"""Default time limit of an operation."""
REST: Final = 1.0
"""Seconds after a failed attempt to open the database during which no new attempt is made."""
_RETRY_SECONDS: Final = 0.02
_OF_SYSTEM: Final[dict[int, type[StoreError]]] = {
    errno.EACCES: StoreAccessError,
    errno.EPERM: StoreAccessError,
    errno.EROFS: StoreReadOnlyError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EISDIR: StoreAccessError,
    errno.ENOTDIR: StoreAccessError,
}

T = TypeVar("T")


class Dialect(Protocol):
    """The operations that differ between the databases."""

    shown: str
    """The database as errors show it: a path or a server's URL, never with a password."""
    engine: Engine

    def follow(self) -> bool:
        """Return whether another database has replaced the one that was opened. Must not block.

        :raises OSError: the database no longer exists.
        :raises StoreDamagedError: the file is no longer a database.
        """
        ...

    def check_usable(self) -> None:
        """Check that the database can be used, before its schema is read."""
        ...

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Begin a transaction's work on a connection."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Keep other processes from changing the schema until the transaction ends."""
        ...

    def insist_on_being_alone(self, connection: Connection) -> None:
        """Check that no other process has the database open; called before :meth:`begin`.

        :raises StoreError: another process has it open.
        """
        ...

    def version(self) -> object | None:
        """Return a value that changes with each write by another connection. Must not block.

        None: only the rows themselves can show a change.
        """
        ...

    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether the same transaction may succeed when it is repeated."""
        ...

    def is_away(self, error: DBAPIError) -> bool:
        """Return whether the server could not be reached."""
        ...

    def cause(self, error: DBAPIError) -> str:
        """Return the database's message, in one line and without the values of the statement."""
        ...

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """Return our error class, with its own remedy, for an error of a reachable database."""
        ...

    def interrupt(self, connection: Connection) -> None:
        """Interrupt the statement that runs on a connection; called from another thread."""
        ...

    def close(self) -> None:
        """Release the resources of the dialect itself."""
        ...


class Database:
    """A database at the newest schema.

    :param url: an SQLAlchemy URL that the operator has configured: ``sqlite:///PATH`` or
        ``postgresql://...``.
    :param apart: runs blocking calls.
    :param seconds: time limit of an operation, including the wait for other writers and for the
        server.
    :raises ConfigError: the URL cannot work.
    :raises StoreError: the database cannot be used. A server that does not answer, and a disk
        without room for the database, raise no error here: later operations try again.
    """

    def __init__(self, url: str, *, apart: Apart = at_once, seconds: float = SECONDS) -> None:
        self.dialect = _dialect(url)
        self.generation = 0
        """Grows when values that were read before may belong to another database."""
        self._apart = apart
        self._seconds = seconds
        self._idle: deque[Connection] = deque()
        self._opening = threading.Lock()
        self._opened = False
        self._rest = Backoff(REST)
        self._failure: StoreAwayError | StoreFullError | None = None
        with contextlib.suppress(StoreAwayError, StoreFullError):
            self._ready()

    @property
    def name(self) -> str:
        """Return ``sqlite`` or ``postgresql``."""
        return self.dialect.engine.dialect.name

    def run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """Run ``work`` in one transaction and return what it returns.

        :param work: called again from its beginning after a conflict with another writer.
        :param write: *work* changes the database.
        :raises StoreError: the database failed, or another writer blocked it for too long.
        :raises StoreAwayError: the server does not answer, or the operation took too long.
        """
        self._ready()
        return self._call(lambda job: self._transaction(job, work, write=write), write=write)

    def ping(self, *, seconds: float | None = None) -> None:
        """Run a trivial query, to check the database; raises as :meth:`run` does."""
        self._ready(seconds)
        self._call(
            lambda job: self._transaction(job, _nothing, write=False), write=False, seconds=seconds
        )

    def version(self) -> object | None:
        """Return :meth:`Dialect.version`; also None while the database is not open, or away."""
        try:
            self._ready()
        except StoreError:
            return None
        return self.dialect.version()

    def close(self) -> None:
        """Close all connections. A second call has no effect."""
        self._drop_idle()
        self.dialect.close()
        self.dialect.engine.dispose()

    def _ready(self, seconds: float | None = None) -> None:
        """Open the database if it is not open, or if another one has replaced it."""
        try:
            if self._opened and not self.dialect.follow():
                return
            with self._opening:
                if not self._opened or self.dialect.follow():
                    self._reopen(seconds)
        except OSError as error:
            raise of_system(error, self.dialect.shown, opened=self._opened) from error

    def _reopen(self, seconds: float | None) -> None:
        if self._failure is not None and self._rest.rests(clock.now()):
            raise type(self._failure)(**self._failure.fields)
        self._opened = False
        self.generation += 1
        self._drop_idle()
        try:
            self._call(self._open, write=True, seconds=seconds)
        except (StoreAwayError, StoreFullError) as error:
            self._rest.failed(clock.now())
            self._failure = error
            raise
        self._opened, self._failure = True, None

    def _open(self, job: _Job) -> None:
        self.dialect.check_usable()
        self._transaction(job, self._update_schema, write=True)

    def _update_schema(self, connection: Connection) -> None:
        self.dialect.lock_schema(connection)
        ensure_schema(connection)

    def _call(self, step: Callable[[_Job], T], *, write: bool, seconds: float | None = None) -> T:
        """Run a step with :attr:`_apart`, and add the database's name to its errors."""
        job, seconds = _Job(self.dialect), self._seconds if seconds is None else seconds
        deadline = clock.now() + seconds
        try:
            while True:
                left = max(deadline - clock.now(), 0.0)
                try:
                    return self._apart(
                        lambda: step(job), seconds=left, abort=job.abort, write=write
                    )
                except DBAPIError as error:
                    if not self.dialect.conflicts(error) or clock.now() >= deadline:
                        raise
                clock.sleep(_RETRY_SECONDS)
        except TimeoutError as error:
            raise self._away("it is too slow") from error
        except DBAPIError as error:
            if job.aborted:
                raise self._away(f"no answer within {seconds:g} s") from error
            if self.dialect.is_away(error):
                raise self._away(self.dialect.cause(error)) from error
            raise _failed(self.dialect, error) from error
        except SQLAlchemyError as error:
            raise StoreError(cause=f"{self.dialect.shown}: {type(error).__name__}") from error
        except OSError as error:
            raise of_system(error, self.dialect.shown) from error

    def _away(self, cause: str) -> StoreAwayError:
        self._opened = self._opened and self.name == "sqlite"
        return StoreAwayError(cause=f"{self.dialect.shown}: {cause}")

    def _transaction(self, job: _Job, work: Callable[[Connection], T], *, write: bool) -> T:
        """Run ``work`` on a connection of the pool; a stale connection is replaced once."""
        while True:
            generation, kept = self.generation, self._take()
            connection = kept or self.dialect.engine.connect()
            job.begin(connection)
            good = False
            try:
                with connection.begin():
                    self.dialect.begin(connection, write=write)
                    result = work(connection)
                    job.committing = True
            except DBAPIError as error:
                if kept is None or job.ending or not self.dialect.is_away(error):
                    raise
                # The server did not answer at some time since the last use of this connection.
                self._drop_idle()
            else:
                good = True
                return result
            finally:
                job.end()
                if good and not job.aborted and generation == self.generation:
                    self._idle.append(connection)
                else:
                    _close(connection)

    def _take(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _drop_idle(self) -> None:
        while (connection := self._take()) is not None:
            _close(connection)


class _Job:
    """One operation, and the connection that it uses at the moment."""

    def __init__(self, dialect: Dialect) -> None:
        self.aborted = False
        self.committing = False
        self._dialect = dialect
        self._connection: Connection | None = None

    @property
    def ending(self) -> bool:
        """Whether the operation may already be committed, or was aborted."""
        return self.committing or self.aborted

    def begin(self, connection: Connection) -> None:
        self._connection, self.committing = connection, False

    def end(self) -> None:
        self._connection = None

    def abort(self) -> None:
        """End the operation; called from another thread."""
        self.aborted = True
        connection = self._connection
        if connection is not None:
            self._dialect.interrupt(connection)


def of_system(error: OSError, shown: str, *, opened: bool = False) -> StoreError:
    """Return our error for an error of the operating system on the database's file.

    :param shown: the path that the error shows.
    :param opened: the file existed before.
    """
    kind = _OF_SYSTEM.get(error.errno or 0, StoreError)
    if isinstance(error, FileNotFoundError) and opened:
        kind = StoreGoneError
    return kind(cause=f"{shown}: {error.strerror or error}")


def _failed(dialect: Dialect, error: DBAPIError) -> StoreError:
    kind = StoreAwayError if dialect.is_away(error) else dialect.kind(error)
    return kind(cause=f"{dialect.shown}: {dialect.cause(error)}")


def _nothing(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1 FROM records WHERE id = ''").all()


def _close(connection: Connection) -> None:
    """Close a connection in any state."""
    try:
        connection.invalidate()
        connection.close()
    except SQLAlchemyError:
        # The connection is broken, and nothing in it needs to be saved.
        return


def _dialect(url: str) -> Dialect:
    """Return the dialect for a URL.

    :raises ConfigError: the URL is invalid, or of another database.
    """
    parsed = parse_url(url)
    # Each dialect imports a driver, and only the driver in use needs to be installed.
    if parsed.get_backend_name() == "sqlite":
        from dfmeta.store.db.sqlite import Sqlite

        return Sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        from dfmeta.store.db.postgresql import Postgresql

        return Postgresql(parsed)
    raise wrong_url(parsed, f"this version cannot use {parsed.get_backend_name()}")


def schema_of(url: str) -> str | None:
    """Return the schema of a database, None for an empty one, without changing the database.

    :raises ConfigError, StoreError: as :class:`Database` does.
    """
    return _apart_from_use(url, current_revision, write=False)


def move_schema(url: str, revision: str) -> None:
    """Move a database to another schema, forward or back.

    No other process may have it open. The next program that opens the database moves it to the
    schema that this program knows.

    :param revision: one of :func:`dfmeta.store.db.migrations.known_revisions`.
    :raises ConfigError, StoreError: as :class:`Database` does, or if another process has it open.
    """
    _apart_from_use(url, lambda connection: move(connection, revision), write=True)


def _apart_from_use(url: str, work: Callable[[Connection], T], *, write: bool) -> T:
    dialect = _dialect(url)
    try:
        dialect.check_usable()
        with dialect.engine.begin() as connection:
            if write:
                dialect.insist_on_being_alone(connection)
            dialect.begin(connection, write=write)
            if write:
                dialect.lock_schema(connection)
            return work(connection)
    except DBAPIError as error:
        raise _failed(dialect, error) from error
    except OSError as error:
        raise of_system(error, dialect.shown) from error
    finally:
        dialect.close()
        dialect.engine.dispose()
