"""The service of one server: everything that its connections share, in fair shares.

In one round, the hub runs everything that is ready, then polls again. A guest with sixteen
connections would have sixteen requests in each round, and messages of the switch, or the first
request of another guest, would wait for all of them, round after round. So busy guests share a
slice of each round, one after the other, and a guest that has been idle is served at once. A guest
here is a virtual machine with its containers.

The service is generic over the claim of a connection: the client that it was accepted for.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, Protocol, TypeVar

from dfmeta import metrics, model
from dfmeta.errors import BodyFault, HeadFault
from dfmeta.http.exchange import ClientClaim, Handler, K
from dfmeta.http.limits import CROWDED, ConnectionLimiter, Limits
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import Semaphore, get_hub, greenlet

SHARE: Final = 0.001
"""Seconds of a round for all waiting guests. The last piece of work may take longer.

A round costs a poll of the hub, and each connection that is accepted in a round of its own a failed
accept: with 0.5 ms, 32 clients cost 0.7 polls and 1.5 accepts a request, with 1 ms 0.35 and
1.3. A first SYN takes several rounds: with 2 ms, a guest that boots beside four floods
waits half as long again (bench.fairness)."""
REST: Final = 0.05
"""Seconds without a piece of work after which a guest need not wait for its next one."""
AT_ONCE: Final = 64
PER_SECOND: Final = 32.0
"""Connections of a guest that may be refused without a pause, and how many more per second."""
LONGEST: Final = 1.0
"""Longest time, in seconds, that a refused connection keeps its place."""
_LOOKED_AT: Final = 2
"""Guests that each turn checks in order to forget idle ones: more than a turn can add."""


class FairScheduler:
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

    def acquire(self, guest: Hashable) -> None:
        """Wait until a guest may do a piece of work.

        Return at once if none has worked in this round, or if this one has been idle.
        """
        now = self._clock()
        self._forget_rested(now - REST)
        if not self._busy or guest not in self._seen:
            self._begin(guest, now)
            self._have_another()
            return
        current = threads.current()
        waiting = self._waiting.setdefault(guest, deque())
        waiting.append(current)
        try:
            get_hub().switch()
        finally:
            # The greenlet may have been killed meanwhile.
            if current in waiting:
                waiting.remove(current)

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
            following = waiting.popleft()
            if waiting:
                self._waiting[guest] = waiting
            self._begin(guest, now)
            following.switch()
            now = self._clock()

    def _forget_rested(self, since: float) -> None:
        for _ in range(_LOOKED_AT):
            if not self._seen:
                return
            guest, at = next(iter(self._seen.items()))
            if at > since:
                return
            del self._seen[guest]


class RefusalThrottle:
    """Limits how often connections of a guest are closed with unread input.

    Such an end costs more than an answer, since the next request needs a new connection, which is
    accepted, read and refused again. So the connection keeps its place among those of its port
    until the guest is within its share. A guest with occasional errors never waits.

    :param clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.now) -> None:
        self._clock = clock
        self._until: OrderedDict[Hashable, float] = OrderedDict()
        """Guest → time at which its full share is available again, in the order of the last end."""

    def pause(self, guest: Hashable) -> float:
        """Count an end; return the seconds for which the connection keeps its place."""
        now = self._clock()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        until = max(self._until.get(guest, now), now) + 1 / PER_SECOND
        pause = min(max(until - now - AT_ONCE / PER_SECOND, 0.0), LONGEST)
        # Bounded: otherwise a flood would delay the connections of the guest, and of the next guest
        # at its port, long after its end.
        self._until[guest] = min(until, now + AT_ONCE / PER_SECOND + LONGEST)
        self._until.move_to_end(guest)
        return pause


K_contra = TypeVar("K_contra", bound=ClientClaim, contravariant=True)


class ConnectionObserver(Protocol[K_contra]):
    """Counts and logs what happens to connections, besides answered requests."""

    def accepted(self, claim: K_contra, /) -> None:
        """Count an accepted connection."""
        del claim

    def closed(self, reason: metrics.Closed, /) -> None:
        """Count a connection that ends without an answer."""
        ...

    def limited(self, limit: metrics.Limit, /) -> None:
        """Count a connection that has reached a limit: it waits, is refused or is given up."""
        ...

    def silent(self, claim: K_contra, /) -> None:
        """Count a connection that sent nothing in time."""
        ...

    def refused(self, claim: K_contra, status: int, reason: HeadFault | BodyFault, /) -> None:
        """Count input that is not an acceptable request."""
        ...


class HttpService(Generic[K]):
    """The application of a server, its limits, and the places and turns of its connections.

    :param application: called for each request.
    :param hold_timeout: seconds that a request may wait in total, including the time that its first
        SYN was held.
    :param throttle: limits how often a client's connections are refused; None: no limit.
    """

    def __init__(
        self,
        application: Handler[K],
        observer: ConnectionObserver[K],
        *,
        limits: Limits,
        hold_timeout: float = 0.0,
        throttle: RefusalThrottle | None = None,
    ) -> None:
        self.application = application
        self.observer = observer
        self.hold_timeout = hold_timeout
        self.draining = False
        """Whether the server stops, so that no connection is kept."""
        self.limiter: ConnectionLimiter[Any] = ConnectionLimiter(
            limits, quiet=lambda connection: connection.evictable
        )
        self.scheduler = FairScheduler()
        self._throttle = throttle
        self._slots: dict[model.Caller, Semaphore] = {}

    @property
    def limits(self) -> Limits:
        """Limits of clients; new limits apply from the next connection and request on."""
        return self.limiter.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Replace the limits."""
        self.limiter.limits = limits
        self._slots.clear()

    def may_keep(self, claim: K, *, protected: bool) -> bool:
        """Whether a connection may be kept open after an answer.

        It is not when others of its port wait for a place: the answer says so.

        :param protected: its next request has to come on it.
        """
        limits = self.limits
        if not limits.keepalive_timeout or len(self.limiter) >= CROWDED * limits.connections:
            return False
        return protected or not self.limiter.awaited(claim.caller)

    def slots(self, claim: K) -> Semaphore:
        """Return the semaphore for requests of the claim's port."""
        slots = self._slots.get(claim.caller)
        if slots is None:
            slots = self._slots[claim.caller] = Semaphore(self.limits.requests_per_port)
        return slots

    def forget(self, caller: model.Caller) -> None:
        """Forget a port without connections."""
        self._slots.pop(caller, None)

    def throttle(self, sharer: Hashable) -> None:
        """Keep the place of a refused connection until its guest is within its share."""
        pause = self._throttle.pause(sharer) if self._throttle is not None else 0.0
        if pause and not self.draining:
            threads.sleep(pause)
