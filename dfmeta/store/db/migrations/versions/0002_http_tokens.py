"""A record's own word on tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the records that are there leave it to the configuration."""
    op.add_column(
        "records",
        sa.Column("http_tokens", sa.Text, comment="off, optional or required; null: as configured"),
    )


def downgrade() -> None:
    """Drop the column and what the records say in it."""
    op.drop_column("records", "http_tokens")
