"""Tells processes beside the daemon which guest is at which endpoint, as it changes.

How it works: the registry names each endpoint of which anything is about to change, and the feed
puts it on a list once, in the order of the first change. The list is worked off in batches; what a
batch says is read from the registry at that moment, so a later change of the same endpoint needs no
second entry. Every follower gets every batch, in the same order. :meth:`Feed.inform` sends what is
on the list now and waits until each follower has it: no guest may go on before.

A new follower gets all endpoints first (:meth:`Feed.introduce`); later changes come behind them,
since it is among the followers already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import eventlet
from eventlet.event import Event

from dfmeta.hub import Turns
from dfmeta.model import Endpoint
from dfmeta.registry import Registry

BATCH: Final = 32
"""Endpoints that one message tells of."""
SETTLE_TIMEOUT: Final = 1.0
"""Seconds that a follower has to take what it is told: the news of hundreds of ports fits into what
is under way to it."""
POLL: Final = 0.01


class Follower(Protocol):
    """A process that is told."""

    @property
    def follows(self) -> bool:
        """Whether it answers guests, and so has to have all news before a guest goes on."""
        ...

    @property
    def position(self) -> int:
        """How much it has been told in all."""
        ...

    def tell(self, news: Any) -> None:
        """Send it a batch; must not wait."""
        ...

    def has(self, position: int) -> bool:
        """Whether it finds all that it was told up to that position, or is not there any more."""
        ...


F = TypeVar("F", bound=Follower)


class Feed(Generic[F]):
    """The news of a registry, for any number of followers.

    :param say: gives what a batch says of endpoints. Called with True for a follower that is new:
        then it may take nothing out of the registry that is given away once.
    :param followers: gives those that there are now, new ones included.
    """

    def __init__(
        self,
        registry: Registry,
        say: Callable[[Sequence[Endpoint], bool], object],
        followers: Callable[[], Iterable[F]],
    ) -> None:
        self._registry = registry
        self._say = say
        self._followers = followers
        self._marks = 0
        self._dirty: dict[Endpoint, int] = {}
        """Endpoint → the first of its marks that is not said yet, in their order."""
        self._wake = Event()
        registry.watch(self._mark)

    def run(self, ended: Callable[[], bool]) -> None:
        """Send news as it comes, until *ended*; run it in a thread of its own."""
        while not ended():
            self._wake.wait()
            self._wake = Event()
            self._send(self._marks)

    def introduce(self, follower: F) -> None:
        """Tell a new follower of every endpoint."""
        turns, endpoints = Turns(), self._registry.endpoints()
        for first in range(0, len(endpoints), BATCH):
            follower.tell(self._say(endpoints[first : first + BATCH], True))
            turns.give_way()

    def inform(self) -> list[F]:
        """Have all that the registry knows at this moment where each follower finds it.

        :returns: the followers that did not take it in time.
        """
        self._send(self._marks)
        behind = [(one, one.position) for one in self._followers() if one.follows]
        # By rounds and not by the clock: after a stall of the daemon each gets another moment.
        for _ in range(round(SETTLE_TIMEOUT / POLL)):
            behind = [(one, position) for one, position in behind if not one.has(position)]
            if not behind:
                break
            eventlet.sleep(POLL)
        return [one for one, _position in behind]

    def _mark(self, endpoint: Endpoint) -> None:
        self._marks += 1
        self._dirty.setdefault(endpoint, self._marks)
        if not self._wake.ready():
            self._wake.send()

    def _send(self, mark: int) -> None:
        """Tell all followers what has changed up to that mark."""
        turns = Turns()
        while next(iter(self._dirty.values()), mark + 1) <= mark:
            batch = list(self._dirty)[:BATCH]
            for endpoint in batch:
                del self._dirty[endpoint]
            news = self._say(batch, False)
            for follower in self._followers():
                follower.tell(news)
            turns.give_way()
