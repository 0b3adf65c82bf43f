"""Guests that flood: for as long as one does, the switch drops its SYNs, and those of no other.

A guest may send :data:`~dfmeta.flows.pipeline.RATES` packets a second. The daemon counts the first
packets that the switch sends to it, and reads once a second how many SYNs each port's flow has
passed. A guest that exceeds a rate has its flow replaced by one that drops: until the time is over
in which it might have sent as many packets at that rate, or until it sends fewer. So on average no
more than the rate passes, and the flow of a guest that does not flood has no condition.

OpenFlow's meters would do the same without a daemon. But Open vSwitch's own restart
(``ovs-save``) saves flows and no meters, and restores all flows of the bridge or none: with one
flow that needs a missing meter, the flows of all programs are lost.

The module reads the packet counters of dfmeta's flows: those of each port's SYNs, and of drops.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta import errors, metrics, model
from dfmeta.apps.channel import Channel
from dfmeta.flows.pipeline import RATE_OF_VM, RATES, Purpose
from dfmeta.flows.reading import read_address
from dfmeta.flows.wire import DumpedFlow
from dfmeta.identity.key import IN_PORT, Keys
from dfmeta.runtime import clock, threads, throttle
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

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
LONGEST: Final = 30.0
"""Longest time in seconds for which SYNs are dropped, until the guest gets another chance."""
LINES: Final = 4
"""Largest number of log lines a minute."""
REASONS: Final[Mapping[Purpose, metrics.Dropped]] = {
    Purpose.SYN: "first_syn_rate",
    Purpose.GUEST_SYN: "syn_rate",
}

Use = tuple[model.Endpoint, Purpose]
"""The flows of that purpose of that endpoint."""


@dataclass(frozen=True, slots=True)
class SynReading:
    """Counters of the flows of SYNs at one time."""

    counters: Mapping[model.Endpoint, int] = field(default_factory=dict)
    """Endpoint → packets of its flows for SYNs (:attr:`Purpose.GUEST_SYN`)."""
    at: float = 0.0
    """In seconds of the clock."""


class Arrivals:
    """Reads from the switch how many SYNs each guest's port has sent.

    One small aggregate request shows whether any SYN came at all. Only then are the flows read, and
    with a pause after each reading.

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

    def read(self) -> dict[model.Endpoint, int] | None:
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

    def packets(self, endpoint: model.Endpoint, purpose: Purpose) -> int:
        """Return the number of packets of one purpose's flows at *endpoint*. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        return self._count(purpose, endpoint)[0]

    def replies(self, endpoint: model.Endpoint) -> int:
        """Return the number of packets from the proxy that left for *endpoint*. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        request = self._channel.wire.dump(Purpose.REPLY, out_port=endpoint.ofport)
        return self._by_endpoint(request, "the count of replies")[endpoint]

    def _count(self, purpose: Purpose, endpoint: model.Endpoint | None = None) -> tuple[int, int]:
        """Return the number of packets, and of flows."""
        request = self._channel.wire.count(purpose, endpoint)
        (count,) = self._channel.request(request, "the count of SYNs").wait()
        return count.packet_count, count.flow_count

    def _read_all(self, total: tuple[int, int]) -> None:
        begun = self._clock()
        request = self._channel.wire.dump(Purpose.GUEST_SYN)
        counters = self._by_endpoint(request, "the dump of flows of SYNs")
        ended = self._clock()
        self._reading = SynReading(counters, ended)
        self._total, self._due = total, ended + throttle.pause_after(ended - begun)

    def _by_endpoint(self, request: object, what: str) -> Counter[model.Endpoint]:
        """Return the packets of the flows in a dump by endpoint."""
        wire, turns, counters = self._channel.wire, Turns(), Counter[model.Endpoint]()
        for dumped in map(wire.found, self._channel.request(request, what).wait()):
            if dumped is not None and dumped.flow is not None:
                endpoint = read_address(dumped.flow, self._keys).endpoint
                if endpoint is not None:
                    counters[endpoint] += dumped.entry.packets
            turns.give_way()
        return counters


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
            key, packets = dumped.flow.match_key, dumped.entry.packets
            self._packets[key] = packets
            # The counts of the first dump were added to the metric by an earlier run. The counter
            # of a flow that was installed again begins at zero.
            if before is not None:
                earlier = before.get(key, 0)
                metrics.DROPPED.labels(reason).inc(packets - earlier * (packets >= earlier))


@dataclass(slots=True)
class Bucket:
    """Leaky bucket: packets above a rate."""

    level: float
    at: float

    def add(self, now: float, rate: float) -> float:
        """Add a packet and return the level, in packets."""
        self.level = max(0.0, self.level - rate * (now - self.at)) + 1
        self.at = now
        return self.level


@dataclass(slots=True)
class Shed:
    """Dropped packets of one use."""

    until: float
    packets: int | None = None
    """Counter of the flow at the last reading."""
    reviewed: float | None = None
    """Time of the last review."""


