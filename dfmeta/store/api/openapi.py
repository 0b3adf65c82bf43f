"""The admin API's description for programs, in OpenAPI 3.1 (spec.openapis.org/oas/v3.1.0)."""

from __future__ import annotations

import functools
import json
from importlib.metadata import version
from typing import Any, Final

from dfmeta.store.api import openapi_devices
from dfmeta.store.api.representations import ENVELOPE, JSON, USERDATA
from dfmeta.store.api.requests import ADDRESSES_MAX, ENCODINGS
from dfmeta.store.auth.scopes import Operation, accepted, accepted_for_any
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
"""Not all that there are: the form of RFC 5952 has up to six pieces around its colons."""

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
    "hostname": {"description": "What the document has there; null: nothing."},
    "name": {"description": "The same."},
    "project_id": {"type": ["string", "null"]},
    "ssh_keys": {"type": "integer", "minimum": 0, "description": "How many."},
    "userdata_bytes": {"type": ["integer", "null"], "minimum": 0, "description": "Null: none."},
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
        "description": "All addresses and blocks of the instance, which lose every other owner. "
        "None, or no list: it has none any more. Host bits of a block are masked.",
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
        "description": "EC2's tokens against forged requests. Left out: as it is. Null: as "
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
                "description": "What the guest is told. A string that holds such an object is "
                "taken as well, as hollow-metadataservice has it. An updated_at that is older than "
                "the one that is stored has the whole push ignored.",
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
                        "description": "Null, or left out: empty.",
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
        "description": "In the order of their ids; fewer where documents are large. None: there "
        "are no more.",
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
    "400": ("BadRequest", "The request is wrong; errors says where, if its body or query is.", ()),
    "401": ("Unauthorized", "There is no token, or it is not valid.", ("WWW-Authenticate",)),
    "403": ("Forbidden", "The token has none of the scopes that are needed.", ()),
    "404": ("NotFound", "There is no such record, or it has nothing of this kind.", ()),
    "405": ("MethodNotAllowed", "The path has other methods.", ("Allow",)),
    "408": ("RequestTimeout", "The body did not come.", ()),
    "413": ("ContentTooLarge", "The body is over the limit ([store] max_body).", ()),
    "500": ("InternalServerError", "The database failed; its host's log says how.", ()),
    "502": ("BadGateway", "Upstream answers nonsense.", ()),
    "503": (
        "ServiceUnavailable",
        "The database, upstream or the issuer is away.",
        ("Retry-After",),
    ),
    "507": (
        "InsufficientStorage",
        "The disk of the database is full; nothing of the request was kept.",
        (),
    ),
}
_TEXT_HEADER: Final[Object] = {"required": True, "schema": {"type": "string"}}
_ETAG: Final[Object] = {"ETag": _TEXT_HEADER, "Vary": {"schema": {"type": "string"}}}
_IF_NONE_MATCH: Final[Object] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "Tags of what the client has: 304 if it still is what there is.",
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
    "description": "An address of the instance, or one in a block of it; the longest prefix wins.",
}

_AFTER: Final[Object] = {
    "name": "after",
    "in": "query",
    "schema": {"$ref": "#/components/schemas/Id"},
    "description": "The last id of the page before; left out: the first page.",
}


@functools.cache
def text(*, secured: bool) -> bytes:
    """Return the description as JSON; see :func:`description`."""
    return json.dumps(description(secured=secured), separators=(",", ":")).encode()


def description(*, secured: bool) -> Object:
    """Return the description as a value.

    :param secured: whether tokens are asked for.
    """
    paths: Object = {"/openapi.json": _reading("This description.", "describe", {JSON: {}})}
    for kind in ("metadata", "userdata"):
        paths |= _paths(kind)
    listed: Object = {JSON: {"schema": {"$ref": "#/components/schemas/Records"}}}
    needed = accepted_for_any("read")
    paths["/records"] = _reading(
        "A page of all records, in short.", "list", listed, [_AFTER], needed=needed
    )
    paths["/device-metadata/{id}/devices"] = _devices()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dfmeta: the store's admin API",
            "version": version("dfmeta"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}, {"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "responses": {name: _error(told, headers) for name, told, headers in _ERRORS.values()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}] if secured else [],
    }


