"""Asks Neutron in rounds for what OVSDB does not say of ports.

A round asks for all that is due, and returns when the next one is; the bell begins it earlier.
While Neutron does not answer, the pauses grow (:mod:`dfmeta.runtime.throttle`), and the known
answers stay. Everything runs on the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dfmeta import metrics
from dfmeta.errors import SourceError
from dfmeta.neutron.client import Row
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.throttle import Backoff, Seldom
from dfmeta.sources.neutron import NeutronSource

LOG = logging.getLogger(__name__)

RETRY: Final = NeutronSource.retry
"""Seconds of the first pause after a failure, and of the longest."""


class Rounds:
    """Begins each round.

    :param asked: what is asked for, in the log.
    :param ask: a round; returns seconds until the next one, and raises SourceError when Neutron
        does not answer.
    :param longest: maximum seconds between two rounds.
    :param timeout: seconds that an answer may take.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        asked: str,
        ask: Callable[[], float],
        *,
        longest: float,
        timeout: float,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._asked, self._ask = asked, ask
        self._longest, self._timeout = longest, timeout
        self._seldom = Seldom(clock=clock)
        self._backoff = Backoff(*RETRY)
        self._bell = hub.Bell()

    def start(self) -> None:
        """Begin to ask."""
        hub.VITAL.spawn(f"{self._asked} from Neutron", self._run)

    def ring(self) -> None:
        """Begin a round now, unless the one before has failed."""
        self._bell.ring()

    def call(self, query: Callable[[], list[Row]]) -> list[Row]:
        """Return Neutron's answer to a query.

        :raises SourceError: when there is none in time, or the query raises it.
        """
        timer = threads.Timeout(self._timeout)
        try:
            return query()
        except threads.Timeout as timeout:
            if timeout is not timer:
                raise
            cause = f"no answer within {self._timeout:g} s"
            raise SourceError(source=NeutronSource.name, cause=cause) from None
        finally:
            timer.cancel()

    def _run(self) -> None:
        pause = 0.0
        while True:
            self._bell.wait(max(0.0, min(pause, self._longest)))
            try:
                pause = self._ask()
            except SourceError as error:
                metrics.NEUTRON_ROUNDS_FAILED.labels("source").inc()
                message = "Neutron does not give %s (%s); known ones stay"
                self._seldom.warn(LOG, message, self._asked, error.fields["cause"])
            except Exception:
                # A defect in dfmeta must not end the daemon: guests are served without the answers.
                metrics.NEUTRON_ROUNDS_FAILED.labels("defect").inc()
                LOG.exception("The query for %s failed; retrying", self._asked)
            else:
                self._backoff.succeeded()
                continue
            self._backoff.failed(0.0)
            # New ports do not shorten the pause.
            threads.sleep(self._backoff.until)
            pause = 0.0
