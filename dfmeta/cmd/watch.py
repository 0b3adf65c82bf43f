"""The daemon's look at what its guests meet: the state of each port, once a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import eventlet

from dfmeta import metrics
from dfmeta.apps.arrivals import DOUBTFUL, Arrivals
from dfmeta.apps.controller import Controller
from dfmeta.apps.probe import Probe
from dfmeta.cmd.rows import moment
from dfmeta.conditions import Conditions, Observer
from dfmeta.exceptions import DfmetaError
from dfmeta.experience import Experience, Met
from dfmeta.guest_counts import ACCEPTED, GuestCounts
from dfmeta.host.counters import checksum_errors
from dfmeta.host.device import driver_of
from dfmeta.inspect.cuts import PortBits, cut_of
from dfmeta.inspect.offload import advice
from dfmeta.model import Endpoint, Port, PortState
from dfmeta.registry import Registry

LOG = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds between two reviews of all ports at least."""
SHARE: Final = 0.03
"""How much of the time may go into reviewing thousands of ports."""
LONGEST: Final = 2.0
"""Seconds between two reviews at most: a review that a busy host held up took no work itself."""
CHECKSUMS, REPLIES = "checksum errors", "replies"
"""Counters that are kept when the first unanswered SYN is seen."""


class PortWatch:
    """Reviews the ports' states, and lists the ports with them.

    :param needs_project: the backend answers no guest whose project is not known.
    :param gather: has the workers report what they have noted of requests.
    :param userspace: whether the bridge has Open vSwitch's userspace datapath.
    """

    def __init__(
        self,
        registry: Registry,
        controller: Controller,
        *,
        needs_project: bool,
        gather: Callable[[], object],
        userspace: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._controller = controller
        self._gather = gather
        first_syns = controller.learner.first_syns
        arrivals = Arrivals(controller.channel)
        self._silence = Silence(
            registry, arrivals, controller.probe, first_syns, userspace=userspace
        )
        bits, bridge = controller.numbers.bits, controller.channel.bridge
        observers: dict[PortState, Observer] = {
            PortState.CUT_OFF: partial(cut_off, bits=bits, bridge=bridge),
            PortState.NO_CONNECTION: self._silence.cause,
        }
        self._backend = "nova" if needs_project else "store"
        if needs_project:
            observers[PortState.NO_PROJECT] = without_project
        self.conditions = Conditions(registry, observers)
        for state in PortState:
            metrics.PORTS.labels(state).set_function(partial(self.conditions.count, state))

    def run(self) -> None:
        """Review the ports for ever; run it in a thread of its own."""
        while True:
            if self._controller.ready:
                self._silence.look()
            begun = time.monotonic()
            self.conditions.review()
            took = time.monotonic() - begun
            eventlet.sleep(min(max(INTERVAL, took / SHARE), LONGEST))

    def rows(self) -> list[dict[str, Any]]:
        """Every guest port, as ``GET /ports`` has them."""
        from dfmeta.cmd.rows import port_rows

        self._gather()
        return port_rows(
            self._registry,
            conditions=self.conditions,
            connections=self._silence.connections,
            backend=self._backend,
        )


class Silence:
    """Finds guests whose SYNs arrive and whose connections do not, and why that may be."""

    def __init__(
        self,
        registry: Registry,
        arrivals: Arrivals,
        probe: Probe,
        first_syns: GuestCounts,
        *,
        userspace: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._arrivals = arrivals
        self._probe = probe
        self._first_syns = first_syns
        self._userspace = userspace
        self.experience = Experience()
        self._latest: dict[Endpoint, dict[str, int]] = {}
        """Counters of those that have unanswered SYNs, as of the last look."""
        self._checksums = checksum_errors()
        """As of the last look."""

    def look(self) -> None:
        """Read the counters. Waits; a failure is left to the next time."""
        try:
            counters = self._arrivals.read()
            self.experience.look(counters, self._incarnation, ACCEPTED.of)
            before, self._checksums = self._checksums, checksum_errors()
            self._latest = {
                endpoint: self._count(endpoint, met, before)
                for endpoint, met in self.experience.doubtful()[:DOUBTFUL]
            }
        except DfmetaError as error:
            LOG.debug("The counters of SYNs were not read: %s", error)

    def cause(self, port: Port) -> str:
        """Say why the guest of *port* may be without a connection; empty: it is not without."""
        endpoint, met = port.endpoint, self._met(port)
        if endpoint is None or met is None or not self.experience.silent(met):
            return ""
        text = f"{met.unanswered} SYNs since {moment(met.since)} and no connection"
        now = self._latest.get(endpoint, {})
        new = {name: value - met.at_first.get(name, value) for name, value in now.items()}
        if new.get(CHECKSUMS):
            remedy = (
                advice(driver_of(port.name))
                if self._userspace()
                else "the guest or its device damages them"
            )
            return (
                f"{text}: their TCP checksums are wrong (TcpInCsumErrors +{new[CHECKSUMS]}): "
                f"{remedy}"
            )
        if new.get(REPLIES):
            return (
                f"{text}: the proxy's SYN-ACKs leave by the port, and the guest does not take "
                "them up: its own packet filter or device drops them"
            )
        last = self._probe.last
        if last is not None and not last.answered:
            return f"{text}: {last.cause}"
        return (
            f"{text}: the host drops them behind the switch: see `dfmeta doctor`, and a packet "
            "filter that drops this guest's alone"
        )

    def connections(self, port: Port) -> dict[str, Any] | None:
        """The member ``connections`` of ``GET /ports``; None while nothing is known."""
        endpoint, met = port.endpoint, self._met(port)
        if endpoint is None or met is None:
            return None
        return {
            "syns": met.syns,
            "first_syns": self._first_syns.of(endpoint, met.incarnation),
            "accepted": met.accepted,
            "unanswered": met.unanswered,
            "unanswered_since": moment(met.since) if met.unanswered else None,
        }

    def _met(self, port: Port) -> Met | None:
        endpoint = port.endpoint
        if endpoint is None or self._registry.port_at(endpoint) != port:
            return None
        guest = self._incarnation(endpoint)
        return None if guest is None else self.experience.of(endpoint, guest)

    def _incarnation(self, endpoint: Endpoint) -> int | None:
        identity = self._registry.identity(endpoint)
        return None if identity is None else identity.incarnation

    def _count(self, endpoint: Endpoint, met: Met, checksums: int) -> dict[str, int]:
        """:param checksums: the host's checksum errors before the SYNs that this look has seen."""
        replies = self._arrivals.replies(endpoint)
        if not met.at_first:
            met.at_first = {CHECKSUMS: checksums, REPLIES: replies}
        return {CHECKSUMS: self._checksums, REPLIES: replies}


def without_project(port: Port) -> str:
    """Say that no identity source gives the project of *port*; empty when one does."""
    return "" if port.project_id else "no identity source gives its project, which Nova needs"


def cut_off(port: Port, *, bits: Callable[[int], PortBits | None], bridge: str) -> str:
    """Say what keeps frames of *port* out on the switch, and what lets them in; empty: nothing."""
    found = bits(port.ofport) if port.ofport is not None else None
    return str(cut_of(found, port.name, bridge=bridge) or "")
