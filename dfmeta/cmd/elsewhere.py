"""Refuses a start when tap-metadata is a port of another bridge."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from dfmeta.exceptions import AlreadyRunningError, DfmetaError, StartError
from dfmeta.ports.ovsdb import TapElsewhereError
from dfmeta.wiring.lock import BridgeLock


def refuse_elsewhere(error: DfmetaError, group: Any, argv: Sequence[str]) -> None:
    """End the start if *error* means that tap-metadata is on another bridge: waiting does not help.

    The port is not moved, since dfmeta's flows and meters would stay on the other bridge and lead
    nowhere.

    :param group: the options ``[df_metadata]``.
    :param argv: arguments of the daemon.
    :raises StartError: names the bridge, and the command that removes dfmeta's leftovers there.
    """
    found = error.__cause__
    if not isinstance(found, TapElsewhereError):
        return
    where = f"{found.tap} is a port of {found.bridge}"
    if _is_served(group.ovsdb_connection, found.bridge):
        raise StartError(
            cause=f"{where}, which another dfmeta-agent serves",
            remedy="Stop that daemon, or give this one its own [df_metadata] metadata_interface, "
            "host_ip, host_ip6, route_table and admin_listen",
        ) from error
    if not found.marked:
        raise StartError(
            cause=f"{where}, and dfmeta did not create it",
            remedy="Set another [df_metadata] metadata_interface, or delete the port: "
            f"ovs-vsctl del-port {found.bridge} {found.tap}",
        ) from error
    command = shlex.join(["dfmeta-agent", *argv, "--cleanup"])
    raise StartError(
        cause=f"{where}, which dfmeta has served before, and [df_metadata] integration_bridge is "
        f"{group.integration_bridge} now",
        remedy=f"Remove dfmeta's leftovers from {found.bridge}: "
        f"OS_DF_METADATA__INTEGRATION_BRIDGE={shlex.quote(found.bridge)} {command}",
    ) from error


def _is_served(ovsdb_connection: str, bridge: str) -> bool:
    try:
        with BridgeLock(ovsdb_connection, bridge):
            return False
    except AlreadyRunningError:
        return True
