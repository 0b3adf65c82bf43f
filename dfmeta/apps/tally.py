"""How many flows there are to be on the switch, kept up with each change and never counted anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from dfmeta import metrics
from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Purpose


class Tally:
    """Counts flows by purpose. What it knows is what ``/metrics`` shows, read when it is asked for.

    There is one reconciler in a process; of several tallies the last one is shown.
    """

    def __init__(self) -> None:
        self._flows: Counter[Purpose] = Counter()
        for purpose in Purpose:
            metrics.FLOWS.labels(purpose.name).set_function(partial(self.of, purpose))

    def replace(self, before: Mapping[Any, Flow], after: Mapping[Any, Flow]) -> None:
        """Note that *after* stands where *before* did; the same object costs nothing."""
        if before is after:
            return
        self._flows.subtract(flow.purpose for flow in before.values())
        self._flows.update(flow.purpose for flow in after.values())

    def of(self, purpose: Purpose) -> int:
        """How many of that purpose."""
        return self._flows[purpose]

    @property
    def total(self) -> int:
        """How many in all."""
        return self._flows.total()
