"""The database under the repository: its connections and its transactions.

SQLite in a file of this host, or PostgreSQL for a store that many hosts share. Everything that may
block runs where :class:`~dfmeta.store.db.apart.Apart` puts it. Connections are kept in a pool of
our own: SQLAlchemy's takes locks that, in a daemon, are the hub's and must not be waited for in
other threads.

How an operation runs:

1. It has a connection of the pool, or a new one. Where the server has closed that of the pool
   meanwhile, all of the pool goes and the operation begins again, once, on a new one. It does not
   once its commit has begun: whether that was done is not known, and the caller gets the error.
2. A conflict with another transaction is tried again until the time limit.
3. At the time limit another thread interrupts the connection. It is closed then, and so is each
   connection whose transaction has failed, or whose database another one has replaced meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from dfmeta.exceptions import (
    StoreAccessError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
)
from dfmeta.store.db.apart import Apart, at_once
from dfmeta.store.db.migrations import current_revision, ensure_schema, move
from dfmeta.store.db.urls import wrong_url

SECONDS: Final = 5.0
REST: Final = 1.0
"""Seconds after a failed attempt to open it during which nobody tries again."""
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
    """What differs between the databases."""

    shown: str
    """For errors: a path, or where a server is. Never a password."""
    engine: Engine

    def follow(self) -> bool:
        """Whether another database stands in the place of the one that was opened. Must not block.

        :raises OSError: there is none any more.
        :raises StoreDamagedError: what is there is none any more.
        """
        ...

    def check_usable(self) -> None:
        """See that what is there can be used, before its schema is looked at."""
        ...

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Begin a transaction's work on a connection."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Keep other processes from changing the schema until the transaction ends."""
        ...

    def insist_on_being_alone(self, connection: Connection) -> None:
        """See that no other process has the database open; before :meth:`begin`.

        :raises StoreError: one has.
        """
        ...

    def version(self) -> object | None:
        """What differs whenever somebody else has written; None: ask the rows. Must not block."""
        ...

    def conflicts(self, error: DBAPIError) -> bool:
        """Whether the same transaction may succeed if it is tried again."""
        ...

    def is_away(self, error: DBAPIError) -> bool:
        """Whether there was no server to answer."""
        ...

    def cause(self, error: DBAPIError) -> str:
        """What the database says, in one line and without the values that it was given."""
        ...

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """Which error of ours it is, for a database that is not away: each has its own remedy."""
        ...

    def interrupt(self, connection: Connection) -> None:
        """End what runs on a connection; called from another thread."""
        ...

    def close(self) -> None:
        """Let go of what the dialect itself holds."""
        ...


