"""The table numbers and the priority of the pipeline, and the key scheme, from the options."""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import Any

from dfmeta.flows.key import InPortKeys, Keys
from dfmeta.flows.pipeline import Layout


def layout_of(group: Any) -> Layout:
    """Return the layout of the pipeline on the switch.

    :param group: the options ``[df_metadata]``.
    """
    return Layout(group.table_base, group.classification_table, group.hook_priority)


def keys_of(group: Any) -> Keys:
    """Return the key scheme, which the registry, its mirrors and the flows share.

    :param group: the options ``[df_metadata]``.
    """
    return InPortKeys(IPv6Network(group.key_prefix6))
