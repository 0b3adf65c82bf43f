"""One record for each instance."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of records."""
    op.create_table(
        "records",
        sa.Column("id", sa.String(36), nullable=False, comment="instance id, lower case"),
        sa.Column("project_id", sa.Text, comment="null: not known"),
        sa.Column("metadata", sa.Text, comment="a JSON object; null: user-data only"),
        sa.Column(
            "userdata", sa.LargeBinary, comment="byte for byte; null: none, which is not empty"
        ),
        sa.Column("password", sa.LargeBinary, comment="what the guest posted, once; null: not yet"),
        sa.Column(
            "seed", sa.LargeBinary, nullable=False, comment="random bytes of this record alone"
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, comment="UTC"),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, comment="UTC"),
        sa.PrimaryKeyConstraint("id", name="pk_records"),
    )


def downgrade() -> None:
    """Drop the table with all records."""
    op.drop_table("records")
