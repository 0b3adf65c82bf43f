"""Reviews the state of each guest's port once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from dfmeta import metrics
from dfmeta.apps.controller import Controller
from dfmeta.apps.counters import DOUBTFUL, Arrivals
from dfmeta.apps.probe import Probe
from dfmeta.cmd.rows import moment
from dfmeta.doctor.checks_guests import checksum_advice
from dfmeta.errors import DfmetaError
from dfmeta.flows.pipeline import METADATA_IP, Purpose
from dfmeta.flows.port_down import PortBits, cut_of, refused
from dfmeta.host.device import driver_of
from dfmeta.host.system import checksum_errors
from dfmeta.identity.port_states import Observer, PortStateMonitor
from dfmeta.identity.registry import Registry
from dfmeta.identity.syn_accounting import ACCEPTED, GuestCounts, SynAccounting, SynCounters
from dfmeta.model import Endpoint, Port, PortId, PortState
from dfmeta.runtime import clock, threads

LOG = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Minimum seconds between two reviews of all ports."""
SHARE: Final = 0.03
"""Maximum share of the time that reviews of thousands of ports may take."""
LONGEST: Final = 2.0
"""Maximum seconds between two reviews: on a busy host a review may last long without much work."""
CHECKSUMS, REPLIES = "checksum errors", "replies"
"""Names of counters that are recorded when the first unanswered SYN is seen."""


