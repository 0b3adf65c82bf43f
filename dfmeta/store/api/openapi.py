"""The admin API's description for programs, in OpenAPI 3.1 (spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from dfmeta.store.api import openapi_devices
from dfmeta.store.api.representations import ENVELOPE, JSON, USERDATA
from dfmeta.store.api.requests import ADDRESSES_MAX, ENCODINGS
from dfmeta.store.api.routes import PREFIX, ROUTES, Action, Route
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import PAGE
from dfmeta.store.db.schema import HTTP_TOKENS

Object = dict[str, Any]

_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_BASE64: Final = "^([A-Za-z0-9+/]{4}|\\r?\\n)*([A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?(\\r?\\n)?$"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_BLOCK_4: Final = f"^({_BYTE}\\.){{3}}{_BYTE}/(3[0-2]|[12]?[0-9])$"
_PIECE: Final = "[0-9a-fA-F]{1,4}"
_BLOCK_6: Final = (
    f"^(({_PIECE}:){{7}}{_PIECE}|({_PIECE}:){{1,6}}:|({_PIECE}:){{1,3}}(:{_PIECE}){{1,3}}|::)"
    "/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$"
)
"""Not every block of IPv6: in RFC 5952's form, up to six pieces can stand around ``::``."""

_TEXT: Final = "^[^\\u0000]*$"

