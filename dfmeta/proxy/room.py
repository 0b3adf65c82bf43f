"""Which connections are served, which wait and which have to go. No I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from dfmeta.metrics import Limit
from dfmeta.model import Caller
from dfmeta.proxy.limits import Limits

C = TypeVar("C")


class Decision(enum.Enum):
    """What becomes of a connection that has been accepted."""

    SERVED = enum.auto()
    WAITS = enum.auto()
    """Until :meth:`Room.leave` gives it back."""
    REFUSED = enum.auto()


@dataclass(frozen=True, slots=True)
class Entry(Generic[C]):
    """What :meth:`Room.enter` has decided."""

    decision: Decision
    limit: Limit | Literal[""] = ""
    """Name of the limit that was reached, as its option has it."""
    close: tuple[C, ...] = ()
    """Kept connections to be closed for it; they still leave by :meth:`Room.leave`."""
    gone: C | None = None
    """One that waited and has lost its place; it has left already."""


@dataclass(slots=True)
class _Port(Generic[C]):
    served: set[C] = field(default_factory=set)
    waiting: deque[C] = field(default_factory=deque)
    idle: dict[C, None] = field(default_factory=dict)
    """In the order in which they became so."""


class Room(Generic[C]):
    """Connections by port. A port that has all that it may have is nobody else's loss.

    :param limits: may be replaced; what is there stays.
    :param quiet: whether nothing has come on an idle connection that is to be closed.
    """

    def __init__(self, limits: Limits, *, quiet: Callable[[C], bool]) -> None:
        self.limits = limits
        self._quiet = quiet
        self._ports: dict[Caller, _Port[C]] = {}
        self._idle: dict[C, Caller] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def __iter__(self) -> Iterator[C]:
        for caller in list(self._ports):
            yield from self.of(caller)

    def of(self, caller: Caller) -> list[C]:
        """Connections of that port, those that wait among them."""
        port = self._ports.get(caller)
        return [*port.served, *port.waiting] if port else []

    def awaited(self, caller: Caller) -> int:
        """How many connections of that port wait for a place."""
        port = self._ports.get(caller)
        return len(port.waiting) if port is not None else 0

    def crowded(self) -> list[Caller]:
        """Ports of which connections wait for a place."""
        return [caller for caller, port in self._ports.items() if port.waiting]

    def waits(self, caller: Caller, one: C) -> bool:
        """Whether it has not been served yet."""
        port = self._ports.get(caller)
        return port is not None and one in port.waiting

    def enter(self, caller: Caller, one: C) -> Entry[C]:
        """Find a place for a connection of that port."""
        close: list[C] = []
        gone = None
        full = self._total >= self.limits.connections
        if full:
            close += self._take_idle(self._idle)
            gone = None if close else self._take_waiting(caller)
            if not close and gone is None:
                return Entry(Decision.REFUSED, "connections")
        port = self._ports.setdefault(caller, _Port())
        if len(port.served) < self.limits.connections_per_port:
            port.served.add(one)
            self._total += 1
            return Entry(Decision.SERVED, "connections" if full else "", tuple(close), gone)
        own = [known for known in close if known in port.served] or self._take_idle(port.idle)
        close += [known for known in own if known not in close]
        if len(port.waiting) >= self.limits.waiting_per_port and not own:
            return Entry(Decision.REFUSED, "waiting_per_port", tuple(close), gone)
        port.waiting.append(one)
        self._total += 1
        return Entry(Decision.WAITS, "connections_per_port", tuple(close), gone)

    def leave(self, caller: Caller, one: C) -> C | None:
        """Forget a connection; gives the one that is to be served in its place."""
        port = self._ports.get(caller)
        if port is None:
            return None
        self.busy(caller, one)
        if one in port.served:
            port.served.remove(one)
        elif one in port.waiting:
            port.waiting.remove(one)
        else:
            return None
        self._total -= 1
        following = None
        if port.waiting and len(port.served) < self.limits.connections_per_port:
            following = port.waiting.popleft()
            port.served.add(following)
        if not port.served and not port.waiting:
            del self._ports[caller]
        return following

    def idle(self, caller: Caller, one: C) -> None:
        """Note that a connection has been answered and is kept for another request."""
        port = self._ports.get(caller)
        if port is not None and one in port.served:
            port.idle[one] = None
            self._idle[one] = caller

    def longest_idle(self, wanted: Callable[[C], bool], caller: Caller | None = None) -> C | None:
        """Take the longest idle connection that is *wanted*, to be closed; None: there is none.

        :param caller: its port; None: any.
        """
        port = self._ports.get(caller) if caller is not None else None
        idle = self._idle if caller is None else port.idle if port is not None else {}
        found = self._take_idle(one for one in idle if wanted(one))
        return found[0] if found else None

    def busy(self, caller: Caller, one: C) -> None:
        """Note that a request has begun to come on it."""
        self._idle.pop(one, None)
        port = self._ports.get(caller)
        if port is not None:
            port.idle.pop(one, None)

    def _take_idle(self, candidates: Iterable[C]) -> list[C]:
        found = next((one for one in candidates if self._quiet(one)), None)
        if found is None:
            return []
        self.busy(self._idle[found], found)
        return [found]

    def _take_waiting(self, caller: Caller) -> C | None:
        """Take the newest from whoever has most that wait, if that is more than *caller*."""
        greediest = max(self._ports, key=lambda one: len(self._ports[one].waiting), default=None)
        if greediest is None:
            return None
        port, own = self._ports[greediest], self._ports.get(caller)
        if len(port.waiting) <= (len(own.waiting) if own else 0):
            return None
        self._total -= 1
        return port.waiting.pop()