def _paths(kind: str) -> Object:
    one: Object = {(JSON if kind == "metadata" else USERDATA): _shown(kind)}
    record = {"$ref": f"#/components/schemas/{kind.capitalize()}Record"}
    both = one | {ENVELOPE: {"schema": record}}
    found = {JSON: {"schema": record}, ENVELOPE: {"schema": record}}
    push = {"$ref": f"#/components/schemas/{kind.capitalize()}Push"}
    read, upsert = accepted("read", kind), accepted("upsert", kind)
    return {
        f"/device-{kind}": _reading(
            "The record that has an address.", f"find-{kind}", found, [_IP_ADDRESS], needed=read
        )
        | {
            "post": _operation("upsert", f"push-{kind}", upsert, "Create or replace.")
            | {"requestBody": {"required": True, "content": {JSON: {"schema": push}}}}
        },
        f"/device-{kind}/{{id}}": _reading(
            f"An instance's {kind}, or its record.", f"get-{kind}", both, [_ID], needed=read
        )
        | {
            "delete": _operation(
                "delete", f"delete-{kind}", accepted("delete", kind), "Remove.", [_ID]
            )
        },
        f"/device-{kind}/refresh/{{id}}": {
            "post": _operation(
                "upsert", f"refresh-{kind}", upsert, "Ask upstream again.", [_ID], content=both
            )
        },
    }


def _devices() -> Object:
    listed: Object = {JSON: {"schema": {"$ref": "#/components/schemas/Devices"}}}
    device: Object = {
        JSON: {
            "schema": {"$ref": "#/components/schemas/Device"},
            "examples": {"disk": {"value": openapi_devices.EXAMPLE}},
        }
    }
    changing = accepted("upsert", "metadata")
    attach = _operation(
        "upsert", "attach-device", changing, "Attach a device.", [_ID], content=listed
    )
    parameters = [_ID, openapi_devices.SELECTOR]
    return _reading(
        "The devices of an instance.",
        "get-devices",
        listed,
        [_ID],
        needed=accepted("read", "metadata"),
    ) | {
        "post": attach | {"requestBody": {"required": True, "content": device}},
        "delete": _operation(
            "upsert", "detach-device", changing, "Detach devices.", parameters, content=listed
        ),
    }


def _reading(
    summary: str,
    name: str,
    content: Object,
    parameters: list[Object] | None = None,
    *,
    needed: tuple[str, ...] = (),
) -> Object:
    """Return GET, and HEAD with the same headers."""
    parameters = [*(parameters or []), _IF_NONE_MATCH]
    head: Object = {media_type: {} for media_type in content}
    return {
        "get": _operation("read", name, needed, summary, parameters, content=content),
        "head": _operation("read", f"{name}-head", needed, summary, parameters, content=head),
    }


def _operation(
    operation: Operation,
    name: str,
    needed: tuple[str, ...],
    summary: str,
    parameters: list[Object] | None = None,
    *,
    content: Object | None = None,
) -> Object:
    done: Object = {"description": "Done."} if content is None else _success(content, operation)
    codes = ["400", "405", *(["401", "403", "404", "500", "503"] if needed else [])]
    if name.startswith(("push", "list")):
        codes.remove("404")
    if operation != "read":
        codes.append("507")
    if name.startswith(("push", "attach")):
        codes += ["408", "413"]
    if name.startswith("refresh"):
        codes.append("502")
    responses = {code: {"$ref": f"#/components/responses/{_ERRORS[code][0]}"} for code in codes}
    if operation == "read":
        responses["304"] = {"description": "What the client has still is what there is."}
    scopes = f" Any of these scopes: {', '.join(needed)}." if needed else ""
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}{scopes}",
        "parameters": parameters or [],
        **({} if needed else {"security": []}),
        "responses": {"200": done, **dict(sorted(responses.items()))},
    }


def _success(content: Object, operation: Operation) -> Object:
    headers = _ETAG if operation == "read" else {}
    return {"description": "Found.", "headers": headers, "content": content}


def _shown(kind: str) -> Object:
    if kind == "metadata":
        return {"schema": {"$ref": "#/components/schemas/Document"}}
    return {"schema": {"type": "string", "description": "Byte for byte; of any encoding."}}


def _error(description: str, headers: tuple[str, ...]) -> Object:
    return {
        "description": description,
        "headers": dict.fromkeys(headers, _TEXT_HEADER),
        "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
