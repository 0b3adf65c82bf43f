"""Guests whose SYNs the switch counts and that get no connection to the proxy, and the cause.

Open vSwitch counts a flow's packets late by up to :data:`LAG`, and Linux repeats a SYN after 1, 3
and 7 seconds (RFC 6298, 5.5). A reading of the counters shows only that a SYN arrived after the
previous reading. So SYNs count as unanswered if the previous reading was made :data:`LAG` or more
after the last connection. A guest counts as without a connection when it has :data:`SYNS` or more
unanswered SYNs, and the first of them was seen :data:`PERSISTENCE` or more ago.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dfmeta.apps.floods import Arrivals
from dfmeta.apps.probe import Probe
from dfmeta.cmd.status_page import moment
from dfmeta.doctor.checks_guests import checksum_advice
from dfmeta.errors import DfmetaError
from dfmeta.flows.pipeline import Purpose
from dfmeta.host.device import driver_of
from dfmeta.host.system import checksum_errors
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import ACCEPTED
from dfmeta.model import Endpoint, Port
from dfmeta.runtime import clock

LOG = logging.getLogger(__name__)

LAG: Final = 1.0
"""Seconds after a connection in which the switch may not yet have counted its SYNs."""
SYNS: Final = 2
PERSISTENCE: Final = 1.5
"""Seconds between the first of the unanswered SYNs and the report."""
FORGOTTEN: Final = 600.0
"""Seconds after its last SYN for which a guest without a connection is reported."""
DOUBTFUL: Final = 16
"""Largest number of guests for which one look counts the replies."""


class Losses(NamedTuple):
    """Counters that show where SYNs or their answers are lost."""

    checksum_errors: int
    """Of the host."""
    replies: int
    """Packets of the proxy that left through the guest's port."""


@dataclass(slots=True)
class GuestSyns:
    """SYNs and connections of one guest since the daemon's first reading."""

    incarnation: int
    counter: int
    """Packet counter of the guest's flow at the last reading."""
    settled_at: float
    """Time from which a reading includes the SYNs of all earlier connections."""
    syns: int = 0
    accepted: int = 0
    unanswered: int = 0
    """SYNs since the guest's last connection."""
    since: float = 0.0
    """Time at which the first unanswered SYN was seen, in seconds of the clock."""
    last_at: float = 0.0
    """Time at which the last unanswered SYN was seen."""
    losses: tuple[Losses, Losses] | None = None
    """Before the first unanswered SYN, and at the last look."""

    def add(self, counter: int, accepted: int, *, now: float, before: float) -> None:
        """Take the counters of a reading.

        :param before: time of the previous reading.
        """
        # The counter of a flow that was installed again starts at zero.
        new = counter - self.counter if counter >= self.counter else counter
        self.counter = counter
        self.syns += new
        if accepted != self.accepted:
            self.accepted = accepted
            self.unanswered, self.settled_at, self.losses = 0, now + LAG, None
        elif new and before >= self.settled_at:
            if not self.unanswered:
                self.since = now
            self.unanswered += new
            self.last_at = now
        elif self.unanswered and now - self.last_at > FORGOTTEN:
            self.unanswered, self.losses = 0, None


