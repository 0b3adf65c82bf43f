"""What keeps readiness DOWN, in the daemon's log: a line when it begins, and one when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import eventlet

from dfmeta import hub
from dfmeta.health import Health

LOG = logging.getLogger(__name__)

INTERVAL: Final = 2.0
"""Seconds between two looks."""
BLIP: Final = 2.0
"""Seconds that a part may be missing without a line: a reconnect takes less."""
STORE_AWAY: Final = "the database of [store] connection does not answer"
DOCTOR: Final = "`dfmeta doctor` says more"


class ReadinessLog:
    """Says which part is missing, from when it has been for a moment.

    :param why: name of a part → what is wrong with it and what to do, where there is more to say
        than the doctor's name.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        health: Health,
        why: Mapping[str, Callable[[], str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._health = health
        self._why = why
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def run(self, ended: Callable[[], bool]) -> None:
        """Look until the daemon has *ended*; run it in a thread of its own, once it is ready."""
        while not ended():
            self.look()
            eventlet.sleep(INTERVAL)

    def look(self) -> None:
        """Look at what is missing now."""
        missing, now = self._health.missing(), self._clock()
        for name in missing:
            since = self._since.setdefault(name, now)
            if name not in self._told and now - since >= BLIP:
                self._told.add(name)
                why = self._why.get(name, lambda: DOCTOR)()
                LOG.warning("Readiness is DOWN since %.0f s, %s: %s", now - since, name, why)
        for name in self._since.keys() - missing:
            since = self._since.pop(name)
            if name in self._told:
                self._told.remove(name)
                LOG.info("Readiness: %s is UP again after %.0f s", name, now - since)


def begin(health: Health, why: Mapping[str, Callable[[], str]], ended: Callable[[], bool]) -> None:
    """Say it from now on until the daemon has *ended*.

    :param why: see :class:`ReadinessLog`.
    """
    said = ReadinessLog(health, why)
    hub.VITAL.spawn("log of readiness", said.run, ended, may_return=True)


def reasons(group: Any, fault: Callable[[], str]) -> dict[str, Callable[[], str]]:
    """Give the reasons of the agent's parts.

    :param group: the options ``[df_metadata]``.
    :param fault: what is wrong with tap-metadata; empty when nothing is.
    """
    bridge = group.integration_bridge

    def proxy() -> str:
        return f"{fault()}; {DOCTOR}" if fault() else f"no guest's connection is taken; {DOCTOR}"

    def flows() -> str:
        # Without the device there is nothing that flows could lead to.
        return fault() or (
            f"the switch has not confirmed the flows of {bridge}. See that ovs-vswitchd runs and "
            f"answers: ovs-ofctl -O OpenFlow13 show {bridge}"
        )

    return {
        "ovsdb": lambda: f"{group.ovsdb_connection} does not answer. See that ovsdb-server runs",
        "bridge": lambda: f"OVSDB has no bridge {bridge}. Make it: ovs-vsctl add-br {bridge}",
        "flows": flows,
        "proxy": proxy,
        "store": lambda: f"{STORE_AWAY}; {DOCTOR}",
    }
