"""The start's refusal where tap-metadata is a port of another bridge."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from dfmeta.exceptions import AlreadyRunningError, DfmetaError, StartError
from dfmeta.ports.ovsdb import TapElsewhereError
from dfmeta.wiring.lock import BridgeLock


def refuse_elsewhere(error: DfmetaError, group: Any, argv: Sequence[str]) -> None:
    """End the start if that is what *error* is about: no waiting changes it.

    The port is not moved: flows and meters of the other bridge would stay, without a way to lead.

    :param group: the options ``[df_metadata]``.
    :param argv: what the daemon was called with.
    :raises StartError: names the bridge, and the command that takes away what is there.
    """
    found = error.__cause__
    if not isinstance(found, TapElsewhereError):
        return
    where = f"{found.tap} is a port of {found.bridge}"
    if _is_served(group.ovsdb_connection, found.bridge):
        raise StartError(
            cause=f"{where}, which another dfmeta-agent serves",
            remedy="Stop that one, or give this one a [df_metadata] metadata_interface, host_ip, "
            "route_table and admin_listen of its own",
        ) from error
    if not found.marked:
        raise StartError(
            cause=f"{where}, and dfmeta has not made it",
            remedy="Give another [df_metadata] metadata_interface, or take the port away: "
            f"ovs-vsctl del-port {found.bridge} {found.tap}",
        ) from error
    command = shlex.join(["dfmeta-agent", *argv, "--cleanup"])
    raise StartError(
        cause=f"{where}, which dfmeta has served before, and [df_metadata] integration_bridge is "
        f"{group.integration_bridge} now",
        remedy=f"Take away what is left on {found.bridge}: "
        f"OS_DF_METADATA__INTEGRATION_BRIDGE={shlex.quote(found.bridge)} {command}",
    ) from error


def _is_served(ovsdb_connection: str, bridge: str) -> bool:
    try:
        with BridgeLock(ovsdb_connection, bridge):
            return False
    except AlreadyRunningError:
        return True
