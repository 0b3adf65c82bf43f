"""Engines: the part of the proxy that accepts guests' connections and answers them.

The daemon uses one engine: its own process (:class:`InProcess`), worker processes
(:class:`~dfmeta.proxy.engines.workers.workers.Workers`), or haproxy
(:class:`~dfmeta.proxy.engines.haproxy.engine.Haproxy`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import Metric

from dfmeta import metrics, model
from dfmeta.http.limits import Limits
from dfmeta.http.server import HttpServer
from dfmeta.identity.registry import Claim
from dfmeta.runtime import clock, threads, throttle

START_TIMEOUT: Final = 30.0
"""Seconds until a new process answers."""
DRAIN: Final = 10.0
"""Seconds that a replaced process may take to finish its requests."""
HEAD_START: Final = 0.3
"""Seconds by which the processes' grace at a stop is shorter than the daemon's."""
HANGS: Final = 5
"""Checks without an answer after which a process is killed. On a host that is short of CPU time, an
answer may take more than one check."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The part of the configuration that an engine can reload while it runs."""

    hold_timeout: float
    """Seconds that a request may wait in total, including the time that its first SYN was held."""
    limits: Limits


class Engine(Protocol):
    """Answers guests on one listener for each version of IP."""

    @property
    def serving(self) -> bool:
        """Whether the engine answers guests."""

    def start(self) -> None:
        """Accept connections from now on; see :attr:`serving`."""

    def inform(self) -> None:
        """Wait until every other process that answers guests has the present registry."""
        return

    def look(self, endpoint: model.Endpoint) -> None:
        """Bring the registry's counts of the endpoint's connections up to date, without a wait, if
        another process has them: an address of it is about to be evicted."""
        return

    def rebind(self) -> None:
        """Continue over the device of tap-metadata after it was created again."""

    def reload(self, settings: EngineSettings, done: Callable[[], None]) -> None:
        """Apply a new configuration; the daemon has replaced its backend already.

        :param done: called when the configuration is in force.
        """

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, including those of other processes."""
        return metrics.REGISTRY.collect()

    def gather(self) -> None:
        """Collect the recent requests of other processes in
        :data:`~dfmeta.proxy.recent.RECENT`."""
        return

    def stop(self, grace: float) -> None:
        """Stop accepting, answer running requests, close the rest after *grace* seconds."""


class InProcess(Engine):
    """The engine in the daemon's own process."""

    def __init__(self, server: HttpServer[Claim]) -> None:
        self._server = server
        self._serving = False

    @property
    def serving(self) -> bool:
        """See :class:`Engine`."""
        return self._serving

    def start(self) -> None:
        """See :class:`Engine`."""
        self._server.start()
        self._serving = True

    def rebind(self) -> None:
        """See :class:`Engine`."""
        self._server.rebind()

    def reload(self, settings: EngineSettings, done: Callable[[], None]) -> None:
        """See :class:`Engine`."""
        service = self._server.service
        service.hold_timeout, service.limits = settings.hold_timeout, settings.limits
        done()

    def stop(self, grace: float) -> None:
        """See :class:`Engine`."""
        self._server.stop(grace)


class Restarts:
    """The pauses before a process is started again: each is longer while starts fail."""

    def __init__(self) -> None:
        self._backoff = throttle.Backoff()

    def pause(self, begun: float) -> None:
        """Wait after the end of a process, or after a start that has failed.

        :param begun: monotonic seconds of its start. A process that has lived for some seconds is
            no failed start.
        """
        now = clock.now()
        if now - begun > throttle.LONGEST_PAUSE:
            self._backoff.reset()
        self._backoff.failed(now)
        threads.sleep(self._backoff.until - now)


def watch(
    ask: Callable[[float], bool],
    ended: Callable[[], bool],
    *,
    beat: float,
    missed: Callable[[int], object] = lambda _count: None,
) -> bool:
    """Check a process until it has ended or hangs; return whether it hangs.

    A check that ends late does not count: the daemon itself was late.

    :param ask: ask the process, and return whether it has answered within so many seconds.
    :param beat: seconds for an answer, and of the pause until the next check.
    :param missed: called after each check with the number of those in a row without an answer.
    """
    count = 0
    while count < HANGS:
        begun = clock.now()
        answered = ask(beat)
        took = clock.now() - begun
        if answered:
            count = 0
        elif took <= beat + beat / 2:
            count += 1
        missed(count)
        # One that fails at once takes as long as others.
        threads.sleep(beat if answered else max(beat - took, 0))
        if ended():
            return False
    return True
