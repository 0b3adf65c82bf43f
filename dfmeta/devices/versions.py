"""The members of devices in each version of OpenStack's metadata. Pure.

Source: nova/api/metadata/base.py, ``_get_device_metadata``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

SINCE: Final = "2016-06-30"
"""The first version with ``devices`` (Newton)."""
MEMBERS: Final[Mapping[str, str]] = {"vlan": "2017-02-22", "vf_trusted": "2018-08-27"}
"""Member of a NIC → first version with it (Ocata, Rocky)."""
TYPES: Final[Mapping[str, str]] = {"share": "2025-04-04"}
"""Type of a device → first version with it (Epoxy)."""
NIC: Final = "nic"


def as_of(version: str, devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a valid document's devices of that version, with its members.

    A NIC without a tag is there for the sake of its other members, and is left out before them.

    :param version: a date, ``YYYY-MM-DD``, from :data:`SINCE` on, or ``latest``.
    """
    late = {name for name, since in MEMBERS.items() if version < since}
    found = []
    for device in devices:
        has = {"tags", *MEMBERS} & device.keys()
        if device.get("type") == NIC and has:
            if has <= late:
                continue
            device = {name: value for name, value in device.items() if name not in late}
        if version >= TYPES.get(device.get("type", ""), SINCE):
            found.append(dict(device))
    return found
