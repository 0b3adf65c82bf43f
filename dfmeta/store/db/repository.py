"""Reads and writes records in the database, and the networks that they own.

Each network has one owner. A write takes the networks that it names from their previous owners, in
its own transaction.
"""

import functools
import json
import secrets
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

from sqlalchemy import (
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from dfmeta.runtime.clock import ANSWER_TIMEOUT
from dfmeta.store.db.cache import BYTES, ENTRY, LruCache
from dfmeta.store.db.database import Apart, Database, at_once
from dfmeta.store.db.record import (
    KEEP,
    Address,
    Keep,
    Kind,
    Network,
    Push,
    PutResult,
    Record,
    Summary,
    Whole,
    changed_columns,
    containing,
    dump_document,
    half_columns,
    parse_document,
    stamp,
)
from dfmeta.store.db.schema import addresses, insert_of, records

__all__ = ["KEEP", "Keep", "Kind", "PutResult", "Record", "Repository", "Summary", "parse_document"]

SEED_BYTES: Final = 32
PAGE: Final = 500
"""Maximum number of records of a page."""
PAGE_TEXT: Final = 4 << 20
"""Characters of documents after which a page ends: all records of a page are in memory at once."""
DEFAULTS: Final = "default:"
"""Prefix of the ids of default records, which belong to no instance; see
:mod:`dfmeta.store.guest.defaults`."""

_ADDRESSES: Final = (
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
_BY_ID: Final = records.c.id == bindparam("record_id")
_GET: Final = select(*records.c).where(_BY_ID)
_GET_LOCKED: Final = _GET.with_for_update()
_LIST: Final = (
    select(
        records.c.id,
        records.c.project_id,
        records.c.metadata,
        func.length(records.c.userdata).label("userdata_bytes"),
        records.c.password.is_not(None).label("password_set"),
        records.c.updated_at,
    )
    .where(
        records.c.id > bindparam("after"),
        records.c.id.like(bindparam("like")) == bindparam("defaults"),
    )
    .order_by(records.c.id)
    .limit(PAGE)
    # Otherwise PostgreSQL's driver would read the complete result before the first row.
    .execution_options(stream_results=True, max_row_buffer=25)
)
_COUNT: Final = select(func.count()).select_from(records)
_UPDATE: Final = update(records).where(_BY_ID)
_SET_PASSWORD: Final = _UPDATE.where(records.c.password.is_(None)).values(
    password=bindparam("new_password")
)
_DELETE: Final = delete(records).where(_BY_ID)
_XMIN: Final[Any] = literal_column("records.xmin::text || records.ctid::text")
"""A value that differs for each version of a row, with any writer (PostgreSQL, "System
Columns")."""
_VERSION: Final = select(_XMIN).select_from(records).where(_BY_ID)
_OWNER: Final = {
    "postgresql": text(
        "SELECT record_id FROM addresses WHERE network = ANY(CAST(:networks AS text[]))"
        " ORDER BY prefix DESC LIMIT 1"
    ),
    "sqlite": text(
        "SELECT record_id FROM addresses WHERE network IN (SELECT value FROM json_each(:networks))"
        " ORDER BY prefix DESC LIMIT 1"
    ),
}
"""The networks are one parameter: a list of parameters would cost more than the query itself."""


class Repository:
    """The records of one database. Safe to use from several threads.

    Records that were read are cached until this process or another one writes to the database.

    :param url: an SQLAlchemy URL; see :class:`dfmeta.store.db.database.Database`. Every method
        raises :class:`~dfmeta.errors.StoreError` when the database fails.
    :param apart: runs calls that may block.
    :param seconds: time limit of each method.
    """

    def __init__(
        self, url: str, *, apart: Apart = at_once, seconds: float = ANSWER_TIMEOUT
    ) -> None:
        self._database = Database(url, apart=apart, seconds=seconds)
        self._cache: LruCache[str, tuple[object, Record | None]] = LruCache(BYTES)
        """By id in lower case: a record, and the generation and version at which it was read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. A second call has no effect."""
        self._database.close()

    @property
    def shows_changes(self) -> bool:
        """Whether :meth:`get` needs no query for a record that has not changed, as with SQLite."""
        return self._database.version() is not None

    def ping(self, *, seconds: float | None = None) -> None:
        """Run a trivial query, to check the database; raises as all methods here do."""
        self._database.ping(seconds=seconds)

    def get(self, record_id: str) -> Record | None:
        """Return the record of an instance, None if it has no record. The id's case is ignored.

        The same object is returned as long as the record does not change.
        """
        key = record_id.lower()
        version = self._database.version()
        generation = self._database.generation
        kept = self._cache.get(key)
        if kept is not None and version is not None and kept[0] == (generation, version):
            return kept[1]

        def work(connection: Connection) -> tuple[tuple[int, object], Record | None]:
            under = generation, version
            if connection.dialect.name == "postgresql":
                under = generation, connection.execute(_VERSION, {"record_id": key}).scalar()
                if kept is not None and kept[0] == under:
                    return under, kept[1]
            row = connection.execute(_GET, {"record_id": key}).one_or_none()
            return under, None if row is None else _record(row)

        under, record = self._database.run(work)
        if under[1] is not None:
            size = 0 if record is None else len(record.metadata or "") + len(record.userdata or b"")
            self._cache.put(key, (under, record), size=ENTRY + size)
        return record

    def find(self, address: Address) -> Record | None:
        """Return the record whose network contains *address*, by the longest prefix, or None."""
        names = containing(address)

        def work(connection: Connection) -> str | None:
            sqlite_too = connection.dialect.name == "sqlite"
            networks = json.dumps(names) if sqlite_too else names
            statement = _OWNER[connection.dialect.name]
            owner_id: str | None = connection.execute(statement, {"networks": networks}).scalar()
            return owner_id

        owner = self._database.run(work)
        return None if owner is None else self.get(owner)

    def addresses(self, record_id: str) -> tuple[str, ...]:
        """Return the networks of a record in canonical form, in the order of the last write."""
        parameters = {"record_id": record_id.lower()}
        return self._database.run(
            lambda connection: tuple(connection.execute(_ADDRESSES, parameters).scalars())
        )

    def list(self, *, defaults: bool = False) -> Iterator[Summary]:
        """Yield the records of all instances in the order of their ids, without their user-data.

        :param defaults: yield the default records instead, which belong to no instance.
        """
        after = ""
        while page := self.page(after, defaults=defaults):
            yield from page
            after = page[-1].id

    def page(self, after: str, *, defaults: bool = False) -> Sequence[Summary]:
        """Return the records that follow an id, at most :data:`PAGE`; empty after the last record.

        A page that is not full may be followed by more records: large documents end a page earlier.

        :param after: an id, in upper or lower case, also of a record that was deleted; empty: start
            at the first record.
        :param defaults: as for :meth:`list`.
        """
        return self._database.run(functools.partial(_page, after=after.lower(), defaults=defaults))

    def count(self) -> int:
        """Return the number of records, including default records."""
        return self._database.run(lambda connection: int(connection.execute(_COUNT).scalar_one()))

    def put(
        self,
        record_id: str,
        *,
        document: Mapping[str, object] | Whole | None = None,
        userdata: bytes | Keep | None = KEEP,
        project_id: str | Keep | None = KEEP,
        http_tokens: str | Keep | None = KEEP,
        networks: Sequence[Network] | Keep = KEEP,
    ) -> PutResult:
        """Create a record or change the given parts of it, in one transaction.

        :param record_id: a UUID in its usual form, any case; the caller has validated it.
        :param document: a JSON merge patch (RFC 7396) to the record's document: a null removes a
            member, an object is merged, any other value replaces the member; or a complete
            document as :class:`~dfmeta.store.db.record.Whole`. Validated by the caller.
        :param userdata: None removes it, ``b""`` makes it empty.
        :param project_id: None removes it.
        :param http_tokens: None: the configuration decides. Validated by the caller.
        :param networks: all networks of the record; other records that have one of them lose it.
        """
        patch = {} if document is None else document
        columns = {"userdata": userdata, "project_id": project_id, "http_tokens": http_tokens}

        def work(connection: Connection) -> PutResult:
            before, created = _lock(connection, record_id.lower())
            values, changed = changed_columns(before, patch=patch, columns=columns)
            if values:
                _update(connection, before.id, values)
            if networks is not KEEP and set_networks(connection, before.id, networks):
                changed.append("addresses")
            return PutResult(created=created, changed=tuple(changed))

        return self._database.run(work, write=True)

    def push_all(self, pushes: Sequence[Push]) -> tuple[bool, ...]:
        """Write several pushes in their order, in one transaction: either all or none.

        Each replaces one half of a record and all of its addresses. The last write wins: an address
        of another record moves to this one, and an address that is no longer named is removed from
        it. A document whose ``updated_at`` is older than that of the stored document changes
        nothing, not even addresses. Other writers wait until the transaction ends.

        :returns: for each push, False if it was ignored because it is older.
        """
        return self._database.run(
            lambda connection: tuple(_push(connection, push) for push in pushes), write=True
        )

    def store_fetched(self, fetched: Push, *, over: Record | None = None) -> bool:
        """Write one half of a record that upstream returned, without overwriting pushed values.

        It works as :meth:`push_all` does, but a pushed half stays, addresses and http_tokens stay
        if the other half was pushed, and a record with a pushed half loses no address.

        :param over: the record as it was before the lookup. If nothing has been written to it
            since, its pushed values are replaced too.
        :returns: False if the half was ignored.
        """

        def work(connection: Connection) -> bool:
            before, _created = _lock(connection, fetched.record_id)
            yields = over is None or over.updated_at != before.updated_at
            values = half_columns(before, fetched, fetched=True)
            if values is None or (yields and before.pushed(fetched.kind)):
                return False
            whole = not (yields and before.pushed(fetched.kind.other))
            if whole and fetched.http_tokens is not KEEP:
                values["http_tokens"] = fetched.http_tokens
            _update(connection, before.id, values)
            if whole and fetched.networks is not KEEP:
                set_networks(connection, before.id, fetched.networks, spare=True)
            return True

        return self._database.run(work, write=True)

    def change(
        self,
        record_id: str,
        function: Callable[[dict[str, Any]], Mapping[str, object] | None],
    ) -> Mapping[str, object] | None:
        """Change a record's document under a lock against other writers, in one transaction.

        The document counts as pushed afterwards.

        :param function: takes the document and returns the validated new one. If it returns None or
            raises, the document stays unchanged. It may be called repeatedly, and in another
            thread.
        :returns: the new document; None if there is no document, or it stays unchanged.
        """

        def work(connection: Connection) -> Mapping[str, object] | None:
            row = _locked(connection, record_id.lower())
            if row is None or row.metadata is None:
                return None
            new = function(parse_document(row.id, row.metadata))
            if new is not None:
                values = {"metadata": dump_document(new), "metadata_fetched_at": None}
                _update(connection, row.id, values)
            return new

        return self._database.run(work, write=True)

    def remove(self, kind: Kind, record_id: str, *, fetched: bool = False) -> bool:
        """Remove one half of a record, and the complete record with its last half.

        :param fetched: remove the half only if it came from upstream.
        :returns: False if there was no such half.
        """

        def work(connection: Connection) -> bool:
            row = _locked(connection, record_id.lower())
            if row is None or getattr(row, kind.value) is None:
                return False
            if fetched and getattr(row, f"{kind}_fetched_at") is None:
                return False
            if getattr(row, kind.other.value) is None:
                _remove(connection, row.id)
            else:
                _update(connection, row.id, {kind.value: None, f"{kind}_fetched_at": None})
            return True

        return self._database.run(work, write=True)

    def delete(self, record_id: str) -> bool:
        """Remove a complete record; return False if it did not exist."""

        def work(connection: Connection) -> bool:
            row = _locked(connection, record_id.lower())
            if row is not None:
                _remove(connection, row.id)
            return row is not None

        return self._database.run(work, write=True)

    def set_password(self, record_id: str, password: bytes, *, seed: bytes | None = None) -> bool:
        """Store a guest's password, unless the record already has a password.

        Of several concurrent calls exactly one returns True.

        :param seed: if there is no record, create one with this seed and without other contents.
        :returns: False if there is a password already, or no record.
        """
        parameters = {"record_id": record_id.lower(), "new_password": password}

        def work(connection: Connection) -> bool:
            if seed is not None:
                _lock(connection, record_id.lower(), seed=seed)
            return connection.execute(_SET_PASSWORD, parameters).rowcount == 1

        return self._database.run(work, write=True)


def _record(row: Row[Any]) -> Record:
    values = row._asdict()
    for name in ("created_at", "updated_at", "metadata_fetched_at", "userdata_fetched_at"):
        values[name] = None if values[name] is None else _utc(values[name])
    return Record(**values)


def _page(connection: Connection, *, after: str, defaults: bool) -> list[Summary]:
    parameters = {"after": after, "like": f"{DEFAULTS}%", "defaults": defaults}
    page: list[Summary] = []
    size = 0
    with connection.execute(_LIST, parameters) as rows:
        for row in rows:
            page.append(Summary(**(row._asdict() | {"updated_at": _utc(row.updated_at)})))
            size += len(row.metadata or "")
            if size >= PAGE_TEXT:
                break
    return page


def _locked(connection: Connection, record_id: str) -> Row[Any] | None:
    """Return a record's row, locked against other writers until the transaction ends."""
    return connection.execute(_GET_LOCKED, {"record_id": record_id}).one_or_none()


@functools.cache
def _creating(dialect: str) -> Any:
    """Creates a record, unless another writer has."""
    return insert_of(dialect, records).on_conflict_do_nothing().returning(records.c.id)


def _lock(
    connection: Connection, record_id: str, *, seed: bytes | None = None
) -> tuple[Record, bool]:
    """Return a record, locked, and whether it had to be created; a new record is empty."""
    now = stamp()
    values: dict[str, Any] = {
        "id": record_id,
        "seed": seed or secrets.token_bytes(SEED_BYTES),
        "created_at": now,
        "updated_at": now,
    }
    while True:
        row = _locked(connection, record_id)
        if row is not None:
            return _record(row), False
        if connection.execute(_creating(connection.dialect.name), values).first() is not None:
            return Record(**values), True


def _push(connection: Connection, push: Push) -> bool:
    before, _created = _lock(connection, push.record_id.lower())
    values = half_columns(before, push, fetched=False)
    if values is None:
        return False
    if push.http_tokens is not KEEP:
        values["http_tokens"] = push.http_tokens
    _update(connection, before.id, values)
    if push.networks is not KEEP:
        set_networks(connection, before.id, push.networks)
    return True


def _update(connection: Connection, record_id: str, values: Mapping[str, Any]) -> None:
    stamped = {"updated_at": stamp(), **values}
    connection.execute(_UPDATE.values(stamped), {"record_id": record_id})


def _remove(connection: Connection, record_id: str) -> None:
    set_networks(connection, record_id, [])
    connection.execute(_DELETE, {"record_id": record_id})


def _utc(moment: datetime) -> datetime:
    """Return a time in UTC: SQLite does not store the zone, PostgreSQL returns its session's."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def set_networks(
    connection: Connection, record_id: str, networks: Sequence[Network], *, spare: bool = False
) -> bool:
    """Make *networks* the complete list of a record's networks, and take them from other records.

    The caller has locked the record. All writers lock networks in the same order, so that no two
    writers wait for each other.

    :param spare: leave out networks of other records that have a pushed half.
    :returns: False if the record had exactly these networks already.
    """
    wanted = list(dict.fromkeys(str(network) for network in networks))
    had = list(connection.execute(_ADDRESSES, {"record_id": record_id}).scalars())
    if wanted == had:
        return False
    _lock_networks(connection, {*wanted, *had})
    if spare:
        taken = [name for name in wanted if name not in had]
        pushed = [name for name in taken if connection.execute(_PUSHED, {"network": name}).first()]
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


def _lock_networks(connection: Connection, names: Collection[str]) -> None:
    """Lock networks against other writers, whether or not the table contains them.

    Row locks are not enough: a network that another writer is about to add has no row yet, and two
    writers that wait for each other's rows would be a deadlock.
    """
    if connection.dialect.name == "postgresql" and names:
        keys = sorted({zlib.crc32(name.encode()) % _LOCKS for name in names})
        connection.execute(_LOCK_NETWORKS, {"keys": keys})
