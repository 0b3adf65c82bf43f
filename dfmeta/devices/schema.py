"""The JSON schema of a document of devices (draft 2020-12), and its members in each version.

It is the schema of specification 002 with corrections. The original lacks a comma, has patterns
that are not anchored at the end, has no Xen bus, places the buses below ``additionalProperties``,
and has schemas in the place of types. Where the original accepts any text, this schema requires a
MAC of 6 octets with colons, so that InfiniBand's MACs of 20 octets are refused, texts without
control characters, and tags in Nova's form; a whole address has to have the form of its bus. The
schema is append-only: later versions may add members, types and buses, and remove nothing. So
unknown members and types are accepted.

Sources: specification 002; nova/api/metadata/base.py (``_get_device_metadata``) and
nova/objects/virt_device_metadata.py for ``vlan``, ``vf_trusted`` and the address ``none``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

TAG_MAX: Final = 60
"""Largest number of characters in a tag (nova/objects/tag.py)."""
NONE: Final = "none"
"""The bus of a device without a bus, and Nova's value for an unknown address."""
_END: Final = r"(?![\s\S])"
"""The end of a text. ``$`` is that in ECMA-262, but in Python it allows a line feed before it."""
_CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff"
"""Control characters, separators of lines and paragraphs, and unpaired surrogates."""

ADDRESSES: Final[Mapping[str, str]] = {
    "pci": r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]",
    "usb": r"[0-9a-f]+:[0-9a-f]+(\.[0-9a-f]+)*",
    "scsi": r"[0-9a-f]+(:[0-9a-f]+){3}",
    "ide": r"[01]:[01]",
    "xen": r"[0-9]+",
    NONE: NONE,
}
"""Bus → form of its addresses, a regular expression for the whole text."""

_LINE: Final = {"type": "string", "pattern": f"^[^{_CONTROLS}]*{_END}"}


def _bus(name: str) -> dict[str, Any]:
    address = {"type": "string", "pattern": f"^({NONE}|{ADDRESSES[name]}){_END}"}
    return {
        "type": "object",
        "properties": {"bus": {"const": name}, "address": address},
        "required": ["bus"],
    }


def _when(member: str, value: str, then: str) -> dict[str, Any]:
    return {
        "if": {"properties": {member: {"const": value}}, "required": [member]},
        "then": {"$ref": f"#/$defs/{then}"},
    }


SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "http://openstack.org/schemas/nova/metadata/device-role-tagging/1.0",
    "type": "object",
    "properties": {"devices": {"type": "array", "items": {"$ref": "#/$defs/device"}}},
    "$defs": {
        "tag": {
            "type": "string",
            "minLength": 1,
            "maxLength": TAG_MAX,
            "pattern": f"^[^,/{_CONTROLS}]*{_END}",
        },
        "mac": {"type": "string", "pattern": f"^([0-9A-Fa-f]{{2}}:){{5}}[0-9A-Fa-f]{{2}}{_END}"},
        **{f"{name}devicebus": _bus(name) for name in ADDRESSES},
        "nicdevice": {
            "type": "object",
            "properties": {
                "mac": {"$ref": "#/$defs/mac"},
                "devname": _LINE,
                "vlan": {"type": "integer", "minimum": 1, "maximum": 4094},
                "vf_trusted": {"type": "boolean"},
            },
            "required": ["bus", "mac"],
        },
        "diskdevice": {
            "type": "object",
            "properties": {"serial": _LINE, "path": _LINE},
            "required": ["bus"],
        },
        "device": {
            "type": "object",
            "properties": {
                "type": _LINE,
                "bus": {"enum": [*ADDRESSES]},
                "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            },
            "required": ["type"],
            "allOf": [
                _when("type", "nic", "nicdevice"),
                _when("type", "disk", "diskdevice"),
                *(_when("bus", name, f"{name}devicebus") for name in ADDRESSES),
            ],
        },
    },
}
"""The first check of :func:`dfmeta.devices.validate`; rules between devices follow."""

SINCE: Final = "2016-06-30"
"""The first version with ``devices`` (Newton)."""
MEMBERS: Final[Mapping[str, str]] = {"vlan": "2017-02-22", "vf_trusted": "2018-08-27"}
"""Member of a NIC → first version with it (Ocata, Rocky)."""
TYPES: Final[Mapping[str, str]] = {"share": "2025-04-04"}
"""Type of a device → first version with it (Epoxy)."""


def as_of(version: str, devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a valid document's devices of that version, with its members.

    A NIC without a tag is there for the sake of its other members, and is left out before them.

    :param version: a date, ``YYYY-MM-DD``, from :data:`SINCE` on, or ``latest``.
    """
    late = {name for name, since in MEMBERS.items() if version < since}
    dated = []
    for device in devices:
        has = {"tags", *MEMBERS} & device.keys()
        if device.get("type") == "nic" and has:
            if has <= late:
                continue
            device = {name: value for name, value in device.items() if name not in late}
        if version >= TYPES.get(device.get("type", ""), SINCE):
            dated.append(dict(device))
    return dated
