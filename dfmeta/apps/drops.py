"""Counts the packets that our flows have dropped, from the switch's counters.

The counters come from the dumps of the reconciles. Packets that a flow drops after the last dump
before its removal are not counted. The metric has a reason and no guest: ``dfmeta flows`` shows the
packets of each guest's flows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from dfmeta import metrics
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.wire import DumpedFlow

BY_FLOW: Mapping[Purpose, metrics.Dropped] = {
    Purpose.GUEST_FRAGMENT: "fragment",
    Purpose.SERVICE_DROP: "no_connection",
    Purpose.REPLY_DROP: "no_answer",
    Purpose.SUBPORT_DROP: "second_tag",
    Purpose.SOURCE_ROUTER_DROP: "source",
    Purpose.SOURCE_DROP: "source",
    Purpose.META_OTHER_DROP: "no_answer",
    Purpose.META_SOURCE_DROP: "no_connection",
    Purpose.META_PROXY_DROP: "no_connection",
    Purpose.META_REPLY_DROP: "no_answer",
}


class Drops:
    """Adds new drops to the metric, by comparing each dump with the one before it."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, int] | None = None
        for reason in BY_FLOW.values():
            metrics.DROPPED.labels(reason)

    def flows(self, found: Iterable[DumpedFlow]) -> None:
        """Count the drops that a dump of flows shows."""
        seen: dict[Hashable, tuple[metrics.Dropped, int]] = {
            one.flow.match_key: (BY_FLOW[one.flow.purpose], one.packets)
            for one in found
            if one.flow is not None and one.flow.purpose in BY_FLOW
        }
        self._flows = _count(self._flows, seen)


def _count(
    before: Mapping[Hashable, int] | None, seen: Mapping[Hashable, tuple[metrics.Dropped, int]]
) -> dict[Hashable, int]:
    # The counts of the first dump were added to the metric by an earlier run.
    if before is not None:
        for what, (reason, packets) in seen.items():
            known = before.get(what, 0)
            # A flow that was installed again begins at zero.
            new = packets - known if packets >= known else packets
            if new:
                metrics.DROPPED.labels(reason).inc(new)
    return {what: packets for what, (_reason, packets) in seen.items()}
