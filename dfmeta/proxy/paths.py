"""Questions about the paths of guests' requests. All of them see the same segments.

Trust: the paths come from guests; :func:`~dfmeta.store.guest.requests.split_path` reads each
spelling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ADMIN: Final = frozenset(
    {"metrics", "version", "ports", "service", "haproxy", "probe", "options", "names"}
)
ADMIN_TREES: Final = frozenset({"healthz", "device-metadata", "device-userdata", "records"})
"""First segments of the admin listener's paths: alone, or with others behind them."""
_GUESTS: Final = (["metadata"], ["userdata"])
"""Paths of guests below ``/api/v1``, whose others are the admin listener's."""


def is_admins(segments: Sequence[str]) -> bool:
    """Return whether a path is the admin listener's: 404 for guests, whatever the backend says."""
    match segments:
        case ["api", "v1", *rest]:
            return rest not in _GUESTS
        case [name]:
            return name in ADMIN or name in ADMIN_TREES
        case [name, *_]:
            return name in ADMIN_TREES
    return False


def takes_post(segments: Sequence[str]) -> bool:
    """Return whether guests may post to a path: their password."""
    match segments:
        case ["openstack", _, "password"]:
            return True
    return False


def is_versions(segments: Sequence[str]) -> bool:
    """Return whether a path is below a version of ``/openstack``, or that itself."""
    return len(segments) > 1 and segments[0] == "openstack"


def is_network_data(segments: Sequence[str]) -> bool:
    """Return whether a path is that of ``network_data.json``."""
    match segments:
        case ["openstack", _, "network_data.json"]:
            return True
    return False
