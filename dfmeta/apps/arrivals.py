"""Reads from the switch how many SYNs each guest's port has sent, once a second.

One small aggregate request shows whether any SYN came at all. Only then are the flows read, and not
more often than :data:`SHARE` of the time allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from dfmeta.apps.channel import Channel
from dfmeta.flows.key import IN_PORT, Keys
from dfmeta.flows.pipeline import Purpose
from dfmeta.flows.reading import read_address
from dfmeta.flows.wire import DumpedFlow
from dfmeta.hub import Turns
from dfmeta.model import Endpoint
from dfmeta.runtime import clock

SHARE: Final = 0.03
"""Share of the time that reading the flows of thousands of ports may take."""
LONGEST: Final = 4.0
"""Longest time in seconds between two readings, with any number of ports."""
DOUBTFUL: Final = 16
"""Largest number of ports for which one look counts the replies."""


class Arrivals:
    """Reads the packet counts of each port.

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
        self._counters: dict[Endpoint, int] = {}

    def read(self) -> dict[Endpoint, int] | None:
        """Return endpoint → packets of its flows for SYNs (:attr:`Purpose.GUEST_SYN`). Waits.

        A port has one such flow for each address of the service.

        None when it is too early for another reading.

        :raises DfmetaError: when the switch does not answer.
        """
        if self._clock() < self._due:
            return None
        wire = self._channel.wire
        request = wire.count(Purpose.GUEST_SYN)
        (found,) = self._channel.request(request, "the count of SYNs").wait()
        total = found.packet_count, found.flow_count
        if total != self._total:
            begun = self._clock()
            self._counters = self._each(wire.dump(Purpose.GUEST_SYN))
            ended = self._clock()
            self._total, self._due = total, ended + min((ended - begun) / SHARE, LONGEST)
        return self._counters

    def replies(self, endpoint: Endpoint) -> int:
        """Return the number of packets from the proxy that left for *endpoint*. Waits.

        :raises DfmetaError: when the switch does not answer.
        """
        request = self._channel.wire.dump(Purpose.REPLY, out_port=endpoint.ofport)
        wire = self._channel.wire
        entries = self._channel.request(request, "the count of replies").wait()
        found = (wire.found(one) for one in entries)
        return sum(one.packets for one in found if one is not None and self._at(one) == endpoint)

    def _each(self, request: object) -> dict[Endpoint, int]:
        wire, turns, counted = self._channel.wire, Turns(), Counter[Endpoint]()
        entries = self._channel.request(request, "the dump of flows of SYNs").wait()
        for entry in entries:
            found = wire.found(entry)
            endpoint = self._at(found) if found is not None else None
            if found is not None and endpoint is not None:
                counted[endpoint] += found.packets
            turns.give_way()
        return dict(counted)

    def _at(self, found: DumpedFlow) -> Endpoint | None:
        return read_address(found.read, self._keys).endpoint if found.read is not None else None
