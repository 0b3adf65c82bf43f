"""Refuses a start when a port of another bridge has the name of one of dfmeta's."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from dfmeta.conf.metadata import META_IP, TAP
from dfmeta.errors import AlreadyRunningError, DfmetaError, StartError
from dfmeta.ovsdb.meta_bridge import TapElsewhereError
from dfmeta.wiring.process import BridgeLock


def refuse_elsewhere(error: DfmetaError, group: Any, argv: Sequence[str]) -> None:
    """End the start if *error* means that a port of dfmeta is on another bridge: waiting does not
    help.

    The port is not moved, since dfmeta's flows would stay on the other bridge and lead
    nowhere.

    :param group: the options ``[df_metadata]``.
    :param argv: arguments of the daemon.
    :raises StartError: names the bridge, and the command that removes dfmeta's leftovers there.
    """
    found = error.__cause__
    if not isinstance(found, TapElsewhereError):
        return
    where = f"{found.tap} is a port of {found.bridge}"
    has_meta_ips = group.identity_scheme == META_IP
    owner = found.owner or found.bridge
    # The daemon itself holds the lock on its own bridge.
    if owner != group.integration_bridge and _is_served(group.ovsdb_connection, owner):
        own = "metadata_interface, host_ip, host_ip6, route_table and admin_listen"
        in_port = "identity_scheme = in_port and " if has_meta_ips else ""
        raise StartError(
            cause=f"{where}, which another dfmeta-agent serves",
            remedy=f"Stop that daemon, or give this one {in_port}its own [df_metadata] {own}",
        ) from error
    if found.owner is None:
        remedy = f"Delete the port: ovs-vsctl del-port {found.bridge} {found.tap}"
        if not has_meta_ips or found.tap != TAP:  # no option names tap-meta
            option = "meta_bridge" if has_meta_ips else "metadata_interface"
            remedy = f"Set another [df_metadata] {option}, or d{remedy[1:]}"
        raise StartError(cause=f"{where}, and dfmeta did not create it", remedy=remedy) from error
    command = shlex.join(["dfmeta-agent", *argv, "--cleanup"])
    raise StartError(
        cause=f"{where}, which dfmeta has served before, and [df_metadata] integration_bridge is "
        f"{group.integration_bridge} now",
        remedy=f"Remove dfmeta's leftovers from {found.owner}: "
        f"OS_DF_METADATA__INTEGRATION_BRIDGE={shlex.quote(found.owner)} {command}",
    ) from error


def _is_served(ovsdb_connection: str, bridge: str) -> bool:
    try:
        with BridgeLock(ovsdb_connection, bridge):
            return False
    except AlreadyRunningError:
        return True
