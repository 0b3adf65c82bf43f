"""Tells the flows that we have removed ourselves from those that another has.

The switch tells of every removal in the classification table, whoever asked for it, and later than
it confirms the batch: by then the flow may be wanted again, since its port is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Pipeline

LATE: Final = 10.0
"""Seconds within which the switch tells of a removal. One that found no flow is never told of."""


class Removals:
    """Which removals of ours the switch is still to tell of.

    :param pipeline: of the bridge.
    :param clock: monotonic seconds.
    """

    def __init__(self, pipeline: Pipeline, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._sent: dict[Any, tuple[int, float]] = {}
        """Place → how many, and when the last one was sent."""

    def note(self, flows: Iterable[Flow]) -> None:
        """Take in that the removal of *flows* is being sent."""
        now = self._clock()
        for flow in flows:
            if self._pipeline.is_shared(flow.purpose):
                self._sent[flow.match_key] = self._sent.get(flow.match_key, (0, 0.0))[0] + 1, now

    def take(self, key: Any) -> bool:
        """Whether a removal that the switch tells of is one of ours; it counts once."""
        count, when = self._sent.pop(key, (0, 0.0))
        if not count or self._clock() - when > LATE:
            return False
        if count > 1:
            self._sent[key] = count - 1, when
        return True

    def forget_old(self) -> None:
        """Forget those that the switch will not tell of any more."""
        oldest = self._clock() - LATE
        self._sent = {key: one for key, one in self._sent.items() if one[1] >= oldest}
