"""Logs the reasons of readiness DOWN: one line when a part goes missing, one when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.hub import Health

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
            threads.sleep(INTERVAL)

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
