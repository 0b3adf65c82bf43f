"""Alembic's entry point: run the migrations on the connection that the caller opened.

The migration runs in the caller's transaction, which commits the complete step or nothing.
"""

from __future__ import annotations

from alembic import context

from dfmeta.store.db import schema

context.configure(
    connection=context.config.attributes["connection"], target_metadata=schema.metadata
)
with context.begin_transaction():
    context.run_migrations()
