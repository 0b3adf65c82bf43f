"""A worker's question whether the daemon knows of every change until now.

A port can get the ofport of another one. The switch reports it to the daemon, and the daemon tells
its workers: until then, a worker takes the new guest for the former one. So a request's answer
leaves only when the daemon has echoed a question that the worker asked after the request arrived.
The daemon handles all reports of the switch before the echo, and the pipe keeps the order.

Questions do not overlap: all requests that arrive during one share the next.
"""

from __future__ import annotations

from collections.abc import Callable

from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import Event

Echoed = Callable[[float], bool]
"""Wait for the echo until those monotonic seconds; return whether it has come."""


class Echo:
    """Asks the daemon, for all requests of a worker.

    :param ask: ask the daemon and wait for its echo; return False if there is none.
    """

    def __init__(self, ask: Callable[[], bool]) -> None:
        self._ask = ask
        self._next: Event | None = None
        """The next echo, which is not asked for yet; None: no request has arrived for it."""
        self._asking = False

    def __call__(self) -> Echoed:
        """Have a question asked from now on."""
        if self._next is None:
            self._next = Event()
            if not self._asking:
                self._asking = True
                threads.spawn_detached(self._run)
        event = self._next
        return lambda deadline: _come(event, deadline)

    def _run(self) -> None:
        try:
            while self._next is not None:
                event, self._next = self._next, None
                event.send(self._ask())
        finally:
            self._asking = False


def _come(event: Event, deadline: float) -> bool:
    """Return whether the daemon has echoed, waiting until *deadline*."""
    if not event.ready():
        with threads.Timeout(max(deadline - clock.now(), 0.001), False):
            event.wait()
    return event.ready() and bool(event.wait())
