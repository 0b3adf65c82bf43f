"""Representations of a half in the admin API: as it is, or in an envelope. Pure functions.

An envelope has the form of a push of the same half, so that the answer of an upstream store can be
stored and a record can be moved by hand. Templates (:mod:`dfmeta.store.guest.equinix`) add
nothing here: a store that copies a record from this one has its own templates.

Trust: another program may have written a document into the database. In the list, a broken document
is shown as broken and hides no other record.
"""

import base64
import ipaddress
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dfmeta.errors import StoreError
from dfmeta.model import Answer
from dfmeta.store.api.requests import parse_id
from dfmeta.store.db.record import Kind, Record, Summary, parse_document
from dfmeta.store.guest.values import list_of, plain

JSON: Final = "application/json"
ENVELOPE: Final = "application/vnd.dfmeta.record+json"
"""Media type that requests the envelope where the document alone is the default."""
USERDATA: Final = "text/plain"
"""Without a charset: the bytes may have any encoding, or none."""

_VARY: Final = (("Vary", "Accept"),)

Row = dict[str, object]


def document(kind: Kind, record: Record | None) -> Answer | None:
    """Return a record's metadata as it was written, or its user-data byte for byte.

    None when the record does not have that half.
    """
    if record is None:
        return None
    body, media_type = record.userdata, USERDATA
    if kind is Kind.METADATA:
        text = record.metadata
        body, media_type = None if text is None else text.encode(), JSON
    return None if body is None else Answer(200, body, content_type=media_type, headers=_VARY)


def envelope(kind: Kind, record: Record, addresses: Sequence[str], *, named: bool) -> Answer | None:
    """Return ``{id, ipAddresses, metadata}`` or ``{id, ipAddresses, userdata, userdata_encoding}``.

    ``http_tokens`` is a member if the record sets it. None when the record does not have that half.

    :param addresses: the record's networks; a single address is written without its prefix length.
    :param named: whether the media type is :data:`ENVELOPE` instead of plain JSON.
    """
    members: dict[str, Any] = {"id": record.id, "ipAddresses": [*map(_short, addresses)]}
    if record.http_tokens is not None:
        members["http_tokens"] = record.http_tokens
    if kind is Kind.USERDATA:
        if record.userdata is None:
            return None
        members |= _userdata(record.userdata)
        text = _dump(members)
    elif record.metadata is None:
        return None
    else:
        # As it is stored: a document of another program is not reformatted.
        text = f'{_dump(members)[:-1]},"metadata":{record.metadata}}}'
    media_type = ENVELOPE if named else JSON
    return Answer(200, text.encode(), content_type=media_type, headers=_VARY)


def wants_envelope(accept: Any) -> bool:
    """Whether a request prefers the envelope (RFC 9110, 12.5.1).

    Accept has to list the envelope, with a quality that is not below that of another listed type.

    :param accept: the client's Accept, parsed by :mod:`webob.acceptparse`; a header that is not
        well-formed counts as absent.
    """
    parsed = accept.parsed or ()
    ranges = {media.partition(";")[0].lower(): quality for media, quality, *_ in parsed}
    wanted = ranges.get(ENVELOPE, 0.0)
    return bool(wanted > 0 and wanted >= max(ranges.values()))


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


def dump_rows(summaries: Iterable[Summary]) -> bytes:
    """Return a page of the admin API's list, a JSON array."""
    return json.dumps([*map(row_of, summaries)], separators=(",", ":")).encode()


def load_rows(body: bytes, *, after: str) -> Sequence[Row]:
    """Return the rows of a page of the admin API's list.

    :param body: the server's answer, not trusted. Only the ids of the rows are checked.
    :param after: the id that the page was requested with; empty: the first page.
    :raises ValueError: it is not a page, or its ids do not follow *after* in ascending order: a
        client might request such pages indefinitely.
    """
    try:
        rows: Any = json.loads(body)
        ids = [row["id"] for row in rows]
        good = isinstance(rows, list) and [*map(parse_id, ids)] == ids
    except (KeyError, TypeError, RecursionError):
        good, rows, ids = False, [], []
    if not good or any(first >= second for first, second in itertools.pairwise([after, *ids])):
        raise ValueError("not a page that follows the previous one")
    return list_of(rows)


def _userdata(content: bytes) -> dict[str, str]:
    """Return UTF-8 without NUL as text, which all JSON readers accept, and the rest in base64."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return {"userdata": text, "userdata_encoding": "plain"}
    return {"userdata": base64.b64encode(content).decode(), "userdata_encoding": "base64"}


def _short(network: str) -> str:
    parsed = ipaddress.ip_network(network)
    return str(parsed.network_address) if parsed.num_addresses == 1 else network


def _dump(members: Mapping[str, Any]) -> str:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))
