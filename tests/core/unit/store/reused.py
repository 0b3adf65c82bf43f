"""A PostgreSQL database with the store's schema that one test uses after the other.

To copy and drop a database takes ten times as long as most tests on it.
"""

from __future__ import annotations

import contextlib
from typing import Final

import psycopg
from sqlalchemy import make_url

from dfmeta.store.db.schema import metadata
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres

_TABLES: Final = [table.name for table in metadata.sorted_tables]
_FILLED: Final = "SELECT array_remove(ARRAY[{}], NULL)".format(
    ", ".join(f"CASE WHEN EXISTS (SELECT FROM {name}) THEN '{name}' END" for name in _TABLES)
)
_OTHERS: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SHAPE: Final = """
    WITH ours AS (SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    SELECT
        ARRAY(SELECT (oid, relname, relkind, relowner, relacl)::text FROM ours ORDER BY oid),
        ARRAY(
            SELECT (attrelid, attname, atttypid, attnotnull, atthasdef, attacl)::text
            FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours) ORDER BY attrelid, attnum
        ),
        ARRAY(
            SELECT (oid, conname)::text FROM pg_constraint
            WHERE conrelid IN (SELECT oid FROM ours) ORDER BY oid
        ),
        ARRAY(SELECT (tgname, tgrelid)::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY oid),
        ARRAY(SELECT setconfig::text FROM pg_db_role_setting),
        (SELECT (datacl, datallowconn)::text FROM pg_database WHERE datname = current_database()),
        ARRAY(SELECT version_num FROM alembic_version)
"""
"""All that a test may change besides the rows."""


class Reused:
    """Makes databases from a template, and gives one again unless a test has changed its schema.

    :param template: a database with the schema, and without connections.
    """

    def __init__(self, server: Postgres, template: str) -> None:
        self._server, self._template = server, template
        self._url, self._shape = "", ()
        self._stack = contextlib.ExitStack()

    def take(self) -> str:
        """Return the URL of an empty database."""
        if not self._url:
            self._url = self._server.create_database(self._template)
            name = make_url(self._url).database or ""
            self._connection = self._stack.enter_context(self._server.admin(name))
            self._shape = self._look()
        return self._url

    def give_back(self) -> None:
        """End the sessions in the database, and empty or drop it."""
        try:
            wait_for(
                lambda: not self._connection.execute(_OTHERS).fetchall(),
                f"the sessions in {self._url} to end",
                interval=0.001,
            )
            same = self._look() == self._shape
            if same:
                self._empty()
        except psycopg.Error:
            same = False
        if not same:
            self.close()

    def close(self) -> None:
        """Drop the database, if there is one."""
        self._stack.close()
        if self._url:
            self._server.drop_database(self._url)
            self._url = ""

    def _empty(self) -> None:
        ((filled,),) = self._connection.execute(_FILLED.encode()).fetchall()
        if filled:
            self._connection.execute(f"TRUNCATE {', '.join(filled)} CASCADE".encode())

    def _look(self) -> tuple[object, ...]:
        (found,) = self._connection.execute(_SHAPE).fetchall()
        return tuple(found)
