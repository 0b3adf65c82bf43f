"""The store's tables, as SQLAlchemy Core describes them.

The migrations under ``dfmeta/store/db/migrations`` build the same tables; a test compares the two,
in SQLite and in PostgreSQL.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from dfmeta.store.db import revisions

HEAD: Final = revisions.HEAD
"""The newest migration: what a database has to be at before it is used."""
REVISIONS: Final = revisions.REVISIONS
"""All of them, the oldest first."""

REQUIRED: Final = "required"
HTTP_TOKENS: Final = ("off", "optional", REQUIRED)
"""What a record may say of tokens (``[store] http_tokens``)."""

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

records: Final = Table(
    "records",
    metadata,
    Column("id", Text, primary_key=True, comment="instance id, lower case; or default:SCOPE"),
    Column("project_id", Text, comment="null: not known"),
    Column("metadata", Text, comment="a JSON object; null: user-data only"),
    Column("userdata", LargeBinary, comment="byte for byte; null: none, which is not empty"),
    Column("password", LargeBinary, comment="what the guest posted, once; null: not yet"),
    Column("seed", LargeBinary, nullable=False, comment="random bytes of this record alone"),
    Column("created_at", DateTime(timezone=True), nullable=False, comment="UTC"),
    Column("updated_at", DateTime(timezone=True), nullable=False, comment="UTC"),
    Column("http_tokens", Text, comment="off, optional or required; null: as configured"),
    Column("metadata_fetched_at", DateTime(timezone=True), comment="null: pushed, or none"),
    Column("userdata_fetched_at", DateTime(timezone=True), comment="null: pushed, or none"),
)
"""One row for each instance, and one for each set of defaults. A row with neither metadata nor
userdata keeps a password alone, and counts as no record."""

addresses: Final = Table(
    "addresses",
    metadata,
    Column("network", Text, primary_key=True, comment="ADDRESS/PREFIX, canonical"),
    Column("record_id", Text, ForeignKey(records.c.id, ondelete="CASCADE"), nullable=False),
    Column("prefix", Integer, nullable=False, comment="its length, bits"),
    Column("position", Integer, nullable=False, comment="in the list that it was pushed with"),
    Index("ix_addresses_record_id", "record_id"),
)
"""Which record an address asks for. A network stands here once: it has one owner.

An address is looked up by the 33 or 129 networks that can contain it, all of them by the primary
key: the same statement in both databases, whose cost does not grow with the table.
"""
