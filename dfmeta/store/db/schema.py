"""The store's tables, as SQLAlchemy Core describes them.

An empty database gets them at once, another one by the migrations under
``dfmeta/store/db/migrations``; a test compares the two, in SQLite and in PostgreSQL.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects import postgresql, sqlite

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

trunks: Final = Table(
    "trunks",
    metadata,
    Column("parent", Text, primary_key=True, comment="iface-id of the VM's untagged port"),
    Column("host", Text, nullable=False, comment="whose daemon serves the VM"),
    Column("port_name", Text, nullable=False),
    Column("instance_id", Text, nullable=False),
    Column("project_id", Text, nullable=False, comment="empty: not known"),
    Column("mac", Text, nullable=False, comment="empty: not known"),
    Column("last_vid", Integer, nullable=False, comment="given last; 0: none yet"),
    Column("absent_since", Double, comment="Unix time; null: the port is on the host"),
)
"""One row for each VM that has had an attachment, as its host has last seen its port."""

attachments: Final = Table(
    "attachments",
    metadata,
    Column("id", Text, primary_key=True, comment="UUID"),
    Column("trunk", Text, ForeignKey(trunks.c.parent), nullable=False),
    Column("host", Text, nullable=False, comment="that of its trunk"),
    Column("container", Text, nullable=False),
    Column("ifname", Text, nullable=False),
    Column("network", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("vid", Integer, nullable=False, comment="VLAN id"),
    Column("mac", Text, nullable=False, comment="lower case, with colons"),
    Column("ip", BigInteger, nullable=False, comment="the IPv4 address as a number"),
    Column("port_id", Text, nullable=False, comment="iface-id of its port"),
    Column("boot_id", Text, nullable=False, comment="of the guest; empty: not given"),
    Column("instance_id", Text, nullable=False, comment="of the container; empty: none"),
    Column("labels", Text, nullable=False, comment="a JSON object"),
    Column("state", Text, nullable=False, comment="wanted, made, active or leaving"),
    Column("rest", Double, comment="seconds that the VLAN id rests; null: not leaving"),
    Column("created", Double, nullable=False, comment="Unix time"),
    Column("changed", Double, nullable=False, comment="Unix time, of the state"),
    Index("ix_attachments_key", "trunk", "container", "ifname", unique=True),
    Index("ix_attachments_vid", "trunk", "vid", unique=True),
    Index("ix_attachments_ip", "network", "ip", unique=True),
    Index("ix_attachments_mac", "network", "mac", unique=True),
    Index("ix_attachments_host", "host"),
)
"""One row for each network device of a container. The unique indexes keep VLAN ids, addresses and
MACs single, also if several hosts write."""

rests: Final = Table(
    "rests",
    metadata,
    Column("trunk", Text, ForeignKey(trunks.c.parent, ondelete="CASCADE"), primary_key=True),
    Column("vid", Integer, primary_key=True, autoincrement=False),
    Column("until", Double, nullable=False, comment="Unix time"),
)
"""VLAN ids that are free, and not given yet: the guest may still have a device with one."""


def insert_of(dialect: str, table: Any) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that can have ON CONFLICT, whose syntax is the same in both databases."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
