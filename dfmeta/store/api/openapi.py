"""The admin API's description for programs, in OpenAPI 3.1 (spec.openapis.org/oas/v3.1.0).

It is made from the routes, from the schema that devices are validated with, and from the limits of
:mod:`dfmeta.store.api.requests`.
"""

import functools
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from dfmeta.devices.schema import ADDRESSES, NONE, SCHEMA
from dfmeta.store.api import requests, routes
from dfmeta.store.api.representations import ENVELOPE, JSON, USERDATA
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
_BUS_ADDRESS: Final = "^({})$".format(
    "|".join(f"{bus}:{form}" for bus, form in ADDRESSES.items() if bus != NONE)
)
_STRING: Final[Object] = {"type": "string"}


def _ref(name: str, **members: object) -> Object:
    return {"$ref": f"#/components/schemas/{name}", **members}


def _string(pattern: str, **members: object) -> Object:
    return {"type": "string", "pattern": pattern, **members}


def _array(items: Object, **members: object) -> Object:
    return {"type": "array", "items": items, **members}


def _object(properties: Object, *required: str, **members: object) -> Object:
    return {"type": "object", "required": [*required], "properties": properties, **members}


def _closed(properties: Object, *optional: str) -> Object:
    required = (name for name in properties if name not in optional)
    return _object(properties, *required, additionalProperties=False)


def _of_devices() -> Object:
    """Return the definitions of devices in the dialect of regular expressions that all share."""
    text = json.dumps(SCHEMA["$defs"]).replace("#/$defs/", "#/components/schemas/")
    text = text.replace(r"(?![\\s\\S])", "$").replace(r"\\ud800-\\udfff", "")
    definitions: Object = json.loads(text)
    return definitions


_ANY_MEMBER: Final[Object] = {
    "propertyNames": {"pattern": _TEXT},
    "additionalProperties": _ref("Value"),
}
_ADDRESS: Final = [{**_STRING, "format": name} for name in ("ipv4", "ipv6")]
_PUSHED: Final[Object] = {
    "id": _ref("Id"),
    "ipAddresses": _ref("Addresses"),
    "http_tokens": _ref("HttpTokens"),
}
_STORED: Final[Object] = {
    "id": _ref("Id"),
    "ipAddresses": _array(_STRING),
    "http_tokens": {"enum": [*HTTP_TOKENS]},
}
_NULL_OR_STRING: Final = ["string", "null"]
_SCHEMAS: Final[Object] = {
    "Id": _string(
        _UUID, description="The instance's UUID, with dashes, in any case. Stored in lower case."
    ),
    "Addresses": {
        "type": ["array", "null"],
        "maxItems": requests.ADDRESSES_MAX,
        "description": "All addresses and blocks of the instance; other instances lose them. Null, "
        "absent or an empty list: the instance loses all of its addresses. Host bits of a block "
        "are masked.",
        "items": {"anyOf": [*_ADDRESS, _string(_BLOCK_4), _string(_BLOCK_6)]},
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
            _string(_TEXT),
            _array(_ref("Value")),
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
        *("id", "metadata"),
        **_ANY_MEMBER,
    ),
    "UserdataPush": _object(
        _PUSHED,
        "id",
        **_ANY_MEMBER,
        anyOf=[
            _object(
                {
                    "userdata": {
                        "type": _NULL_OR_STRING,
                        "pattern": _TEXT,
                        "description": "Null or absent: empty.",
                    },
                    "userdata_encoding": {"enum": [requests.ENCODINGS[0], None]},
                }
            ),
            _object(
                {
                    "userdata": {
                        "type": _NULL_OR_STRING,
                        "pattern": _BASE64,
                        "contentEncoding": requests.ENCODINGS[1],
                    },
                    "userdata_encoding": {"const": requests.ENCODINGS[1]},
                },
                "userdata_encoding",
            ),
        ],
    ),
    "MetadataRecord": _closed({**_STORED, "metadata": _ref("Document")}, "http_tokens"),
    "UserdataRecord": _closed(
        {**_STORED, "userdata": _STRING, "userdata_encoding": {"enum": [*requests.ENCODINGS]}},
        "http_tokens",
    ),
    "Records": _array(
        _closed(
            {
                "id": _ref("Id"),
                "hostname": {"description": "The document's hostname; null if it has none."},
                "name": {"description": "The document's name; null if it has none."},
                "project_id": {"type": _NULL_OR_STRING},
                "ssh_keys": {"type": "integer", "minimum": 0, "description": "Number of keys."},
                "userdata_bytes": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "description": "Null: no user-data.",
                },
                "password_set": {"type": "boolean"},
                "updated_at": {**_STRING, "format": "date-time"},
            }
        ),
        maxItems=PAGE,
        description="In the order of ids; fewer if documents are large. Empty: there are no more "
        "records.",
    ),
    **_of_devices(),
    "Device": _ref(
        "device",
        description="Replaces the same device, or is added. Together with the other devices it "
        "has to follow the rules of the format: a tag belongs to one NIC, or to one disk in all of "
        "its views.",
        **_ANY_MEMBER,
    ),
    "Devices": _array(_ref("Value"), description="The devices as stored."),
    "Error": _closed({"message": _STRING, "errors": _array(_STRING, minItems=1)}, "errors"),
}
_ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "400": ("The request is invalid; errors names the wrong parts of its body or query.", ""),
    "401": ("There is no token, or it is not valid.", "WWW-Authenticate"),
    "403": ("The token has none of the required scopes.", ""),
    "404": ("There is no such record, or it has nothing of this kind.", ""),
    "405": ("The path does not have this method.", "Allow"),
    "408": ("The body did not arrive in time.", ""),
    "413": ("The body is over the limit ([store] max_body).", ""),
    "500": ("The database failed; see the log of the store.", ""),
    "502": ("The answer of the upstream store is invalid.", ""),
    "503": (
        "The database, the upstream store or the token issuer is not available.",
        "Retry-After",
    ),
    "507": ("The disk of the database is full; no part of the request was stored.", ""),
}
"""Status → description of the answer, and its header."""
_DISK: Final[Object] = {
    "type": "disk",
    "bus": "scsi",
    "address": "0:0:2:1",
    "serial": "disk-vol-2352423",
    "tags": ["oracledb"],
}
_SELECTED: Final[Object] = {
    **{name: {**_STRING, "minLength": 1} for name in requests.SELECTORS},
    "mac": _ref("mac"),
    "address": _string(_BUS_ADDRESS),
}


