"""The admin API's description for programs, in OpenAPI 3.1 (spec.openapis.org/oas/v3.1.0).

It is made from the routes, from the schema that devices are validated with, and from the limits of
:mod:`dfmeta.store.api.requests`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

from dfmeta.devices.schema import ADDRESSES, NONE, SCHEMA
from dfmeta.store.api.representations import ENVELOPE, JSON, USERDATA
from dfmeta.store.api.requests import ADDRESSES_MAX, ENCODINGS, SELECTORS, TYPES
from dfmeta.store.api.routes import PREFIX, ROUTES, Action, Route
from dfmeta.store.db.record import HTTP_TOKENS, Kind
from dfmeta.store.db.repository import PAGE

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


def _ref(name: str, **members: object) -> Object:
    return {"$ref": f"#/components/schemas/{name}", **members}


def _object(properties: Object, required: tuple[str, ...] = (), **members: object) -> Object:
    return {"type": "object", "required": [*required], "properties": properties, **members}


def _closed(properties: Object, *optional: str) -> Object:
    required = tuple(name for name in properties if name not in optional)
    return _object(properties, required, additionalProperties=False)


def _of_devices() -> Object:
    """Return the definitions of devices in the dialect of regular expressions that all share."""
    text = json.dumps(SCHEMA["$defs"]).replace("#/$defs/", "#/components/schemas/")
    text = text.replace(r"(?![\\s\\S])", "$").replace(r"\\ud800-\\udfff", "")
    found: Object = json.loads(text)
    return found


_STRING: Final[Object] = {"type": "string"}
_COUNT: Final[Object] = {"type": "integer", "minimum": 0}
_LINE: Final[Object] = {"type": "string", "minLength": 1}
_ANY_MEMBER: Final[Object] = {
    "propertyNames": {"pattern": _TEXT},
    "additionalProperties": _ref("Value"),
}
_ADDRESS: Final[Object] = {"anyOf": [{**_STRING, "format": one} for one in ("ipv4", "ipv6")]}
_PUSHED: Final[Object] = {
    "id": _ref("Id"),
    "ipAddresses": _ref("Addresses"),
    "http_tokens": _ref("HttpTokens"),
}
_ENVELOPE: Final[Object] = {
    "id": _ref("Id"),
    "ipAddresses": {"type": "array", "items": _STRING},
    "http_tokens": {"enum": [*HTTP_TOKENS]},
}
_LISTED: Final[Object] = {
    "id": _ref("Id"),
    "hostname": {"description": "The document's hostname; null if it has none."},
    "name": {"description": "The document's name; null if it has none."},
    "project_id": {"type": ["string", "null"]},
    "ssh_keys": {**_COUNT, "description": "Number of keys."},
    "userdata_bytes": {
        "type": ["integer", "null"],
        "minimum": 0,
        "description": "Null: no user-data.",
    },
    "password_set": {"type": "boolean"},
    "updated_at": {**_STRING, "format": "date-time"},
}
_USERDATA: Final[tuple[Object, ...]] = (
    _object(
        {
            "userdata": {
                "type": ["string", "null"],
                "pattern": _TEXT,
                "description": "Null or absent: empty.",
            },
            "userdata_encoding": {"enum": [ENCODINGS[0], None]},
        }
    ),
    _object(
        {
            "userdata": {
                "type": ["string", "null"],
                "contentEncoding": ENCODINGS[1],
                "pattern": _BASE64,
            },
            "userdata_encoding": {"const": ENCODINGS[1]},
        },
        ("userdata_encoding",),
    ),
)
_SCHEMAS: Final[Object] = {
    "Id": {
        **_STRING,
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
                *({**_STRING, "pattern": one} for one in (_BLOCK_4, _BLOCK_6)),
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
            {**_STRING, "pattern": _TEXT},
            {"type": "array", "items": _ref("Value")},
            _ref("Document"),
        ],
    },
    "Document": {"type": "object", **_ANY_MEMBER},
    "MetadataPush": _object(
        {
            **_PUSHED,
            "metadata": _ref(
                "Document",
                description="The metadata of the guest. A string that contains such an object "
                "is accepted too, as in hollow-metadataservice. If its updated_at is older than "
                "the stored one, the whole push is ignored.",
            ),
        },
        ("id", "metadata"),
        **_ANY_MEMBER,
    ),
    "UserdataPush": _object(_PUSHED, ("id",), **_ANY_MEMBER, anyOf=[*_USERDATA]),
    "MetadataRecord": _closed({**_ENVELOPE, "metadata": _ref("Document")}, "http_tokens"),
    "UserdataRecord": _closed(
        {**_ENVELOPE, "userdata": _STRING, "userdata_encoding": {"enum": [*ENCODINGS]}},
        "http_tokens",
    ),
    "Records": {
        "type": "array",
        "maxItems": PAGE,
        "description": "In the order of ids; fewer if documents are large. Empty: there are no "
        "more records.",
        "items": _closed(_LISTED),
    },
    **_of_devices(),
    "Device": _ref(
        "device",
        description="Replaces the same device, or is added. Together with the other devices it "
        "has to follow the rules of the format: a tag belongs to one NIC, or to one disk in all of "
        "its views.",
        **_ANY_MEMBER,
    ),
    "Devices": {
        "type": "array",
        "description": "The devices as stored.",
        "items": _ref("Value"),
    },
    "Error": _closed(
        {"message": _STRING, "errors": {"type": "array", "minItems": 1, "items": _STRING}},
        "errors",
    ),
}
_ERRORS: Final[Mapping[str, tuple[str, str, str]]] = {
    "400": (
        "BadRequest",
        "The request is invalid; errors names the wrong parts of its body or query.",
        "",
    ),
    "401": ("Unauthorized", "There is no token, or it is not valid.", "WWW-Authenticate"),
    "403": ("Forbidden", "The token has none of the required scopes.", ""),
    "404": ("NotFound", "There is no such record, or it has nothing of this kind.", ""),
    "405": ("MethodNotAllowed", "The path does not have this method.", "Allow"),
    "408": ("RequestTimeout", "The body did not arrive in time.", ""),
    "413": ("ContentTooLarge", "The body is over the limit ([store] max_body).", ""),
    "500": ("InternalServerError", "The database failed; see the log of the store.", ""),
    "502": ("BadGateway", "The answer of the upstream store is invalid.", ""),
    "503": (
        "ServiceUnavailable",
        "The database, the upstream store or the token issuer is not available.",
        "Retry-After",
    ),
    "507": (
        "InsufficientStorage",
        "The disk of the database is full; no part of the request was stored.",
        "",
    ),
}
"""Status → name of the response, its description, and its header."""
_ETAG: Final[Object] = {
    "ETag": {"required": True, "schema": _STRING},
    "Vary": {"schema": _STRING},
}


def _parameter(name: str, place: str, schema: Object, **members: object) -> Object:
    return {"name": name, "in": place, "schema": schema, **members}


_IF_NONE_MATCH: Final = _parameter(
    "If-None-Match",
    "header",
    _STRING,
    description="Entity tags of the client's copies: 304 if one of them is current.",
)
_ID: Final = _parameter(
    "id",
    "path",
    _ref("Id"),
    required=True,
    examples={"instance": {"value": "67fe638b-87b3-4fde-b191-1effb94b3c19"}},
)
_IP_ADDRESS: Final = _parameter(
    "ip_address",
    "query",
    _ADDRESS,
    required=True,
    examples={"address": {"value": "10.1.2.5"}},
    description="An address of the instance, or one in its blocks; the longest prefix wins.",
)
_AFTER: Final = _parameter(
    "after",
    "query",
    _ref("Id"),
    description="The last id of the previous page; absent: the first page.",
)
_DISK: Final[Object] = {
    "type": "disk",
    "bus": "scsi",
    "address": "0:0:2:1",
    "serial": "disk-vol-2352423",
    "tags": ["oracledb"],
}
_SELECTED: Final[Mapping[str, Object]] = {
    **dict.fromkeys(SELECTORS, _LINE),
    "mac": _ref("mac"),
    "address": {
        **_STRING,
        "pattern": "^({})$".format(
            "|".join(f"{bus}:{form}" for bus, form in ADDRESSES.items() if bus != NONE)
        ),
    },
}
_SELECTOR: Final = _parameter(
    "selector",
    "query",
    {
        "type": "object",
        "anyOf": [
            _closed({name: _SELECTED[name], "type": {"enum": [*TYPES]}}, "type")
            for name in SELECTORS
        ],
    },
    required=True,
    style="form",
    explode=True,
    examples={"serial": {"value": {"serial": _DISK["serial"]}}},
    description="Selects the devices: exactly one of these, once, and optionally the type, "
    "which is required if devices of several types are selected. An address is BUS:ADDRESS.",
)


@dataclass(frozen=True, slots=True)
class _Operation:
    """Description of an action; ``KIND`` stands for the record's kind."""

    summary: str
    parameters: tuple[Object, ...] = ()
    content: Callable[[str], Object] | None = None
    """Content of a successful answer, by the record's kind; None: it is empty."""
    body: Callable[[str], Object] | None = None
    """Content of the request's body; None: it has none."""
    missing: bool = True
    """Whether the answer may be 404."""
    upstream: bool = False
    """Whether the action queries the upstream store."""


