"""Errors that a guest can cause at will, in the log once a minute for each port and kind.

The first error is logged at once. Errors of its kind within the next minute are counted, and the
next line after that minute gives their number, so that the log stays readable and a guest cannot
fill the disk.

Trust: the arguments may come from the guest; the logger formats them, and they must be safe in a
log.
"""

from __future__ import annotations

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from dfmeta.model import Caller, Endpoint
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import Seldom, counted

ALL_GUESTS: Final = Endpoint(0)
"""Stands for all guests together."""
PORTS: Final = 4096
"""Ports with remembered errors. The port that was logged longest ago is forgotten first: its
next error is logged at once."""


class Complaints:
    """Logs errors, and suppresses repetitions.

    :param logger: logger of the part that reports the errors.
    :param clock: monotonic seconds.
    """

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = clock.now) -> None:
        self._logger = logger
        self._clock = clock
        # In the order of the last log line: the most recent port comes last.
        self._ports: OrderedDict[Caller, dict[str, Seldom]] = OrderedDict()

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
        held = kinds.setdefault(kind, Seldom(clock=self._clock)).take()
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
        del caller, kind
        self._logger.log(level, message, *args, stacklevel=3)

    def forget(self, caller: Caller) -> None:
        """Forget the errors of a port that another guest has now."""
        self._ports.pop(caller, None)


class Together(Complaints):
    """Complaints of all guests, limited as if they were one guest.

    A guest can invent addresses, but not ports: counted by address, the memory and the log lines
    would be unlimited.
    """

    def about(self, caller: Caller, kind: str, message: str, *args: object, **how: Any) -> None:
        """See :meth:`Complaints.about`."""
        del caller
        super().about(ALL_GUESTS, kind, message, *args, **how)
