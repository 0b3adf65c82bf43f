"""Distinguishes removals of flows by dfmeta from removals by another program.

The switch reports every removal in the classification table, whichever program requested it, and
later than it confirms the batch. By then the flow may be needed again, because its port is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Pipeline
from dfmeta.runtime import clock

LATE: Final = 10.0
"""Seconds within which the switch reports a removal. It reports none that found no flow."""


class Removals:
    """The removals that dfmeta has requested and the switch has not yet reported.

    :param pipeline: pipeline of the bridge.
    :param clock: monotonic seconds.
    """

    def __init__(self, pipeline: Pipeline, *, clock: Callable[[], float] = clock.now) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._sent: dict[Any, tuple[int, float]] = {}
        """Match key → number of removals, and the time when the last one was sent."""

    def note(self, flows: Iterable[Flow]) -> None:
        """Note that the removal of *flows* is being sent."""
        now = self._clock()
        for flow in flows:
            if flow.purpose.is_shared:
                self._sent[flow.match_key] = self._sent.get(flow.match_key, (0, 0.0))[0] + 1, now

    def take(self, key: Any) -> bool:
        """Return whether a reported removal is one of ours; each of ours counts once."""
        count, when = self._sent.pop(key, (0, 0.0))
        if not count or self._clock() - when > LATE:
            return False
        if count > 1:
            self._sent[key] = count - 1, when
        return True

    def forget_old(self) -> None:
        """Forget the removals that the switch will not report any more."""
        oldest = self._clock() - LATE
        self._sent = {key: one for key, one in self._sent.items() if one[1] >= oldest}