def _as(name: str, **members: object) -> Object:
    return {"schema": _ref(name), **members}


def _record(kind: str) -> Object:
    return _as(f"{kind.capitalize()}Record")


def _either(kind: str) -> Object:
    """Return the content of an answer with the half alone, or its envelope."""
    if kind == Kind.METADATA:
        return {JSON: _as("Document"), ENVELOPE: _record(kind)}
    text = {"schema": {**_STRING, "description": "Raw bytes of any encoding."}}
    return {USERDATA: text, ENVELOPE: _record(kind)}


def _devices(_kind: str) -> Object:
    return {JSON: _as("Devices")}


_OPERATIONS: Final[Mapping[Action, _Operation]] = {
    Action.DESCRIBE: _Operation(
        "Get this description.", content=lambda _kind: {JSON: {}}, missing=False
    ),
    Action.FIND: _Operation(
        "Find the record of an address.",
        (_IP_ADDRESS,),
        content=lambda kind: {JSON: _record(kind), ENVELOPE: _record(kind)},
    ),
    Action.PUSH: _Operation(
        "Create or replace an instance's KIND.",
        body=lambda kind: {JSON: _as(f"{kind.capitalize()}Push")},
        missing=False,
    ),
    Action.GET: _Operation("Get an instance's KIND, or its record.", (_ID,), content=_either),
    Action.DELETE: _Operation("Remove an instance's KIND.", (_ID,)),
    Action.REFRESH: _Operation(
        "Query the upstream store again.", (_ID,), content=_either, upstream=True
    ),
    Action.LIST: _Operation(
        "List one page of the summaries of all records.",
        (_AFTER,),
        content=lambda _kind: {JSON: _as("Records")},
        missing=False,
    ),
    Action.LIST_DEVICES: _Operation("List the devices of an instance.", (_ID,), content=_devices),
    Action.ATTACH: _Operation(
        "Attach a device.",
        (_ID,),
        content=_devices,
        body=lambda _kind: {JSON: _as("Device", examples={"disk": {"value": _DISK}})},
    ),
    Action.DETACH: _Operation("Detach devices.", (_ID, _SELECTOR), content=_devices),
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
            "responses": {name: _error(*values) for name, *values in _ERRORS.values()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}] if secured else [],
    }


