"""The work that both services share: errors, signals, readiness, reports to systemd.

systemd's watchdog (``WatchdogSec=``) watches the hub, which has to run the greenthread that sends
its messages. The hub's threads watch over the other processes (:mod:`dfmeta.proxy.engines`).
"""

import faulthandler
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

from dfmeta.cmd import keepers, privileges
from dfmeta.errors import DfmetaError
from dfmeta.runtime import clock, hub, threads, throttle
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


def report_ready(environ: Mapping[str, str] = os.environ) -> None:
    """Report to systemd that the service is ready, and send its watchdog messages from now on.

    An earlier message would start the watchdog, and the start may take long.
    """
    keepers.notify(environ, "READY=1")
    seconds = watchdog_seconds(environ)
    if seconds:
        hub.VITAL.spawn("messages to systemd's watchdog", _feed, environ, seconds / 2)


def watchdog_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds after which the watchdog ends this process; 0: there is none.

    The variables are those of sd_watchdog_enabled(3). Child processes inherit them.
    """
    pid, usec = str(os.getpid()), environ.get("WATCHDOG_USEC", "")
    return int(usec) / 1e6 if usec.isdecimal() and environ.get("WATCHDOG_PID", pid) == pid else 0.0


def _feed(environ: Mapping[str, str], pause: float) -> None:
    while True:
        sent = keepers.notify(environ, "WATCHDOG=1")
        # systemd's queue may be full for a moment.
        threads.sleep(pause if sent else min(pause, clock.CHECK_INTERVAL))


def status_message(text: str) -> str:
    """Return the message with a status of one line, for ``systemctl status``."""
    return f"STATUS={' '.join(text.split())}"


@contextmanager
def reported_reload(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Report to systemd the begin and the end of a reload (sd_notify(3))."""
    keepers.notify(environ, f"RELOADING=1\nMONOTONIC_USEC={clock.now() * 1e6:.0f}")
    try:
        yield
    finally:
        keepers.notify(environ, "READY=1")


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
        # The watchdog ends a process by SIGABRT: the log then shows where each thread was.
        faulthandler.enable(logs.STDERR)
        privileges.allow_descriptors()
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

    systemd gets each change at once, for ``systemctl status``.

    :param why: name of a part → function that returns the fault and its remedy. For other parts the
        line only refers to ``dfmeta doctor``.
    :param facts: returns words about the service for its status.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        health: hub.Health,
        why: Mapping[str, Callable[[], str]],
        facts: Callable[[], str] = str,
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._health = health
        self._why = why
        self._facts = facts
        self._clock = clock
        self._status = ""
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
        readiness = f"DOWN ({', '.join(missing)})" if missing else "UP"
        status = status_message(f"{readiness}; {self._facts()}")
        if status != self._status:
            self._status = status
            keepers.notify(os.environ, status)
        for name in missing:
            since = self._since.setdefault(name, now)
            if name not in self._logged and now - since >= throttle.LONGEST_PAUSE:
                self._logged.add(name)
                why = self._why.get(name, lambda: DOCTOR)()
                LOG.warning("Readiness has been DOWN for %.0f s, %s: %s", now - since, name, why)
        for name in self._since.keys() - missing:
            since = self._since.pop(name)
            if name in self._logged:
                self._logged.remove(name)
                LOG.info("Readiness: %s is UP again after %.0f s", name, now - since)


def log_readiness(
    health: hub.Health,
    why: Mapping[str, Callable[[], str]],
    facts: Callable[[], str],
    ended: Callable[[], bool],
) -> None:
    """Start the log of readiness, which runs until the daemon has *ended*.

    :param why, facts: see :class:`ReadinessLog`.
    """
    log = ReadinessLog(health, why, facts)
    hub.VITAL.spawn("log of readiness", log.run, ended, may_return=True)
