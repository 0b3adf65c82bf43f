"""The table numbers and the priority of the pipeline, and the key scheme, from the options."""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import Any

from oslo_config import cfg

from dfmeta.conf import metadata
from dfmeta.flows.pipeline import Layout
from dfmeta.identity.key import InPortKeys, Keys
from dfmeta.model import MetaNames


def layout_of(group: Any) -> Layout:
    """Return the layout of the pipeline on the switch.

    :param group: the options ``[df_metadata]``.
    """
    return Layout(group.table_base, group.classification_table, group.hook_priority)


def keys_of(conf: cfg.ConfigOpts) -> Keys:
    """Return a key scheme, which the registry, its mirrors and the flows share."""
    if conf.df_metadata.identity_scheme == metadata.META_IP:
        return metadata.keys(conf)
    return InPortKeys(IPv6Network(conf.df_metadata.key_prefix6))


def meta_of(conf: cfg.ConfigOpts) -> MetaNames | None:
    """Return the names of the second bridge; None: the identity scheme has none."""
    if conf.df_metadata.identity_scheme == metadata.META_IP:
        return metadata.names(conf)
    return None
