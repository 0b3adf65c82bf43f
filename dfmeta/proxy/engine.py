"""Engines: the part of the proxy that accepts guests' connections and answers them.

The daemon drives one engine and knows no more of it than :class:`Engine` says: this process by
itself (:class:`InProcess`), or processes beside it (:class:`~dfmeta.proxy.worker.workers.Workers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.proxy.limits import Limits
from dfmeta.proxy.server import GuestServer


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of the configuration that an engine takes in while it runs."""

    hold_timeout: float
    """Seconds that a request may wait in all, the time of its first SYN included."""
    limits: Limits


class Engine(Protocol):
    """Answers guests on one listener."""

    @property
    def port(self) -> int:
        """TCP port of the listener."""
        ...

    @property
    def inode(self) -> int:
        """Inode of the listener."""
        ...

    @property
    def serving(self) -> bool:
        """Whether guests are answered."""
        ...

    def start(self) -> None:
        """Accept connections from now on; see :attr:`serving`."""
        ...

    def inform(self) -> None:
        """Wait until all that answers guests knows what the registry knows at this moment."""
        ...

    def rebind(self) -> None:
        """Go on over the device of tap-metadata, which has been made anew."""
        ...

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """Take another configuration in; the backend of the daemon has been replaced before.

        :param done: called when it is in force.
        """
        ...

    def collect(self) -> Iterable[Metric]:
        """Every metric, with those that other processes count."""
        ...

    def gather(self) -> None:
        """Have all that is noted of requests in :data:`~dfmeta.proxy.recent.RECENT`."""
        ...

    def stop(self, grace: float) -> None:
        """Accept no more, answer the running requests, and close the rest after *grace* seconds."""
        ...


class InProcess:
    """The daemon's own process answers; see :class:`Engine`."""

    def __init__(self, server: GuestServer) -> None:
        self._server = server
        self.port, self.inode = server.port, server.inode
        self.serving = False

    def start(self) -> None:
        """See :class:`Engine`."""
        self._server.start()
        self.serving = True

    def inform(self) -> None:
        """Nothing: the server asks the registry itself."""

    def rebind(self) -> None:
        """See :class:`Engine`."""
        self._server.rebind()

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """See :class:`Engine`."""
        self._server.hold_timeout, self._server.limits = terms.hold_timeout, terms.limits
        done()

    def collect(self) -> Iterable[Metric]:
        """See :class:`Engine`."""
        return metrics.REGISTRY.collect()

    def gather(self) -> None:
        """Nothing: all of it is noted here."""

    def stop(self, grace: float) -> None:
        """See :class:`Engine`."""
        self._server.stop(grace)
