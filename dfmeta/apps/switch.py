"""The switch side of the daemon as one object: os-ken, connection, flows, first SYNs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import eventlet
from os_ken.base.app_manager import AppManager

from dfmeta import hub
from dfmeta.apps.channel import Channel
from dfmeta.apps.controller import Controller
from dfmeta.apps.dial import Refusals, accept, dial, listen
from dfmeta.apps.learner import Learner
from dfmeta.apps.metadata import Handshake, MetadataApp
from dfmeta.apps.meters import Meters
from dfmeta.apps.steward import Steward
from dfmeta.exceptions import DfmetaError
from dfmeta.flows.pipeline import Layout, Purpose
from dfmeta.flows.service import Tap
from dfmeta.inspect.vswitchd import management_socket
from dfmeta.model import Endpoint
from dfmeta.registry import Registry

WITHDRAW_TIMEOUT = 3.0


class Switch:
    """Builds the parts and starts them.

    :param datapath_id: see :class:`~dfmeta.apps.controller.Controller`.
    :param adopts: see :class:`~dfmeta.apps.steward.Steward`.
    :param meters: ofport → id of the meter of first SYNs, of an earlier run.
    :param syn_meters: the same of all SYNs.
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
        meters: dict[int, int],
        syn_meters: dict[int, int],
    ) -> None:
        self.channel = Channel(bridge, layout)
        self.meters = Meters({Purpose.SYN: meters, Purpose.GUEST_SYN: syn_meters})
        self.steward = Steward(self.channel, registry, meters=self.meters, adopts=adopts)
        self.learner = Learner(registry, self.steward, hold_timeout=hold_timeout)
        self.controller = Controller(
            self.channel, self.steward, self.learner, datapath_id=datapath_id
        )
        self.probe = self.controller.probe
        self._bridge = bridge

    @property
    def ready(self) -> bool:
        """Whether the switch has confirmed every flow."""
        return self.controller.ready

    @property
    def busy(self) -> bool:
        """Whether flows are being compared and sent at this moment."""
        return self.steward.busy

    def set_tap(self, tap: Tap | None) -> None:
        """Say where the proxy is."""
        self.controller.set_tap(tap)

    def withdraw(self) -> None:
        """Take every flow and meter of ours away, as far as that goes in a moment."""
        self.steward.tap = None
        if self.channel.connected:
            with eventlet.Timeout(WITHDRAW_TIMEOUT, False), contextlib.suppress(DfmetaError):
                self.steward.clear()

    def prove_path(self) -> None:
        """Probe the way to the proxy, once now and then for ever; see :class:`Probe`.

        A way that is interrupted keeps readiness down, and the daemon goes on.
        """
        self.probe.ask()
        hub.VITAL.spawn("probe of the path", self.probe.run, lambda: self.ready)

    def connect(self, connection: str, ovsdb_connection: str) -> None:
        """Start os-ken and keep a connection to the bridge.

        :param connection: the option openflow_connection.
        :raises StartError: when its address cannot be listened on.
        """
        manager, refusals = AppManager.get_instance(), Refusals(self._bridge)
        for app in (
            manager.instantiate(Handshake, numbers=self.controller.numbers, refusals=refusals),
            manager.instantiate(MetadataApp, controller=self.controller),
        ):
            app.start()
            for thread in app.threads:
                hub.VITAL.adopt(f"os-ken's {app.name}", thread)
        kind, _, where = connection.partition(":")
        if kind == "listen":
            host, _, port = where.rpartition(":")
            listener = listen(host.strip("[]"), int(port))
            hub.VITAL.spawn("OpenFlow listener", accept, listener, refusals)
        else:
            path = management_socket(connection, ovsdb_connection, self._bridge)
            hub.VITAL.spawn("OpenFlow connection", dial, path, refusals)
        hub.VITAL.spawn("watch over the flows", self.controller.watch)
