"""Checks whether ovs-vswitchd forwards guests' packets by the flows of the bridge at all. Pure.

Two of its own states take the packets of all guests, whatever the flows are
(ovs-vswitchd.conf.db(5)): ``other_config:flow-restore-wait``, which a script of a restart may leave
behind, and a bridge that has lost its controllers without ``fail_mode`` secure.
"""

from __future__ import annotations

import re
from typing import Final

from dfmeta.doctor.checks_path import PathFacts
from dfmeta.doctor.finding import Finding, listed, ok, unknown, warning, wrong
from dfmeta.ovsdb.rows import RESTORE_WAIT, SECURE, Bridge

FORWARDS_NOTHING: Final = f"ovs-vswitchd forwards nothing while other_config:{RESTORE_WAIT} is true"
CLEAR_RESTORE_WAIT: Final = "`ovs-vsctl remove Open_vSwitch . other_config flow-restore-wait`"
_FAIL_OPEN: Final = re.compile(r"\bpriority 15790320\b")
"""0xf0f0f0, the priority of the hidden flow (ofproto/fail-open.h), in a trace."""


def set_secure(bridge: str) -> str:
    """Return the command after which *bridge* keeps to its flows without a controller."""
    return f"`ovs-vsctl set-fail-mode {bridge} {SECURE}`"


def restore_wait(is_set: bool, path: PathFacts | None) -> Finding:
    """Check that ovs-vswitchd does not wait for the end of a restoration of flows.

    :param is_set: whether the setting is true in OVSDB. Only a start of ovs-vswitchd reads it.
    :param path: result of the daemon's probe; None if the daemon does not run.
    """
    if not is_set:
        return ok("flow-restore-wait", "ovs-vswitchd does not wait for a restoration of flows")
    if path is not None and path.answered:
        return warning(
            "flow-restore-wait",
            f"other_config:{RESTORE_WAIT} is true: ovs-vswitchd forwards, and will forward nothing "
            "after its next start",
            CLEAR_RESTORE_WAIT,
        )
    return wrong(
        "flow-restore-wait",
        f"{FORWARDS_NOTHING}: no guest of this host has a network. A restart of Open vSwitch sets "
        "it until it has restored the flows; a script that has failed leaves it behind",
        f"{CLEAR_RESTORE_WAIT}, unless a restart of Open vSwitch is under way",
    )


def is_at_risk(bridge: Bridge) -> bool:
    """Return whether *bridge* leaves its flows when its controllers are away."""
    return bool(bridge.controllers) and bridge.fail_mode != SECURE


def fail_mode(bridge: Bridge, trace: str, cause: str = "") -> Finding:
    """Check that *bridge* does not fail open: Open vSwitch's own flow would take all packets.

    :param trace: a trace of any packet through the bridge, while it is at risk.
    :param cause: why there is no trace; empty if there is one.
    """
    if not is_at_risk(bridge):
        why = "has no controller" if not bridge.controllers else "has fail_mode secure"
        return ok("fail-mode", f"{bridge.name} {why}: it keeps to its flows")
    away = listed(one.target for one in bridge.controllers if not one.connected)
    if _FAIL_OPEN.search(trace):
        return wrong(
            "fail-mode",
            f"no controller of {bridge.name} answers ({away}), and fail_mode is not secure: a flow "
            "of Open vSwitch itself takes all packets before any other flow (fail open)",
            f"{set_secure(bridge.name)}; or start the controller; or, if none is needed, "
            f"`ovs-vsctl del-controller {bridge.name}`",
        )
    if cause:
        return unknown("fail-mode", f"not checked: {cause}")
    if all(not one.connected for one in bridge.controllers):
        return warning(
            "fail-mode",
            f"no controller of {bridge.name} answers ({away}), and fail_mode is not secure: Open "
            "vSwitch is about to take all packets by a flow of its own (fail open)",
            f"{set_secure(bridge.name)}; or `ovs-vsctl del-controller {bridge.name}`",
        )
    return ok("fail-mode", f"{bridge.name} has a connected controller: it keeps to its flows")
