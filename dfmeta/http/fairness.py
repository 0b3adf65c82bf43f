"""Share the rounds of eventlet's hub among virtual machines, each with its containers.

In one round, the hub runs everything that is ready, then polls again. A guest with sixteen
connections would have sixteen requests in each round, and messages of the switch, or the first
request of another guest, would wait for all of them, round after round. So busy guests share a
slice of each round, one after the other, and a guest that has been idle is served at once. A guest
here is a virtual machine with its containers.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final

from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import get_hub, greenlet

SHARE: Final = 0.001
"""Seconds of a round for all waiting guests. The last piece of work may take longer.

A round costs a poll of the hub, and each connection that is accepted in a round of its own a failed
accept: with 0.5 ms, 32 clients cost 0.7 polls and 1.5 accepts a request, with 1 ms 0.35 and
1.3. A first SYN takes several rounds: with 2 ms, a guest that boots beside four floods
waits half as long again (bench.fairness)."""
REST: Final = 0.05
"""Seconds without a piece of work after which a guest need not wait for its next one."""
_LOOKED_AT: Final = 2
"""Guests that each turn checks in order to forget idle ones: more than a turn can add."""


class Rounds:
    """Assigns turns to guests.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._busy = False
        """Whether work has been done in this round or waits for the next one."""
        # In the order of their last turns: the first guest has been idle longest.
        self._seen: OrderedDict[Hashable, float] = OrderedDict()
        # Greenlets by guest; the first guest has waited longest.
        self._waiting: OrderedDict[Hashable, deque[Any]] = OrderedDict()

    def turn(self, guest: Hashable) -> None:
        """Wait until a guest may do a piece of work.

        Return at once if none has worked in this round, or if this one has been idle.
        """
        now = self._clock()
        self._forget_rested(now - REST)
        if not self._busy or guest not in self._seen:
            self._begin(guest, now)
            self._have_another()
            return
        one = threads.current()
        waiting = self._waiting.setdefault(guest, deque())
        waiting.append(one)
        try:
            get_hub().switch()
        finally:
            # The greenlet may have been killed meanwhile.
            if one in waiting:
                waiting.remove(one)

    def spawn(self, guest: Hashable, run: Callable[[], object]) -> None:
        """Call *run*, a piece of work, in a greenlet of its own at the guest's next turn.

        It begins in the next round if the guest has been idle.
        """
        now = self._clock()
        self._forget_rested(now - REST)
        if guest not in self._seen:
            self._begin(guest, now)
            threads.spawn_detached(run)
        else:
            self._waiting.setdefault(guest, deque()).append(greenlet(run, get_hub().greenlet))
        self._have_another()

    def _begin(self, guest: Hashable, now: float) -> None:
        self._seen[guest] = now
        self._seen.move_to_end(guest)

    def _have_another(self) -> None:
        if not self._busy:
            self._busy = True
            get_hub().schedule_call_global(0, self._round)

    def _round(self) -> None:
        self._busy = False
        if not self._waiting:
            return
        self._have_another()
        now = self._clock()
        until = now + SHARE
        while self._waiting and now < until:
            guest, waiting = self._waiting.popitem(last=False)
            if not waiting:
                continue
            one = waiting.popleft()
            if waiting:
                self._waiting[guest] = waiting
            self._begin(guest, now)
            one.switch()
            now = self._clock()

    def _forget_rested(self, since: float) -> None:
        for _ in range(_LOOKED_AT):
            if not self._seen:
                return
            guest, at = next(iter(self._seen.items()))
            if at > since:
                return
            del self._seen[guest]
