"""The state of each guest's port, with the states that its row in OVSDB does not show.

A port whose flows are installed is "served" for :attr:`dfmeta.model.Port.state`. Its guest may
still get no answer: the port is administratively down, its project is not known, or its SYNs arrive
but no connection follows. Each of these is a separate state, observed at the switch and at the
proxy, and reported in ``/ports``, the status page, doctor, trace and ``dfmeta_ports``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dfmeta import metrics
from dfmeta.apps.controller import Controller
from dfmeta.apps.switch_ports import PortBits, cut_of, refused
from dfmeta.cmd.rows import port_rows
from dfmeta.cmd.unanswered import UnansweredGuests
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.registry import Registry
from dfmeta.model import OBSERVED, Endpoint, Port, PortId, PortState
from dfmeta.runtime import clock, threads
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Minimum seconds between two reviews of all ports."""
SHARE: Final = 0.03
"""Maximum share of the time that reviews of thousands of ports may take."""
LONGEST: Final = 2.0
"""Maximum seconds between two reviews: on a busy host a review may last long without much work."""
CHANGES: Final = 4
MINUTE: Final = 60.0
"""At most :data:`CHANGES` changes of one port's state are logged in :data:`MINUTE` seconds."""

Observer = Callable[[Port], str]
"""Returns the cause of a port's observed state; empty if the state does not apply."""


@dataclass(slots=True)
class _LoggedState:
    """State of one port as last logged."""

    state: PortState
    since: float
    """Start of the minute in which ``changes`` are counted."""
    changes: int = 0


class PortStateMonitor:
    """The state of each port, including the observed states.

    :param observers: state of :data:`~dfmeta.model.OBSERVED` → its observer. An observer is called
        for each port once a second; it must not wait.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        observers: Mapping[PortState, Observer],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._registry = registry
        self._observers = {state: observers[state] for state in OBSERVED if state in observers}
        self._clock = clock
        self._observed: dict[PortId, PortState] = {}
        """Port → its observed state at the last review."""
        self._logged: dict[PortId, _LoggedState] = {}
        """Port → its state as last logged."""

    def of(self, port: Port) -> tuple[PortState, str]:
        """Return the present state of *port* and its cause; a served port has no cause."""
        if port.state is not PortState.SERVED:
            return port.state, port.fault
        for state, observer in self._observers.items():
            cause = observer(port)
            if cause:
                return state, cause
        return PortState.SERVED, ""

    def counts(self) -> dict[str, int]:
        """Return state → number of its ports, with the observed states of the last review."""
        states = Counter(
            self._observed.get(port.id, port.state)
            if port.state is PortState.SERVED
            else port.state
            for port in self._registry.ports()
        )
        return {state: states[state] for state in PortState}

    def review(self) -> None:
        """Check each port, and log the begin and end of observed states. Yields to the hub."""
        observed: dict[PortId, PortState] = {}
        turns = Turns()
        for port in self._registry.ports():
            turns.give_way()
            state, cause = self.of(port)
            if state in self._observers:
                observed[port.id] = state
            self._log(port, state, cause)
        self._observed = observed
        oldest = self._clock() - MINUTE
        self._logged = {
            port_id: logged
            for port_id, logged in self._logged.items()
            if port_id in observed or logged.since > oldest
        }

    def _log(self, port: Port, state: PortState, cause: str) -> None:
        logged = self._logged.get(port.id)
        before = logged.state if logged is not None else PortState.SERVED
        if state is before or not (state in self._observers or state is PortState.SERVED):
            return
        now = self._clock()
        if logged is None or now - logged.since >= MINUTE:
            logged = self._logged[port.id] = _LoggedState(before, now)
        if logged.changes >= CHANGES:
            # A guest can change the state of its port as often as it likes.
            return
        logged.state, logged.changes = state, logged.changes + 1
        if state is PortState.SERVED:
            LOG.info("Port %s is no longer in the state '%s'", port.name, before)
        else:
            LOG.warning("Port %s: %s: %s", port.name, state, cause)


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
        self._registry, self._controller, self._gather = registry, controller, gather
        self._unanswered = UnansweredGuests(
            registry,
            controller.arrivals,
            controller.probe,
            floods=controller.floods.of,
            userspace=userspace,
        )
        self._without_number: frozenset[PortId] = frozenset()
        """The ports without a Meta IP at the last review."""
        observers: dict[PortState, Observer] = {
            PortState.CUT_OFF: partial(
                cut_off,
                bits=controller.numbers.bits,
                refusal=controller.refusal,
                bridge=controller.bridge.channel.bridge,
            ),
            PortState.NO_CONNECTION: self._unanswered.cause,
        }
        self._backend = "nova" if needs_project else "store"
        if needs_project:
            observers[PortState.NO_PROJECT] = without_project
        if controller.meta is not None:
            observers[PortState.NO_META_IP] = lambda port: without_meta_ip(
                port, registry, self._without_number
            )
        self.states = PortStateMonitor(registry, observers)
        metrics.PORTS.count = self.states.counts
        metrics.ADDRESSES.count = registry.count_addresses

    def run(self) -> None:
        """Review the ports in an endless loop; run it in its own greenthread."""
        while True:
            if self._controller.all_ready:
                self._unanswered.look()
            begun = clock.now()
            # Before the addresses of an earlier run are adopted, no number may be given.
            if self._controller.meta is not None and self._controller.bridge.reconciler.adopted:
                ports = self._registry.ports_without_number()
                self._without_number = frozenset(port.id for port in ports)
            self.states.review()
            took = clock.now() - begun
            threads.sleep(min(max(INTERVAL, took / SHARE), LONGEST))

    def rows(self) -> list[dict[str, Any]]:
        """Return every guest port in the form of ``GET /ports``."""
        self._gather()
        tap = self._controller.bridge.reconciler.tap
        return port_rows(
            self._registry,
            state_of=self.states.of,
            connections=self._unanswered.connections,
            backend=self._backend,
            service_ip=tap.guest_ip if tap is not None else METADATA_IP,
        )


def without_meta_ip(port: Port, registry: Registry, ports: Collection[PortId]) -> str:
    """Return a fault if all Meta IPs were taken when *port* was to get one; else empty text.

    :param ports: the ports that were without a number at the last review.
    """
    if port.id not in ports or registry.allocator.first_key(port) is not None:
        return ""
    network = registry.keys.network(4)
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
    description = bits(port.ofport) if port.ofport is not None else None
    cut = cut_of(description, port.name, bridge=bridge)
    if cut is None and port.endpoint is not None and (cause := refusal(port.endpoint)):
        cut = refused(cause, bridge)
    return str(cut or "")
