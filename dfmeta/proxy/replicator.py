"""Send the changes of identities to other processes: which guest is at which endpoint.

How it works: the registry names each endpoint that is about to change, and the replicator puts it
on a list once, in the order of the first change. The list is sent in batches. The state of an
endpoint is read from the registry when its batch is made, so a later change of the same endpoint
needs no second entry. Every replica gets every batch, in the same order. :meth:`Replicator.flush`
sends the present list and waits until each replica has it: no guest may go on before.

A new replica gets all endpoints first (:meth:`Replicator.add_replica`). Later changes follow in
order, since it is among the replicas already.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.runtime import clock, threads
from dfmeta.runtime.hub import Turns

BATCH: Final = 32
"""Endpoints of one message."""
SETTLE_TIMEOUT: Final = 1.0
"""Seconds that a replica has to take its messages: the buffer of its pipe has room for the changes
of hundreds of ports."""
POLL_FIRST: Final = 0.0005
"""Shortest pause in seconds between two looks; it doubles after each. A change of haproxy's map
takes a millisecond, and a guest waits for it."""


class Replica(Protocol):
    """A process that gets the changes."""

    @property
    def serving(self) -> bool:
        """Whether it answers guests, and so must have all changes before a guest goes on."""

    @property
    def position(self) -> int:
        """Length of all that has been sent to it, in a unit of its own."""

    def apply(self, batch: Any) -> None:
        """Send a batch; must not wait."""

    def acked(self, position: int) -> bool:
        """Whether everything sent up to *position* has reached it, or it has ended."""


R = TypeVar("R", bound=Replica)


class Replicator(Generic[R]):
    """Sends the changes of a registry to any number of replicas.

    :param batch_of: return the message for some endpoints. Called with True for a new replica: then
        it must not take values out of the registry that only one replica may get.
    :param replicas: return the present replicas, including new ones.
    """

    def __init__(
        self,
        registry: Registry,
        batch_of: Callable[[Sequence[Endpoint], bool], object],
        replicas: Callable[[], Iterable[R]],
    ) -> None:
        self._registry = registry
        self._batch_of = batch_of
        self._replicas = replicas
        self._dirty: dict[Endpoint, None] = {}
        """The endpoints whose change is not sent yet, in their order."""
        self._wake = threads.Event()
        registry.watch(self._mark)

    def run(self, ended: Callable[[], bool]) -> None:
        """Send changes as they occur, until *ended*; run it in a thread of its own."""
        while not ended():
            self._wake.wait()
            self._wake = threads.Event()
            self.send()

    def add_replica(self, replica: R) -> None:
        """Send all endpoints to a new replica."""
        turns, endpoints = Turns(), self._registry.endpoints()
        for first in range(0, len(endpoints), BATCH):
            replica.apply(self._batch_of(endpoints[first : first + BATCH], True))
            turns.give_way()

    def flush(self) -> list[R]:
        """Send the present state of the registry and wait until it has reached each replica.

        :returns: the replicas that it did not reach in time.
        """
        self.send()
        behind = [(replica, replica.position) for replica in self._replicas() if replica.serving]
        # Counted in rounds, not by the clock: after a stall of the daemon they still get time.
        pause = POLL_FIRST
        for _ in range(round(SETTLE_TIMEOUT / clock.POLL)):
            behind = [pair for pair in behind if not pair[0].acked(pair[1])]
            if not behind:
                break
            threads.sleep(pause)
            pause = min(2 * pause, clock.POLL)
        return [replica for replica, _position in behind]

    def send(self) -> None:
        """Send the present state of the registry to each replica, without waiting for them."""
        turns = Turns()
        while self._dirty:
            endpoints = list(self._dirty)[:BATCH]
            for endpoint in endpoints:
                del self._dirty[endpoint]
            batch = self._batch_of(endpoints, False)
            for replica in self._replicas():
                replica.apply(batch)
            turns.give_way()

    def _mark(self, endpoint: Endpoint) -> None:
        self._dirty.setdefault(endpoint)
        if not self._wake.ready():
            self._wake.send()
