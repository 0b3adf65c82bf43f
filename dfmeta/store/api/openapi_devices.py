"""Devices in the admin API's description: :data:`dfmeta.devices.schema.SCHEMA` without conditions,
which generators of requests hardly support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dfmeta.devices.schema import ADDRESSES, NONE, SCHEMA, TAG_MAX
from dfmeta.store.api.requests import SELECTORS, TYPES

Object = dict[str, Any]

VALUE: Final[Object] = {"$ref": "#/components/schemas/Value"}
_NO_CONTROLS: Final = "\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029"
_LINE: Final[Object] = {"type": "string", "pattern": f"^[^{_NO_CONTROLS}]*$"}
_MAC: Final[Object] = {"type": "string", "pattern": "^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$"}
_TAG: Final[Object] = {
    "type": "string",
    "minLength": 1,
    "maxLength": TAG_MAX,
    "pattern": f"^[^,/{_NO_CONTROLS}]+$",
}
_TYPES: Final[Mapping[str, Object]] = {
    "nic": {
        "type": {"const": "nic"},
        "mac": _MAC,
        "devname": _LINE,
        "vlan": SCHEMA["$defs"]["nicdevice"]["properties"]["vlan"],
        "vf_trusted": {"type": "boolean"},
    },
    "disk": {"type": {"const": "disk"}, "serial": _LINE, "path": _LINE},
    "": {"type": {**_LINE, "not": {"enum": ["nic", "disk"]}}},
}
"""Members of each type; the empty name stands for all unknown types."""
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": ("type", "bus", "mac"),
    "disk": ("type", "bus"),
    "": ("type",),
}


def _device(kind: str, bus: str) -> Object:
    known = {"bus": {"const": bus}, "address": _address(bus)}
    return {
        "type": "object",
        "required": [*dict.fromkeys((*_REQUIRED[kind], "bus"))],
        "properties": {
            **_TYPES[kind],
            **known,
            "tags": {"type": "array", "uniqueItems": True, "items": _TAG},
        },
        "propertyNames": {"pattern": "^[^\\u0000]*$"},
        "additionalProperties": VALUE,
    }


def _address(bus: str) -> Object:
    return {"type": "string", "pattern": f"^({NONE}|{ADDRESSES[bus]})$"}


def _without_bus() -> Object:
    device = _device("", NONE)
    members = {name: one for name, one in device["properties"].items() if name != "address"}
    return device | {"required": ["type"], "properties": members | {"bus": False}}


SCHEMAS: Final[Object] = {
    "Device": {
        "description": "Replaces the same device, or is added. Together with the other devices it "
        "has to follow the rules of the format: a tag belongs to one NIC, or to one disk in all of "
        "its views.",
        "anyOf": [*(_device(kind, bus) for kind in _TYPES for bus in ADDRESSES), _without_bus()],
    },
    "Devices": {"type": "array", "description": "The devices as stored.", "items": VALUE},
}
_VALUES: Final[Mapping[str, Object]] = {
    "mac": _MAC,
    "serial": {"type": "string", "minLength": 1},
    "address": {
        "type": "string",
        "pattern": "^({})$".format(
            "|".join(f"{bus}:{form}" for bus, form in ADDRESSES.items() if bus != NONE)
        ),
    },
    "path": {"type": "string", "minLength": 1},
    "devname": {"type": "string", "minLength": 1},
}
EXAMPLE: Final[Object] = {
    "type": "disk",
    "bus": "scsi",
    "address": "0:0:2:1",
    "serial": "disk-vol-2352423",
    "tags": ["oracledb"],
}
SELECTOR: Final[Object] = {
    "name": "selector",
    "in": "query",
    "required": True,
    "style": "form",
    "explode": True,
    "examples": {"serial": {"value": {"serial": EXAMPLE["serial"]}}},
    "description": "Selects the devices: exactly one of these, once, and optionally the type, "
    "which is required if devices of several types are selected. An address is BUS:ADDRESS.",
    "schema": {
        "type": "object",
        "anyOf": [
            {
                "type": "object",
                "required": [name],
                "properties": {name: _VALUES[name], "type": {"enum": [*TYPES]}},
                "additionalProperties": False,
            }
            for name in SELECTORS
        ],
    },
}
