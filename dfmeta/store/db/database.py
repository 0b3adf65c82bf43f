"""The database under the repository: its connections and its transactions.

SQLite in a file of this host, or PostgreSQL for a store that many hosts share. In a daemon all
statements run in OS threads, where :class:`Apart` puts them; so does each use of the connection
pool, which is SQLAlchemy's.

An operation runs as follows:

1. It takes a connection of the pool, which opens one if none is idle. If the server has closed that
   connection meanwhile, SQLAlchemy drops all that are as old, and the operation is repeated once.
   It is not repeated after its commit has begun: the result of the commit is unknown, and the
   caller gets the error. (``pool_pre_ping`` would cost a round trip for each operation, and a ping
   to a server that hangs cannot be interrupted.)
2. After a conflict with another transaction, the operation is repeated until the time limit.
3. At the time limit another thread interrupts the connection, which is then closed. A connection is
   also closed when its transaction has failed, or when its database was replaced meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dfmeta.errors import StoreAwayError, StoreError, StoreFullError
from dfmeta.runtime import clock, throttle
from dfmeta.store.db.dialect import (
    DatabaseDialect,
    Postgresql,
    Sqlite,
    of_system,
    parse_url,
    wrong_url,
)
from dfmeta.store.db.migrations import current_revision, ensure_schema

_OPENING: Final = threading.Lock()
"""A process opens one database at a time: Alembic keeps the running migration in module globals.

The caller takes the lock, and not the step that opens: in a daemon the step runs in an OS thread,
which must not wait for a lock of the hub."""

T = TypeVar("T")


class Apart(Protocol):
    """Calls a step that may block, returns its result and passes on its errors.

    A daemon has one hub: calls that wait for a disk, a lock or another host must wait in an OS
    thread of their own. A command serves no other work, and may block.
    """

    def __call__(
        self, step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool
    ) -> T:
        """Call *step* and return its result.

        :param seconds: how long the step may take, including the time in a queue before it starts.
        :param abort: makes a step that takes longer end soon; called while the step runs.
        :param write: the step changes the database.
        :raises TimeoutError: the step could not start in time.
        """


def at_once(step: Callable[[], T], *, seconds: float, abort: Callable[[], None], write: bool) -> T:
    """Call a step in this thread; see :class:`Apart`. The time limit is not enforced."""
    return step()


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

    def __init__(
        self, url: str, *, apart: Apart = at_once, seconds: float = clock.ANSWER_TIMEOUT
    ) -> None:
        self.dialect = _dialect(url, seconds)
        self.generation = 0
        """Grows when values that were read before may belong to another database."""
        self._apart = apart
        self._seconds = seconds
        self._opened = False
        self._rest = throttle.Backoff()
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
        return self._call(lambda job: job.transaction(work, write=write), write=write)

    def ping(self, *, seconds: float | None = None) -> None:
        """Run a trivial query, to check the database; raises as :meth:`run` does."""
        self._ready(seconds)
        self._call(lambda job: job.transaction(_trivial, write=False), write=False, seconds=seconds)

    def version(self) -> object | None:
        """Return the dialect's version; also None while the database is not open, or away."""
        try:
            self._ready()
        except StoreError:
            return None
        return self.dialect.version()

    def close(self) -> None:
        """Close all connections. A second call has no effect."""
        self.dialect.close()

    def _ready(self, seconds: float | None = None) -> None:
        """Open the database if it is not open, or if another one has replaced it."""
        try:
            if self._opened and not self.dialect.follow():
                return
            with _OPENING:
                if not self._opened or self.dialect.follow():
                    self._reopen(seconds)
        except OSError as error:
            raise of_system(error, self.dialect.shown, opened=self._opened) from error

    def _reopen(self, seconds: float | None) -> None:
        if self._failure is not None and self._rest.rests(clock.now()):
            raise type(self._failure)(**self._failure.fields)
        self._opened = False
        self.generation += 1
        self.dialect.close()
        try:
            self._call(lambda job: job.open(), write=True, seconds=seconds)
        except StoreError as error:
            self.dialect.close()
            if isinstance(error, StoreAwayError | StoreFullError):
                self._rest.failed(clock.now())
                self._failure = error
            raise
        self._rest.succeeded()
        self._opened, self._failure = True, None

    def _call(self, step: Callable[[_Job], T], *, write: bool, seconds: float | None = None) -> T:
        """Run a step with :attr:`_apart`, and add the database's name to its errors."""
        job, seconds = _Job(self), self._seconds if seconds is None else seconds
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
                clock.sleep(clock.POLL)
        except TimeoutError as error:
            raise self._lost(self._away("it is too slow")) from error
        except DBAPIError as error:
            if job.aborted:
                raise self._lost(self._away(f"no answer within {seconds:g} s")) from error
            raise self._lost(self.dialect.error(error)) from error
        except SQLAlchemyError as error:
            raise StoreError(cause=f"{self.dialect.shown}: {type(error).__name__}") from error
        except OSError as error:
            raise of_system(error, self.dialect.shown) from error

    def _away(self, cause: str) -> StoreAwayError:
        return StoreAwayError(cause=f"{self.dialect.shown}: {cause}")

    def _lost(self, error: StoreError) -> StoreError:
        """Open the database again before its next use if its server is away."""
        if isinstance(error, StoreAwayError):
            self._opened = self._opened and self.name == "sqlite"
        return error


