"""Representations of a half in the admin API: as it is, or in an envelope. Pure functions.

An envelope has the form of a push of the same half, so that the answer of an upstream store can be
stored and a record can be moved by hand. Templates (:mod:`dfmeta.store.guest.equinix`) add
nothing here: a store that copies a record from this one has its own templates.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dfmeta.model import Answer
from dfmeta.store.db.record import Kind, Record

JSON: Final = "application/json"
ENVELOPE: Final = "application/vnd.dfmeta.record+json"
"""Media type that requests the envelope where the document alone is the default."""
USERDATA: Final = "text/plain"
"""Without a charset: the bytes may have any encoding, or none."""

_VARY: Final = (("Vary", "Accept"),)


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
    ranges = {one.partition(";")[0].lower(): quality for one, quality, *_ in accept.parsed or ()}
    wanted = ranges.get(ENVELOPE, 0.0)
    return bool(wanted > 0 and wanted >= max(ranges.values()))


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