_PUSHED: Final[Object] = {
    "id": {"$ref": "#/components/schemas/Id"},
    "ipAddresses": {"$ref": "#/components/schemas/Addresses"},
    "http_tokens": {"$ref": "#/components/schemas/HttpTokens"},
}
_ADDRESS: Final[Object] = {
    "anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]
}
_LISTED: Final[Object] = {
    "id": {"$ref": "#/components/schemas/Id"},
    "hostname": {"description": "The document's hostname; null if it has none."},
    "name": {"description": "The document's name; null if it has none."},
    "project_id": {"type": ["string", "null"]},
    "ssh_keys": {"type": "integer", "minimum": 0, "description": "Number of keys."},
    "userdata_bytes": {
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "Null: no user-data.",
    },
    "password_set": {"type": "boolean"},
    "updated_at": {"type": "string", "format": "date-time"},
}
_SCHEMAS: Final[Object] = {
    "Id": {
        "type": "string",
        "pattern": _UUID,
        "description": "The instance's UUID, with dashes, in any case. Stored in lower case.",
    },
    "Addresses": {
        "type": ["array", "null"],
        "maxItems": ADDRESSES_MAX,
        "description": "All addresses and blocks of the instance; other instances lose them. Null, "
        "absent or an empty list: the instance loses all of its addresses. Host bits of a block "
        "are masked.",
        "items": {
            "anyOf": [
                *_ADDRESS["anyOf"],
                {"type": "string", "pattern": _BLOCK_4},
                {"type": "string", "pattern": _BLOCK_6},
            ]
        },
    },
    "HttpTokens": {
        "enum": [*HTTP_TOKENS, None],
        "description": "EC2's tokens against forged requests. Absent: unchanged. Null: as "
        "configured.",
    },
    "Value": {
        "description": "Any JSON, without NUL in its strings.",
        "anyOf": [
            {"type": ["null", "boolean", "number"]},
            {"type": "string", "pattern": _TEXT},
            {"type": "array", "items": {"$ref": "#/components/schemas/Value"}},
            {"$ref": "#/components/schemas/Document"},
        ],
    },
    "Document": {
        "type": "object",
        "propertyNames": {"pattern": _TEXT},
        "additionalProperties": {"$ref": "#/components/schemas/Value"},
    },
    "MetadataPush": {
        "type": "object",
        "required": ["id", "metadata"],
        "properties": {
            **_PUSHED,
            "metadata": {
                "$ref": "#/components/schemas/Document",
                "description": "The metadata of the guest. A string that contains such an object "
                "is accepted too, as in hollow-metadataservice. If its updated_at is older than "
                "the stored one, the whole push is ignored.",
            },
        },
        "propertyNames": {"pattern": _TEXT},
        "additionalProperties": {"$ref": "#/components/schemas/Value"},
    },
    "UserdataPush": {
        "type": "object",
        "required": ["id"],
        "properties": {**_PUSHED},
        "propertyNames": {"pattern": _TEXT},
        "additionalProperties": {"$ref": "#/components/schemas/Value"},
        "anyOf": [
            {
                "properties": {
                    "userdata": {
                        "type": ["string", "null"],
                        "pattern": _TEXT,
                        "description": "Null or absent: empty.",
                    },
                    "userdata_encoding": {"enum": [ENCODINGS[0], None]},
                },
            },
            {
                "required": ["userdata_encoding"],
                "properties": {
                    "userdata": {
                        "type": ["string", "null"],
                        "contentEncoding": ENCODINGS[1],
                        "pattern": _BASE64,
                    },
                    "userdata_encoding": {"const": ENCODINGS[1]},
                },
            },
        ],
    },
    "MetadataRecord": {
        "type": "object",
        "required": ["id", "ipAddresses", "metadata"],
        "properties": {
            "id": {"$ref": "#/components/schemas/Id"},
            "ipAddresses": {"type": "array", "items": {"type": "string"}},
            "http_tokens": {"enum": [*HTTP_TOKENS]},
            "metadata": {"$ref": "#/components/schemas/Document"},
        },
        "additionalProperties": False,
    },
    "UserdataRecord": {
        "type": "object",
        "required": ["id", "ipAddresses", "userdata", "userdata_encoding"],
        "properties": {
            "id": {"$ref": "#/components/schemas/Id"},
            "ipAddresses": {"type": "array", "items": {"type": "string"}},
            "http_tokens": {"enum": [*HTTP_TOKENS]},
            "userdata": {"type": "string"},
            "userdata_encoding": {"enum": [*ENCODINGS]},
        },
        "additionalProperties": False,
    },
    "Records": {
        "type": "array",
        "maxItems": PAGE,
        "description": "In the order of ids; fewer if documents are large. Empty: there are no "
        "more records.",
        "items": {
            "type": "object",
            "required": list(_LISTED),
            "properties": _LISTED,
            "additionalProperties": False,
        },
    },
    **openapi_devices.SCHEMAS,
    "Error": {
        "type": "object",
        "required": ["message"],
        "properties": {
            "message": {"type": "string"},
            "errors": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        },
        "additionalProperties": False,
    },
}
_ERRORS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "400": (
        "BadRequest",
        "The request is invalid; errors names the wrong parts of its body or query.",
        (),
    ),
    "401": ("Unauthorized", "There is no token, or it is not valid.", ("WWW-Authenticate",)),
    "403": ("Forbidden", "The token has none of the required scopes.", ()),
    "404": ("NotFound", "There is no such record, or it has nothing of this kind.", ()),
    "405": ("MethodNotAllowed", "The path does not have this method.", ("Allow",)),
    "408": ("RequestTimeout", "The body did not arrive in time.", ()),
    "413": ("ContentTooLarge", "The body is over the limit ([store] max_body).", ()),
    "500": ("InternalServerError", "The database failed; see the log of the store.", ()),
    "502": ("BadGateway", "The answer of the upstream store is invalid.", ()),
    "503": (
        "ServiceUnavailable",
        "The database, the upstream store or the token issuer is not available.",
        ("Retry-After",),
    ),
    "507": (
        "InsufficientStorage",
        "The disk of the database is full; no part of the request was stored.",
        (),
    ),
}
_TEXT_HEADER: Final[Object] = {"required": True, "schema": {"type": "string"}}
_ETAG: Final[Object] = {"ETag": _TEXT_HEADER, "Vary": {"schema": {"type": "string"}}}
_IF_NONE_MATCH: Final[Object] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "Entity tags of the client's copies: 304 if one of them is current.",
}
_ID: Final[Object] = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"$ref": "#/components/schemas/Id"},
    "examples": {"instance": {"value": "67fe638b-87b3-4fde-b191-1effb94b3c19"}},
}
_IP_ADDRESS: Final[Object] = {
    "name": "ip_address",
    "in": "query",
    "required": True,
    "schema": _ADDRESS,
    "examples": {"address": {"value": "10.1.2.5"}},
    "description": "An address of the instance, or one in its blocks; the longest prefix wins.",
}

_AFTER: Final[Object] = {
    "name": "after",
    "in": "query",
    "schema": {"$ref": "#/components/schemas/Id"},
    "description": "The last id of the previous page; absent: the first page.",
}


@dataclass(frozen=True, slots=True)
class _Told:
    """Description of an action; ``KIND`` stands for the record's kind."""

    summary: str
    parameters: tuple[Object, ...] = ()
    found: Callable[[str], Object] | None = None
    """Content of a successful answer, by the record's kind; None: it is empty."""
    sent: Callable[[str], Object] | None = None
    """Content of the request's body; None: it has none."""
    missing: bool = True
    """Whether the answer may be 404."""
    upstream: bool = False
    """Whether the action queries the upstream store."""


def _schema(name: str) -> Object:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _record(kind: str) -> Object:
    return _schema(f"{kind.capitalize()}Record")


def _either(kind: str) -> Object:
    """Return the content of an answer with the half alone, or its envelope."""
    if kind == Kind.METADATA:
        return {JSON: _schema("Document"), ENVELOPE: _record(kind)}
    text = {"schema": {"type": "string", "description": "Raw bytes of any encoding."}}
    return {USERDATA: text, ENVELOPE: _record(kind)}


