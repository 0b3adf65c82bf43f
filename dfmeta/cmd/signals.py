"""The signals of a daemon: SIGTERM and SIGINT end it, SIGHUP reloads its configuration."""

from __future__ import annotations

import math
import signal
from types import FrameType

from dfmeta.runtime import clock, hub


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
        asked, self._reload = self._reload, False
        return asked

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if not self.ending:
            self.ended_at = clock.now()
        self.ending = True

    def _ask_reload(self, _number: int, _frame: FrameType | None) -> None:
        self._reload = True
