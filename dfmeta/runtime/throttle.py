"""Pauses after failures (:class:`Backoff`), and rate limits for repeated log lines.

A server, a source or a query that failed rests before the next try; without that each caller of a
dead server would wait for its time limit. Callers use another one meanwhile, or get the failure
again at once. After the rest tries are allowed again: the first of them that fails begins the next
rest, which may be longer, and one that succeeds ends the series.

Of similar log lines, the first is logged at once. Those within the next minute are counted, and the
next line after that minute gives their number, so that the log does not fill the disk. Trust: the
arguments of :class:`Complaints` may come from a guest; the logger formats them, and they must be
safe in a log.
"""

import logging
import math
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from dfmeta.model import Caller, Endpoint
from dfmeta.runtime import clock

FIRST_PAUSE: Final = 0.1
"""Seconds from a failure to the next try, and shortest pause between two rounds of work."""
LONGEST_PAUSE: Final = 4.0
"""Seconds to the next try after many failures, less than a guest waits."""
SHARE: Final = 0.03
"""Share of the time that regular work on thousands of ports may take."""
PROGRESS: Final = 5.0
"""Seconds between two lines about a wait or a long piece of work."""
QUIET: Final = 60.0
"""Seconds after a log line in which similar lines are only counted."""
ALL_GUESTS: Final = Endpoint(0)
"""Stands for all guests together."""
PORTS: Final = 8192
"""Ports, or guests, of which errors, requests or signatures are remembered. The one that was used
longest ago is forgotten first."""


class Backoff:
    """The rest of one thing after its failures. All times are monotonic seconds.

    It neither waits nor reads a clock, and does not limit the number of tries after a rest: a
    caller that allows only one holds a lock of its own.

    :param first: seconds of the first rest.
    :param most: each rest of a series is twice as long as the one before, up to this.
    """

    __slots__ = ("_failures", "_first", "_most", "until")

    def __init__(self, first: float = FIRST_PAUSE, most: float = LONGEST_PAUSE) -> None:
        self._first, self._most = first, most
        self._failures = 0
        self.until = -math.inf
        """The end of the latest rest."""

    def rests(self, now: float) -> bool:
        """Return whether it rests; no longer at the very end of the rest."""
        return now < self.until

    def failed(self, now: float) -> None:
        """Begin a rest. One in progress is replaced, so that it lasts longer."""
        # A power is bounded before it is computed: a float overflows after 1,024 failures.
        self.until = now + min(self._most, self._first * 2.0 ** min(self._failures, 64))
        self._failures += 1

    def reset(self) -> None:
        """Give the next rest the first length again. A rest in progress goes on."""
        self._failures = 0

    def succeeded(self) -> None:
        """End the rest and the series."""
        self._failures, self.until = 0, -math.inf


def pause_after(seconds: float) -> float:
    """Return the pause after a round of regular work that took *seconds*."""
    return min(seconds / SHARE, LONGEST_PAUSE)


class LogThrottle:
    """Logs the first of many similar lines, and counts those that follow within a minute.

    :param lines: maximum number of lines in a minute.
    :param clock: monotonic seconds.
    """

    def __init__(self, lines: int = 1, *, clock: Callable[[], float] = clock.now) -> None:
        self._lines, self._clock = lines, clock
        self._since = float("-inf")
        self._logged = self._held = 0

    def take(self) -> int | None:
        """Return the number of lines suppressed before this one; None: suppress this one too."""
        now = self._clock()
        if now - self._since >= QUIET:
            self._since, self._logged = now, 0
        if self._logged >= self._lines:
            self._held += 1
            return None
        self._logged += 1
        held, self._held = self._held, 0
        return held

    def warn(self, log: logging.Logger, message: str, *values: object) -> None:
        """Log at WARNING, unless the line is to be suppressed."""
        held = self.take()
        if held is not None:
            message += counted(held)
            log.warning(message, *values)


def counted(held: int) -> str:
    """Return the suffix of a line that reports *held* suppressed lines; empty for 0."""
    return f" (and {held} more like it since it was last logged)" if held else ""


class Complaints:
    """Logs errors that a guest can cause at will, each kind once a minute for each port.

    :param logger: logger of the part that reports the errors.
    :param clock: monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = clock.now) -> None:
        self._logger = logger
        self._clock = clock
        # In the order of the last log line: the most recent port comes last.
        self._ports: OrderedDict[Caller, dict[str, LogThrottle]] = OrderedDict()

    def about(
        self,
        caller: Caller,
        kind: str,
        message: str,
        *args: object,
        level: int = logging.WARNING,
        exc_info: bool = False,
    ) -> None:
        """Log an error of a port, unless one of its kind was logged within the last minute.

        :param kind: a name from dfmeta's code, never from the guest, so that their number is
            limited.
        :param message: includes the remedy; with ``%s`` for *args*, which are formatted only if
            the message is logged.
        :param exc_info: log the traceback of the exception that is being handled.
        """
        kinds = self._ports.setdefault(caller, {})
        held = kinds.setdefault(kind, LogThrottle(clock=self._clock)).take()
        if held is None:
            return
        self._ports.move_to_end(caller)
        if len(self._ports) > PORTS:
            self._ports.popitem(last=False)
        message += counted(held)
        if exc_info:
            message += "\n%s"
            args = (*args, traceback.format_exc())
        self.say(caller, kind, level, message, *args)

    def say(self, caller: Caller, kind: str, level: int, message: str, *args: object) -> None:
        """Log the message unconditionally."""
        self._logger.log(level, message, *args, stacklevel=3)

    def forget(self, caller: Caller) -> None:
        """Forget the errors of a port that another guest has now."""
        self._ports.pop(caller, None)


class SharedComplaints(Complaints):
    """Complaints of all guests, limited as if they were one guest.

    A guest can invent addresses, but not ports: counted by address, the memory and the log lines
    would be unlimited.
    """

    def about(self, caller: Caller, kind: str, message: str, *args: object, **how: Any) -> None:
        """See :meth:`Complaints.about`."""
        super().about(ALL_GUESTS, kind, message, *args, **how)
