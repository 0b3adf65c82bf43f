"""Names in OVSDB of the Meta addresses of ports and of rows of the second bridge. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dfmeta.model import MetaIds

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
