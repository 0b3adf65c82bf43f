"""The guests' ports: the states that their rows in OVSDB do not show, and their listing.

A port whose flows are installed is "served" for :attr:`dfmeta.model.Port.state`. Its guest may
still get no answer: the port is administratively down, its project is not known, or its SYNs arrive
but no connection follows. Each of these is a separate state, observed at the switch and at the
proxy, and reported in ``/ports``, the status page, doctor, trace and ``dfmeta_ports``.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dfmeta import metrics
from dfmeta.apps.controller import Controller
from dfmeta.cmd import status_page, unanswered
from dfmeta.flows import integration_bridge, pipeline, port_down
from dfmeta.identity.registry import Registry
from dfmeta.identity.slots import Slot
from dfmeta.model import OBSERVED, Endpoint, Port, PortId, PortState
from dfmeta.proxy.recent import (
    CLASSES,
    CLOSED,
    RECENT,
    Failure,
    GuestRequests,
    Recent,
    brief_reason,
    guest_remedy,
)
from dfmeta.runtime import clock, threads, throttle
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

CHANGES: Final = 4
"""Changes of one port's state that are logged in a minute at most."""

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
        self.reviewed = Counter[PortState]()
        """State → number of its ports at the last review."""
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
        reviewed = Counter[PortState]()
        turns = Turns()
        for port in self._registry.ports():
            turns.give_way()
            state, cause = self.of(port)
            reviewed[state] += 1
            if state in self._observers:
                observed[port.id] = state
            self._log(port, state, cause)
        self._observed, self.reviewed = observed, reviewed
        oldest = self._clock() - throttle.QUIET
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
        if logged is None or now - logged.since >= throttle.QUIET:
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
        self._unanswered = unanswered.UnansweredGuests(
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
            threads.sleep(max(clock.CHECK_INTERVAL, throttle.pause_after(clock.now() - begun)))

    def rows(self) -> list[dict[str, Any]]:
        """Return every guest port in the form of ``GET /ports``."""
        self._gather()
        tap = self._controller.bridge.reconciler.tap
        return port_rows(
            self._registry,
            state_of=self.states.of,
            connections=self._unanswered.connections,
            backend=self._backend,
            service_ip=tap.guest_ip if tap is not None else pipeline.METADATA_IP,
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
    bits: Callable[[int], port_down.PortBits | None],
    refusal: Callable[[Endpoint], str],
    bridge: str,
) -> str:
    """Return why the switch drops frames of *port*, and the remedy; empty when it does not.

    :param bits: returns the switch's description of a port.
    :param refusal: returns why the switch refused a flow of an endpoint; empty if it did not.
    """
    description = bits(port.ofport) if port.ofport is not None else None
    cut = port_down.cut_of(description, port.name, bridge=bridge)
    if cut is None and port.endpoint is not None and (cause := refusal(port.endpoint)):
        cut = port_down.refused(cause, bridge)
    return str(cut or "")


def port_rows(
    registry: Registry,
    recent: Recent = RECENT,
    state_of: Callable[[Port], tuple[PortState, str]] = lambda port: (port.state, port.fault),
    connections: Callable[[Port], dict[str, Any] | None] = lambda _port: None,
    *,
    backend: str = "store",
    service_ip: str = pipeline.METADATA_IP,
) -> list[dict[str, Any]]:
    """Return every guest port, sorted by ofport and VLAN id.

    :param recent: recent requests of the guests.
    :param state_of: returns a port's state and its cause; by default those from its row.
    :param connections: returns the member ``connections``.
    :param backend: ``store`` or ``nova``; the remedies depend on it.
    :param service_ip: IPv4 address of the service for guests.
    """
    rows = []
    turns = Turns()
    for port, slots in list(registry):
        turns.give_way()
        state, cause = state_of(port)
        rows.append(
            {
                "port": port.name,
                "ofport": port.ofport,
                "vid": port.vid,
                **_keys(registry, port, slots),
                "iface_id": port.iface_id,
                "mac": port.mac,
                "instance": port.instance_id,
                "instance_name": port.instance_name,
                "project": port.project_id,
                "sources": dict(port.sources),
                "state": str(state),
                "fault": cause,
                "kind": str(port.kind),
                "segmentation_id": port.segmentation_id or None,
                "parent": port.parent or None,
                "subport_faults": list(port.subport_faults),
                "source": str(port.binding.ip) if port.binding is not None else None,
                "connections": connections(port),
                **_next_hops(registry, port, service_ip),
                **_requests(_recent_requests(registry, port, recent), port, backend),
            }
        )
    return sorted(rows, key=_place)


def _keys(registry: Registry, port: Port, slots: Mapping[int, Slot]) -> dict[str, Any]:
    """Return the members of a port's keys, and of the addresses that they stand for."""
    keys, endpoint = registry.keys, port.endpoint
    key, key6 = (registry.allocator.first_key(port, version) for version in (4, 6))
    first = keys.number_of(key) if key is not None else None
    addresses = [
        {
            "slot": keys.shown(number),
            "key": str(keys.key_of(endpoint, number)),
            "meta_mac": keys.label(number),
            "mac": slot.address.mac,
            "ip": str(slot.address.ip),
            "service": str(slot.address.service) if slot.address.service else None,
            "connections": slot.connections,
        }
        for number, slot in sorted(slots.items())
        if endpoint is not None
    ]
    return {
        "key": str(key) if key is not None else None,
        "key6": str(key6) if key6 is not None else None,
        "meta_mac": keys.label(first) if first is not None else None,
        "addresses": addresses,
    }


def _next_hops(registry: Registry, port: Port, service_ip: str) -> dict[str, Any]:
    """Return the members ``next_hops`` and ``next_hop_faults``.

    The former is None while Neutron has not been asked. Next hops that an earlier run has left on
    the switch are among them even then.
    """
    endpoint, faults = port.endpoint, list(port.next_hop_faults)
    hops, addresses = port.next_hops, []
    guest = registry.guest(endpoint) if endpoint is not None else None
    if guest is not None and guest.port == port:
        hops = guest.next_hops or hops
        addresses = [slot.address for slot in guest.slots.values()]
    if hops is None:
        return {"next_hops": None, "next_hop_faults": faults}
    usable = integration_bridge.usable_next_hops(hops, addresses, service_ip)
    for hop in hops:
        if hop not in usable:
            whose = "the service" if hop.ip == service_ip else "the guest itself"
            faults.append(f"{hop.ip}: it is the address of {whose}")
    listed = [{"ip": hop.ip, "mac": hop.mac or None, "source": hop.source} for hop in usable]
    return {"next_hops": listed, "next_hop_faults": faults}


def _place(row: dict[str, Any]) -> tuple[bool, int, int, str]:
    return row["ofport"] is None, row["ofport"] or 0, row["vid"], row["port"]


def _recent_requests(registry: Registry, port: Port, recent: Recent) -> GuestRequests | None:
    """Return the recent requests of a port's guest; None when it has none.

    Of two rows with the same ofport only one has the guest.
    """
    endpoint = port.endpoint
    if endpoint is None or registry.port_at(endpoint) != port:
        return None
    identity = registry.identity(endpoint)
    return None if identity is None else recent.of(endpoint, identity.incarnation)


def _requests(requests: GuestRequests | None, port: Port, backend: str) -> dict[str, Any]:
    """Return the members ``requests`` and ``last_failure``; each is None when there were none."""
    if requests is None:
        return {"requests": None, "last_failure": None}
    # A subport without an instance gets 404 as it should.
    failures = requests.failures() if port.instance_id else []
    counts = {
        **dict(zip(CLASSES, requests.counts, strict=True)),
        "last_at": status_page.moment(requests.last_at),
        "last_status": None if requests.last_status == CLOSED else requests.last_status,
    }
    return {
        "requests": counts,
        "last_failure": _last_failure(requests, failures[0], port, backend) if failures else None,
    }


def _last_failure(
    requests: GuestRequests, last: Failure, port: Port, backend: str
) -> dict[str, Any]:
    since = requests.failing_since
    return {
        **status_page.failure_row(last),
        "own": not requests.counts_as(last),
        "brief": brief_reason(last, backend),
        "remedy": guest_remedy(last, backend, port=port.name, instance=port.instance_id),
        "failing": requests.failing,
        "failing_since": status_page.moment(since) if since else None,
    }