class _Job:
    """One operation, and the connection that it uses at the moment."""

    def __init__(self, database: Database) -> None:
        self.aborted = False
        self.dialect = database.dialect
        self._database = database
        self._committing = False
        self._driver: Any = None

    def transaction(self, work: Callable[[Connection], T], *, write: bool) -> T:
        """Run ``work`` in a transaction, and once more if the connection was stale."""
        try:
            return self._once(work, write=write)
        except DBAPIError as error:
            if not error.connection_invalidated or self._committing or self.aborted:
                raise
        return self._once(work, write=write)

    def open(self) -> None:
        """Open the database, and bring it to the newest schema."""

        def prepare(connection: Connection) -> None:
            self.dialect.lock_schema(connection)
            ensure_schema(connection)

        self.dialect.check_usable()
        self.transaction(prepare, write=True)

    def abort(self) -> None:
        """End the operation; called from another thread."""
        self.aborted = True
        driver = self._driver
        if driver is not None:
            self.dialect.interrupt(driver)

    def _once(self, work: Callable[[Connection], T], *, write: bool) -> T:
        generation, good = self._database.generation, False
        with self.dialect.engine.connect() as connection:
            self._driver, self._committing = connection.connection.driver_connection, False
            try:
                with connection.begin():
                    self.dialect.begin(connection, write=write)
                    result = work(connection)
                    self._committing = True
                good = True
            finally:
                self._driver = None
                if not good or self.aborted or generation != self._database.generation:
                    # Nothing in it needs to be saved, and it may be in any state.
                    with contextlib.suppress(SQLAlchemyError):
                        connection.invalidate()
        return result


def _trivial(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1 FROM records WHERE id = ''").all()


def _dialect(url: str, seconds: float) -> DatabaseDialect:
    """Return the dialect for a URL.

    :raises ConfigError: the URL is invalid, or of another database.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return Sqlite(parsed)
    if parsed.get_backend_name() == "postgresql":
        return Postgresql(parsed, seconds)
    raise wrong_url(parsed, f"this version cannot use {parsed.get_backend_name()}")


def schema_of(url: str) -> str | None:
    """Return the schema of a database, None for an empty one, without changing the database.

    :raises ConfigError, StoreError: as :class:`Database` does.
    """
    dialect = _dialect(url, clock.ANSWER_TIMEOUT)
    try:
        dialect.check_usable()
        with dialect.engine.begin() as connection:
            dialect.begin(connection, write=False)
            return current_revision(connection)
    except DBAPIError as error:
        raise dialect.error(error) from error
    except OSError as error:
        raise of_system(error, dialect.shown) from error
    finally:
        dialect.close()