def _operations(route: Route) -> Object:
    """Return the operations of a route; GET adds HEAD, which has the same headers."""
    operation = _OPERATIONS[route.action]
    kind = str(route.kind or "")
    name = f"{route.action.value}-{kind}" if route.action in _OF_A_KIND else route.action.value
    content = operation.content(kind) if operation.content is not None else None
    described = _described(route, operation, name, content)
    if route.method != "GET":
        return {route.method.lower(): described}
    head = _described(route, operation, f"{name}-head", {media: {} for media in content or ()})
    return {"get": described, "head": head}


def _described(route: Route, operation: _Operation, name: str, content: Object | None) -> Object:
    codes = {"400", "405"}
    codes |= {"401", "403", "500", "503"} if route.scopes else set()
    codes |= {"404"} if operation.missing else set()
    codes |= {"507"} if route.changes else set()
    codes |= {"408", "413"} if operation.body is not None else set()
    codes |= {"502"} if operation.upstream else set()
    responses: Object = {
        code: {"$ref": f"#/components/responses/{_ERRORS[code][0]}"} for code in codes
    }
    parameters = list(operation.parameters)
    if not route.changes:
        responses["304"] = {"description": "The client's copy is current."}
        parameters.append(_IF_NONE_MATCH)
    responses["200"] = {"description": "Done."}
    if content is not None:
        headers = {} if route.changes else _ETAG
        responses["200"] = {"description": "Found.", "headers": headers, "content": content}
    summary = operation.summary.replace("KIND", str(route.kind))
    scopes = f" Any of these scopes: {', '.join(route.scopes)}." if route.scopes else ""
    body = operation.body(str(route.kind)) if operation.body is not None else None
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}{scopes}",
        "parameters": parameters,
        **({} if route.scopes else {"security": []}),
        **({} if body is None else {"requestBody": {"required": True, "content": body}}),
        "responses": dict(sorted(responses.items())),
    }


def _error(summary: str, header: str) -> Object:
    return {
        "description": summary,
        "headers": {name: {"required": True, "schema": _STRING} for name in header.split()},
        "content": {JSON: _as("Error")},
    }
