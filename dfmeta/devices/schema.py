"""The JSON schema of a document of devices (draft 2020-12), its members in each version, and the
check of a document. Pure.

It is the schema of specification 002 with corrections. The original lacks a comma, has patterns
that are not anchored at the end, has no Xen bus, places the buses below ``additionalProperties``,
and has schemas in the place of types. Where the original accepts any text, this schema requires a
MAC of 6 octets with colons, so that InfiniBand's MACs of 20 octets are refused, texts without
control characters, and tags in Nova's form; a whole address has to have the form of its bus. The
schema is append-only: later versions may add members, types and buses, and remove nothing. So
unknown members and types are accepted.

Sources: specification 002; nova/api/metadata/base.py (``_get_device_metadata``) and
nova/objects/virt_device_metadata.py for ``vlan``, ``vf_trusted`` and the address ``none``.

Trust: none. A document may come from a tenant. Any value is accepted, or refused with a
:class:`~dfmeta.errors.DeviceError`, in a time that its size bounds. Tags become part of udev's
rules inside the guest, so a tag with a line break or a path in it is refused.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dfmeta.errors import SHOWN, DeviceError, short

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


TAG_MAX: Final = 60
"""Largest number of characters in a tag (nova/objects/tag.py)."""
NONE: Final = "none"
"""The bus of a device without a bus, and Nova's value for an unknown address."""
_END: Final = r"(?![\s\S])"
"""The end of a text. ``$`` is that in ECMA-262, but in Python it allows a line feed before it."""
_CONTROLS: Final = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff"
"""Control characters, separators of lines and paragraphs, and unpaired surrogates."""

DEPTH_MAX: Final = 32
"""Largest number of levels in a document, unknown members included."""
VALUES_MAX: Final = 100_000
"""Largest number of values in a document; each member and each element counts."""
DEVICES_MAX: Final = 1024
"""Largest number of devices. No hypervisor gives a guest more; the check takes 0.5 s."""
INT_BITS_MAX: Final = 1024
"""Largest size of a number in bits; the common JSON readers have this limit."""

_Step = str | int
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


def validate(document: object) -> None:
    """Check a document of devices (``{"devices": [...]}``), also a whole ``meta_data.json``.

    The schema checks each device separately. In addition, a tag may belong to only one device of a
    type. Two disks may share a tag only if they are views of one backend: the same serial on
    different buses (specification 002, "REST API impact" and the Xen example).

    :param document: a result of :func:`json.loads`; untrusted.
    :raises DeviceError: the document breaks a rule; ``path`` is the place.
    """
    _check_json(document)
    devices = document.get("devices") if isinstance(document, dict) else None
    if isinstance(devices, list) and len(devices) > DEVICES_MAX:
        raise DeviceError(path="devices", cause=f"more than {DEVICES_MAX}")
    errors = _validator().iter_errors(document)
    for error in errors:
        raise DeviceError(path=_path(error.absolute_path), cause=_cause(error))
    _check_tags(devices or [])


def validate_in(document: Mapping[str, object]) -> None:
    """Check the member ``devices`` of a record's document, if it has one.

    :raises DeviceError: the member breaks a rule; the other members are not checked.
    """
    if "devices" in document:
        validate({"devices": document["devices"]})


@functools.cache
def _validator() -> Draft202012Validator:
    # Imported here: that takes a tenth of a second, and few programs check a document.
    from jsonschema import Draft202012Validator

    return Draft202012Validator(SCHEMA)


def _check_json(document: object) -> None:
    """Raise unless a value is JSON that can be written, within the limits on size and depth.

    Iterative, because a document may be deeper than Python's stack. Later checks may recurse.
    """
    waiting: list[tuple[tuple[_Step, ...], object]] = [((), document)]
    count = 0
    while waiting:
        path, value = waiting.pop()
        count += 1
        if count > VALUES_MAX:
            raise DeviceError(path="devices", cause=f"more than {VALUES_MAX} values")
        if len(path) > DEPTH_MAX:
            raise DeviceError(path=_path(path[:3]), cause=f"deeper than {DEPTH_MAX} levels")
        if isinstance(value, dict):
            for name in value:
                _check_scalar(path, name if isinstance(name, str) else b"")
            waiting += (((*path, name), item) for name, item in value.items())
        elif isinstance(value, list):
            # Only as many as can be counted: a list may contain itself many times.
            shown = value[: VALUES_MAX + 1]
            waiting += (((*path, number), item) for number, item in enumerate(shown))
        else:
            _check_scalar(path, value)


def _check_scalar(path: tuple[_Step, ...], value: object) -> None:
    cause = ""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            cause = "text that UTF-8 cannot encode"
    elif isinstance(value, int):
        cause = "a number too large" if value.bit_length() > INT_BITS_MAX else ""
    elif isinstance(value, float):
        cause = "" if math.isfinite(value) else "a number that JSON cannot represent"
    elif value is not None:
        cause = "not JSON"
    if cause:
        raise DeviceError(path=_path(path), cause=cause)


def _check_tags(devices: list[dict[str, Any]]) -> None:
    """Raise if a tag occurs twice. Devices of an unknown type may share one: they may be views."""
    holders: dict[tuple[str, str], list[int]] = {}
    for number, device in enumerate(devices):
        for place, tag in enumerate(device.get("tags", [])):
            before = holders.setdefault((device["type"], tag), [])
            cause = _clash(devices, number, before)
            if cause:
                path = _path(("devices", number, "tags", place))
                raise DeviceError(path=path, cause=f"{_show(tag)} {cause}")
            before.append(number)


def _clash(devices: list[dict[str, Any]], number: int, before: list[int]) -> str:
    """Return why a device may not share a tag with the devices *before*; empty if it may."""
    device = devices[number]
    if number in before:
        return "occurs twice"
    if not before or device["type"] not in ("nic", "disk"):
        return ""
    first = f"is also a tag of devices[{before[0]}]"
    if device["type"] == "nic":
        same = device["mac"].lower() == devices[before[0]]["mac"].lower()
        return f"{first}, with the same MAC" if same else f"{first}: a tag belongs to one NIC"
    others = [devices[other] for other in before]
    if not device.get("serial") or any(other.get("serial") != device["serial"] for other in others):
        return f"{first}, which is not a view of the same disk: the serials differ or are missing"
    if device["bus"] in {other["bus"] for other in others}:
        return f"is also a tag of another disk with the same serial on the bus {device['bus']}"
    return ""


def _cause(error: ValidationError) -> str:
    """Return the fault in one line that repeats little of the document."""
    value = _show(error.instance)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"has no {missing[0]}"
        case "type":
            return f"{value} is not of type {error.validator_value}"
        case "enum":
            values = ", ".join(error.validator_value)
            return f"{value} is not one of {values}"
        case "minLength":
            return "is empty"
        case "maxLength":
            return f"{value} has more than {error.validator_value} characters"
        case "minimum" | "maximum":
            return f"{value} is out of range ({error.validator} {error.validator_value})"
    return f"{value} does not have the required form"


def _show(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return short(json.dumps(value[: SHOWN + 1] if isinstance(value, str) else value))


def _path(steps: Iterable[_Step]) -> str:
    """Return a place as ``devices[0].tags[1]``; ``document`` is the document itself."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = _show(step).strip('"')
            text += f".{name}" if text else name
    return text or "document"
