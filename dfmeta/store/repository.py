"""Records in and out of the database.

A record's document is a JSON object with the member names that specification 003 uses where it
has one (``hostname``, ``ssh_keys``), so that what is put from the command line and what is pushed
over HTTP read the same.
"""

from __future__ import annotations

import enum
import functools
import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from dfmeta.exceptions import StoreError
from dfmeta.store.database import Database
from dfmeta.store.schema import records

SEED_BYTES: Final = 32
PAGE: Final = 500
"""Records that :meth:`Repository.list` reads in one statement."""


class Keep(enum.Enum):
    """Type of :data:`KEEP`."""

    KEEP = enum.auto()


KEEP: Final = Keep.KEEP
"""Leaves a value as it is, where None removes it."""

_BY_ID: Final = records.c.id == bindparam("record_id")
_GET: Final = select(*records.c).where(_BY_ID)
_ACCESS: Final = select(records.c.project_id, records.c.http_tokens).where(_BY_ID)
_LIST: Final = (
    select(
        records.c.id,
        records.c.project_id,
        records.c.metadata,
        func.length(records.c.userdata).label("userdata_bytes"),
        records.c.password.is_not(None).label("password_set"),
        records.c.updated_at,
    )
    .where(records.c.id > bindparam("after"))
    .order_by(records.c.id)
    .limit(PAGE)
)
_UPDATE: Final = update(records).where(_BY_ID)
_SET_PASSWORD: Final = _UPDATE.where(records.c.password.is_(None)).values(
    password=bindparam("new_password")
)
_DELETE: Final = delete(records).where(_BY_ID)


@dataclass(frozen=True, slots=True)
class Record:
    """All that the store has of one instance. Secrets stay out of its ``repr``."""

    id: str
    """Lower case."""
    seed: bytes = field(repr=False)
    """Random bytes, made when the record was."""
    created_at: datetime
    updated_at: datetime
    project_id: str | None = None
    metadata: str | None = field(default=None, repr=False)
    """The document, a JSON object as text."""
    userdata: bytes | None = field(default=None, repr=False)
    """None: the instance has none, which is not the same as empty."""
    password: bytes | None = field(default=None, repr=False)
    """What the guest posted; guests encrypt it, but nothing makes them."""
    http_tokens: str | None = None
    """One of :data:`~dfmeta.store.schema.HTTP_TOKENS`; None: as configured."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A record without what is large or secret."""

    id: str
    updated_at: datetime
    project_id: str | None
    metadata: str | None = field(repr=False)
    userdata_bytes: int | None
    password_set: bool


@dataclass(frozen=True, slots=True)
class Access:
    """What decides whether a request for a record goes on."""

    project_id: str | None
    http_tokens: str | None


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put did."""

    created: bool
    changed: tuple[str, ...]
    """The document's members, ``project_id``, ``userdata`` and ``http_tokens``, where they are not
    as before."""


class Repository:
    """The records of one database. Safe to use from several threads.

    :param url: an SQLAlchemy URL; see :class:`dfmeta.store.database.Database`. Every method
        raises :class:`~dfmeta.exceptions.StoreError` when the database fails.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Closing twice does no harm."""
        self._database.close()

    def get(self, record_id: str) -> Record | None:
        """Return the record of an instance, None when there is none. The id's case is ignored."""
        return self._database.run(lambda connection: _get(connection, record_id.lower()))

    def access(self, record_id: str) -> Access | None:
        """Return what a request needs to go on, without the record; None when there is none."""
        return self._database.run(lambda connection: _access(connection, record_id.lower()))

    def list(self) -> Iterator[Summary]:
        """Yield all records in the order of their ids, without loading their user-data."""
        after = ""
        while True:
            page = self._database.run(functools.partial(_page, after=after))
            yield from page
            if len(page) < PAGE:
                return
            after = page[-1].id

    def put(
        self,
        record_id: str,
        *,
        document: Mapping[str, object] | None = None,
        userdata: bytes | Keep | None = KEEP,
        project_id: str | Keep | None = KEEP,
        http_tokens: str | Keep | None = KEEP,
    ) -> PutResult:
        """Create a record or change what is named of it, in one transaction.

        :param record_id: a UUID in its usual form, any case; the caller has validated it.
        :param document: a JSON merge patch (RFC 7396) to the record's document: a null removes a
            member, an object is merged, anything else replaces. Validated by the caller.
        :param userdata: None removes it, ``b""`` makes it empty.
        :param project_id: None removes it.
        :param http_tokens: None leaves it to the configuration. Validated by the caller.
        """
        patch = dict(document or {})
        columns = {"userdata": userdata, "project_id": project_id, "http_tokens": http_tokens}

        def work(connection: Connection) -> PutResult:
            key = record_id.lower()
            before = _get(connection, key)
            values, changed = _changes(before, patch=patch, columns=columns)
            _write(connection, key, before=before, values=values)
            return PutResult(created=before is None, changed=tuple(changed))

        return self._database.run(work, write=True)

    def delete(self, record_id: str) -> bool:
        """Remove a record with all that it holds; False when there was none."""
        parameters = {"record_id": record_id.lower()}
        return self._database.run(
            lambda connection: connection.execute(_DELETE, parameters).rowcount == 1, write=True
        )

    def set_password(self, record_id: str, password: bytes) -> bool:
        """Keep a guest's password unless it has one; False when it has, or has no record.

        One statement: of several at once exactly one returns True.
        """
        parameters = {"record_id": record_id.lower(), "new_password": password}
        return self._database.run(
            lambda connection: connection.execute(_SET_PASSWORD, parameters).rowcount == 1,
            write=True,
        )