class Floods:
    """Finds the guests that flood.

    :param arrivals: reads the counters of the flows.
    :param apply: sends the changed flows of an endpoint to the switch.
    :param name: returns the name of an endpoint's port, for the log.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        apply: Callable[[model.Endpoint], object],
        name: Callable[[model.Endpoint], str] = str,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._arrivals = arrivals
        self._apply, self._name, self._clock = apply, name, clock
        self._first: dict[model.Endpoint | int, Bucket] = {}
        """Endpoint, or ofport of a VM with all its containers → its first packets."""
        self._shed: dict[Use, Shed] = {}
        self._throttle = throttle.LogThrottle(LINES, clock=clock)
        for reason in REASONS.values():
            metrics.DROPPED.labels(reason)

    def of(self, endpoint: model.Endpoint) -> frozenset[Purpose]:
        """Return the purposes whose flows drop the packets of *endpoint* now."""
        if not self._shed:
            return frozenset()
        return frozenset(purpose for purpose in REASONS if (endpoint, purpose) in self._shed)

    def admit(self, endpoint: model.Endpoint) -> bool:
        """Count a first packet that the switch has sent; return whether it may be processed.

        The switch sends those that it had queued also after the flow that drops them.
        """
        now, seconds = self._clock(), 0.0
        for source, rate in ((endpoint, RATES[Purpose.SYN]), (endpoint.ofport, RATE_OF_VM)):
            level = self._bucket(source, now).add(now, rate)
            if level > rate:
                seconds = max(seconds, level / rate)
        if seconds:
            self._begin((endpoint, Purpose.SYN), seconds, now)
        return (endpoint, Purpose.SYN) not in self._shed

    def run(self) -> None:
        """Read the counters in an endless loop; run it in a thread of its own."""
        while True:
            try:
                self.look()
            except errors.DfmetaError as error:
                LOG.debug("The counters of SYNs were not read: %s", error)
            threads.sleep(CHECK_INTERVAL)

    def look(self) -> None:
        """Read the counters, and begin and end to drop. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        rate = RATES[Purpose.GUEST_SYN]
        before, after = self._arrivals.surge(rate)
        now = self._clock()
        for endpoint, packets in after.counters.items():
            # The counter of a flow that was installed again starts at zero.
            new = packets - before.counters.get(endpoint, packets)
            seconds = new / rate - (after.at - before.at)
            if new > rate and seconds > 0:
                self._begin((endpoint, Purpose.GUEST_SYN), seconds, now)
        for use in list(self._shed):
            self._review(use)
        self._first = {
            who: bucket for who, bucket in self._first.items() if now - bucket.at < LONGEST
        }

    def forget(self) -> None:
        """Note that the connection has ended: the switch may have started again."""
        self._shed.clear()

    def _bucket(self, of: model.Endpoint | int, now: float) -> Bucket:
        bucket = self._first.get(of)
        if bucket is None:
            bucket = self._first[of] = Bucket(0.0, now)
        return bucket

    def _begin(self, use: Use, seconds: float, now: float) -> None:
        until = now + min(seconds, LONGEST)
        shed = self._shed.get(use)
        if shed is not None:
            shed.until = max(shed.until, until)
            return
        self._shed[use] = Shed(until)
        endpoint, purpose = use
        self._throttle.warn(
            LOG,
            "%s sends more than %d %s a second to the service: the switch drops them until it "
            "stops; other guests are served",
            self._name(endpoint),
            RATES[purpose],
            "first packets" if purpose is Purpose.SYN else "SYNs",
        )
        self._apply(endpoint)
        # The flow keeps the counter of the one that it replaces; the switch keeps the order.
        threads.spawn_detached(self._read_first, use)

    def _review(self, use: Use) -> None:
        """Count the drops of *use*; end them when the guest may send again.

        :raises DfmetaError: when the switch does not answer.
        """
        shed, (endpoint, purpose) = self._shed.get(use), use
        if shed is None:  # the connection was lost meanwhile
            return
        new, now = self._read(use, shed), self._clock()
        calm = shed.reviewed is not None and new <= RATES[purpose] * (now - shed.reviewed)
        shed.reviewed = now
        if (calm or now >= shed.until) and self._shed.get(use) is shed:
            del self._shed[use]
            self._apply(endpoint)

    def _read_first(self, use: Use) -> None:
        shed = self._shed.get(use)
        try:
            if shed is not None:
                self._read(use, shed)
        except errors.DfmetaError as error:
            LOG.debug("The counter of dropped SYNs was not read: %s", error)

    def _read(self, use: Use, shed: Shed) -> int:
        """Count and return the packets of *use* that were dropped since the last reading.

        :raises DfmetaError: when the switch does not answer.
        """
        endpoint, purpose = use
        packets = self._arrivals.packets(endpoint, purpose)
        new = max(0, packets - shed.packets) if shed.packets is not None else 0
        shed.packets = packets
        metrics.DROPPED.labels(REASONS[purpose]).inc(new)
        return new
