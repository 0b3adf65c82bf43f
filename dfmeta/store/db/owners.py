"""Networks and the records that own them.

Each network has one owner. A write takes the networks that it names from their previous owners, in
its own transaction.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, bindparam, delete, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite

from dfmeta.store.db.record import Network
from dfmeta.store.db.schema import addresses, records

ADDRESSES: Final = (
    select(addresses.c.network)
    .where(addresses.c.record_id == bindparam("record_id"))
    .order_by(addresses.c.position)
)
"""The networks of a record, in the order of the last write."""
_LOCKS: Final = 512
"""Number of advisory locks for all networks: a server has some thousands in total."""
_LOCK_NETWORKS: Final = text(
    "SELECT pg_advisory_xact_lock(1684434277, key) FROM unnest(CAST(:keys AS int[])) AS key"
)
"""Takes the locks in the order of the array, which is sorted. The number is "dfme" in ASCII and
marks the locks as dfmeta's."""
_DROP: Final = delete(addresses).where(
    addresses.c.network == bindparam("gone"), addresses.c.record_id == bindparam("owner")
)
_PUSHED: Final = select(records.c.id).where(
    addresses.c.network == bindparam("network"),
    addresses.c.record_id == records.c.id,
    or_(
        and_(records.c.metadata.is_not(None), records.c.metadata_fetched_at.is_(None)),
        and_(records.c.userdata.is_not(None), records.c.userdata_fetched_at.is_(None)),
    ),
)


def own(
    connection: Connection, record_id: str, networks: Sequence[Network], *, spare: bool = False
) -> bool:
    """Make *networks* the complete list of a record's networks, and take them from other records.

    The caller has locked the record. All writers lock networks in the same order, so that no two
    writers wait for each other.

    :param spare: leave out networks of other records that have a pushed half.
    :returns: False if the record had exactly these networks already.
    """
    wanted = list(dict.fromkeys(str(network) for network in networks))
    had = list(connection.execute(ADDRESSES, {"record_id": record_id}).scalars())
    if wanted == had:
        return False
    _lock_networks(connection, {*wanted, *had})
    if spare:
        pushed = [name for name in wanted if name not in had and _is_pushed(connection, name)]
        wanted = [name for name in wanted if name not in pushed]
    rows = [
        {"network": name, "record_id": record_id, "prefix": prefix, "position": position}
        for position, name in enumerate(wanted)
        for prefix in [int(name.rpartition("/")[2])]
    ]
    dropped = set(had) - set(wanted)
    if dropped:
        connection.execute(_DROP, [{"gone": name, "owner": record_id} for name in dropped])
    if rows:
        connection.execute(_taking(connection.dialect.name), rows)
    return True


@functools.cache
def _taking(dialect: str) -> postgresql.Insert | sqlite.Insert:
    """Gives networks to a record, whether others have them or not."""
    statement = insert_of(dialect, addresses)
    fresh = {name: statement.excluded[name] for name in ("record_id", "prefix", "position")}
    return statement.on_conflict_do_update(index_elements=["network"], set_=fresh)


def _is_pushed(connection: Connection, network: str) -> bool:
    return connection.execute(_PUSHED, {"network": network}).first() is not None


def _lock_networks(connection: Connection, names: Collection[str]) -> None:
    """Lock networks against other writers, whether or not the table contains them.

    Row locks are not enough: a network that another writer is about to add has no row yet, and two
    writers that wait for each other's rows would be a deadlock.
    """
    if connection.dialect.name == "postgresql" and names:
        keys = sorted({zlib.crc32(name.encode()) % _LOCKS for name in names})
        connection.execute(_LOCK_NETWORKS, {"keys": keys})


def insert(connection: Connection, table: Any) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT that can have ON CONFLICT, whose syntax is the same in both databases."""
    return insert_of(connection.dialect.name, table)


def insert_of(dialect: str, table: Any) -> postgresql.Insert | sqlite.Insert:
    """Return the same, for a statement that is made once for each dialect."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
