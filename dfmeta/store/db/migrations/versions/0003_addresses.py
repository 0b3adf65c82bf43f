"""Addresses, default records, and the times of upstream lookups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table; existing records count as pushed, and have no address."""
    with op.batch_alter_table("records") as table:
        table.alter_column(
            "id",
            type_=sa.Text,
            existing_type=sa.String(36),
            existing_nullable=False,
            comment="instance id, lower case; or default:SCOPE",
            existing_comment="instance id, lower case",
        )
        for name in ("metadata_fetched_at", "userdata_fetched_at"):
            table.add_column(
                sa.Column(name, sa.DateTime(timezone=True), comment="null: pushed, or none")
            )
    op.create_table(
        "addresses",
        sa.Column("network", sa.Text, nullable=False, comment="ADDRESS/PREFIX, canonical"),
        sa.Column("record_id", sa.Text, nullable=False),
        sa.Column("prefix", sa.Integer, nullable=False, comment="its length, bits"),
        sa.Column(
            "position", sa.Integer, nullable=False, comment="in the list that it was pushed with"
        ),
        sa.PrimaryKeyConstraint("network", name="pk_addresses"),
        sa.ForeignKeyConstraint(
            ["record_id"], ["records.id"], name="fk_addresses_record_id", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_addresses_record_id", "addresses", ["record_id"])


def downgrade() -> None:
    """Drop the addresses and the defaults, which the previous release would take for instances."""
    op.drop_table("addresses")
    op.execute("DELETE FROM records WHERE id LIKE 'default:%'")
    with op.batch_alter_table("records") as table:
        for name in ("userdata_fetched_at", "metadata_fetched_at"):
            table.drop_column(name)
        table.alter_column(
            "id",
            type_=sa.String(36),
            existing_type=sa.Text,
            existing_nullable=False,
            comment="instance id, lower case",
            existing_comment="instance id, lower case; or default:SCOPE",
        )
