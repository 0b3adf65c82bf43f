"""Records in short, as ``dfmeta store list`` shows them and the admin API lists them. Pure.

Trust: a document may be what another program wrote into the database. A broken one is shown as one
and hides no other record.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from dfmeta.exceptions import StoreError
from dfmeta.store.api.requests import parse_id
from dfmeta.store.db.record import Summary, parse_document
from dfmeta.store.guest.values import list_of, plain

Row = dict[str, object]


def timestamp(moment: datetime) -> str:
    """Return a moment to the second, in UTC (RFC 3339)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def row_of(summary: Summary) -> Row:
    """Return a record in short: ``ssh_keys`` is how many it has, ``hostname`` and ``name`` are what
    the document has there, of any type."""
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
    """Return the rows of a page that an admin API has answered with.

    :param body: the server's word. Of a row only its id is looked at.
    :param after: what was asked for; empty: the first page.
    :raises ValueError: it is no page, or one that does not follow: whoever went on asking might
        never come to an end.
    """
    try:
        rows: Any = json.loads(body)
        ids = [row["id"] for row in rows]
        good = isinstance(rows, list) and all(parse_id(one) == one for one in ids)
    except (KeyError, TypeError, RecursionError):
        good, rows, ids = False, [], []
    if not good or any(one >= other for one, other in itertools.pairwise([after, *ids])):
        raise ValueError("no page that follows")
    return list_of(rows)
