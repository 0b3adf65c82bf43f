"""Comparison of SYNs that the switch counted with connections that the proxy accepted. Pure.

Open vSwitch counts a flow's packets late by up to :data:`LAG`, and Linux repeats a SYN after 1, 3
and 7 seconds (RFC 6298, 5.5). A reading of the counters shows only that a SYN arrived after the
previous reading. So SYNs count as unanswered if the previous reading was made :data:`LAG` or more
after the last connection. A guest counts as without a connection when it has :data:`SYNS` or more
unanswered SYNs, and the first of them was seen :data:`PERSISTENCE` or more ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dfmeta.model import Caller, Endpoint
from dfmeta.runtime import clock

LAG: Final = 1.0
"""Seconds after a connection in which the switch may not yet have counted its SYNs."""
SYNS: Final = 2
PERSISTENCE: Final = 1.5
"""Seconds between the first of the unanswered SYNs and the report."""
FORGOTTEN: Final = 600.0
"""Seconds after its last SYN for which a guest without a connection is reported."""


@dataclass(slots=True)
class SynCounters:
    """SYNs and connections of one guest since the daemon's first reading."""

    incarnation: int
    counter: int
    """Packet counter of the guest's flow at the last reading."""
    syns: int = 0
    accepted: int = 0
    unanswered: int = 0
    """SYNs since the guest's last connection."""
    since: float = 0.0
    """Time at which the first unanswered SYN was seen, in seconds of the clock."""
    last_at: float = 0.0
    """Time at which the last unanswered SYN was seen."""
    settled_at: float = 0.0
    """Time from which a reading includes the SYNs of all earlier connections."""
    at_first: Mapping[str, int] = field(default_factory=dict)
    """Counters of the host and of the port when the first unanswered SYN was seen."""


class SynAccounting:
    """Endpoint → :class:`SynCounters`.

    :param clock: seconds since the epoch, because the times are shown to operators.
    """

    def __init__(self, *, clock: Callable[[], float] = clock.wall) -> None:
        self._clock = clock
        self._met: dict[Endpoint, SynCounters] = {}
        self._read_at: float | None = None
        """Time at which the counters were last read."""

    def look(
        self,
        counters: Mapping[Endpoint, int] | None,
        incarnation: Callable[[Endpoint], int | None],
        accepted: Callable[[Endpoint, int], int],
    ) -> None:
        """Process a reading of the flows' counters.

        :param counters: endpoint → packets of its flow for SYNs; None: no new reading.
        :param incarnation: returns the incarnation of the guest at an endpoint; None: no guest.
        :param accepted: returns the number of connections accepted for that guest.
        """
        now = self._clock()
        met: dict[Endpoint, SynCounters] = {}
        before = now if self._read_at is None else self._read_at
        looked = self._read_at is not None
        if counters is None:
            counters = {endpoint: one.counter for endpoint, one in self._met.items()}
        else:
            self._read_at = now
        for endpoint, counter in counters.items():
            guest = incarnation(endpoint)
            if guest is None:
                continue
            one = self._met.get(endpoint)
            if one is None or one.incarnation != guest:
                # The counter of a flow older than the daemon may include another guest's packets.
                adopted = not looked or one is not None
                one = SynCounters(guest, counter if adopted else 0)
                one.settled_at = now + LAG if adopted else before
            self._compare(one, counter, accepted(endpoint, guest), now, before)
            met[endpoint] = one
        self._met = met

    def of(self, endpoint: Endpoint, incarnation: int) -> SynCounters | None:
        """Return the data of that guest; None if there is none."""
        found = self._met.get(endpoint)
        return found if found is not None and found.incarnation == incarnation else None

    def doubtful(self) -> list[tuple[Endpoint, SynCounters]]:
        """Return the guests with unanswered SYNs, reported or not."""
        return [(endpoint, one) for endpoint, one in self._met.items() if one.unanswered]

    def silent(self, one: SynCounters) -> bool:
        """Return whether a guest's SYNs arrive but no connection follows."""
        return one.unanswered >= SYNS and self._clock() - one.since >= PERSISTENCE

    @staticmethod
    def _compare(one: SynCounters, counter: int, accepted: int, now: float, before: float) -> None:
        """Compare a guest's counters with those of the previous reading.

        :param before: time of the previous reading.
        """
        # The counter of a flow that was installed again starts at zero.
        new = counter - one.counter if counter >= one.counter else counter
        one.counter = counter
        one.syns += new
        if accepted != one.accepted:
            one.accepted = accepted
            one.unanswered, one.settled_at, one.at_first = 0, now + LAG, {}
        elif new and before >= one.settled_at:
            if not one.unanswered:
                one.since = now
            one.unanswered += new
            one.last_at = now
        elif one.unanswered and now - one.last_at > FORGOTTEN:
            one.unanswered, one.at_first = 0, {}


PORTS: Final = 8192
"""Maximum number of guests with a count; beyond it, the least recently counted one is dropped."""


class GuestCounts:
    """Counter for the present guest of each endpoint."""

    def __init__(self, *, ports: int = PORTS) -> None:
        self._most = ports
        self._counts: OrderedDict[Caller, tuple[int, int]] = OrderedDict()
        """Caller → incarnation of its guest, and its count."""

    def add(self, caller: Caller, incarnation: int, count: int = 1) -> None:
        """Add *count* to the counter of that guest."""
        known, before = self._counts.get(caller, (incarnation, 0))
        self._counts[caller] = incarnation, count + (before if known == incarnation else 0)
        self._counts.move_to_end(caller)
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def of(self, caller: Caller, incarnation: int) -> int:
        """Return the count of that guest."""
        known, count = self._counts.get(caller, (incarnation, 0))
        return count if known == incarnation else 0

    # Between a worker and the daemon

    def take(self) -> list[Any]:
        """Return all counts as JSON values, and reset them; see :meth:`merge`."""
        taken, self._counts = self._counts, OrderedDict()
        return [[*caller, *counted] for caller, counted in taken.items()]

    def merge(self, told: Iterable[Any], current: Callable[[Endpoint], int | None]) -> None:
        """Add the counts that a worker returned from :meth:`take`.

        :param current: returns the incarnation of the endpoint's present guest; counts of another
            incarnation are dropped.
        """
        for ofport, vid, incarnation, count in told:
            endpoint = Endpoint(ofport, vid)
            if current(endpoint) == incarnation:
                self.add(endpoint, incarnation, count)


ACCEPTED: Final = GuestCounts()
"""Connections that this process has accepted, for each guest."""
