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
"""The newest migration, which a database needs before it is used."""
REVISIONS: Final = revisions.REVISIONS
"""All migrations, the oldest first."""

REQUIRED: Final = "required"
HTTP_TOKENS: Final = ("off", "optional", REQUIRED)
"""Values of a record's ``http_tokens`` (see ``[store] http_tokens``)."""

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
userdata holds only a password, and does not count as a record."""

addresses: Final = Table(
    "addresses",
    metadata,
    Column("network", Text, primary_key=True, comment="ADDRESS/PREFIX, canonical"),
    Column("record_id", Text, ForeignKey(records.c.id, ondelete="CASCADE"), nullable=False),
    Column("prefix", Integer, nullable=False, comment="its length, bits"),
    Column("position", Integer, nullable=False, comment="in the list that it was pushed with"),
    Index("ix_addresses_record_id", "record_id"),
)
"""The record that owns each network. A network occurs once, because it has one owner.

An address is looked up by the 33 or 129 networks that can contain it, all by the primary key. The
statement is the same in both databases, and its cost does not grow with the table.
"""
