"""One managed bridge: its connection, its flows, and the checks that they are still there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from dfmeta import metrics
from dfmeta.apps.reconciler import Reconciler
from dfmeta.errors import DfmetaError
from dfmeta.flows.pipeline import CONTROLLER_ID
from dfmeta.model import Endpoint
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import Empty

LOG = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the number of dfmeta's flows."""
FULL_CHECK_INTERVAL: Final = 30.0
"""Seconds between two comparisons of all flows."""
WITHDRAW_TIMEOUT: Final = 3.0
"""Longest time in seconds for the removal of all flows after a failed start."""


class ManagedBridge:
    """Keeps the flows of one bridge equal to the desired flows.

    :param role: name of the bridge in metrics.
    :param datapath_id: returns the bridge's datapath id from OVSDB, or None while it is not known.
        Any program on the host may connect to a TCP listener and pose as a switch.
    :param prepare: prepares a comparison of all flows; returns whether it may begin.
    :param connection_changed: called when the connection is up, and when it was lost.
    """

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        role: metrics.Bridge,
        datapath_id: Callable[[], int | None],
        prepare: Callable[[], bool],
        connection_changed: Callable[[bool], object] = lambda _is_up: None,
    ) -> None:
        self.channel, self.reconciler = reconciler.channel, reconciler
        self._role = role
        self._datapath_id, self._prepare = datapath_id, prepare
        self._on_connection_changed = connection_changed
        self._lost_flows = False
        """Whether the switch has reported the removal of flows of ours, and has not answered since.
        A switch that stops reports the removal of all flows before it closes the connection."""

    @property
    def ready(self) -> bool:
        """Whether the switch has confirmed all flows."""
        return self.channel.connected and self.reconciler.confirmed

    def set_tap(self, tap: Any) -> None:
        """Set the ports that the flows lead to; the flows are changed.

        :param tap: a value of the type that the builders take; None: no ports yet.
        """
        if tap != self.reconciler.tap:
            self.reconciler.tap = tap
            self.reconciler.doubt()

    def is_of(self, datapath: Any) -> bool:
        """Return whether a new connection is certainly one of this bridge."""
        expected = self._datapath_id()
        return expected is not None and datapath.id == expected

    def connected(self, datapath: Any) -> None:
        """Use a connection that has finished its handshake, if it is the bridge's."""
        expected = self._datapath_id()
        if expected is not None and datapath.id != expected:
            LOG.error(
                "Refused an OpenFlow connection of datapath %016x: the datapath of %s is %016x",
                datapath.id,
                self.channel.bridge,
                expected,
            )
            datapath.close()
            return
        self.channel.attach(datapath)
        wire = self.channel.wire
        self.channel.post([wire.set_controller_id(CONTROLLER_ID), wire.set_async()])
        LOG.info("Connected to %s, datapath %016x", self.channel.bridge, datapath.id)
        self._note_connected(True)
        self.reconciler.doubt()

    def disconnected(self, datapath: Any) -> None:
        """Note that a connection has ended; the dialler makes a new one."""
        if self.channel.detach(datapath):
            self._lost_flows = False
            LOG.warning("The connection to %s was lost; waiting for a new one", self.channel.bridge)
            self._note_connected(False)
            self.reconciler.disconnected()

    def withdraw(self) -> None:
        """Remove dfmeta's flows, within :data:`WITHDRAW_TIMEOUT`."""
        self.reconciler.tap = None
        if self.channel.connected:
            with threads.Timeout(WITHDRAW_TIMEOUT, False), contextlib.suppress(DfmetaError):
                self.reconciler.clear()

    def changed(self, endpoint: Endpoint) -> None:
        """Update the flows of *endpoint*, whose guest has changed."""
        try:
            self.reconciler.apply(endpoint)
        except DfmetaError as error:
            LOG.info("The next reconcile updates the flows of %s: %s", endpoint, error)

    def flow_removed(self, message: Any) -> None:
        """Request a comparison if another program has removed a flow that is needed."""
        if not self.channel.connected:
            return
        removed_flow = self.channel.wire.removed(message)
        if removed_flow is not None and self.reconciler.misses(removed_flow):
            self._lost_flows |= self.reconciler.confirmed
            self.reconciler.doubt()

    def watch(self, each_turn: Callable[[], object] = lambda: None) -> None:
        """Keep the flows right, indefinitely; run this in a separate thread.

        :param each_turn: periodic work that belongs to no flow.
        """
        due = clock.now()
        while True:
            with contextlib.suppress(Empty):
                self.reconciler.doubts.get(timeout=CHECK_INTERVAL)
            each_turn()
            if not self.channel.connected or self.reconciler.tap is None:
                continue
            if clock.now() >= due or not self._looks_right():
                lost = self._lost_flows
                if not self._prepare():
                    continue
                if lost:
                    # The switch answers a request that was sent after the removal: it runs.
                    self._lost_flows = False
                    LOG.info(
                        "Flows of dfmeta were removed from %s; installing them again",
                        self.channel.bridge,
                    )
                self.reconciler.reconcile_quietly()
                due = clock.now() + FULL_CHECK_INTERVAL

    def _note_connected(self, is_up: bool) -> None:
        metrics.BRIDGE_CONNECTED.labels(self._role).set(int(is_up))
        self._on_connection_changed(is_up)

    def _looks_right(self) -> bool:
        if not self.reconciler.confirmed:
            return False
        try:
            # The flows that were sent before the request: the reply does not count later ones.
            expected = self.reconciler.flow_count()
            replies = self.channel.gather(self.channel.wire.count_tables(), "the count of flows")
        except DfmetaError as error:
            LOG.warning("%s", error)
            return False
        return bool(sum(reply.flow_count for reply in replies) == expected)
