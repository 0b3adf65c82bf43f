"""Reads records from the answers of an upstream store.

Two kinds of upstream stores are supported. dfmeta's own API, and servers written for
hollow-metadataservice's client, return an envelope ``{id, ipAddresses, metadata}`` or
``{id, ipAddresses, userdata}``. hollow-metadataservice itself returns only the content for a query
by id.

Trust: the upstream store is the operator's, and its metadata is trusted. User-data without an
envelope comes from a tenant: if it looks like an envelope, its addresses are ignored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from dfmeta.devices import validate_in
from dfmeta.errors import (
    DeviceError,
    LookupAnswerError,
    LookupAwayError,
    UpstreamAnswerError,
    UpstreamAwayError,
    UpstreamError,
)
from dfmeta.http.client import HttpClient, UrlRequest
from dfmeta.http.responses import HttpResponse
from dfmeta.store.api.checks import MEMBERS, USERDATA_MAX
from dfmeta.store.api.representations import ENVELOPE
from dfmeta.store.db.networks import Network, parse_network
from dfmeta.store.db.record import KEEP, FetchedHalf, Kind
from dfmeta.store.db.schema import HTTP_TOKENS
from dfmeta.store.strictjson import loads

UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""In lower case."""

_JSON: Final = frozenset({ENVELOPE, "application/json"})
_GZIP: Final = b"\x1f\x8b"
_BLANK: Final = frozenset("\t\n\r\f")


def fetch(client: HttpClient, request: UrlRequest) -> HttpResponse:
    """Send a request of a lookup, and return the answer with any status.

    :raises LookupAwayError: no answer arrives before the deadline.
    :raises LookupAnswerError: the answer is too large, or not HTTP.
    """
    try:
        return client.handle_request(request)
    except UpstreamError as error:
        upstream = urlsplit(request.url).netloc
        if isinstance(error, UpstreamAnswerError):
            raise LookupAnswerError(upstream=upstream, cause=error.cause) from error
        whole = isinstance(error, UpstreamAwayError)
        raise LookupAwayError(upstream=upstream, cause=error.cause, whole=whole) from error


def by_address(kind: Kind, reply: HttpResponse) -> FetchedHalf:
    """Return the half in an answer to a query by address, which must be an envelope.

    :raises ValueError: the answer is not a valid envelope. The error quotes nothing of it.
    """
    return _opened(kind, loads(reply.body))


def by_id(kind: Kind, record_id: str, reply: HttpResponse) -> FetchedHalf:
    """Return the half in an answer to a query by id: an envelope, or the content alone.

    :param record_id: in lower case.
    :raises ValueError: the answer is neither, or contains another record.
    """
    if kind is Kind.USERDATA and reply.content_type not in _JSON:
        return _alone(record_id, reply)
    document = loads(reply.body)
    if reply.content_type == ENVELOPE or _is_envelope(kind, document):
        found = _opened(kind, document)
        if found.id != record_id:
            raise ValueError("it has the id of another record")
        return found
    if kind is Kind.USERDATA or not isinstance(document, dict):
        raise ValueError("it is neither a record nor a document")
    return FetchedHalf(record_id, _checked(document))


def _alone(record_id: str, reply: HttpResponse) -> FetchedHalf:
    try:
        document = loads(reply.body)
        if _is_envelope(Kind.USERDATA, document) and document["id"].lower() == record_id:
            # Go's servers label JSON as text by default. If a tenant wrote this envelope, it can
            # change only that tenant's own user-data.
            return FetchedHalf(record_id, _opened(Kind.USERDATA, document).content)
    except (ValueError, AttributeError):
        pass
    if not reply.complete:
        raise ValueError("it has neither a length nor chunks that show its end")
    return FetchedHalf(record_id, _bounded(reply.body))


def _is_envelope(kind: Kind, document: object) -> bool:
    return (
        isinstance(document, dict)
        and {"id", kind.value} <= document.keys()
        and ("ipAddresses" in document or document.keys() <= MEMBERS)
    )


def _opened(kind: Kind, envelope: Any) -> FetchedHalf:
    record_id = envelope.get("id") if isinstance(envelope, dict) else None
    if not isinstance(record_id, str) or not UUID.fullmatch(record_id.lower()):
        raise ValueError("it has no id that is a UUID")
    tokens = envelope.get("http_tokens", KEEP)
    if tokens is not KEEP and tokens is not None and tokens not in HTTP_TOKENS:
        raise ValueError("its http_tokens is not a mode")
    return FetchedHalf(
        record_id.lower(),
        _document(envelope) if kind is Kind.METADATA else _userdata(envelope),
        networks=_networks(envelope["ipAddresses"]) if "ipAddresses" in envelope else KEEP,
        http_tokens=tokens,
    )


def _networks(listed: object) -> tuple[Network, ...]:
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ValueError("its ipAddresses is not a list of addresses")
    try:
        return tuple(parse_network(one) for one in listed)
    except ValueError:
        raise ValueError("one of its ipAddresses is not an address") from None


def _document(envelope: Mapping[str, Any]) -> Mapping[str, object]:
    document = envelope.get("metadata")
    if isinstance(document, str):
        document = loads(document)
    if isinstance(document, dict):
        return _checked(document)
    raise ValueError("its metadata is not an object")


def _checked(document: dict[str, object]) -> Mapping[str, object]:
    try:
        validate_in(document)
    except DeviceError as error:
        raise ValueError("its devices are invalid") from error
    return document


def _userdata(envelope: Mapping[str, Any]) -> bytes:
    text = envelope.get("userdata")
    if text is None:
        return b""
    if isinstance(text, str):
        return _bounded(_decoded(text, envelope.get("userdata_encoding")))
    raise ValueError("its userdata is not a string")


def _decoded(text: str, encoding: object) -> bytes:
    if encoding is None:
        return _guessed(text)
    if encoding == "plain":
        return text.encode()
    if encoding != "base64":
        raise ValueError("its userdata_encoding is unknown")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise ValueError("its userdata is not base64") from None


def _guessed(text: str) -> bytes:
    """Return user-data whose encoding is not given.

    hollow-metadataservice's client takes base64, its README plain text. A text counts as base64 if
    it is exactly the base64 encoding of text or gzip (cloud-init takes both). A script never is,
    because it contains spaces.
    """
    plain = text.encode()
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return plain
    if base64.b64encode(decoded) != plain:
        return plain
    if decoded.startswith(_GZIP):
        return decoded
    try:
        said = decoded.decode()
    except UnicodeError:
        return plain
    return decoded if all(one.isprintable() or one in _BLANK for one in said) else plain


def _bounded(content: bytes) -> bytes:
    if len(content) > USERDATA_MAX:
        raise ValueError(f"its userdata has more than {USERDATA_MAX} bytes")
    return content
