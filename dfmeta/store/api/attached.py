"""Attach a device to a record's document, and detach devices. Pure functions.

Source: specification 002, "REST API impact": tags can be given when a device is attached, too.
Trust: the new device comes from a client. It is validated here, together with the devices that the
document has already. Those may come from another program and be of any type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.devices import validate
from dfmeta.devices.schema import NONE
from dfmeta.errors import DeviceError

MEMBER: Final = "devices"
_KNOWN_BY: Final = (("mac", "devname"), ("serial", "path"), ("path",))
"""Members that identify a device without an address: all members of the first tuple whose first
member the device has. A container's NICs may have one MAC and differ by name (specification 002,
the LXC example)."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects the devices that have all of these members. MACs are in lower case."""

    members: Mapping[str, str]

    def means(self, device: object) -> bool:
        """Whether a device is selected."""
        return isinstance(device, dict) and all(
            _member(device, name) == value for name, value in self.members.items()
        )


def devices_in(document: Mapping[str, Any]) -> list[Any]:
    """Return a document's devices as they are stored; empty if they are not a list."""
    devices = document.get(MEMBER)
    return devices if isinstance(devices, list) else []


def attach(document: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with *device* added, or in the place of the same device.

    The same device has the same type, bus and address; without an address the same MAC and name,
    or the same serial and path, or the same path. A device without any of these is added, unless
    the document has an equal one: it is unknown which device it would replace.

    :raises DeviceError: the devices break a rule; ``path`` is the place in the new list.
    """
    before = document.get(MEMBER, [])
    # A value that is not a list is passed on as it is, and the validation refuses it.
    devices = _with(before, device) if isinstance(before, list) else before
    validate({MEMBER: devices})
    return {**document, MEMBER: devices}


def detach(document: Mapping[str, Any], selector: Selector) -> dict[str, Any] | None:
    """Return a document without the selected devices; None if it has none of them.

    :raises DeviceError: the selected devices are of several types, and the selector has no type.
        A bus numbers NICs and disks separately: Xen's vif 0 and vbd 0 are two devices.
    """
    before = devices_in(document)
    meant = [device for device in before if selector.means(device)]
    if not meant:
        return None
    types = [device.get("type") for device in meant]
    if "type" not in selector.members and any(kind != types[0] for kind in types):
        raise DeviceError(path=MEMBER, cause="devices of several types are selected")
    return {**document, MEMBER: [device for device in before if not selector.means(device)]}


def dump(devices: list[Any]) -> bytes:
    """Return devices as JSON."""
    return json.dumps(devices, ensure_ascii=False, separators=(",", ":")).encode()


def _with(before: list[Any], device: Mapping[str, Any]) -> list[Any]:
    identity = _identity(device)
    if identity is None:
        return before if device in before else [*before, device]
    same = [number for number, other in enumerate(before) if _identity(other) == identity]
    if not same:
        return [*before, device]
    kept = [other for number, other in enumerate(before) if number not in same[1:]]
    kept[same[0]] = device
    return kept


def _identity(device: object) -> object:
    """Return a value that is equal for the same device, or None. *device* is not validated."""
    if not isinstance(device, Mapping):
        return None
    for names in (("address",), *_KNOWN_BY):
        values = [_member(device, name) for name in names]
        if values[0] and (names[0], values[0]) != ("address", NONE):
            return device.get("type"), device.get("bus"), names, values
    return None


def _member(device: Mapping[str, Any], name: str) -> object:
    value = device.get(name)
    return value.lower() if name == "mac" and isinstance(value, str) else value
