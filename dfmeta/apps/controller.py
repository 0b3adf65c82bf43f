"""The switch side of the daemon as one object: connection, flows, floods, first SYNs, the probe."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from dfmeta import metrics, model
from dfmeta.apps import floods, learner, numbers
from dfmeta.apps.channel import Channel
from dfmeta.apps.probe import Probe
from dfmeta.apps.reconciler import Builders, Reconciler, Remembered
from dfmeta.errors import DfmetaError
from dfmeta.flows import integration_bridge, pipeline
from dfmeta.flows import meta_bridge as meta_flows
from dfmeta.identity.registry import NotifyPhase, Registry
from dfmeta.runtime import clock, hub, threads

LOG = logging.getLogger(__name__)


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
        self.channel.post([wire.set_controller_id(pipeline.CONTROLLER_ID), wire.set_async()])
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
        """Remove dfmeta's flows, with a time limit."""
        self.reconciler.tap = None
        if self.channel.connected:
            with threads.Timeout(clock.ANSWER_TIMEOUT, False), contextlib.suppress(DfmetaError):
                self.reconciler.clear()

    def changed(self, endpoint: model.Endpoint) -> None:
        """Update the flows of *endpoint*, whose guest has changed."""
        try:
            self.reconciler.apply(endpoint)
        except DfmetaError as error:
            LOG.info("The next reconcile updates the flows of %s: %s", endpoint, error)

    def flow_removed(self, message: Any) -> None:
        """Request a comparison if another program has removed a flow that is needed."""
        if not self.channel.connected:
            return
        flow = self.channel.wire.removed(message)
        if flow is not None and self.reconciler.misses(flow):
            self._lost_flows |= self.reconciler.confirmed
            self.reconciler.doubt()

    def watch(self, each_turn: Callable[[], object] = lambda: None) -> None:
        """Keep the flows right, indefinitely; run this in a separate thread.

        :param each_turn: periodic work that belongs to no flow.
        """
        due = clock.now()
        while True:
            with contextlib.suppress(threads.Empty):
                self.reconciler.doubts.get(timeout=clock.CHECK_INTERVAL)
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
                due = clock.now() + clock.FULL_CHECK_INTERVAL

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


DRAIN_TURNS: Final = 8
"""Turns of all threads for which a request waits at most. In one turn, the thread that reads
handles all messages that are there; hostile guests may keep it busy."""


