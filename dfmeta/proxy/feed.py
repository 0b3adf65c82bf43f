"""Send the changes of identities to other processes: which guest is at which endpoint.

How it works: the registry names each endpoint that is about to change, and the feed puts it on a
list once, in the order of the first change. The list is sent in batches. The state of an endpoint
is read from the registry when its batch is made, so a later change of the same endpoint needs no
second entry. Every follower gets every batch, in the same order. :meth:`Feed.inform` sends the
present list and waits until each follower has it: no guest may go on before.

A new follower gets all endpoints first (:meth:`Feed.introduce`). Later changes follow in order,
since it is among the followers already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.runtime import threads
from dfmeta.runtime.hub import Turns
from dfmeta.runtime.threads import Event

BATCH: Final = 32
"""Endpoints of one message."""
SETTLE_TIMEOUT: Final = 1.0
"""Seconds that a follower has to take its messages: the buffer of its pipe has room for the changes
of hundreds of ports."""
POLL: Final = 0.01
POLL_FIRST: Final = 0.0005
"""Longest and shortest pause in seconds between two looks; it doubles after each. A change of
haproxy's map takes a millisecond, and a guest waits for it."""


class Follower(Protocol):
    """A process that gets the changes."""

    @property
    def follows(self) -> bool:
        """Whether it answers guests, and so must have all changes before a guest goes on."""
        ...

    @property
    def position(self) -> int:
        """Number of bytes that have been sent to it in total."""
        ...

    def tell(self, news: Any) -> None:
        """Send a batch; must not wait."""
        ...

    def has(self, position: int) -> bool:
        """Whether everything sent up to *position* has reached it, or it has ended."""
        ...


F = TypeVar("F", bound=Follower)


class Feed(Generic[F]):
    """The changes of a registry, for any number of followers.

    :param say: return the message for a batch of endpoints. Called with True for a new follower:
        then it must not take values out of the registry that only one follower may get.
    :param followers: return the present followers, including new ones.
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
        """Endpoint → the first of its marks that is not sent yet, in their order."""
        self._wake = Event()
        registry.watch(self._mark)

    def run(self, ended: Callable[[], bool]) -> None:
        """Send changes as they occur, until *ended*; run it in a thread of its own."""
        while not ended():
            self._wake.wait()
            self._wake = Event()
            self._send(self._marks)

    def introduce(self, follower: F) -> None:
        """Send all endpoints to a new follower."""
        turns, endpoints = Turns(), self._registry.endpoints()
        for first in range(0, len(endpoints), BATCH):
            follower.tell(self._say(endpoints[first : first + BATCH], True))
            turns.give_way()

    def inform(self) -> list[F]:
        """Send the present state of the registry and wait until it has reached each follower.

        :returns: the followers that it did not reach in time.
        """
        self._send(self._marks)
        behind = [(one, one.position) for one in self._followers() if one.follows]
        # Counted in rounds, not by the clock: after a stall of the daemon they still get time.
        pause = POLL_FIRST
        for _ in range(round(SETTLE_TIMEOUT / POLL)):
            behind = [(one, position) for one, position in behind if not one.has(position)]
            if not behind:
                break
            threads.sleep(pause)
            pause = min(2 * pause, POLL)
        return [one for one, _position in behind]

    def flush(self) -> None:
        """Send the present state of the registry to each follower, without waiting for them."""
        self._send(self._marks)

    def _mark(self, endpoint: Endpoint) -> None:
        self._marks += 1
        self._dirty.setdefault(endpoint, self._marks)
        if not self._wake.ready():
            self._wake.send()

    def _send(self, mark: int) -> None:
        """Send the changes up to that mark to all followers."""
        turns = Turns()
        while next(iter(self._dirty.values()), mark + 1) <= mark:
            batch = list(self._dirty)[:BATCH]
            for endpoint in batch:
                del self._dirty[endpoint]
            news = self._say(batch, False)
            for follower in self._followers():
                follower.tell(news)
            turns.give_way()
