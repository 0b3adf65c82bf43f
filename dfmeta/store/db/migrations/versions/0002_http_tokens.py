"""A record's own setting for tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; for existing records the configuration decides."""
    op.add_column(
        "records",
        sa.Column("http_tokens", sa.Text, comment="off, optional or required; null: as configured"),
    )


def downgrade() -> None:
    """Drop the column with the records' settings."""
    op.drop_column("records", "http_tokens")
