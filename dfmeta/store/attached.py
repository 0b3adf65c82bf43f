"""The devices of a record's document: one attached, some detached. Pure functions.

Source: specification 002, "REST API impact": tags are given when a device is attached, too. Trust:
what is attached is a client's, and is validated here together with what is there already. What is
there may be another program's, of any type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dfmeta.devices import validate
from dfmeta.devices.schema import NONE

MEMBER: Final = "devices"
_KNOWN_BY: Final = ("mac", "serial", "path")
"""What says which device it is where no address does, the first that it has."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Which devices are meant: those with all of these members. MACs are lower case."""

    members: Mapping[str, str]

    def means(self, device: object) -> bool:
        """Whether a device is meant."""
        return isinstance(device, dict) and all(
            _member(device, name) == value for name, value in self.members.items()
        )


def devices_in(document: Mapping[str, Any]) -> list[Any]:
    """Return a document's devices as they are stored; none where it has no list of them."""
    found = document.get(MEMBER)
    return found if isinstance(found, list) else []


def attach(document: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a device, in the place of the same one if that is there already.

    The same one has the same type, bus and address; without an address the same MAC, serial or
    path, whichever comes first; without any of them all but the tags.

    :raises DeviceError: the devices break a rule; ``path`` has the place in the new list.
    """
    before = document.get(MEMBER, [])
    # What is no list is told of as what it is.
    devices = _with(before, device) if isinstance(before, list) else before
    validate({MEMBER: devices})
    return {**document, MEMBER: devices}


def detach(document: Mapping[str, Any], selector: Selector) -> dict[str, Any] | None:
    """Return a document without the devices that are meant; None: it has none of them."""
    before = devices_in(document)
    left = [one for one in before if not selector.means(one)]
    return None if len(left) == len(before) else {**document, MEMBER: left}


def dump(devices: list[Any]) -> bytes:
    """Return devices as JSON."""
    return json.dumps(devices, ensure_ascii=False, separators=(",", ":")).encode()


def _with(before: list[Any], device: Mapping[str, Any]) -> list[Any]:
    same = [number for number, one in enumerate(before) if _identity(one) == _identity(device)]
    if not same:
        return [*before, device]
    kept = [one for number, one in enumerate(before) if number not in same[1:]]
    kept[same[0]] = device
    return kept


def _identity(device: object) -> object:
    """Return what is equal for the same device. It has not been validated."""
    if not isinstance(device, Mapping):
        return None
    for name in ("address", *_KNOWN_BY):
        value = _member(device, name)
        if value and (name, value) != ("address", NONE):
            return device.get("type"), device.get("bus"), name, value
    return {name: value for name, value in device.items() if name != "tags"}


def _member(device: Mapping[str, Any], name: str) -> object:
    value = device.get(name)
    return value.lower() if name == "mac" and isinstance(value, str) else value
