"""A running haproxy with its map, and the history of those that have failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dfmeta import metrics
from dfmeta.errors import HaproxyError
from dfmeta.proxy.engines.haproxy.counts import connections
from dfmeta.proxy.engines.haproxy.entries import GuestMap
from dfmeta.proxy.engines.haproxy.process import Process
from dfmeta.runtime import clock, threads

LOG = logging.getLogger(__name__)

LEAVE_POLL: Final = 0.05


class Running:
    """A process with its map."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.map = GuestMap(process.runtime, process.map)
        self.lost = False
        """Whether the daemon has killed it and logged that."""

    @property
    def leaving(self) -> bool:
        """Whether it answers its running requests and then ends."""
        return self.map.leaving

    def leave(self, count: Callable[[], object]) -> None:
        """Make it answer its running requests and end; its map follows until then. Idempotent.

        :param count: reads its counters: it answers no more after its last request. It may raise
            HaproxyError, and is then called again.
        """
        if self.leaving:
            return
        self.map.leaving = True
        self.process.leave()
        threads.spawn_detached(self._let_go, count)

    def _let_go(self, count: Callable[[], object]) -> None:
        """Close the runtime interface after the last request: haproxy would not end before."""
        while self.process.running:
            try:
                if not connections(self.process.runtime):
                    count()
                    break
            except HaproxyError as error:
                # On a busy machine an answer may be late: the counts would be lost.
                LOG.debug("%s", error)
            threads.sleep(LEAVE_POLL)
        self.map.end()
        self.process.runtime.close()


@dataclass(slots=True)
class Failures:
    """Processes that have failed since the start of the daemon."""

    count: int = 0
    """Processes that ended, or that the daemon had to kill, while they answered guests."""
    last_at: float = 0.0
    """Time of the last of them, in seconds since the epoch."""
    last: str = ""
    """What the last of them did, such as ``hangs``."""
    start: str = ""
    """Why the last start has failed; empty: it has not."""

    def note(self, reason: metrics.HaproxyLost, fault: str) -> None:
        """Note that a process has failed."""
        metrics.HAPROXY_LOST.labels(reason).inc()
        self.count += 1
        self.last_at, self.last = clock.wall(), fault
