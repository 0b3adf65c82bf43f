"""Whose turn it is on the hub: no port has a round of it to itself.

The hub goes on with everything that is ready, then looks again: that is a round. A guest with
sixteen connections would have sixteen requests in each, and what comes from the switch, or from
another guest for the first time, would wait for all of them, round after round. So ports that ask
again and again share a slice of each round, port by port, and one that has rested goes at once.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

import eventlet
from eventlet.hubs import get_hub

from dfmeta.model import Caller

SHARE: Final = 0.0005
"""Seconds of a round for all that waits. The last piece of work may take longer."""
REST: Final = 0.05
"""Seconds without a piece of work after which a port need not wait for its next one."""
_LOOKED_AT: Final = 2
"""Ports that each piece looks at, to forget those that have rested: more than it can add."""


class Rounds:
    """Turns of ports.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy = False
        """Whether a piece of work has been done in this round, or waits for the next one."""
        # By their last turns, so that the first has rested longest.
        self._seen: OrderedDict[Caller, float] = OrderedDict()
        # Greenlets by port; the first port has waited longest.
        self._waiting: OrderedDict[Caller, deque[Any]] = OrderedDict()

    def turn(self, caller: Caller) -> None:
        """Return when a port may do a piece of work.

        At once where no other has done one in this round, or the port has rested.
        """
        self._forget_rested()
        if not self._busy or caller not in self._seen:
            self._begin(caller)
            self._have_another()
            return
        one = eventlet.getcurrent()
        waiting = self._waiting.setdefault(caller, deque())
        waiting.append(one)
        try:
            get_hub().switch()
        finally:
            # It may have been killed meanwhile.
            if one in waiting:
                waiting.remove(one)

    def _begin(self, caller: Caller) -> None:
        self._seen[caller] = self._clock()
        self._seen.move_to_end(caller)

    def _have_another(self) -> None:
        if not self._busy:
            self._busy = True
            get_hub().schedule_call_global(0, self._round)

    def _round(self) -> None:
        self._busy = False
        if not self._waiting:
            return
        self._have_another()
        until = self._clock() + SHARE
        while self._waiting and self._clock() < until:
            caller, waiting = self._waiting.popitem(last=False)
            if not waiting:
                continue
            one = waiting.popleft()
            if waiting:
                self._waiting[caller] = waiting
            self._begin(caller)
            one.switch()

    def _forget_rested(self) -> None:
        since = self._clock() - REST
        for _ in range(_LOOKED_AT):
            if not self._seen:
                return
            caller, at = next(iter(self._seen.items()))
            if at > since:
                return
            del self._seen[caller]
