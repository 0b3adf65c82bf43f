"""Counts what our flows and meters have dropped, from the counters that the switch keeps.

A dump is asked for every now and then anyway; what a flow counted after the last dump before it
went is lost. Reasons are the same for every guest: whose packets they were, ``dfmeta flows`` shows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from dfmeta import metrics
from dfmeta.apps.meters import Use
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.wire import DumpedFlow

BY_FLOW: Mapping[Purpose, metrics.Dropped] = {
    Purpose.GUEST_FRAGMENT: "fragment",
    Purpose.SERVICE_DROP: "no_connection",
    Purpose.REPLY_DROP: "no_answer",
}
BY_METER: Mapping[Purpose, metrics.Dropped] = {
    Purpose.SYN: "first_syn_rate",
    Purpose.GUEST_SYN: "syn_rate",
}


class Drops:
    """What has been counted so far, and what of it is new."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, int] | None = None
        self._meters: dict[Hashable, int] | None = None
        for reason in (*BY_FLOW.values(), *BY_METER.values()):
            metrics.DROPPED.labels(reason)

    def flows(self, found: Iterable[DumpedFlow]) -> None:
        """Take in a dump of flows."""
        seen: dict[Hashable, tuple[metrics.Dropped, int]] = {
            one.flow.match_key: (BY_FLOW[one.flow.purpose], one.packets)
            for one in found
            if one.flow is not None and one.flow.purpose in BY_FLOW
        }
        self._flows = _count(self._flows, seen)

    def meters(self, dropped: Mapping[Use, int]) -> None:
        """Take in how many packets each of our meters has dropped."""
        seen: dict[Hashable, tuple[metrics.Dropped, int]] = {
            use: (BY_METER[use[1]], packets) for use, packets in dropped.items()
        }
        self._meters = _count(self._meters, seen)


def _count(
    before: Mapping[Hashable, int] | None, seen: Mapping[Hashable, tuple[metrics.Dropped, int]]
) -> dict[Hashable, int]:
    # What the first look finds was counted in an earlier run.
    if before is not None:
        for what, (reason, packets) in seen.items():
            known = before.get(what, 0)
            # One that is put in anew begins at zero.
            new = packets - known if packets >= known else packets
            if new:
                metrics.DROPPED.labels(reason).inc(new)
    return {what: packets for what, (_reason, packets) in seen.items()}