class Controller:
    """Builds the parts of the switch side and connects them.

    :param hold_timeout: seconds that a SYN, and then its request, may wait in all.
    :param datapath_id: returns the bridge's datapath id from OVSDB, or None while it is not known.
    :param adopts, remembered: see :class:`~dfmeta.apps.reconciler.Reconciler`.
    :param informed: see :class:`~dfmeta.apps.learner.Learner`.
    :param meta_bridge: name of the second bridge of ``identity_scheme = meta_ip``; empty: none.
    :param meta_datapath_id: the same as *datapath_id*, of the second bridge.
    :param clock: monotonic seconds.
    :param pause: sleeps for that many seconds, so that other threads run.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        bridge: str,
        layout: pipeline.Layout,
        hold_timeout: float,
        datapath_id: Callable[[], int | None],
        adopts: Callable[[model.Endpoint], bool],
        remembered: Callable[[], Iterable[Remembered]] = tuple,
        informed: Callable[[], object] = lambda: None,
        meta_bridge: str = "",
        meta_datapath_id: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = clock.now,
        pause: Callable[[float], object] = threads.sleep,
    ) -> None:
        channel = Channel(bridge, layout)
        self.arrivals = floods.Arrivals(channel, registry.keys, clock=clock)
        self.numbers = numbers.Numbers(channel, registry)
        reconciler = Reconciler(
            channel,
            registry,
            builders=Builders(integration_bridge.fixed_flows, integration_bridge.guest_flows),
            adopts=adopts,
            remembered=remembered,
            floods=lambda endpoint: self.floods.of(endpoint),
            reconciled=self._reconciled,
        )
        self.bridge = ManagedBridge(
            reconciler,
            role="integration",
            datapath_id=datapath_id,
            prepare=self.numbers.ask,
            connection_changed=self._connection_changed,
        )
        """The bridge with the guests' ports."""
        self.floods = floods.Floods(
            self.arrivals, apply=self.bridge.changed, name=registry.name, clock=clock
        )
        self.meta = self._meta_bridge(registry, meta_bridge, meta_datapath_id)
        """The second bridge; None: there is none."""
        self.bridges = (self.bridge,) if self.meta is None else (self.bridge, self.meta)
        self.learner = learner.Learner(
            registry,
            reconciler,
            hold_timeout=hold_timeout,
            admit=self.floods.admit,
            meta=self.meta.reconciler if self.meta is not None else None,
            informed=informed,
            clock=clock,
            pause=pause,
        )
        self.probe = Probe(channel, lambda: reconciler.tap)
        self.probe6 = Probe(channel, lambda: reconciler.tap, version=6)
        self.probes = (self.probe, self.probe6)
        registry.subscribe(self.learner.release, NotifyPhase.FLOWS)
        for managed in self.bridges:
            registry.subscribe(managed.changed, NotifyPhase.FLOWS)
        registry.when_certain(self.learner.release)
        metrics.FLOWS.count = self._count_flows

    def _meta_bridge(
        self, registry: Registry, bridge: str, datapath_id: Callable[[], int | None]
    ) -> ManagedBridge | None:
        if not bridge:
            return None
        channel = Channel(bridge, pipeline.Layout(pipeline=pipeline.BR_META))
        builders = Builders(meta_flows.fixed_flows, meta_flows.guest_flows)
        return ManagedBridge(
            Reconciler(channel, registry, builders=builders),
            role="meta",
            datapath_id=datapath_id,
            # Before the addresses that an earlier run left on the integration bridge have been
            # adopted, their flows on this bridge would look like strays.
            prepare=lambda: self.bridge.reconciler.adopted,
        )

    @property
    def all_ready(self) -> bool:
        """Whether the switch has confirmed all flows of all bridges."""
        return all(bridge.ready for bridge in self.bridges)

    @property
    def any_busy(self) -> bool:
        """Whether flows of any bridge are being compared and sent at this moment."""
        return any(bridge.reconciler.busy for bridge in self.bridges)

    def withdraw(self) -> None:
        """Remove dfmeta's flows from all bridges; see :meth:`ManagedBridge.withdraw`."""
        for bridge in self.bridges:
            bridge.withdraw()

    def refusal(self, endpoint: model.Endpoint) -> str:
        """Return why a bridge refused a flow of *endpoint*; empty if none did."""
        causes = (bridge.reconciler.refusals.get(endpoint, "") for bridge in self.bridges)
        return next(filter(None, causes), "")

    def drain_switch_messages(self) -> None:
        """Let all that the switch has sent by now be handled: a port may have another guest now.

        The thread that reads may wait for its turn while others answer guests.
        """
        for _ in range(DRAIN_TURNS):
            if not self.bridge.channel.unread:
                return
            threads.sleep(0)

    def watch(self) -> None:
        """Keep the flows of the bridge with the guests' ports right, indefinitely."""
        self.bridge.watch(self.learner.expire)

    def limit_floods(self) -> None:
        """Watch for guests that flood, from now on."""
        hub.VITAL.spawn("watch over floods", self.floods.run)

    def prove_path(self) -> None:
        """Probe the path to the proxy now, and then periodically; see :class:`Probe`.

        While the path is interrupted, the daemon is not ready, but it continues to run.
        """
        self.probe.ask()
        hub.VITAL.spawn("probe of the path", self.probe.run, lambda: self.all_ready)
        hub.VITAL.spawn("probe of the path, IPv6", self.probe6.run, self._ready6)

    def _ready6(self) -> bool:
        """Return whether guests are led to the proxy over IPv6."""
        tap = self.bridge.reconciler.tap
        return self.all_ready and tap is not None and bool(tap.guest_ip6)

    def _connection_changed(self, is_up: bool) -> None:
        metrics.SWITCH_CONNECTED.set(int(is_up))
        for probe in self.probes:
            probe.reconnected()
        if not is_up:
            self.floods.forget()

    def _reconciled(self) -> None:
        self.learner.release_all()
        if self.meta is not None and not self.meta.reconciler.adopted:
            self.meta.reconciler.doubt()

    def _count_flows(self) -> Mapping[str, int]:
        """Return purpose → number of the flows that should be on the bridges."""
        counts: Counter[pipeline.Purpose] = Counter()
        for bridge in self.bridges:
            counts.update(dict.fromkeys(bridge.channel.layout.pipeline.purposes, 0))
            counts.update(flow.purpose for flow in bridge.reconciler.flows())
        return {purpose.name: number for purpose, number in counts.items()}
