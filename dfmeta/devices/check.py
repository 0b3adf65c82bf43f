"""Checks a document of devices against its rules. Pure.

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

from dfmeta.devices.schema import SCHEMA
from dfmeta.errors import SHOWN, DeviceError, short

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

DEPTH_MAX: Final = 32
"""Largest number of levels in a document, unknown members included."""
VALUES_MAX: Final = 100_000
"""Largest number of values in a document; each member and each element counts."""
DEVICES_MAX: Final = 1024
"""Largest number of devices. No hypervisor gives a guest more; the check takes 0.5 s."""
INT_BITS_MAX: Final = 1024
"""Largest size of a number in bits; the common JSON readers have this limit."""

_Step = str | int


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
