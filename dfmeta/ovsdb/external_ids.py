"""Values of a port's external_ids: instance, project and name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from dfmeta.model import MetaIds

NAME_MAX: Final = 255


_PROJECT: Final = re.compile(r"[\x21-\x7e]{1,255}")


def instance_of(text: str) -> str:
    """Return an instance id in canonical form; empty when *text* is not a UUID."""
    try:
        return str(UUID(text.strip()))
    except ValueError:
        return ""


def project_of(text: str) -> str:
    """Return a project id that is valid in an HTTP header; empty when *text* is not valid."""
    stripped = text.strip()
    return stripped if _PROJECT.fullmatch(stripped) else ""


def name_of(text: str) -> str:
    """Return a name on one line, without control characters: its owner may have chosen any text."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * NAME_MAX])
    return " ".join(printable.split())[:NAME_MAX]


IDS: Final = MetaIds("dfmeta-meta-ip", "dfmeta-meta-mac", "dfmeta-meta-ip6")
"""Keys in ``external_ids`` of a guest's Interface row."""
PROVIDER_IDS: Final = ("provider_ip", "provider_mac")
"""Keys in ``other_config`` of a guest's Port row that Neutron's metadata_path writes."""


def own_ids(external_ids: Mapping[str, str]) -> MetaIds:
    """Return the Meta addresses that dfmeta has written into the row of a port.

    Trust: as :func:`ids_of`.
    """
    return MetaIds(*(external_ids.get(key, "").strip() for key in IDS))


def ids_of(external_ids: Mapping[str, str], other_config: Mapping[str, str]) -> MetaIds:
    """Return the Meta addresses in the rows of a port: dfmeta's, else metadata_path's.

    Trust: programs of the host have written them; they may be stale, doubled or invalid.
    """
    own = own_ids(external_ids)
    if own.ip:
        return own
    ip, mac = (other_config.get(key, "").strip() for key in PROVIDER_IDS)
    return own._replace(ip=ip, mac=mac)
