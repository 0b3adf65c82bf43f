"""Drives one bridge: its connection, its flows, and the checks that they are still there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.apps.reconciler import Builders, Reconciler, Remembered
from dfmeta.errors import DfmetaError
from dfmeta.flows.pipeline import CONTROLLER_ID, Purpose
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint
from dfmeta.runtime import clock, threads
from dfmeta.runtime.threads import Empty, Queue

LOG = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the number of dfmeta's flows."""
FULL_CHECK_INTERVAL: Final = 30.0
"""Seconds between two comparisons of all flows."""
WITHDRAW_TIMEOUT: Final = 3.0
"""Longest time in seconds for the removal of all flows after a failed start."""


class Driver:
    """Keeps the flows of one bridge equal to the desired flows.

    :param builders: build the desired flows of the bridge.
    :param datapath_id: returns the bridge's datapath id from OVSDB, or None while it is not known.
        Any program on the host may connect to a TCP listener and pose as a switch.
    :param adopts, remembered, floods: see :class:`~dfmeta.apps.reconciler.Reconciler`.
    :param reconciled: called after each reconcile.
    """

    role: metrics.Bridge = "integration"
    """Name of the bridge in metrics."""

    def __init__(
        self,
        channel: Channel,
        registry: Registry,
        *,
        builders: Builders,
        datapath_id: Callable[[], int | None],
        adopts: Callable[[Endpoint], bool] = lambda _endpoint: False,
        remembered: Callable[[], Iterable[Remembered]] = tuple,
        floods: Callable[[Endpoint], Collection[Purpose]] = lambda _endpoint: (),
        reconciled: Callable[[], object] = lambda: None,
    ) -> None:
        self.channel = channel
        self.reconciler = Reconciler(
            channel,
            registry,
            builders=builders,
            adopts=adopts,
            remembered=remembered,
            floods=floods,
            reconciled=reconciled,
            doubt=self.doubt,
        )
        self._datapath_id = datapath_id
        self._doubts = Queue(1)
        self._lost_flows = False
        """Whether the switch has reported the removal of flows of ours, and has not answered since.
        A switch that stops reports the removal of all flows before it closes the connection."""

    @property
    def ready(self) -> bool:
        """Whether the switch has confirmed all flows."""
        return self.channel.connected and self.reconciler.confirmed

    @property
    def busy(self) -> bool:
        """Whether flows are being compared and sent at this moment."""
        return self.reconciler.busy

    def doubt(self) -> None:
        """Request a comparison of all flows with the switch, soon and once for many calls."""
        self.reconciler.doubt()
        if not self._doubts.full():
            self._doubts.put_nowait(None)

    def set_target(self, target: Any) -> None:
        """Set the ports that the flows lead to; the flows are changed.

        :param target: a value of the type that the builders take; None: no ports yet.
        """
        if target != self.reconciler.tap:
            self.reconciler.tap = target
            self.doubt()

    def is_of(self, datapath: Any) -> bool:
        """Return whether a new connection is certainly one of this driver's bridge."""
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
        self.doubt()

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
        found = self.channel.wire.removed(message)
        if found is not None and self.reconciler.misses(found):
            self._lost_flows |= self.reconciler.confirmed
            self.doubt()

    def watch(self) -> None:
        """Keep the flows right, indefinitely; run this in a separate thread."""
        due = clock.now()
        while True:
            with contextlib.suppress(Empty):
                self._doubts.get(timeout=CHECK_INTERVAL)
            self._turn()
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
        metrics.BRIDGE_CONNECTED.labels(self.role).set(int(is_up))

    def _turn(self) -> None:
        """Do the periodic work that belongs to no flow."""

    def _prepare(self) -> bool:
        """Prepare a comparison of all flows; return whether it may begin."""
        return True

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