class UnansweredGuests:
    """Compares SYNs that the switch counted with connections that the proxy accepted.

    :param floods: returns the purposes whose packets an endpoint sends at too high a rate.
    :param userspace: returns whether the bridge has Open vSwitch's userspace datapath.
    :param clock: seconds since the epoch, because the times are shown to operators.
    """

    def __init__(
        self,
        registry: Registry,
        arrivals: Arrivals,
        probe: Probe,
        *,
        floods: Callable[[Endpoint], Collection[Purpose]],
        userspace: Callable[[], bool],
        clock: Callable[[], float] = clock.wall,
    ) -> None:
        self._registry, self._arrivals, self._probe = registry, arrivals, probe
        self._floods, self._userspace = floods, userspace
        self._clock = clock
        self._guests: dict[Endpoint, GuestSyns] = {}
        self._read_at: float | None = None
        """Time at which the counters were last read."""
        self._checksum_errors = checksum_errors()

    def look(self) -> None:
        """Read the counters. Waits; after a failure the next call tries again."""
        try:
            self._account(self._arrivals.read())
            before, self._checksum_errors = self._checksum_errors, checksum_errors()
            doubtful = [item for item in self._guests.items() if item[1].unanswered]
            for endpoint, guest in doubtful[:DOUBTFUL]:
                replies = self._arrivals.replies(endpoint)
                first = guest.losses[0] if guest.losses is not None else Losses(before, replies)
                guest.losses = first, Losses(self._checksum_errors, replies)
        except DfmetaError as error:
            LOG.debug("The counters of SYNs were not read: %s", error)

    def _account(self, counters: Mapping[Endpoint, int] | None) -> None:
        """Process a reading.

        :param counters: endpoint → packets of its flows for SYNs; None: no new reading.
        """
        now, read_at = self._clock(), self._read_at
        before = now if read_at is None else read_at
        if counters is None:
            counters = {endpoint: guest.counter for endpoint, guest in self._guests.items()}
        else:
            self._read_at = now
        guests: dict[Endpoint, GuestSyns] = {}
        for endpoint, counter in counters.items():
            identity = self._registry.identity(endpoint)
            if identity is None:
                continue
            incarnation, guest = identity.incarnation, self._guests.get(endpoint)
            if guest is None or guest.incarnation != incarnation:
                # The counter of a flow older than the daemon may include another guest's packets.
                if read_at is None or guest is not None:
                    guest = GuestSyns(incarnation, counter, settled_at=now + LAG)
                else:
                    guest = GuestSyns(incarnation, 0, settled_at=before)
            guest.add(counter, ACCEPTED.of(endpoint, incarnation), now=now, before=before)
            guests[endpoint] = guest
        self._guests = guests

    def cause(self, port: Port) -> str:
        """Return the probable cause if the guest of *port* has no connection; else empty text."""
        endpoint, guest = port.endpoint, self._guest(port)
        if endpoint is None or guest is None or guest.unanswered < SYNS:
            return ""
        if self._clock() - guest.since < PERSISTENCE:
            return ""
        text = f"{guest.unanswered} SYNs since {moment(guest.since)} and no connection"
        if self._floods(endpoint):
            return f"{text}: it sends too many, and the switch drops them until it stops"
        first, latest = guest.losses or (Losses(0, 0), Losses(0, 0))
        if errors := latest.checksum_errors - first.checksum_errors:
            remedy = (
                checksum_advice(driver_of(port.name))
                if self._userspace()
                else "the guest or its device damages them"
            )
            return f"{text}: their TCP checksums are wrong (TcpInCsumErrors +{errors}): {remedy}"
        if latest.replies != first.replies:
            return (
                f"{text}: the proxy's SYN-ACKs leave through the port, and the guest does not "
                "answer them: its own packet filter or device drops them"
            )
        last = self._probe.last
        if last is not None and not last.answered:
            return f"{text}: {last.cause}"
        return (
            f"{text}: the host drops them behind the switch: run `dfmeta doctor`, and look for a "
            "packet filter that drops only this guest's SYNs"
        )

    def connections(self, port: Port) -> dict[str, Any] | None:
        """Return the member ``connections`` of ``GET /ports``; None while nothing is known."""
        counted, guest = self._guest(port), self._registry.guest_of(port)
        if counted is None or guest is None:
            return None
        return {
            "syns": counted.syns,
            "first_syns": guest.first_syns,
            "accepted": counted.accepted,
            "unanswered": counted.unanswered,
            "unanswered_since": moment(counted.since) if counted.unanswered else None,
        }

    def _guest(self, port: Port) -> GuestSyns | None:
        guest = self._registry.guest_of(port)
        if guest is None or guest.port != port or guest.identity is None:
            return None
        counted = self._guests.get(guest.endpoint)
        return counted if counted and counted.incarnation == guest.identity.incarnation else None
