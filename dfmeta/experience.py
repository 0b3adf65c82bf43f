"""SYNs that the switch has counted beside connections that the proxy has accepted. Pure.

Open vSwitch counts a flow's packets late by up to :data:`LAG`, and Linux repeats a SYN after 1, 3
and 7 seconds (RFC 6298, 5.5). A reading of the counters tells only that a SYN came after the
reading before it: SYNs count as unanswered where that one was made :data:`LAG` or more after the
last connection. A guest counts as without a connection after :data:`SYNS` of them within
:data:`PERSISTENCE` or more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dfmeta.model import Endpoint

LAG: Final = 1.0
"""Seconds after a connection in which the switch may not yet have counted the SYNs of it."""
SYNS: Final = 2
PERSISTENCE: Final = 1.5
"""Seconds between the first of the unanswered SYNs and the report."""
FORGOTTEN: Final = 600.0
"""Seconds after its last SYN for which a guest without a connection is reported."""


@dataclass(slots=True)
class Met:
    """What one guest has met since the daemon first looked."""

    incarnation: int
    counter: int
    """Of its flow, as it was read last."""
    syns: int = 0
    accepted: int = 0
    unanswered: int = 0
    """SYNs since its last connection."""
    since: float = 0.0
    """When the first of them was seen, seconds of the clock."""
    last_at: float = 0.0
    """When the last one was seen."""
    settled_at: float = 0.0
    """From when on a reading has the SYNs of all connections before."""
    at_first: Mapping[str, int] = field(default_factory=dict)
    """Counters of the host and of the port as they were when the first of them was seen."""


class Experience:
    """By endpoint: :class:`Met`.

    :param clock: seconds since the epoch: what is kept is shown to people.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._met: dict[Endpoint, Met] = {}
        self._read_at: float | None = None
        """When the counters were read last."""

    def look(
        self,
        counters: Mapping[Endpoint, int] | None,
        incarnation: Callable[[Endpoint], int | None],
        accepted: Callable[[Endpoint, int], int],
    ) -> None:
        """Take in what the flows count now.

        :param counters: endpoint → packets of its flow of SYNs; None: they were not read again.
        :param incarnation: gives that of the guest there; None: no guest is known.
        :param accepted: gives how many connections that guest has had.
        """
        now = self._clock()
        met: dict[Endpoint, Met] = {}
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
                # A flow that was there before the daemon has counted for others before.
                adopted = not looked or one is not None
                one = Met(guest, counter if adopted else 0)
                one.settled_at = now + LAG if adopted else before
            self._compare(one, counter, accepted(endpoint, guest), now, before)
            met[endpoint] = one
        self._met = met

    def of(self, endpoint: Endpoint, incarnation: int) -> Met | None:
        """What that guest has met; None: nothing is known."""
        found = self._met.get(endpoint)
        return found if found is not None and found.incarnation == incarnation else None

    def doubtful(self) -> list[tuple[Endpoint, Met]]:
        """Guests with unanswered SYNs, reported or not."""
        return [(endpoint, one) for endpoint, one in self._met.items() if one.unanswered]

    def silent(self, one: Met) -> bool:
        """Whether a guest's SYNs arrive and no connection follows."""
        return one.unanswered >= SYNS and self._clock() - one.since >= PERSISTENCE

    @staticmethod
    def _compare(one: Met, counter: int, accepted: int, now: float, before: float) -> None:
        """:param before: when the reading before this one was made."""
        # A flow that is put in anew begins at zero.
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
