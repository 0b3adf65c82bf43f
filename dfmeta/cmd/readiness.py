"""Logs the reasons of readiness DOWN: one line when a part goes missing, one when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import eventlet

from dfmeta import hub
from dfmeta.apps.probe import Probe
from dfmeta.health import Health
from dfmeta.inspect.checks_forwarding import CLEAR_RESTORE_WAIT, FORWARDS_NOTHING, set_secure
from dfmeta.ports.bridge_reader import Bridge
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

INTERVAL: Final = 2.0
"""Seconds between two checks."""
BLIP: Final = 2.0
"""Seconds that a part may be missing without a line: a reconnect takes less."""
DOCTOR: Final = "run `dfmeta doctor`"


class ReadinessLog:
    """Logs which parts are missing, after each has been missing for a moment.

    :param why: name of a part → function that returns the fault and its remedy. For other parts the
        line only refers to ``dfmeta doctor``.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        health: Health,
        why: Mapping[str, Callable[[], str]],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._health = health
        self._why = why
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def run(self, ended: Callable[[], bool]) -> None:
        """Check until the daemon has *ended*; run it in its own greenthread after the start."""
        while not ended():
            self.look()
            eventlet.sleep(INTERVAL)

    def look(self) -> None:
        """Check which parts are missing now."""
        missing, now = self._health.missing(), self._clock()
        for name in missing:
            since = self._since.setdefault(name, now)
            if name not in self._told and now - since >= BLIP:
                self._told.add(name)
                why = self._why.get(name, lambda: DOCTOR)()
                LOG.warning("Readiness has been DOWN for %.0f s, %s: %s", now - since, name, why)
        for name in self._since.keys() - missing:
            since = self._since.pop(name)
            if name in self._told:
                self._told.remove(name)
                LOG.info("Readiness: %s is UP again after %.0f s", name, now - since)


def begin(health: Health, why: Mapping[str, Callable[[], str]], ended: Callable[[], bool]) -> None:
    """Start the log of readiness, which runs until the daemon has *ended*.

    :param why: see :class:`ReadinessLog`.
    """
    said = ReadinessLog(health, why)
    hub.VITAL.spawn("log of readiness", said.run, ended, may_return=True)


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
