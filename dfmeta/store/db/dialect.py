"""What differs between the databases, and errors that do not show a database's password."""

from __future__ import annotations

import abc
import errno
from collections import deque
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.util.queue import Empty, QueueCommon

from dfmeta.errors import (
    ConfigError,
    StoreAccessError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
)

REMEDY: Final = "Give sqlite:////path/to/store.db, or postgresql://USER@HOST/DATABASE"
_OF_SYSTEM: Final[dict[int, type[StoreError]]] = {
    errno.EACCES: StoreAccessError,
    errno.EPERM: StoreAccessError,
    errno.EROFS: StoreReadOnlyError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EISDIR: StoreAccessError,
    errno.ENOTDIR: StoreAccessError,
}


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
        del block, timeout
        self._entries.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> ConnectionPoolEntry:
        """Take a connection.

        :raises Empty: none is idle. The pool opens another one.
        """
        del block, timeout
        try:
            return self._entries.pop()
        except IndexError:
            raise Empty from None


class ThreadPool(QueuePool):
    """SQLAlchemy's pool, for OS threads of a process with a hub."""

    _queue_class = IdleConnections


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


class Dialect(abc.ABC):
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
        ...

    def is_away(self, error: DBAPIError) -> bool:
        """Return whether the server could not be reached, or was too slow."""
        return False

    @abc.abstractmethod
    def cause(self, error: DBAPIError) -> str:
        """Return the database's message, in one line and without the values of the statement."""
        ...

    @abc.abstractmethod
    def kind(self, error: DBAPIError) -> type[StoreError]:
        """Return our error class, with its own remedy, for an error of a reachable database."""
        ...

    @abc.abstractmethod
    def interrupt(self, driver: Any) -> None:
        """Interrupt the statement that runs on a connection of the driver, in another thread."""
        ...

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def error(self, error: DBAPIError) -> StoreError:
        """Return our error for one of the driver."""
        kind = StoreAwayError if self.is_away(error) else self.kind(error)
        return kind(cause=f"{self.shown}: {self.cause(error)}")


def parse_url(url: str) -> URL:
    """Return the parts of a URL.

    :raises ConfigError: it is not a URL.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise wrong_url(url, "it is not a URL") from None


def wrong_url(url: URL | str, cause: str, remedy: str = REMEDY) -> ConfigError:
    """Return the error for a URL that cannot work.

    :param url: a string is shown only if it cannot contain a password.
    """
    if isinstance(url, URL):
        shown = url.render_as_string(hide_password=True)
    else:
        shown = "(hidden)" if "@" in url else url
    return ConfigError(option="[store] connection", value=shown, cause=cause, remedy=remedy)


def of_system(error: OSError, shown: str, *, opened: bool = False) -> StoreError:
    """Return our error for an error of the operating system on the database's file.

    :param shown: the path that the error shows.
    :param opened: the file existed before.
    """
    kind = _OF_SYSTEM.get(error.errno or 0, StoreError)
    if isinstance(error, FileNotFoundError) and opened:
        kind = StoreGoneError
    return kind(cause=f"{shown}: {error.strerror or error}")
