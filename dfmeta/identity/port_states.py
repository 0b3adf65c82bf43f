"""States of a port that its row in OVSDB does not show: observed at the switch and at the proxy.

A port whose flows are installed is "served" for :attr:`dfmeta.model.Port.state`. Its guest may
still get no answer: the port is administratively down, its project is not known, or its SYNs arrive
but no connection follows. Each of these is a separate state, reported in ``/ports``, the status
page, doctor, trace and ``dfmeta_ports``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dfmeta.identity.registry import Registry
from dfmeta.model import OBSERVED, Port, PortId, PortState
from dfmeta.runtime import clock
from dfmeta.runtime.hub import Turns

LOG = logging.getLogger(__name__)

CHANGES: Final = 4
MINUTE: Final = 60.0
"""At most :data:`CHANGES` changes of one port's state are logged in :data:`MINUTE` seconds."""

Observer = Callable[[Port], str]
"""Returns the cause of a port's observed state; empty if the state does not apply."""


@dataclass(slots=True)
class _Told:
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
        self._odd: dict[PortId, tuple[PortState, str]] = {}
        """Port → its observed state at the last review, and the cause."""
        self._told: dict[PortId, _Told] = {}
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

    def count(self, state: PortState) -> int:
        """Return the number of ports in *state*, as of the last review."""
        observed = Counter(found for found, _cause in self._odd.values())
        if state is PortState.SERVED:
            # Some ports may have been removed since the review.
            return max(0, self._registry.count(state) - observed.total())
        return self._registry.count(state) + observed[state]

    def review(self) -> None:
        """Check each port, and log the begin and end of observed states. Yields to the hub."""
        odd: dict[PortId, tuple[PortState, str]] = {}
        turns = Turns()
        for port in self._registry.ports():
            turns.give_way()
            state, cause = self.of(port)
            if state in self._observers:
                odd[port.id] = state, cause
            self._log(port, state, cause)
        self._odd = odd
        oldest = self._clock() - MINUTE
        self._told = {
            one: told for one, told in self._told.items() if one in odd or told.since > oldest
        }

    def _log(self, port: Port, state: PortState, cause: str) -> None:
        told = self._told.get(port.id)
        before = told.state if told is not None else PortState.SERVED
        if state is before or not (state in self._observers or state is PortState.SERVED):
            return
        now = self._clock()
        if told is None or now - told.since >= MINUTE:
            told = self._told[port.id] = _Told(before, now)
        if told.changes >= CHANGES:
            # A guest can change the state of its port as often as it likes.
            return
        told.state, told.changes = state, told.changes + 1
        if state is PortState.SERVED:
            LOG.info("Port %s is no longer in the state '%s'", port.name, before)
        else:
            LOG.warning("Port %s: %s: %s", port.name, state, cause)
