"""Engines: the part of the proxy that accepts guests' connections and answers them.

The daemon uses one engine through the interface :class:`Engine`: the daemon's own process
(:class:`InProcess`), or worker processes (:class:`~dfmeta.proxy.engines.workers.workers.Workers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.http.limits import Limits
from dfmeta.http.server import HttpServer
from dfmeta.identity.registry import Claim
from dfmeta.model import Endpoint


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of the configuration that an engine can reload while it runs."""

    hold_timeout: float
    """Seconds that a request may wait in total, including the time that its first SYN was held."""
    limits: Limits


class Engine(Protocol):
    """Answers guests on one listener for each version of IP."""

    @property
    def serving(self) -> bool:
        """Whether the engine answers guests."""
        ...

    def start(self) -> None:
        """Accept connections from now on; see :attr:`serving`."""
        ...

    def inform(self) -> None:
        """Wait until every process that answers guests has the present state of the registry."""
        ...

    def look(self, endpoint: Endpoint) -> None:
        """Bring the registry's counts of the endpoint's connections up to date, without a wait, if
        another process has them: an address of it is about to be evicted."""
        ...

    def rebind(self) -> None:
        """Continue over the device of tap-metadata after it was created again."""
        ...

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """Apply a new configuration; the daemon has replaced its backend already.

        :param done: called when the configuration is in force.
        """
        ...

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, including those of other processes."""
        ...

    def gather(self) -> None:
        """Collect the recent requests of all processes in :data:`~dfmeta.proxy.recent.RECENT`."""
        ...

    def stop(self, grace: float) -> None:
        """Stop accepting, answer running requests, close the rest after *grace* seconds."""
        ...


class InProcess:
    """The engine in the daemon's own process; see :class:`Engine`."""

    serving = False

    def __init__(self, server: HttpServer[Claim]) -> None:
        self._server = server

    def start(self) -> None:
        """See :class:`Engine`."""
        self._server.start()
        self.serving = True

    def inform(self) -> None:
        """Do nothing: the server uses the registry itself."""

    def look(self, endpoint: Endpoint) -> None:
        """Do nothing: the server counts its connections in the registry itself."""

    def rebind(self) -> None:
        """See :class:`Engine`."""
        self._server.rebind()

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """See :class:`Engine`."""
        service = self._server.service
        service.hold_timeout, service.limits = terms.hold_timeout, terms.limits
        done()

    def collect(self) -> Iterable[Metric]:
        """See :class:`Engine`."""
        return metrics.REGISTRY.collect()

    def gather(self) -> None:
        """Do nothing: all requests are noted in this process."""

    def stop(self, grace: float) -> None:
        """See :class:`Engine`."""
        self._server.stop(grace)
