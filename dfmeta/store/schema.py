"""The store's tables, as SQLAlchemy Core describes them.

The migrations under ``dfmeta/store/migrations`` build the same tables; a test compares the two.
Later migrations add to them (addresses); none of these columns has to change its meaning.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, DateTime, LargeBinary, MetaData, String, Table, Text

HEAD: Final = "0002"
"""The newest migration: what a database has to be at before it is used."""

UUID_LENGTH: Final = 36
HTTP_TOKENS: Final = ("off", "optional", "required")
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
    Column("id", String(UUID_LENGTH), primary_key=True, comment="instance id, lower case"),
    Column("project_id", Text, comment="null: not known"),
    Column("metadata", Text, comment="a JSON object; null: user-data only"),
    Column("userdata", LargeBinary, comment="byte for byte; null: none, which is not empty"),
    Column("password", LargeBinary, comment="what the guest posted, once; null: not yet"),
    Column("seed", LargeBinary, nullable=False, comment="random bytes of this record alone"),
    Column("created_at", DateTime(timezone=True), nullable=False, comment="UTC"),
    Column("updated_at", DateTime(timezone=True), nullable=False, comment="UTC"),
    Column("http_tokens", Text, comment="off, optional or required; null: as configured"),
)
"""One row for each instance."""
