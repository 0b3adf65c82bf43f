"""The composition of ``dfmeta-agent``: its parts, built from the configuration and connected.

Nothing runs yet: :mod:`dfmeta.cmd.daemon` starts the parts, :mod:`dfmeta.cmd.daemon` runs the main
loop.
"""

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from oslo_config import cfg

from dfmeta.apps.controller import Controller
from dfmeta.cmd import keepers, ports, proxy, state_path, tap
from dfmeta.conf import agent, metadata
from dfmeta.host.system import EarlierService
from dfmeta.identity import host_wide_allocator, registry
from dfmeta.model import Endpoint
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.ovsdb.watcher import OvsdbWatcher
from dfmeta.proxy.engines.engine import Engine
from dfmeta.runtime import clock, hub
from dfmeta.wiring.identity import make_identities

IDS_AT_ONCE: Final = 500
"""Ports whose Meta addresses are written in one transaction."""


class Parts:
    """The parts of the daemon.

    :param deliver: called on the hub with each update from OVSDB.
    :raises DfmetaError: when a configured identity source cannot be built.
    """

    def __init__(self, conf: cfg.ConfigOpts, deliver: Callable[[Update], None]) -> None:
        group, meta = conf.df_metadata, metadata.meta_of(conf)
        self.take_conf(conf)
        self.memory = memory = state_path.SavedGuests(Path(group.state_path))
        self.health = hub.Health()
        self.tap = tap.TapKeeper(
            group,
            memory.state,
            keepers.make_keeper(group, os.environ),
            keys=metadata.keys_of(conf),
            meta=meta,
            vlan=conf.METADATA.provider_vlan_id,
            made_anew=self._rebind,
        )
        addresses = self.tap.host.addresses
        # Not the object that the flows have: the owners of numbers belong to the registry.
        keys, versions = metadata.keys_of(conf), (4, 6) if group.ip6 else (4,)
        self.registry = registry.Registry(
            addresses,
            ask=lambda: self.watcher.ask(),
            look=self._look,
            keys=keys,
            allocator=host_wide_allocator.allocator_of(keys, addresses, versions=versions),
        )
        self.identities = make_identities(conf, self.registry.set_port, self.registry.remove_port)
        self.registry.when_replaced(self.identities.resolver.renew)
        self.controller = Controller(
            self.registry,
            bridge=group.integration_bridge,
            layout=agent.layout_of(group),
            hold_timeout=group.hold_timeout,
            datapath_id=lambda: self.update.bridge.datapath_id if self.update.bridge else None,
            adopts=lambda endpoint: memory.adopts(endpoint, self.registry),
            remembered=lambda: memory.addresses(self.registry),
            informed=self._inform,
            meta_bridge=meta.bridge if meta is not None else "",
            meta_datapath_id=lambda: self.update.meta.datapath_id if self.update.meta else None,
        )
        self.watcher = OvsdbWatcher(
            group.ovsdb_connection,
            group.integration_bridge,
            group.metadata_interface,
            deliver=deliver,
            meta=meta,
        )
        self.ports = ports.PortWatch(
            self.registry,
            self.controller,
            needs_project=group.backend == "nova",
            gather=self._gather,
            userspace=lambda: (bridge := self.update.bridge) is not None and bridge.userspace,
        )
        self.update = Update(connected=False)
        """The latest update from OVSDB."""
        self.proxy: proxy.Proxy | None = None
        """Set by :mod:`dfmeta.cmd.daemon`."""
        self.serving = False
        """Whether the start is complete."""
        self.bell = hub.Bell()
        """Rung when the main loop has something to do."""
        self.registry.watch(lambda _endpoint: self.bell.ring())

    def take_conf(self, conf: cfg.ConfigOpts) -> None:
        """Put a configuration in force that has just been read."""
        self.conf = conf
        """The configuration in force."""
        self.read_at = clock.wall()
        """Time at which its files were read, seconds since the epoch."""

    def save(self, *, now: bool = False) -> None:
        """Save the changes since the last call, if the listeners exist; see :class:`SavedGuests`.

        :param now: save everything at once.
        """
        listeners = self.proxy.listeners if self.proxy is not None else None
        if listeners is not None:
            self.memory.save(listeners, self.registry, now=now)

    def earlier_service(self) -> EarlierService | None:
        """Begin to look for a server that answers the host itself at the metadata address.

        :return: None after the first start, and where the host does not lose that address.
        """
        group = self.conf.df_metadata
        if self.memory.state.host is not None or group.host_ip != group.ip:
            return None
        return EarlierService(str(group.ip))

    def update_tap(self) -> None:
        """Pass the ports to the controller, which changes the flows if they differ."""
        update, sock = self.update, self.tap.listeners.sockets.get(4)
        if self.controller.meta is not None:
            self.controller.meta.set_tap(self.tap.meta_tap(update, sock))
        self.controller.bridge.set_tap(self.tap.flow_target(update, sock))

    def write_ids(self) -> None:
        """Write Meta addresses of ports into OVSDB that it does not have yet.

        :raises OvsdbError: when the transaction fails.
        """
        if self.controller.meta is None or not self.controller.bridge.reconciler.adopted:
            return
        unwritten = self.registry.pending_ovsdb_writes()
        if unwritten and self.update.connected:
            # The rest follows with the next turns: OVSDB takes milliseconds for each row.
            self.watcher.write_ids(dict(islice(unwritten.items(), IDS_AT_ONCE)))

    # Calls for the engine, once it exists

    @property
    def engine(self) -> Engine | None:
        """The engine that answers guests; None before it exists."""
        return self.proxy.engine if self.proxy is not None else None

    def _gather(self) -> None:
        if self.engine is not None:
            self.engine.gather()

    def _look(self, endpoint: Endpoint) -> None:
        if self.engine is not None:
            self.engine.look(endpoint)

    def _inform(self) -> None:
        if self.engine is not None:
            self.engine.inform()

    def _rebind(self) -> None:
        if self.engine is not None:
            self.engine.rebind()
