"""How the admin API shows one half of a record: as it is, or in an envelope. Pure functions.

An envelope is what a push of the same would be, so that an upstream's answer can be stored and a
record can be moved by hand. Templates (:mod:`dfmeta.store.guest.templates`) add nothing here: a
store that takes a record from this one has its own.
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
"""Asks for the envelope where the document alone is what is usual."""
USERDATA: Final = "text/plain"
"""Without a charset: the bytes may be of any, or of none."""

_VARY: Final = (("Vary", "Accept"),)


def document(kind: Kind, record: Record | None) -> Answer | None:
    """Return a record's metadata as it was written, or its user-data byte for byte.

    None when there is none of that kind.
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

    ``http_tokens`` is there where the record has a word of its own about them. None when there is
    none of that kind.

    :param addresses: the record's networks; an address alone is written without its prefix.
    :param named: whether it is called by its own media type, or plainly JSON.
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
        # As it is stored: what another program wrote is not written anew.
        text = f'{_dump(members)[:-1]},"metadata":{record.metadata}}}'
    media_type = ENVELOPE if named else JSON
    return Answer(200, text.encode(), content_type=media_type, headers=_VARY)


def wants_envelope(accept: Any) -> bool:
    """Whether a request would rather have the envelope (RFC 9110, 12.5.1).

    It has to be named, and by a quality that is not below that of another type that is.

    :param accept: the client's Accept, as :mod:`webob.acceptparse` has it; one that is not
        well-formed counts as not there.
    """
    ranges = {one.partition(";")[0].lower(): quality for one, quality, *_ in accept.parsed or ()}
    wanted = ranges.get(ENVELOPE, 0.0)
    return bool(wanted > 0 and wanted >= max(ranges.values()))


def _userdata(content: bytes) -> dict[str, str]:
    """Return text where it is some that JSON readers agree on, base64 otherwise."""
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
