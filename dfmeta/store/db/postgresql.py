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

from sqlalchemy import URL, Connection, event, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError

from dfmeta.errors import (
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from dfmeta.store.db.dialect import Dialect, engine_of, wrong_url

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


class Postgresql(Dialect):
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
        """See :meth:`.Dialect.kind`."""
        return _KINDS.get(_state(error), StoreError)

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