def _parameter(name: str, place: str, schema: Object, example: object, **members: object) -> Object:
    """Return a parameter, required if there is an example."""
    required = {"required": True, "examples": {name: {"value": example}}} if example else {}
    return {"name": name, "in": place, "schema": schema, **required, **members}


_ID: Final = _parameter("id", "path", _ref("Id"), "67fe638b-87b3-4fde-b191-1effb94b3c19")
_QUERIES: Final[Mapping[routes.Action, Object]] = {
    routes.Action.FIND: _parameter(
        *("ip_address", "query", {"anyOf": _ADDRESS}, "10.1.2.5"),
        description="An address of the instance, or one in its blocks; the longest prefix wins.",
    ),
    routes.Action.LIST: _parameter(
        *("after", "query", _ref("Id"), None),
        description="The last id of the previous page; absent: the first page.",
    ),
    routes.Action.DETACH: _parameter(
        "selector",
        "query",
        {
            "type": "object",
            "anyOf": [
                _closed({name: _SELECTED[name], "type": {"enum": [*requests.TYPES]}}, "type")
                for name in requests.SELECTORS
            ],
        },
        {"serial": _DISK["serial"]},
        style="form",
        explode=True,
        description="Selects the devices: exactly one of these, once, and optionally the type, "
        "which is required if devices of several types are selected. An address is BUS:ADDRESS.",
    ),
}
_IF_NONE_MATCH: Final = _parameter(
    *("If-None-Match", "header", _STRING, None),
    description="Entity tags of the client's copies: 304 if one of them is current.",
)
_SUMMARIES: Final[Mapping[routes.Action, str]] = {
    routes.Action.DESCRIBE: "Get this description.",
    routes.Action.FIND: "Find the record of an address.",
    routes.Action.PUSH: "Create or replace an instance's KIND.",
    routes.Action.GET: "Get an instance's KIND, or its record.",
    routes.Action.DELETE: "Remove an instance's KIND.",
    routes.Action.REFRESH: "Query the upstream store again.",
    routes.Action.LIST: "List one page of the summaries of all records.",
    routes.Action.LIST_DEVICES: "List the devices of an instance.",
    routes.Action.ATTACH: "Attach a device.",
    routes.Action.DETACH: "Detach devices.",
}
"""``KIND`` stands for the record's kind."""


