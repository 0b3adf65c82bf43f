"""The work that both services share: errors, signals, and the log of readiness."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from dfmeta.cmd.privileges import allow_descriptors
from dfmeta.errors import DfmetaError
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.hub import Health
from dfmeta.runtime.throttle import LONGEST_PAUSE
from dfmeta.wiring import logs

LOG = logging.getLogger(__name__)

GRACE: Final = 3.8
"""Seconds from SIGTERM until requests that are still held are closed; 4 are documented."""
DOCTOR: Final = "run `dfmeta doctor`"


def run_service(prog: str, start: Callable[[], int]) -> int:
    """Run a service, and return its exit status; one line on stderr reports an error.

    :param start: returns the exit status.
    """
    try:
        return start()
    except Exception as error:
        logs.print_last(prog, error)
        return 2 if isinstance(error, DfmetaError) else 1


class Signals:
    """Notes signals for the main loop, which the bell wakes.

    :param bell: rung at each signal.
    """

    def __init__(self, bell: hub.Bell) -> None:
        self._bell = bell
        self.ending = False
        """Whether a signal to end has come."""
        self.ended_at = math.inf
        """Time of the first of them, monotonic seconds; infinite when an error ends the process."""
        self._reload = False

    def start(self) -> None:
        """Take the signals from now on, and prepare the process and the hub for the service."""
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        signal.signal(signal.SIGHUP, self._ask_reload)
        self._bell.ring_on_signals()
        allow_descriptors()
        hub.prepare()
        hub.watch()
        hub.VITAL.on_failure = self._bell.ring

    @property
    def grace(self) -> float:
        """Seconds that are left of :data:`GRACE`; all of them when an error ends the process."""
        return max(0.0, GRACE - max(0.0, clock.now() - self.ended_at))

    def take_reload(self) -> bool:
        """Return whether SIGHUP has come since the last call."""
        reload, self._reload = self._reload, False
        return reload

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if not self.ending:
            self.ended_at = clock.now()
        self.ending = True

    def _ask_reload(self, _number: int, _frame: FrameType | None) -> None:
        self._reload = True


class ReadinessLog:
    """Logs which parts are missing, after each has been missing for longer than a reconnect takes.

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
        self._logged: set[str] = set()

    def run(self, ended: Callable[[], bool]) -> None:
        """Check until the daemon has *ended*; run it in its own greenthread after the start."""
        while not ended():
            self.check()
            threads.sleep(clock.CHECK_INTERVAL)

    def check(self) -> None:
        """Check which parts are missing now."""
        missing, now = self._health.missing(), self._clock()
        for name in missing:
            since = self._since.setdefault(name, now)
            if name not in self._logged and now - since >= LONGEST_PAUSE:
                self._logged.add(name)
                why = self._why.get(name, lambda: DOCTOR)()
                LOG.warning("Readiness has been DOWN for %.0f s, %s: %s", now - since, name, why)
        for name in self._since.keys() - missing:
            since = self._since.pop(name)
            if name in self._logged:
                self._logged.remove(name)
                LOG.info("Readiness: %s is UP again after %.0f s", name, now - since)


def log_readiness(
    health: Health, why: Mapping[str, Callable[[], str]], ended: Callable[[], bool]
) -> None:
    """Start the log of readiness, which runs until the daemon has *ended*.

    :param why: see :class:`ReadinessLog`.
    """
    hub.VITAL.spawn("log of readiness", ReadinessLog(health, why).run, ended, may_return=True)
