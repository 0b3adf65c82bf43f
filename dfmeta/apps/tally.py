"""The number of flows that should be on a switch, updated with each change and never recounted."""

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
        """Count *after* in the place of *before*; passing the same object twice costs nothing."""
        if before is after:
            return
        self._flows.subtract(flow.purpose for flow in before.values())
        self._flows.update(flow.purpose for flow in after.values())

    def of(self, purpose: Purpose) -> int:
        """Return the number of flows of that purpose."""
        return self._flows[purpose]

    @property
    def total(self) -> int:
        """Number of flows of all purposes."""
        return self._flows.total()


def show(tallies: Iterable[Tally], purposes: Iterable[Purpose] = Purpose) -> None:
    """Export the sums of *tallies* in ``/metrics``; they are computed at each request.

    :param tallies: one for each bridge; they replace those of an earlier call.
    :param purposes: the purposes of flows on these bridges.
    """
    kept = tuple(tallies)
    for purpose in purposes:
        metrics.FLOWS.labels(purpose.name).set_function(partial(_sum, kept, purpose))


def _sum(tallies: tuple[Tally, ...], purpose: Purpose) -> int:
    return sum(one.of(purpose) for one in tallies)
