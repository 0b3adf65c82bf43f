"""Why parts of the agent are missing, for the log of readiness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dfmeta.apps.probe import Probe
from dfmeta.cmd.readiness import DOCTOR
from dfmeta.doctor.checks_switch import CLEAR_RESTORE_WAIT, FORWARDS_NOTHING, set_secure
from dfmeta.ovsdb.rows import Bridge


def path_fault(bridge: Bridge | None, probe: Probe) -> str:
    """Return why guests' SYNs do not reach the proxy, as far as OVSDB and the probe show it."""
    if bridge is None or not bridge.fails_open:
        return probe.fault()
    name = probe.bridge
    return (
        f"no controller of {name} is connected, and without fail_mode secure Open vSwitch's own "
        f"flow takes all packets then: {set_secure(name)}; {DOCTOR}"
    )


def reasons(group: Any, fault: Callable[[], str]) -> dict[str, Callable[[], str]]:
    """Return the functions that explain missing parts of the agent.

    :param group: the options ``[df_metadata]``.
    :param fault: returns the fault of tap-metadata; empty when there is none.
    """
    bridge = group.integration_bridge

    def proxy() -> str:
        return (
            f"{fault()}; {DOCTOR}" if fault() else f"guests' connections are not accepted; {DOCTOR}"
        )

    def flows() -> str:
        # Without the device, flows have no target.
        return fault() or (
            f"the switch has not confirmed the flows of {bridge}. Check that ovs-vswitchd runs and "
            f"answers: ovs-ofctl -O OpenFlow13 show {bridge}"
        )

    return {
        "flow-restore-wait": lambda: f"{FORWARDS_NOTHING}: {CLEAR_RESTORE_WAIT}",
        "ovsdb": lambda: f"{group.ovsdb_connection} does not answer. Check that ovsdb-server runs",
        "bridge": lambda: f"OVSDB has no bridge {bridge}. Create it: ovs-vsctl add-br {bridge}",
        "flows": flows,
        "proxy": proxy,
    }
