"""The first schema of a release. Its number is that of the databases that exist already."""

from __future__ import annotations

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing: an empty database gets all tables of :mod:`dfmeta.store.db.schema` at once."""


def downgrade() -> None:
    """Do nothing: no schema comes before this one."""
