"""Attachments of containers, their trunks, and the VLAN ids that rest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def _text(name: str, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, comment=comment)


def upgrade() -> None:
    """Add the tables; records are not touched."""
    op.create_table(
        "trunks",
        _text("parent", "iface-id of the VM's untagged port"),
        _text("host", "whose daemon serves the VM"),
        _text("port_name"),
        _text("instance_id"),
        _text("project_id", "empty: not known"),
        _text("mac", "empty: not known"),
        sa.Column("last_vid", sa.Integer, nullable=False, comment="given last; 0: none yet"),
        sa.Column("absent_since", sa.Double, comment="Unix time; null: the port is on the host"),
        sa.PrimaryKeyConstraint("parent", name="pk_trunks"),
    )
    op.create_table(
        "attachments",
        _text("id", "UUID"),
        _text("trunk"),
        _text("host", "that of its trunk"),
        _text("container"),
        _text("ifname"),
        _text("network"),
        _text("owner"),
        sa.Column("vid", sa.Integer, nullable=False, comment="VLAN id"),
        _text("mac", "lower case, with colons"),
        sa.Column("ip", sa.BigInteger, nullable=False, comment="the IPv4 address as a number"),
        _text("port_id", "iface-id of its port"),
        _text("boot_id", "of the guest; empty: not given"),
        _text("instance_id", "of the container; empty: none"),
        _text("labels", "a JSON object"),
        _text("state", "wanted, made, active or leaving"),
        sa.Column("rest", sa.Double, comment="seconds that the VLAN id rests; null: not leaving"),
        sa.Column("created", sa.Double, nullable=False, comment="Unix time"),
        sa.Column("changed", sa.Double, nullable=False, comment="Unix time, of the state"),
        sa.PrimaryKeyConstraint("id", name="pk_attachments"),
        sa.ForeignKeyConstraint(["trunk"], ["trunks.parent"], name="fk_attachments_trunk"),
    )
    for name, columns in (
        ("key", ["trunk", "container", "ifname"]),
        ("vid", ["trunk", "vid"]),
        ("ip", ["network", "ip"]),
        ("mac", ["network", "mac"]),
    ):
        op.create_index(f"ix_attachments_{name}", "attachments", columns, unique=True)
    op.create_index("ix_attachments_host", "attachments", ["host"])
    op.create_table(
        "rests",
        _text("trunk"),
        sa.Column("vid", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("until", sa.Double, nullable=False, comment="Unix time"),
        sa.PrimaryKeyConstraint("trunk", "vid", name="pk_rests"),
        sa.ForeignKeyConstraint(
            ["trunk"], ["trunks.parent"], name="fk_rests_trunk", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    """Drop the tables; the data plane of the attachments stays until the host removes it."""
    for name in ("rests", "attachments", "trunks"):
        op.drop_table(name)
