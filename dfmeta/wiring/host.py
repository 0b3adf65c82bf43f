"""The settings of the host that the configuration asks for, for the commands."""

from __future__ import annotations

import contextlib
from ipaddress import IPv6Address
from pathlib import Path

from oslo_config import cfg

from dfmeta.conf.agent import layout_of
from dfmeta.conf.metadata import keys_of, meta_of
from dfmeta.doctor.facts import HostSettings, MetaSide
from dfmeta.ovsdb.vswitchd import management_socket
from dfmeta.runtime.saved_state import UNREADABLE, SavedState, read_state


def make_host_settings(conf: cfg.ConfigOpts) -> HostSettings:
    """Return the settings of the host that follow from *conf* and state_path."""
    group = conf.df_metadata
    bridge, ovsdb = group.integration_bridge, group.ovsdb_connection
    meta, state = meta_of(conf), SavedState()
    with contextlib.suppress(*UNREADABLE):
        state = read_state(Path(group.state_path))
    return HostSettings(
        bridge=bridge,
        tap=group.metadata_interface,
        ip=group.ip,
        host_ip=group.host_ip,
        port=group.port or state.port or None,
        listener=state.listener,
        route_table=group.route_table,
        layout=layout_of(group),
        ovsdb=ovsdb,
        socket=str(management_socket(group.openflow_connection, ovsdb, bridge)),
        admin=group.admin_listen,
        state_path=group.state_path,
        sources=tuple(group.identity_sources),
        needs_project=group.backend == "nova",
        host_service=state.host_service,
        ip6=tuple(str(IPv6Address(text)) for text in group.ip6),
        host_ip6=str(IPv6Address(group.host_ip6)),
        listener6=state.listener6,
        keys=keys_of(conf),
        meta=None
        if meta is None
        else MetaSide(
            meta,
            conf.METADATA.provider_vlan_id,
            str(management_socket("auto", ovsdb, meta.bridge)),
        ),
    )
