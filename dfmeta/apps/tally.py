"""How many flows there are to be on a switch, kept up with each change and never counted anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from dfmeta import metrics
from dfmeta.flows.flow import Flow
from dfmeta.flows.pipeline import Purpose


class Tally:
    """Counts the flows of one bridge by purpose."""

    def __init__(self) -> None:
        self._flows: Counter[Purpose] = Counter()

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


def show(tallies: Iterable[Tally]) -> None:
    """Have ``/metrics`` give the sums of *tallies*, read when they are asked for.

    :param tallies: one for each bridge; those of an earlier call are not shown any more.
    """
    kept = tuple(tallies)
    for purpose in Purpose:
        metrics.FLOWS.labels(purpose.name).set_function(partial(_sum, kept, purpose))


def _sum(tallies: tuple[Tally, ...], purpose: Purpose) -> int:
    return sum(one.of(purpose) for one in tallies)
