"""The packet counters of dfmeta's flows on the switch: SYNs of each guest's port, and drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.reading import read_address
from dfmeta.flows.wire import DumpedFlow
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.model import Endpoint
from dfmeta.runtime import clock
from dfmeta.runtime.hub import Turns

SHARE: Final = 0.03
"""Share of the time that reading the flows of thousands of ports may take."""
LONGEST: Final = 4.0
"""Longest time in seconds between two readings, with any number of ports."""

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


@dataclass(frozen=True, slots=True)
class SynReading:
    """Counters of the flows of SYNs at one time."""

    counters: Mapping[Endpoint, int] = field(default_factory=dict)
    """Endpoint → packets of its flows for SYNs (:attr:`Purpose.GUEST_SYN`)."""
    at: float = 0.0
    """In seconds of the clock."""


class Arrivals:
    """Reads from the switch how many SYNs each guest's port has sent.

    One small aggregate request shows whether any SYN came at all. Only then are the flows read, and
    not more often than :data:`SHARE` of the time allows.

    :param keys: the key scheme.
    :param clock: monotonic seconds.
    """

    def __init__(
        self, channel: Channel, keys: Keys = IN_PORT, *, clock: Callable[[], float] = clock.now
    ) -> None:
        self._channel = channel
        self._keys = keys
        self._clock = clock
        self._total: tuple[int, int] | None = None
        """Counts of packets and of flows at the last reading of the flows."""
        self._due = 0.0
        self._reading = SynReading()
        self._packets: tuple[int, float] | None = None
        """Packets of all ports at the last call of :meth:`surge`, and its time."""

    def read(self) -> dict[Endpoint, int] | None:
        """Return endpoint → packets of its flows for SYNs (:attr:`Purpose.GUEST_SYN`). Waits.

        A port has one such flow for each address of the service.

        None when it is too early for another reading.

        :raises DfmetaError: when the switch does not answer.
        """
        if self._clock() < self._due:
            return None
        total = self._count(Purpose.GUEST_SYN)
        if total != self._total:
            self._read_all(total)
        return dict(self._reading.counters)

    def surge(self, rate: float) -> tuple[SynReading, SynReading]:
        """Return the readings before and after a surge of SYNs; twice the same if there is none.

        Waits.

        :param rate: packets per second of all ports that are no surge.
        :raises DfmetaError: when the switch does not answer.
        """
        total, now, before = self._count(Purpose.GUEST_SYN), self._clock(), self._reading
        packets, self._packets = self._packets, (total[0], now)
        if packets is not None and total[0] - packets[0] > rate * (now - packets[1]):
            self._read_all(total)
        return before, self._reading

    def packets(self, endpoint: Endpoint, purpose: Purpose) -> int:
        """Return the number of packets of one purpose's flows at *endpoint*. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        return self._count(purpose, endpoint)[0]

    def replies(self, endpoint: Endpoint) -> int:
        """Return the number of packets from the proxy that left for *endpoint*. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        request = self._channel.wire.dump(Purpose.REPLY, out_port=endpoint.ofport)
        wire = self._channel.wire
        entries = self._channel.request(request, "the count of replies").wait()
        flows = (wire.found(dumped) for dumped in entries)
        return sum(
            dumped.packets
            for dumped in flows
            if dumped is not None and self._at(dumped) == endpoint
        )

    def _count(self, purpose: Purpose, endpoint: Endpoint | None = None) -> tuple[int, int]:
        """Return the number of packets, and of flows."""
        request = self._channel.wire.count(purpose, endpoint)
        (count,) = self._channel.request(request, "the count of SYNs").wait()
        return count.packet_count, count.flow_count

    def _read_all(self, total: tuple[int, int]) -> None:
        begun = self._clock()
        counters = self._each(self._channel.wire.dump(Purpose.GUEST_SYN))
        ended = self._clock()
        self._reading = SynReading(counters, ended)
        self._total, self._due = total, ended + min((ended - begun) / SHARE, LONGEST)

    def _each(self, request: object) -> dict[Endpoint, int]:
        wire, turns, counted = self._channel.wire, Turns(), Counter[Endpoint]()
        entries = self._channel.request(request, "the dump of flows of SYNs").wait()
        for entry in entries:
            dumped = wire.found(entry)
            endpoint = self._at(dumped) if dumped is not None else None
            if dumped is not None and endpoint is not None:
                counted[endpoint] += dumped.packets
            turns.give_way()
        return dict(counted)

    def _at(self, dumped: DumpedFlow) -> Endpoint | None:
        return read_address(dumped.flow, self._keys).endpoint if dumped.flow is not None else None


class Drops:
    """Adds new drops to the metric, by comparing each dump of a reconcile with the one before it.

    Packets that a flow drops after the last dump before its removal are not counted. The metric has
    a reason and no guest: ``dfmeta flows`` shows the packets of each guest's flows.
    """

    def __init__(self) -> None:
        self._packets: dict[Hashable, int] | None = None
        for reason in BY_FLOW.values():
            metrics.DROPPED.labels(reason)

    def add(self, flows: Iterable[DumpedFlow]) -> None:
        """Count the drops that a dump of flows shows."""
        before, self._packets = self._packets, {}
        for dumped in flows:
            reason = BY_FLOW.get(dumped.flow.purpose) if dumped.flow is not None else None
            if dumped.flow is None or reason is None:
                continue
            key, packets = dumped.flow.match_key, dumped.packets
            self._packets[key] = packets
            # The counts of the first dump were added to the metric by an earlier run. The counter
            # of a flow that was installed again begins at zero.
            if before is not None:
                earlier = before.get(key, 0)
                metrics.DROPPED.labels(reason).inc(packets - earlier * (packets >= earlier))