@functools.cache
def text(*, secured: bool) -> bytes:
    """Return the description as JSON; see :func:`description`."""
    return json.dumps(description(secured=secured), separators=(",", ":")).encode()


def description(*, secured: bool) -> Object:
    """Return the description as a value.

    :param secured: whether tokens are required.
    """
    paths: Object = {}
    for route in routes.ROUTES:
        paths.setdefault(route.path, {}).update(_operations(route))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dfmeta: the store's admin API",
            "version": version("dfmeta"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}, {"url": routes.PREFIX}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "responses": {f"Error{code}": _error(*values) for code, values in _ERRORS.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}] if secured else [],
    }


def _error(summary: str, header: str) -> Object:
    return {
        "description": summary,
        "headers": {name: {"required": True, "schema": _STRING} for name in header.split()},
        "content": {JSON: {"schema": _ref("Error")}},
    }


def _operations(route: routes.Route) -> Object:
    """Return the operations of a route; GET adds HEAD, which has the same headers."""
    name, content = route.action.value, _answer(route)
    if route.kind is not None and not route.path.endswith("/devices"):
        name = f"{name}-{route.kind}"
    operation = _operation(route, name, content)
    if route.method != "GET":
        return {route.method.lower(): operation}
    head = _operation(route, f"{name}-head", {media: {} for media in content})
    return {"get": operation, "head": head}


def _operation(route: routes.Route, name: str, content: Object) -> Object:
    body = _body(route)
    summary = _SUMMARIES[route.action].replace("KIND", str(route.kind))
    scopes = f" Any of these scopes: {', '.join(route.scopes)}." if route.scopes else ""
    parameters = [_ID] if routes.ID in route.path else []
    parameters += [_QUERIES[route.action]] if route.action in _QUERIES else []
    parameters += [] if route.changes else [_IF_NONE_MATCH]
    return {
        "operationId": name,
        "summary": summary,
        "description": f"{summary}{scopes}",
        "parameters": parameters,
        **({} if route.scopes else {"security": []}),
        **({"requestBody": {"required": True, "content": body}} if body else {}),
        "responses": _responses(route, content, body),
    }


def _responses(route: routes.Route, content: Object, body: Object) -> Object:
    missing = route.action not in (routes.Action.DESCRIBE, routes.Action.PUSH, routes.Action.LIST)
    codes = {"400", "405"}
    codes |= {"401", "403", "500", "503"} if route.scopes else set()
    codes |= {"404"} if missing else set()
    codes |= {"507"} if route.changes else set()
    codes |= {"408", "413"} if body else set()
    codes |= {"502"} if route.action is routes.Action.REFRESH else set()
    success: Object = {"description": "Done."}
    if content:
        success |= {"content": content, "headers": {}}
    responses: Object = {"200": success}
    if not route.changes:
        tag = {"required": True, "schema": _STRING}
        success["headers"] = {"ETag": tag, "Vary": {"schema": _STRING}}
        responses["304"] = {"description": "The client's copy is current."}
    errors = {code: {"$ref": f"#/components/responses/Error{code}"} for code in sorted(codes)}
    return {**responses, **errors}


def _answer(route: routes.Route) -> Object:
    """Return the content of a successful answer; empty if it has none."""
    kind = str(route.kind)
    record = {"schema": _ref(f"{kind.capitalize()}Record")}
    match route.action:
        case routes.Action.DESCRIBE:
            return {JSON: {}}
        case routes.Action.LIST:
            return {JSON: {"schema": _ref("Records")}}
        case routes.Action.FIND:
            return {JSON: record, ENVELOPE: record}
        case routes.Action.GET | routes.Action.REFRESH if route.kind is Kind.METADATA:
            return {JSON: {"schema": _ref("Document")}, ENVELOPE: record}
        case routes.Action.GET | routes.Action.REFRESH:
            raw = {**_STRING, "description": "Raw bytes of any encoding."}
            return {USERDATA: {"schema": raw}, ENVELOPE: record}
        case routes.Action.LIST_DEVICES | routes.Action.ATTACH | routes.Action.DETACH:
            return {JSON: {"schema": _ref("Devices")}}
    return {}


def _body(route: routes.Route) -> Object:
    """Return the content of the request's body; empty if it has none."""
    match route.action:
        case routes.Action.PUSH:
            return {JSON: {"schema": _ref(f"{str(route.kind).capitalize()}Push")}}
        case routes.Action.ATTACH:
            return {JSON: {"schema": _ref("Device"), "examples": {"disk": {"value": _DISK}}}}
    return {}
