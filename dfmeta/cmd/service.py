"""The work that all services share: the log, the signals, and the log of readiness."""

from __future__ import annotations

import copy
import logging
import math
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Final

from dfmeta.errors import DfmetaError
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.hub import Health

LOG = logging.getLogger(__name__)

INTERVAL: Final = 2.0
"""Seconds between two checks."""
BLIP: Final = 2.0
"""Seconds that a part may be missing without a line: a reconnect takes less."""
DOCTOR: Final = "run `dfmeta doctor`"


def warn(errors: Iterable[DfmetaError]) -> None:
    """Log errors that do not stop the program, one line each."""
    for error in errors:
        LOG.warning("%s", error.line)


class NamingFormatter(logging.Formatter):
    """Appends the name of a dfmeta error to its line, as commands do."""

    def format(self, record: logging.LogRecord) -> str:
        """Format *record*; a traceback follows the line."""
        given = record.args if isinstance(record.args, tuple) else ()
        names = [f" [{value.name}]" for value in given if isinstance(value, DfmetaError)]
        if not names:
            return super().format(record)
        named = copy.copy(record)
        named.msg, named.args = record.getMessage() + names[-1], None
        return super().format(named)


def set_up_logging(*, debug: bool) -> None:
    """Log from level INFO on; with *debug*, from DEBUG on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(NamingFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    level = logging.DEBUG if debug else logging.INFO
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # These libraries log each message and each transaction with its contents.
    loud = ("os_ken", "ofp_event", "ovsdbapp", "pyroute2", "asyncio", "alembic", "sqlalchemy")
    for name in (*loud, "keystoneauth", "urllib3", "stevedore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It logs a line for each connection error; dfmeta handles these itself, or ends with them.
    logging.getLogger("os_ken.controller.controller").setLevel(logging.CRITICAL)
    logging.captureWarnings(True)


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

    def install(self) -> None:
        """Take the signals from now on."""
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        signal.signal(signal.SIGHUP, self._ask_reload)
        self._bell.ring_on_signals()

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
        self._logged: set[str] = set()

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
            if name not in self._logged and now - since >= BLIP:
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