class Database:
    """A database at the newest schema.

    :param url: an SQLAlchemy URL, the operator's word: ``sqlite:///PATH`` or ``postgresql://...``.
    :param apart: where blocking calls run.
    :param seconds: how long an operation may take, waiting for other writers and for the server
        included.
    :raises ConfigError: the URL cannot work.
    :raises StoreError: what is there cannot be used. A server that is away is no error here: it is
        asked again by what needs it.
    """

    def __init__(self, url: str, *, apart: Apart = at_once, seconds: float = SECONDS) -> None:
        self.dialect = _dialect(url)
        self.generation = 0
        """Grows when what was read before may be another database's."""
        self._apart = apart
        self._seconds = seconds
        self._idle: deque[Connection] = deque()
        self._opening = threading.Lock()
        self._opened = False
        self._failed: tuple[float, StoreAwayError] | None = None
        with contextlib.suppress(StoreAwayError):
            self._ready()

    @property
    def name(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.dialect.engine.dialect.name

    def run(self, work: Callable[[Connection], T], *, write: bool = False) -> T:
        """Run ``work`` in one transaction and return what it returns.

        :param work: called again from its beginning when another writer was in the way.
        :param write: it changes something.
        :raises StoreError: the database failed, or was in the way for too long.
        :raises StoreAwayError: its server is away.
        """
        self._ready()
        return self._call(lambda job: self._transaction(job, work, write=write), write=write)

    def ping(self, *, seconds: float | None = None) -> None:
        """Ask something that costs nothing; see :meth:`run` for what is raised."""
        self._ready(seconds)
        self._call(
            lambda job: self._transaction(job, _nothing, write=False), write=False, seconds=seconds
        )

    def version(self) -> object | None:
        """See :meth:`Dialect.version`; also None before the database is open, or while away."""
        try:
            self._ready()
        except StoreError:
            return None
        return self.dialect.version()

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        self._drop_idle()
        self.dialect.close()
        self.dialect.engine.dispose()

    def _ready(self, seconds: float | None = None) -> None:
        """Open the database unless it is, and notice another one in its place."""
        try:
            if self._opened and not self.dialect.follow():
                return
            with self._opening:
                if not self._opened or self.dialect.follow():
                    self._reopen(seconds)
        except OSError as error:
            raise of_system(error, self.dialect.shown, opened=self._opened) from error

    def _reopen(self, seconds: float | None) -> None:
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise StoreAwayError(**self._failed[1].fields)
        self._opened = False
        self.generation += 1
        self._drop_idle()
        try:
            self._call(self._open, write=True, seconds=seconds)
        except StoreAwayError as error:
            self._failed = time.monotonic() + REST, error
            raise
        self._opened, self._failed = True, None

    def _open(self, job: _Job) -> None:
        self.dialect.check_usable()
        self._transaction(job, self._update_schema, write=True)

    def _update_schema(self, connection: Connection) -> None:
        self.dialect.lock_schema(connection)
        ensure_schema(connection)

    def _call(self, step: Callable[[_Job], T], *, write: bool, seconds: float | None = None) -> T:
        """Run a step apart, and say in its errors which database it was."""
        job, seconds = _Job(self.dialect), self._seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        try:
            while True:
                left = max(deadline - time.monotonic(), 0.0)
                try:
                    return self._apart(
                        lambda: step(job), seconds=left, abort=job.abort, write=write
                    )
                except DBAPIError as error:
                    if not self.dialect.conflicts(error) or time.monotonic() >= deadline:
                        raise
                time.sleep(_RETRY_SECONDS)
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
        """Run ``work`` on a connection of the pool; a stale one is replaced once."""
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
                # The server has been away since the connection was used last.
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
    """One operation, and the connection that it has at the moment."""

    def __init__(self, dialect: Dialect) -> None:
        self.aborted = False
        self.committing = False
        self._dialect = dialect
        self._connection: Connection | None = None

    @property
    def ending(self) -> bool:
        """Whether what it did may be done already, or is not wanted any more."""
        return self.committing or self.aborted

    def begin(self, connection: Connection) -> None:
        self._connection, self.committing = connection, False

    def end(self) -> None:
        self._connection = None

    def abort(self) -> None:
        """End it; called from another thread."""
        self.aborted = True
        connection = self._connection
        if connection is not None:
            self._dialect.interrupt(connection)


def of_system(error: OSError, shown: str, *, opened: bool = False) -> StoreError:
    """Return what is said of a file that the system does not give.

    :param shown: its path.
    :param opened: it was there before.
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
    """Close a connection, whatever state it is in."""
    try:
        connection.invalidate()
        connection.close()
    except SQLAlchemyError:
        # It is broken; there is nothing to be saved of it.
        return


def _dialect(url: str) -> Dialect:
    """Return what the URL names.

    :raises ConfigError: it is none of ours.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise wrong_url(url, "it is not a URL") from None
    # Each brings a driver along, and the other one's need not be installed.
    if parsed.get_backend_name() == "sqlite":
        from dfmeta.store.db.sqlite import Sqlite

        return Sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        from dfmeta.store.db.postgresql import Postgresql

        return Postgresql(parsed)
    raise wrong_url(parsed, f"this version cannot use {parsed.get_backend_name()}")


def schema_of(url: str) -> str | None:
    """Return the schema that a database is at, None for an empty one; nothing is changed.

    :raises ConfigError, StoreError: as :class:`Database` does.
    """
    return _apart_from_use(url, current_revision, write=False)


def move_schema(url: str, revision: str) -> None:
    """Bring a database to another schema, forward or back.

    Nobody else may have it open: whoever opens it next brings it to the schema that it knows.

    :param revision: one of :func:`dfmeta.store.db.migrations.known_revisions`.
    :raises ConfigError, StoreError: as :class:`Database` does, or another process has it open.
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
