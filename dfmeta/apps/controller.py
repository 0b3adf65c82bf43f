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
"""Seconds between two looks at how many flows of ours there are."""
FULL_CHECK_INTERVAL = 30.0
"""Seconds between two comparisons of every flow."""
WITHDRAW_TIMEOUT = 3.0
"""Seconds that the removal of every flow and meter may take when a start has failed."""


class Controller:
    """Builds the parts and ties them together.

    :param hold_timeout: seconds that a SYN, and then its request, may wait in all.
    :param datapath_id: gives the id that OVSDB says the bridge has, or None when it is not known
        yet. Anybody on the host may dial a TCP listener and speak as a switch.
    :param adopts: see :class:`~dfmeta.apps.reconciler.Reconciler`.
    :param meters: see :class:`~dfmeta.apps.meters.Meters`.
    :param informed: see :class:`~dfmeta.apps.learner.Learner`.
    :param clock: monotonic seconds.
    :param pause: lets other threads run for so many seconds.
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
        self.probe = Probe(self.channel, lambda: self.reconciler.tap)
        self._datapath_id = datapath_id
        self._doubts = LightQueue(1)
        self._lost_flows = False
        """Whether the switch has told of flows of ours that went, and has not answered since: one
        that stops tells of all of them before the connection ends."""
        registry.subscribe(self.learner.release, Phase.FLOWS)
        registry.subscribe(self.changed, Phase.FLOWS)
        registry.when_certain(self.learner.release)

    @property
    def ready(self) -> bool:
        """Whether the switch has confirmed every flow."""
        return self.channel.connected and self.reconciler.confirmed

    @property
    def busy(self) -> bool:
        """Whether flows are being compared and sent at this moment."""
        return self.reconciler.busy

    def doubt(self) -> None:
        """Have every flow compared with the switch, soon and once for many calls."""
        self.reconciler.doubt()
        if not self._doubts.full():
            self._doubts.put_nowait(None)

    def connected(self, datapath: Any) -> None:
        """Take a connection whose handshake is done into use."""
        expected = self._datapath_id()
        if expected is not None and datapath.id != expected:
            LOG.error(
                "Refused an OpenFlow connection of datapath %016x: %s is %016x",
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
        """Note that a connection is gone; the dialler makes another."""
        if self.channel.detach(datapath):
            self._lost_flows = False
            LOG.warning("The connection to %s is gone", self.channel.bridge)
            metrics.SWITCH_CONNECTED.set(0)
            self.reconciler.disconnected()

    def set_tap(self, tap: Tap | None) -> None:
        """Say where the proxy is; every flow that leads there follows."""
        if tap != self.reconciler.tap:
            self.reconciler.tap = tap
            self.doubt()

    def withdraw(self) -> None:
        """Remove every flow and meter of dfmeta's, as far as that goes in a moment."""
        self.reconciler.tap = None
        if self.channel.connected:
            with eventlet.Timeout(WITHDRAW_TIMEOUT, False), contextlib.suppress(DfmetaError):
                self.reconciler.clear()

    def prove_path(self) -> None:
        """Probe the path to the proxy, now and then for ever; see :class:`Probe`.

        A path that is interrupted keeps readiness down, and the daemon goes on.
        """
        self.probe.ask()
        hub.VITAL.spawn("probe of the path", self.probe.run, lambda: self.ready)

    def changed(self, endpoint: Endpoint) -> None:
        """The guest at *endpoint* has changed: its flows follow."""
        try:
            self.reconciler.apply(endpoint)
        except DfmetaError as error:
            LOG.info("The flows of %s follow later: %s", endpoint, error)

    def flow_removed(self, message: Any) -> None:
        """Put flows back that another program has taken away."""
        if not self.channel.connected:
            return
        found = self.channel.wire.removed(message)
        if found is not None and self.reconciler.misses(found):
            self._lost_flows |= self.reconciler.confirmed
            self.doubt()

    def watch(self) -> None:
        """Look after the flows for ever; run it in a thread of its own."""
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
                    # It answers what was asked after that: it has not stopped.
                    self._lost_flows = False
                    LOG.info(
                        "Flows of dfmeta were removed from %s; they are put back",
                        self.channel.bridge,
                    )
                self.reconciler.reconcile_quietly()
                due = time.monotonic() + FULL_CHECK_INTERVAL

    def _looks_right(self) -> bool:
        if not self.reconciler.confirmed:
            return False
        try:
            # As many as were sent before the question: what follows it is not in the answer.
            expected = self.reconciler.flow_count()
            reply = self.channel.request(self.channel.wire.count(), "the count of flows").wait()
        except DfmetaError as error:
            LOG.warning("%s", error)
            return False
        return bool(reply[0].flow_count == expected)