class PortWatch:
    """Reviews the ports' states, and lists the ports with them.

    :param needs_project: whether the backend answers only guests with a known project.
    :param gather: makes the workers report their recorded requests.
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
        arrivals, floods = controller.arrivals, controller.floods
        self._silence = Silence(
            registry, arrivals, controller.probe, first_syns, floods=floods.of, userspace=userspace
        )
        bits, bridge = controller.numbers.bits, controller.bridge.channel.bridge
        observers: dict[PortState, Observer] = {
            PortState.CUT_OFF: partial(
                cut_off, bits=bits, refusal=controller.refusal, bridge=bridge
            ),
            PortState.NO_CONNECTION: self._silence.cause,
        }
        self._backend = "nova" if needs_project else "store"
        if needs_project:
            observers[PortState.NO_PROJECT] = without_project
        if controller.meta is not None:
            observers[PortState.NO_META_IP] = FullRange(
                registry, lambda: controller.bridge.reconciler.adopted
            ).cause
        self.conditions = PortStateMonitor(registry, observers)
        for state in PortState:
            metrics.PORTS.labels(state).set_function(partial(self.conditions.count, state))
        metrics.ADDRESSES.labels("4").set_function(partial(registry.count_addresses, 4))
        metrics.ADDRESSES.labels("6").set_function(partial(registry.count_addresses, 6))

    def run(self) -> None:
        """Review the ports in an endless loop; run it in its own greenthread."""
        while True:
            if self._controller.all_ready:
                self._silence.look()
            begun = clock.now()
            self.conditions.review()
            took = clock.now() - begun
            threads.sleep(min(max(INTERVAL, took / SHARE), LONGEST))

    def rows(self) -> list[dict[str, Any]]:
        """Return every guest port in the form of ``GET /ports``."""
        from dfmeta.cmd.rows import port_rows

        self._gather()
        tap = self._controller.bridge.reconciler.tap
        return port_rows(
            self._registry,
            conditions=self.conditions,
            connections=self._silence.connections,
            backend=self._backend,
            service_ip=tap.guest_ip if tap is not None else METADATA_IP,
        )


class Silence:
    """Finds guests with SYNs but without connections, and the probable cause."""

    def __init__(
        self,
        registry: Registry,
        arrivals: Arrivals,
        probe: Probe,
        first_syns: GuestCounts,
        *,
        floods: Callable[[Endpoint], Collection[Purpose]],
        userspace: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._arrivals = arrivals
        self._probe = probe
        self._first_syns = first_syns
        self._floods, self._userspace = floods, userspace
        self.experience = SynAccounting()
        self._latest: dict[Endpoint, dict[str, int]] = {}
        """Counters of the guests with unanswered SYNs, as of the last look."""
        self._checksums = checksum_errors()
        """Checksum errors as of the last look."""

    def look(self) -> None:
        """Read the counters. Waits; after a failure the next call tries again."""
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
        """Return the probable cause if the guest of *port* has no connection; else empty text."""
        endpoint, met = port.endpoint, self._met(port)
        if endpoint is None or met is None or not self.experience.silent(met):
            return ""
        text = f"{met.unanswered} SYNs since {moment(met.since)} and no connection"
        if self._floods(endpoint):
            return f"{text}: it sends too many, and the switch drops them until it stops"
        now = self._latest.get(endpoint, {})
        new = {name: value - met.at_first.get(name, value) for name, value in now.items()}
        if new.get(CHECKSUMS):
            remedy = (
                checksum_advice(driver_of(port.name))
                if self._userspace()
                else "the guest or its device damages them"
            )
            return (
                f"{text}: their TCP checksums are wrong (TcpInCsumErrors +{new[CHECKSUMS]}): "
                f"{remedy}"
            )
        if new.get(REPLIES):
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

    def _met(self, port: Port) -> SynCounters | None:
        endpoint = port.endpoint
        if endpoint is None or self._registry.port_at(endpoint) != port:
            return None
        guest = self._incarnation(endpoint)
        return None if guest is None else self.experience.of(endpoint, guest)

    def _incarnation(self, endpoint: Endpoint) -> int | None:
        identity = self._registry.identity(endpoint)
        return None if identity is None else identity.incarnation

    def _count(self, endpoint: Endpoint, met: SynCounters, checksums: int) -> dict[str, int]:
        """Return the current counters of a guest, and record the first ones.

        :param checksums: the host's checksum errors before the SYNs of this look.
        """
        replies = self._arrivals.replies(endpoint)
        if not met.at_first:
            met.at_first = {CHECKSUMS: checksums, REPLIES: replies}
        return {CHECKSUMS: self._checksums, REPLIES: replies}


class FullRange:
    """Finds ports without a Meta IP.

    :param adopted: returns whether the addresses of an earlier run are adopted; before that, no
        number may be given.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        adopted: Callable[[], bool],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._registry = registry
        self._adopted = adopted
        self._clock = clock
        self._without: frozenset[PortId] = frozenset()
        self._due = 0.0

    def cause(self, port: Port) -> str:
        """Return a fault if all Meta IPs were taken when *port* was to get one; else empty text."""
        now = self._clock()
        if now >= self._due and self._adopted():
            # All ports are reviewed at a time.
            self._due = now + INTERVAL
            self._without = frozenset(one.id for one in self._registry.ports_without_number())
        has_key = self._registry.allocator.first_key(port) is not None
        if has_key or port.id not in self._without:
            return ""
        network = self._registry.keys.network(4)
        if port.vid:
            return (
                f"no Meta IP of {network} is left for it ([METADATA] provider_cidr): the subports "
                "of one VM get a quarter at most, and an eighth is kept for ports"
            )
        return f"all Meta IPs of {network} are taken ([METADATA] provider_cidr)"


def without_project(port: Port) -> str:
    """Return a fault if no identity source gives the project of *port*; else empty text."""
    return "" if port.project_id else "no identity source gives its project, which Nova needs"


def cut_off(
    port: Port,
    *,
    bits: Callable[[int], PortBits | None],
    refusal: Callable[[Endpoint], str],
    bridge: str,
) -> str:
    """Return why the switch drops frames of *port*, and the remedy; empty when it does not.

    :param bits: returns the switch's description of a port.
    :param refusal: returns why the switch refused a flow of an endpoint; empty if it did not.
    """
    found = bits(port.ofport) if port.ofport is not None else None
    cut = cut_of(found, port.name, bridge=bridge)
    if cut is None and port.endpoint is not None and (cause := refusal(port.endpoint)):
        cut = refused(cause, bridge)
    return str(cut or "")
