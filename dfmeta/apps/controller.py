"""The switch side of the daemon as one object: connection, flows, floods, first SYNs, the probe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dfmeta import metrics
from dfmeta.apps import tally
from dfmeta.apps.advertiser import Advertiser
from dfmeta.apps.arrivals import Arrivals
from dfmeta.apps.channel import Channel
from dfmeta.apps.driver import Driver
from dfmeta.apps.floods import Floods
from dfmeta.apps.learner import Learner
from dfmeta.apps.numbers import Numbers
from dfmeta.apps.probe import Probe
from dfmeta.apps.reconciler import Builders, Remembered
from dfmeta.flows import meta_bridge as meta_flows
from dfmeta.flows.desired import fixed_flows, guest_flows
from dfmeta.flows.meta_bridge import MetaTap
from dfmeta.flows.pipeline import BR_META, Layout
from dfmeta.flows.service import Tap
from dfmeta.identity.registry import Phase, Registry
from dfmeta.model import Endpoint
from dfmeta.runtime import clock, hub, threads

HEED: Final = 8
"""Turns of all threads for which a request waits at most. In one turn, the thread that reads
handles all messages that are there; hostile guests may keep it busy."""


class Controller(Driver):
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
        layout: Layout,
        hold_timeout: float,
        datapath_id: Callable[[], int | None],
        adopts: Callable[[Endpoint], bool],
        remembered: Callable[[], Iterable[Remembered]] = tuple,
        informed: Callable[[], object] = lambda: None,
        meta_bridge: str = "",
        meta_datapath_id: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = clock.now,
        pause: Callable[[float], object] = threads.sleep,
    ) -> None:
        channel = Channel(bridge, layout)
        self.arrivals = Arrivals(channel, registry.keys, clock=clock)
        self.floods = Floods(
            self.arrivals,
            apply=lambda endpoint: self.reconciler.apply(endpoint),
            name=lambda endpoint: _name_of(registry, endpoint),
            clock=clock,
        )
        super().__init__(
            channel,
            registry,
            builders=Builders(fixed_flows, guest_flows),
            datapath_id=datapath_id,
            adopts=adopts,
            remembered=remembered,
            floods=self.floods.of,
            reconciled=self._reconciled,
        )
        self.meta: MetaDriver | None = None
        """Driver of the second bridge."""
        if meta_bridge:
            self.meta = MetaDriver(
                registry,
                meta_bridge,
                datapath_id=meta_datapath_id,
                may_begin=lambda: self.reconciler.adopted,
            )
        self.drivers: tuple[Driver, ...] = (self,) if self.meta is None else (self, self.meta)
        """The drivers of all bridges, first that of the guests' ports."""
        tally.show(
            (one.reconciler.tally for one in self.drivers),
            (one for driver in self.drivers for one in driver.channel.layout.pipeline.purposes),
        )
        self.learner = Learner(
            registry,
            self.reconciler,
            hold_timeout=hold_timeout,
            admit=self.floods.admit,
            beyond=self.meta.reconciler if self.meta is not None else None,
            informed=informed,
            clock=clock,
            pause=pause,
        )
        self.numbers = Numbers(self.channel, registry)
        self.advertiser = Advertiser(
            self.channel, registry, lambda: self.reconciler.tap, admit=self.floods.admit
        )
        self.probe = Probe(self.channel, lambda: self.reconciler.tap)
        self.probe6 = Probe(self.channel, lambda: self.reconciler.tap, version=6)
        self.probes = (self.probe, self.probe6)
        registry.subscribe(self.learner.release, Phase.FLOWS)
        for one in self.drivers:
            registry.subscribe(one.changed, Phase.FLOWS)
        registry.when_certain(self.learner.release)

    @property
    def all_ready(self) -> bool:
        """Whether the switch has confirmed all flows of all bridges."""
        return all(one.ready for one in self.drivers)

    @property
    def any_busy(self) -> bool:
        """Whether flows of any bridge are being compared and sent at this moment."""
        return any(one.busy for one in self.drivers)

    def set_tap(self, tap: Tap | None) -> None:
        """Set the port and the address of the proxy; the flows that lead to it are changed."""
        self.set_target(tap)

    def withdraw(self) -> None:
        """See :meth:`Driver.withdraw`, for all bridges."""
        super().withdraw()
        if self.meta is not None:
            self.meta.withdraw()

    def refusal(self, endpoint: Endpoint) -> str:
        """Return why a bridge refused a flow of *endpoint*; empty if none did."""
        found = (one.reconciler.refusals.get(endpoint, "") for one in self.drivers)
        return next(filter(None, found), "")

    def heed(self) -> None:
        """Let all that the switch has sent by now be handled: a port may have another guest now.

        The thread that reads may wait for its turn while others answer guests.
        """
        for _ in range(HEED):
            if not self.channel.unread:
                return
            threads.sleep(0)

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
        tap = self.reconciler.tap
        return self.all_ready and tap is not None and bool(tap.guest_ip6)

    def _note_connected(self, is_up: bool) -> None:
        super()._note_connected(is_up)
        metrics.SWITCH_CONNECTED.set(int(is_up))
        for one in self.probes:
            one.reconnected()
        if not is_up:
            self.floods.forget()

    def _reconciled(self) -> None:
        self.learner.release_all()
        if self.meta is not None and not self.meta.reconciler.adopted:
            self.meta.doubt()

    def _turn(self) -> None:
        self.learner.expire()

    def _prepare(self) -> bool:
        return self.numbers.ask()


def _name_of(registry: Registry, endpoint: Endpoint) -> str:
    port = registry.port_at(endpoint)
    return port.name if port is not None else str(endpoint)


class MetaDriver(Driver):
    """Drives the second bridge of ``identity_scheme = meta_ip``.

    :param may_begin: returns whether the addresses that an earlier run left on the integration
        bridge have been adopted. Before that, their flows on this bridge would look like strays.
    """

    role: metrics.Bridge = "meta"

    def __init__(
        self,
        registry: Registry,
        bridge: str,
        *,
        datapath_id: Callable[[], int | None],
        may_begin: Callable[[], bool],
    ) -> None:
        super().__init__(
            Channel(bridge, Layout(pipeline=BR_META)),
            registry,
            builders=Builders(meta_flows.fixed_flows, meta_flows.guest_flows),
            datapath_id=datapath_id,
        )
        self._may_begin = may_begin

    def set_tap(self, tap: MetaTap | None) -> None:
        """Set the bridge's ports and the proxy's; the flows that lead to them are changed."""
        self.set_target(tap)

    def _prepare(self) -> bool:
        return self._may_begin()
