"""Whether a document of devices holds to its rules. Pure.

Trust: none. A document may be a tenant's: whatever it is, it is accepted or refused with a
:class:`~dfmeta.exceptions.DeviceError`, in a time that its size bounds. Tags end up in udev's
rules inside the guest, so nothing with a line break or a path in it passes.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from dfmeta.devices.schema import SCHEMA
from dfmeta.exceptions import DeviceError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

DEPTH_MAX: Final = 32
"""Levels of a document, unknown members included."""
VALUES_MAX: Final = 100_000
"""Values in a document, each member and element counted."""
DEVICES_MAX: Final = 1024
"""More than any hypervisor gives a guest; they are checked in half a second."""
INT_BITS_MAX: Final = 1024
"""Of a number; as many as the largest one that JSON's common readers take."""
_SHOWN: Final = 40
"""Characters of a wrong value that an error repeats."""

_Step = str | int


def validate(document: object) -> None:
    """Accept a document of devices (``{"devices": [...]}``), a whole ``meta_data.json`` included.

    The schema decides about each device by itself. On top of it a tag is the role of one device of
    a type; of two disks only where they are views of one backend: the same serial on different
    buses (specification 002, "REST API impact" and the Xen example).

    :param document: as :func:`json.loads` gives it; untrusted.
    :raises DeviceError: it breaks a rule; ``path`` says where.
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
    """Accept the document of a record by its member ``devices``, where it has one.

    :raises DeviceError: the member breaks a rule; nothing else of the document is looked at.
    """
    if "devices" in document:
        validate({"devices": document["devices"]})


@functools.cache
def _validator() -> Draft202012Validator:
    # Late: the library takes a tenth of a second, and few programs check a document.
    from jsonschema import Draft202012Validator

    return Draft202012Validator(SCHEMA)


def _check_json(document: object) -> None:
    """Raise unless a value is JSON that can be written, of a size that can be worked on.

    Iterative, for a document may be deeper than Python's stack; what comes after may recurse.
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
            waiting += (((*path, name), one) for name, one in value.items())
        elif isinstance(value, list):
            # No more than are looked at: a list may hold itself many times.
            shown = value[: VALUES_MAX + 1]
            waiting += (((*path, number), one) for number, one in enumerate(shown))
        else:
            _check_scalar(path, value)


def _check_scalar(path: tuple[_Step, ...], value: object) -> None:
    cause = ""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            cause = "text that UTF-8 cannot hold"
    elif isinstance(value, int):
        cause = "a number too large" if value.bit_length() > INT_BITS_MAX else ""
    elif isinstance(value, float):
        cause = "" if math.isfinite(value) else "a number that JSON does not have"
    elif value is not None:
        cause = "not JSON"
    if cause:
        raise DeviceError(path=_path(path), cause=cause)


def _check_tags(devices: list[dict[str, Any]]) -> None:
    """Raise where a tag stands twice. Of types that are not known nobody can say what views are."""
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
    """Why a device may not have a tag that those before it have; empty: it may."""
    device = devices[number]
    if number in before:
        return "stands there twice"
    if not before or device["type"] not in ("nic", "disk"):
        return ""
    first = f"is also devices[{before[0]}]'s"
    if device["type"] == "nic":
        same = device["mac"].lower() == devices[before[0]]["mac"].lower()
        return f"{first}, of the same MAC" if same else f"{first}: it is to be of one NIC"
    others = [devices[one] for one in before]
    if not device.get("serial") or any(one.get("serial") != device["serial"] for one in others):
        return f"{first}, which is no view of the same disk: the serial is another, or none"
    if device["bus"] in {one["bus"] for one in others}:
        return f"is another disk's with the same serial on the bus {device['bus']}"
    return ""


def _cause(error: ValidationError) -> str:
    """What is wrong, in one line that repeats little of the document."""
    value = _show(error.instance)
    match error.validator:
        case "required":
            missing = [one for one in error.validator_value if one not in error.instance]
            return f"has no {missing[0]}"
        case "type":
            return f"{value} is not of type {error.validator_value}"
        case "enum":
            known = ", ".join(error.validator_value)
            return f"{value} is none of {known}"
        case "minLength":
            return "is empty"
        case "maxLength":
            return f"{value} has more than {error.validator_value} characters"
        case "minimum" | "maximum":
            return f"{value} is out of range ({error.validator} {error.validator_value})"
    return f"{value} has not the form that it is to have"


def _show(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _path(steps: Iterable[_Step]) -> str:
    """A place as ``devices[0].tags[1]``; the document itself: ``document``."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = _show(step).strip('"')
            text += f".{name}" if text else name
    return text or "document"
