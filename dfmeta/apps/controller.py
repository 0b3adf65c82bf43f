"""The switch side of the daemon as one object: connection, flows, meters, first SYNs, the probe."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

import eventlet
from eventlet.queue import Empty, LightQueue

from dfmeta import hub, metrics
from dfmeta.apps import tally
from dfmeta.apps.advertiser import Advertiser
from dfmeta.apps.channel import Channel
from dfmeta.apps.learner import Learner
from dfmeta.apps.meters import Memory, Meters
from dfmeta.apps.numbers import Numbers
from dfmeta.apps.probe import Probe
from dfmeta.apps.reconciler import Reconciler
from dfmeta.exceptions import DfmetaError
from dfmeta.flows.pipeline import CONTROLLER_ID, Layout
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint
from dfmeta.registry import Phase, Registry

LOG = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two checks of the number of dfmeta's flows."""
FULL_CHECK_INTERVAL = 30.0
"""Seconds between two comparisons of all flows."""
WITHDRAW_TIMEOUT = 3.0
"""Longest time in seconds for the removal of all flows and meters after a failed start."""


class Controller:
    """Builds the parts of the switch side and connects them.

    :param hold_timeout: seconds that a SYN, and then its request, may wait in all.
    :param datapath_id: returns the bridge's datapath id from OVSDB, or None while it is not known.
        Any program on the host may connect to a TCP listener and pose as a switch.
    :param adopts: see :class:`~dfmeta.apps.reconciler.Reconciler`.
    :param meters: see :class:`~dfmeta.apps.meters.Meters`.
    :param informed: see :class:`~dfmeta.apps.learner.Learner`.
    :param clock: monotonic seconds.
    :param pause: sleeps for that many seconds, so that other threads run.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        bridge: str,
        layout: Layout,
        hold_timeout: float,
        datapath_id: Callable[[], int | None],
        adopts: Callable[[Endpoint], bool],
        meters: Memory | None = None,
        informed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = eventlet.sleep,
    ) -> None:
        self.channel = Channel(bridge, layout)
        self.meters = Meters(
            meters,
            pipeline=layout.pipeline,
            redrawn=lambda one: self.reconciler.redrawn(one),
            clock=clock,
        )
        self.reconciler = Reconciler(
            self.channel,
            registry,
            meters=self.meters,
            adopts=adopts,
            reconciled=lambda: self.learner.release_all(),
            doubt=self.doubt,
        )
        tally.show((self.reconciler.tally,))
        self.learner = Learner(
            registry,
            self.reconciler,
            hold_timeout=hold_timeout,
            informed=informed,
            clock=clock,
            pause=pause,
        )
        self.numbers = Numbers(self.channel, registry)
        self.advertiser = Advertiser(self.channel, registry, lambda: self.reconciler.tap)
        self.probe = Probe(self.channel, lambda: self.reconciler.tap)
        self.probe6 = Probe(self.channel, lambda: self.reconciler.tap, version=6)
        self.probes = (self.probe, self.probe6)
        self._datapath_id = datapath_id
        self._doubts = LightQueue(1)
        self._lost_flows = False
        """Whether the switch has reported the removal of flows of ours, and has not answered since.
        A switch that stops reports the removal of all flows before it closes the connection."""
        registry.subscribe(self.learner.release, Phase.FLOWS)
        registry.subscribe(self.changed, Phase.FLOWS)
        registry.when_certain(self.learner.release)

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
        metrics.SWITCH_CONNECTED.set(1)
        self.doubt()

    def disconnected(self, datapath: Any) -> None:
        """Note that a connection has ended; the dialler makes a new one."""
        if self.channel.detach(datapath):
            self._lost_flows = False
            LOG.warning("The connection to %s was lost; waiting for a new one", self.channel.bridge)
            metrics.SWITCH_CONNECTED.set(0)
            self.reconciler.disconnected()

    def set_tap(self, tap: Tap | None) -> None:
        """Set the port and the address of the proxy; the flows that lead to it are changed."""
        if tap != self.reconciler.tap:
            self.reconciler.tap = tap
            self.doubt()

    def withdraw(self) -> None:
        """Remove dfmeta's flows and meters, within :data:`WITHDRAW_TIMEOUT`."""
        self.reconciler.tap = None
        if self.channel.connected:
            with eventlet.Timeout(WITHDRAW_TIMEOUT, False), contextlib.suppress(DfmetaError):
                self.reconciler.clear()

    def prove_path(self) -> None:
        """Probe the path to the proxy now, and then periodically; see :class:`Probe`.

        While the path is interrupted, the daemon is not ready, but it continues to run.
        """
        self.probe.ask()
        hub.VITAL.spawn("probe of the path", self.probe.run, lambda: self.ready)
        hub.VITAL.spawn("probe of the path, IPv6", self.probe6.run, self._ready6)

    def _ready6(self) -> bool:
        """Return whether guests are led to the proxy over IPv6."""
        return (
            self.ready and self.reconciler.tap is not None and bool(self.reconciler.tap.guest_ip6)
        )

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
        due = time.monotonic()
        while True:
            with contextlib.suppress(Empty):
                self._doubts.get(timeout=CHECK_INTERVAL)
            self.learner.expire()
            if not self.channel.connected or self.reconciler.tap is None:
                continue
            if time.monotonic() >= due or not self._looks_right():
                lost = self._lost_flows
                if not self.numbers.ask():
                    continue
                if lost:
                    # The switch answers a request that was sent after the removal: it runs.
                    self._lost_flows = False
                    LOG.info(
                        "Flows of dfmeta were removed from %s; installing them again",
                        self.channel.bridge,
                    )
                self.reconciler.reconcile_quietly()
                due = time.monotonic() + FULL_CHECK_INTERVAL

    def _looks_right(self) -> bool:
        if not self.reconciler.confirmed:
            return False
        try:
            # The flows that were sent before the request: the reply does not count later ones.
            expected = self.reconciler.flow_count()
            reply = self.channel.request(self.channel.wire.count(), "the count of flows").wait()
        except DfmetaError as error:
            LOG.warning("%s", error)
            return False
        return bool(reply[0].flow_count == expected)
