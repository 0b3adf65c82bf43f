"""PostgreSQL: a store that many hosts share.

The driver is psycopg 3. A server that does not answer must not hold a thread for ever, and neither
libpq nor the driver has a time-out for that: the connection's socket is shut down instead, from
another thread, and the driver sees its server go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any, Final

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, NoSuchModuleError, OperationalError

from dfmeta.exceptions import (
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
"""A server that is gone without a word is noticed after 25 s (tcp(7)); idle connections too."""
APPLICATION: Final = "dfmeta"
"""How the server knows our connections."""
_OTHERS: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = :name AND pid <> pg_backend_pid()"
)
_PAUSES: Final = (0.02, 0.1, 0.3, 0.6)
"""Seconds between two looks at who else is there."""
_SCHEMA_LOCK: Final = 0x64666D657461
"""Key of the advisory lock that whoever changes the schema takes: "dfmeta" in ASCII."""
_CONFLICTS: Final = frozenset({"40001", "40P01"})
"""serialization_failure and deadlock_detected (PostgreSQL, appendix A)."""
_AWAY: Final = ("08", "57P")
"""Classes of connection exceptions and of a server that shuts down or starts."""
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

    :raises ConfigError: the URL cannot work, or the driver is not there.
    """

    def __init__(self, url: URL) -> None:
        if url.drivername not in ("postgresql", "postgresql+psycopg"):
            raise wrong_url(url, "this version uses psycopg alone", "Write postgresql://...")
        if not url.database:
            raise wrong_url(url, "it names no database", "Give postgresql://USER@HOST/DATABASE")
        # Its words on lost connections are in our own errors; and a logger takes locks.
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
            raise wrong_url(
                url, "psycopg is not installed", "Install dfmeta with it: dfmeta[postgresql]"
            ) from error

    def follow(self) -> bool:
        """No: another server takes this one's place only by closing its connections."""
        return False

    def check_usable(self) -> None:
        """Nothing: the server guards its own files."""

    def begin(self, connection: Connection, *, write: bool) -> None:
        """Nothing: READ COMMITTED will do, since what is changed is locked first."""

    def lock_schema(self, connection: Connection) -> None:
        """Take an advisory lock until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def insist_on_being_alone(self, connection: Connection) -> None:
        """Ask the server who else is there: each of ours says its name, and any role may see it.

        :raises StoreError: another dfmeta has the database open.
        """
        # Who has just closed a connection is still there for a moment.
        for pause in _PAUSES:
            if not connection.execute(text(_OTHERS), {"name": APPLICATION}).scalar():
                return
            connection.execute(text("SELECT pg_stat_clear_snapshot(), pg_sleep(:s)"), {"s": pause})
        raise in_use(self.shown)

    def version(self) -> object | None:
        """None: only the server knows."""
        return None

    def conflicts(self, error: DBAPIError) -> bool:
        """Whether it was a deadlock."""
        return _state(error) in _CONFLICTS

    def is_away(self, error: DBAPIError) -> bool:
        """Whether the connection is lost or could not be made."""
        state = _state(error)
        return error.connection_invalidated or (
            state.startswith(_AWAY) if state else isinstance(error, OperationalError)
        )

    def cause(self, error: DBAPIError) -> str:
        """The server's message without its details, which may show values."""
        diagnosis = getattr(error.orig, "diag", None)
        primary = getattr(diagnosis, "message_primary", None)
        return " ".join(str(primary or error.orig).split())

    def kind(self, error: DBAPIError) -> type[StoreError]:
        """See :meth:`~dfmeta.store.db.database.Dialect.kind`."""
        return _KINDS.get(_state(error), StoreError)

    def interrupt(self, connection: Connection) -> None:
        """Shut the socket down: whoever waits for it hears of that at once."""
        driver: Any = connection.connection.driver_connection
        # The connection may be closing at this moment; then nobody waits.
        with contextlib.suppress(OSError, AttributeError, self.engine.dialect.loaded_dbapi.Error):
            copy = os.dup(driver.fileno())
            with socket.socket(fileno=copy) as plug:
                plug.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing is held."""


def _state(error: DBAPIError) -> str:
    """SQLSTATE, empty where there was no server to give one."""
    return str(getattr(error.orig, "sqlstate", None) or "")
