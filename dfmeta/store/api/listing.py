"""Summaries of records for ``dfmeta store list`` and the admin API. Pure functions.

Trust: another program may have written a document into the database. A broken document is shown as
broken and hides no other record.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from dfmeta.errors import StoreError
from dfmeta.store.api.requests import parse_id
from dfmeta.store.db.record import Summary, parse_document
from dfmeta.store.guest.values import list_of, plain

Row = dict[str, object]


def timestamp(moment: datetime) -> str:
    """Return a time in UTC, without fractions of a second (RFC 3339)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def row_of(summary: Summary) -> Row:
    """Return the summary of a record: ``ssh_keys`` is the number of its keys; ``hostname`` and
    ``name`` are members of the document, of any type."""
    try:
        document = parse_document(summary.id, summary.metadata)
    except StoreError:
        document = {"name": "(broken document)"}
    return {
        "id": summary.id,
        "hostname": plain(document.get("hostname")),
        "name": plain(document.get("name")),
        "project_id": summary.project_id,
        "ssh_keys": len(list_of(document.get("ssh_keys"))),
        "userdata_bytes": summary.userdata_bytes,
        "password_set": summary.password_set,
        "updated_at": timestamp(summary.updated_at),
    }


def dump(summaries: Iterable[Summary]) -> bytes:
    """Return a page of the admin API's list, a JSON array."""
    return json.dumps([*map(row_of, summaries)], separators=(",", ":")).encode()


def load(body: bytes, *, after: str) -> Sequence[Row]:
    """Return the rows of a page of the admin API's list.

    :param body: the server's answer, not trusted. Only the ids of the rows are checked.
    :param after: the id that the page was requested with; empty: the first page.
    :raises ValueError: it is not a page, or its ids do not follow *after* in ascending order: a
        client might request such pages indefinitely.
    """
    try:
        rows: Any = json.loads(body)
        ids = [row["id"] for row in rows]
        good = isinstance(rows, list) and all(parse_id(one) == one for one in ids)
    except (KeyError, TypeError, RecursionError):
        good, rows, ids = False, [], []
    if not good or any(one >= other for one, other in itertools.pairwise([after, *ids])):
        raise ValueError("not a page that follows the previous one")
    return list_of(rows)
