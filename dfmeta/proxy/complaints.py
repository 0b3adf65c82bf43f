"""Errors that a guest can cause at will, in the log once a minute for each port and kind.

The first is said at once. Those that follow within a minute are counted, and the next one after it
says how many there were, so that a log stays readable and a guest cannot fill the disk.

Trust: the arguments may be the guest's; they are formatted by the logger and must be such as may
stand in a log.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from dfmeta.model import Caller, Endpoint
from dfmeta.quiet import Seldom, counted

NOBODY: Final = Endpoint(0)
"""Stands for all guests in what is said of them."""
PORTS: Final = 4096
"""Ports whose errors are remembered. The one of which nothing was logged for longest falls out: its
next error is said at once."""


class Complaints:
    """Logs errors, and holds back what repeats.

    :param logger: where they go; it names the part that complains.
    :param clock: monotonic seconds.
    """

    def __init__(
        self, logger: logging.Logger, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._clock = clock
        # The port of which something was logged last comes last.
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

        :param kind: a name of ours, never the guest's: kinds are as many as the program has.
        :param message: says what to do as well; with ``%s`` for *args*, which are formatted only
            when it is logged.
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
        """Log what is to be logged, whatever has been logged before."""
        del caller, kind
        self._logger.log(level, message, *args, stacklevel=3)

    def forget(self, caller: Caller) -> None:
        """Forget what was said of a port: another guest has it."""
        self._ports.pop(caller, None)


class Together(Complaints):
    """Complaints of all guests as of one.

    An address costs nothing to make up, where a port does: by address there would be no end to
    what is remembered and said.
    """

    def about(self, caller: Caller, kind: str, message: str, *args: object, **how: Any) -> None:
        """See :meth:`Complaints.about`."""
        del caller
        super().about(NOBODY, kind, message, *args, **how)