def parse_document(record_id: str, text: str | None) -> dict[str, Any]:
    """Return a record's document; ``{}`` when it has none.

    :raises StoreError: the text is not a JSON object (RFC 8259: without NaN and Infinity).
    """
    if text is None:
        return {}
    try:
        parsed = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise StoreError(cause=f"the document of record {record_id} is not a JSON object")
    return parsed


def merge_patch(target: object, patch: Mapping[str, object]) -> dict[str, object]:
    """Return ``target`` changed by a JSON merge patch that is an object (RFC 7396, section 2)."""
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = merge_patch(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _get(connection: Connection, record_id: str) -> Record | None:
    row = connection.execute(_GET, {"record_id": record_id}).one_or_none()
    if row is None:
        return None
    values = row._asdict()
    values.update(created_at=_utc(row.created_at), updated_at=_utc(row.updated_at))
    return Record(**values)


def _access(connection: Connection, record_id: str) -> Access | None:
    row = connection.execute(_ACCESS, {"record_id": record_id}).one_or_none()
    return None if row is None else Access(**row._asdict())


def _page(connection: Connection, *, after: str) -> list[Summary]:
    rows = connection.execute(_LIST, {"after": after})
    return [Summary(**(row._asdict() | {"updated_at": _utc(row.updated_at)})) for row in rows]


def _changes(
    before: Record | None, *, patch: Mapping[str, object], columns: Mapping[str, object]
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns to write, and the names of what is not as before."""
    old = {} if before is None else parse_document(before.id, before.metadata)
    new = merge_patch(old, patch)
    changed = [name for name in patch if old.get(name) != new.get(name)]
    values: dict[str, Any] = {}
    if changed or before is None:
        values["metadata"] = json.dumps(new, ensure_ascii=False, separators=(",", ":"))
    for name, value in columns.items():
        if value is not KEEP and value != getattr(before, name, None):
            values[name] = value
            changed.append(name)
    return values, changed


def _write(
    connection: Connection, record_id: str, *, before: Record | None, values: dict[str, Any]
) -> None:
    now = datetime.now(UTC)
    if before is None:
        seed = secrets.token_bytes(SEED_BYTES)
        stamps = {"created_at": now, "updated_at": now}
        connection.execute(insert(records).values(id=record_id, seed=seed, **stamps, **values))
    elif values:
        connection.execute(_UPDATE.values(updated_at=now, **values), {"record_id": record_id})


def _utc(moment: datetime) -> datetime:
    """Say that a moment read from the database is UTC; SQLite does not keep the zone."""
    return moment.replace(tzinfo=UTC)
