"""PostgreSQL: a store that many hosts share.

The driver is psycopg 3. A server that does not answer must not block a thread indefinitely, and
neither libpq nor the driver has a timeout for this. Instead, another thread shuts the connection's
socket down, and the driver gets the error of a lost connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any, Final

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError

from dfmeta.errors import (
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from dfmeta.store.db.urls import in_use, wrong_url

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
_OTHERS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = :name AND pid <> pg_backend_pid()"
)
_PAUSES: Final = (0.02, 0.1, 0.3, 0.6)
"""Seconds between two checks for other dfmeta connections."""
_SCHEMA_LOCK: Final = 0x64666D657461
"""Key of the advisory lock for changes of the schema: "dfmeta" in ASCII."""
_CONFLICTS: Final = frozenset({"40001", "40P01"})
"""serialization_failure and deadlock_detected (PostgreSQL, appendix A)."""
_AWAY: Final = ("08", "57P")
"""SQLSTATE classes of connection exceptions and of a server that shuts down or starts."""
_KINDS: Final[dict[str, type[StoreError]]] = {
    "25006": StoreReadOnlyError,
    "42501": StoreAccessError,
    "42P01": StoreDamagedError,
    "53100": StoreFullError,
    "XX001": StoreDamagedError,
    "XX002": StoreDamagedError,
}
"""read_only_sql_transaction, insufficient_privilege, undefined_table, disk_full, data_corrupted and
index_corrupted (PostgreSQL, appendix A)."""


class Postgresql:
    """See :class:`~dfmeta.store.db.database.Dialect`.

    :raises ConfigError: the URL cannot work, or the driver is not installed.
    """

    def __init__(self, url: URL) -> None:
        if url.drivername not in ("postgresql", "postgresql+psycopg"):
            raise wrong_url(url, "only the driver psycopg is supported", "Write postgresql://...")
        if not url.database:
            remedy = "Give postgresql://USER@HOST/DATABASE"
            raise wrong_url(url, "it does not name a database", remedy)
        # Our own errors include its messages about lost connections, and a logger takes locks.
        logging.getLogger("psycopg").disabled = True
        self.shown = url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)
        arguments: dict[str, Any] = {
            name: value
            for name, value in {"connect_timeout": CONNECT_SECONDS, **_KEEPALIVES}.items()
            if name not in url.query
        }
        try:
            self.engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                hide_parameters=True,
                poolclass=NullPool,
                connect_args={**arguments, "application_name": APPLICATION},
            )
        except (ImportError, NoSuchModuleError) as error:
            remedy = "Install dfmeta with PostgreSQL support: dfmeta[postgresql]"
            raise wrong_url(url, "psycopg is not installed", remedy) from error

    def follow(self) -> bool:
        """Return False: another server can replace this one only by closing its connections."""
        return False

    def check_usable(self) -> None:
        """Do nothing: the server guards its own files."""

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Do nothing: READ COMMITTED is enough, since rows are locked before they are changed."""

    def lock_schema(self, connection: Connection) -> None:
        """Take an advisory lock until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def insist_on_being_alone(self, connection: Connection) -> None:
        """Ask the server for other dfmeta connections, by their name, which any role may read.

        :raises StoreError: another dfmeta has the database open.
        """
        # The server still lists a connection for a moment after it was closed.
        for pause in _PAUSES:
            if not connection.execute(text(_OTHERS), {"name": APPLICATION}).scalar():
                return
            connection.execute(text("SELECT pg_stat_clear_snapshot(), pg_sleep(:s)"), {"s": pause})
        raise in_use(self.shown)

    def version(self) -> object | None:
        """Return None: only the rows on the server can show a change."""
        return None

    def conflicts(self, error: DBAPIError) -> bool:
        """Return whether the error is a deadlock or a serialization failure."""
        return _state(error) in _CONFLICTS

    def is_away(self, error: DBAPIError) -> bool:
        """Return whether the connection was lost or could not be opened."""
        state = _state(error)
        return error.connection_invalidated or (
            state.startswith(_AWAY) if state else isinstance(error, OperationalError)
        )

    def cause(self, error: DBAPIError) -> str:
        """Return the server's message without its details, which may contain values."""
        diagnosis = getattr(error.orig, "diag", None)
        primary = getattr(diagnosis, "message_primary", None)
        return " ".join(str(primary or error.orig).split())

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """See :meth:`~dfmeta.store.db.database.Dialect.kind`."""
        return _KINDS.get(_state(error), StoreError)

    def interrupt(self, connection: Connection) -> None:
        """Shut the socket down, so that a thread that waits for it returns immediately."""
        driver: Any = connection.connection.driver_connection
        # If the connection is being closed at this moment, no thread waits for it.
        with contextlib.suppress(OSError, AttributeError, self.engine.dialect.loaded_dbapi.Error):
            copy = os.dup(driver.fileno())
            with socket.socket(fileno=copy) as plug:
                plug.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Do nothing: this dialect holds no resources."""


def _state(error: DBAPIError) -> str:
    """Return the SQLSTATE; empty if the error does not come from a server."""
    return str(getattr(error.orig, "sqlstate", None) or "")
