"""The store's tables, as SQLAlchemy Core describes them.

An empty database gets them at once, another one by the migrations under
``dfmeta/store/db/migrations``; a test compares the two, in SQLite and in PostgreSQL.
"""

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

metadata: Final = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

records: Final = sa.Table(
    "records",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, comment="instance id, lower case; or default:SCOPE"),
    sa.Column("project_id", sa.Text, comment="null: not known"),
    sa.Column("metadata", sa.Text, comment="a JSON object; null: user-data only"),
    sa.Column("userdata", sa.LargeBinary, comment="byte for byte; null: none, which is not empty"),
    sa.Column("password", sa.LargeBinary, comment="what the guest posted, once; null: not yet"),
    sa.Column("seed", sa.LargeBinary, nullable=False, comment="random bytes of this record alone"),
    sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, comment="UTC"),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, comment="UTC"),
    sa.Column("http_tokens", sa.Text, comment="off, optional or required; null: as configured"),
    sa.Column("metadata_fetched_at", sa.DateTime(timezone=True), comment="null: pushed, or none"),
    sa.Column("userdata_fetched_at", sa.DateTime(timezone=True), comment="null: pushed, or none"),
)
"""One row for each instance, and one for each set of defaults. A row with neither metadata nor
userdata holds only a password, and does not count as a record."""

addresses: Final = sa.Table(
    "addresses",
    metadata,
    sa.Column("network", sa.Text, primary_key=True, comment="ADDRESS/PREFIX, canonical"),
    sa.Column(
        "record_id", sa.Text, sa.ForeignKey(records.c.id, ondelete="CASCADE"), nullable=False
    ),
    sa.Column("prefix", sa.Integer, nullable=False, comment="its length, bits"),
    sa.Column(
        "position", sa.Integer, nullable=False, comment="in the list that it was pushed with"
    ),
    sa.Index("ix_addresses_record_id", "record_id"),
)
"""The record that owns each network. A network occurs once, because it has one owner.

An address is looked up by the 33 or 129 networks that can contain it, all by the primary key. The
statement is the same in both databases, and its cost does not grow with the table.
"""

trunks: Final = sa.Table(
    "trunks",
    metadata,
    sa.Column("parent", sa.Text, primary_key=True, comment="iface-id of the VM's untagged port"),
    sa.Column("host", sa.Text, nullable=False, comment="whose daemon serves the VM"),
    sa.Column("port_name", sa.Text, nullable=False),
    sa.Column("instance_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text, nullable=False, comment="empty: not known"),
    sa.Column("mac", sa.Text, nullable=False, comment="empty: not known"),
    sa.Column("last_vid", sa.Integer, nullable=False, comment="given last; 0: none yet"),
    sa.Column("absent_since", sa.Double, comment="Unix time; null: the port is on the host"),
)
"""One row for each VM that has had an attachment, as its host has last seen its port."""

attachments: Final = sa.Table(
    "attachments",
    metadata,
    sa.Column("id", sa.Text, primary_key=True, comment="UUID"),
    sa.Column("trunk", sa.Text, sa.ForeignKey(trunks.c.parent), nullable=False),
    sa.Column("host", sa.Text, nullable=False, comment="that of its trunk"),
    sa.Column("container", sa.Text, nullable=False),
    sa.Column("ifname", sa.Text, nullable=False),
    sa.Column("network", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("vid", sa.Integer, nullable=False, comment="VLAN id"),
    sa.Column("mac", sa.Text, nullable=False, comment="lower case, with colons"),
    sa.Column("ip", sa.BigInteger, nullable=False, comment="the IPv4 address as a number"),
    sa.Column("port_id", sa.Text, nullable=False, comment="iface-id of its port"),
    sa.Column("boot_id", sa.Text, nullable=False, comment="of the guest; empty: not given"),
    sa.Column("instance_id", sa.Text, nullable=False, comment="of the container; empty: none"),
    sa.Column("labels", sa.Text, nullable=False, comment="a JSON object"),
    sa.Column("state", sa.Text, nullable=False, comment="wanted, made, active or leaving"),
    sa.Column("rest", sa.Double, comment="seconds that the VLAN id rests; null: not leaving"),
    sa.Column("created", sa.Double, nullable=False, comment="Unix time"),
    sa.Column("changed", sa.Double, nullable=False, comment="Unix time, of the state"),
    sa.Index("ix_attachments_key", "trunk", "container", "ifname", unique=True),
    sa.Index("ix_attachments_vid", "trunk", "vid", unique=True),
    sa.Index("ix_attachments_ip", "network", "ip", unique=True),
    sa.Index("ix_attachments_mac", "network", "mac", unique=True),
    sa.Index("ix_attachments_host", "host"),
)
"""One row for each network device of a container. The unique indexes keep VLAN ids, addresses and
MACs single, also if several hosts write."""

rests: Final = sa.Table(
    "rests",
    metadata,
    sa.Column(
        "trunk", sa.Text, sa.ForeignKey(trunks.c.parent, ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("vid", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("until", sa.Double, nullable=False, comment="Unix time"),
)
"""VLAN ids that are free, and not given yet: the guest may still have a device with one."""


def insert_of(dialect: str, table: Any) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that can have ON CONFLICT, whose syntax is the same in both databases."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
