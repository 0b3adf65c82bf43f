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
NIC: Final = "nic"


def as_of(version: str, devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a valid document's devices with the members of that version.

    :param version: a date, ``YYYY-MM-DD``, from :data:`SINCE` on, or ``latest``.
    """
    late = {name for name, since in MEMBERS.items() if version < since}
    return [
        {
            name: value
            for name, value in device.items()
            if device.get("type") != NIC or name not in late
        }
        for device in devices
    ]