def _listed_devices(_kind: str) -> Object:
    return {JSON: _schema("Devices")}


_TOLD: Final[Mapping[Action, _Told]] = {
    Action.DESCRIBE: _Told("Get this description.", found=lambda _kind: {JSON: {}}, missing=False),
    Action.FIND: _Told(
        "Find the record of an address.",
        (_IP_ADDRESS,),
        found=lambda kind: {JSON: _record(kind), ENVELOPE: _record(kind)},
    ),
    Action.PUSH: _Told(
        "Create or replace an instance's KIND.",
        sent=lambda kind: {JSON: _schema(f"{kind.capitalize()}Push")},
        missing=False,
    ),
    Action.GET: _Told("Get an instance's KIND, or its record.", (_ID,), found=_either),
    Action.DELETE: _Told("Remove an instance's KIND.", (_ID,)),
    Action.REFRESH: _Told("Query the upstream store again.", (_ID,), found=_either, upstream=True),
    Action.LIST: _Told(
        "List one page of the summaries of all records.",
        (_AFTER,),
        found=lambda _kind: {JSON: _schema("Records")},
        missing=False,
    ),
    Action.LIST_DEVICES: _Told("List the devices of an instance.", (_ID,), found=_listed_devices),
    Action.ATTACH: _Told(
        "Attach a device.",
        (_ID,),
        found=_listed_devices,
        sent=lambda _kind: {
            JSON: _schema("Device") | {"examples": {"disk": {"value": openapi_devices.EXAMPLE}}}
        },
    ),
    Action.DETACH: _Told("Detach devices.", (_ID, openapi_devices.SELECTOR), found=_listed_devices),
}
_OF_A_KIND: Final = frozenset({Action.FIND, Action.PUSH, Action.GET, Action.DELETE, Action.REFRESH})
"""Actions of both kinds: the name of the operation has the action and the kind."""


@functools.cache
def text(*, secured: bool) -> bytes:
    """Return the description as JSON; see :func:`description`."""
    return json.dumps(description(secured=secured), separators=(",", ":")).encode()


def description(*, secured: bool) -> Object:
    """Return the description as a value.

    :param secured: whether tokens are required.
    """
    paths: Object = {}
    for route in ROUTES:
        paths.setdefault(route.path, {}).update(_operations(route))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dfmeta: the store's admin API",
            "version": version("dfmeta"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}, {"url": PREFIX}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "responses": {name: _error(told, headers) for name, told, headers in _ERRORS.values()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}] if secured else [],
    }


def _operations(route: Route) -> Object:
    """Return the operations of a route; GET adds HEAD, which has the same headers."""
    told = _TOLD[route.action]
    kind = str(route.kind or "")
    name = f"{route.action.value}-{kind}" if route.action in _OF_A_KIND else route.action.value
    content = told.found(kind) if told.found is not None else None
    operation = _operation(route, told, name, content)
    if route.method != "GET":
        return {route.method.lower(): operation}
    head = _operation(route, told, f"{name}-head", {one: {} for one in content or ()})
    return {"get": operation, "head": head}


def _operation(route: Route, told: _Told, name: str, content: Object | None) -> Object:
    codes = {"400", "405"}
    if route.scopes:
        codes |= {"401", "403", "500", "503"}
    if told.missing:
        codes.add("404")
    if route.changes:
        codes.add("507")
    if told.sent is not None:
        codes |= {"408", "413"}
    if told.upstream:
        codes.add("502")
    responses = {code: {"$ref": f"#/components/responses/{_ERRORS[code][0]}"} for code in codes}
    parameters = list(told.parameters)
    if not route.changes:
        responses["304"] = {"description": "The client's copy is current."}
        parameters.append(_IF_NONE_MATCH)
    responses["200"] = {"description": "Done."} if content is None else _success(content, route)
    summary = told.summary.replace("KIND", str(route.kind))
    scopes = f" Any of these scopes: {', '.join(route.scopes)}." if route.scopes else ""
    sent = told.sent(str(route.kind)) if told.sent is not None else None
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}{scopes}",
        "parameters": parameters,
        **({} if route.scopes else {"security": []}),
        **({} if sent is None else {"requestBody": {"required": True, "content": sent}}),
        "responses": dict(sorted(responses.items())),
    }


def _success(content: Object, route: Route) -> Object:
    headers = {} if route.changes else _ETAG
    return {"description": "Found.", "headers": headers, "content": content}


def _error(description: str, headers: tuple[str, ...]) -> Object:
    return {
        "description": description,
        "headers": dict.fromkeys(headers, _TEXT_HEADER),
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
