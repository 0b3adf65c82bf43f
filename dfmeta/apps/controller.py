"""The controller: one object that the shims, and the rest of the daemon, talk to."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from eventlet.queue import Empty, LightQueue

from dfmeta import metrics
from dfmeta.apps.channel import Channel
from dfmeta.apps.learner import Learner
from dfmeta.apps.numbers import Numbers
from dfmeta.apps.probe import Probe
from dfmeta.apps.steward import Steward
from dfmeta.exceptions import DfmetaError
from dfmeta.flows.pipeline import CONTROLLER_ID
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint

LOG = logging.getLogger(__name__)

CHECK_INTERVAL = 1.0
"""Seconds between two looks at how many flows of ours there are."""
FULL_CHECK_INTERVAL = 30.0
"""Seconds between two comparisons of every flow."""


class Controller:
    """Ties connection, flows and first SYNs together.

    :param datapath_id: gives the id that OVSDB says the bridge has, or None when it is not known
        yet. Anybody on the host may dial a TCP listener and speak as a switch.
    """

    def __init__(
        self,
        channel: Channel,
        steward: Steward,
        learner: Learner,
        *,
        datapath_id: Callable[[], int | None],
    ) -> None:
        self.channel = channel
        self.steward = steward
        self.learner = learner
        self.numbers = Numbers(channel, steward.registry)
        self.probe = Probe(channel, lambda: steward.tap)
        self._datapath_id = datapath_id
        self._doubts = LightQueue(1)
        self._lost_flows = False
        """Whether the switch has told of flows of ours that went, and has not answered since: one
        that stops tells of all of them before the connection ends."""
        steward.registry.subscribe(self.changed)
        steward.on_doubt = self.doubt

    @property
    def ready(self) -> bool:
        """Whether the switch has confirmed every flow."""
        return self.channel.connected and self.steward.confirmed

    def doubt(self) -> None:
        """Have every flow compared with the switch, soon and once for many calls."""
        self.steward.doubt()
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
            self.steward.disconnected()

    def set_tap(self, tap: Tap | None) -> None:
        """Say where the proxy is; every flow that leads there follows."""
        if tap != self.steward.tap:
            self.steward.tap = tap
            self.doubt()

    def changed(self, endpoint: Endpoint) -> None:
        """The guest at *endpoint* has changed: its flows follow."""
        try:
            self.steward.apply(endpoint)
        except DfmetaError as error:
            LOG.info("The flows of ofport %d follow later: %s", endpoint.ofport, error)

    def flow_removed(self, message: Any) -> None:
        """Put flows back that another program has taken away."""
        if not self.channel.connected:
            return
        found = self.channel.wire.removed(message)
        if found is not None and self.steward.misses(found):
            self._lost_flows |= self.steward.confirmed
            self.doubt()

    def watch(self) -> None:
        """Look after the flows for ever; run it in a thread of its own."""
        due = time.monotonic()
        while True:
            with contextlib.suppress(Empty):
                self._doubts.get(timeout=CHECK_INTERVAL)
            self.learner.expire()
            if not self.channel.connected or self.steward.tap is None:
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
                self.steward.reconcile_quietly()
                due = time.monotonic() + FULL_CHECK_INTERVAL

    def _looks_right(self) -> bool:
        if not self.steward.confirmed:
            return False
        try:
            # As many as were sent before the question: what follows it is not in the answer.
            expected = self.steward.flow_count()
            reply = self.channel.request(self.channel.wire.count(), "the count of flows").wait()
        except DfmetaError as error:
            LOG.warning("%s", error)
            return False
        return bool(reply[0].flow_count == expected)
