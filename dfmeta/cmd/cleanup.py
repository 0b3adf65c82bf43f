"""``dfmeta-agent --cleanup``: restores bridge and host to their state before dfmeta."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oslo_config import cfg

from dfmeta.apps.controller import Controller
from dfmeta.apps.metadata import connect
from dfmeta.cmd import faults, keepers, tap
from dfmeta.conf import agent, metadata
from dfmeta.errors import StartError
from dfmeta.flows.family import IPV4, IPV6
from dfmeta.host import device, netlink
from dfmeta.http.sockets import adopt, silence
from dfmeta.identity.registry import Registry
from dfmeta.ovsdb import bridge_reader, external_ids, subport_list
from dfmeta.ovsdb.watcher import OvsdbWatcher
from dfmeta.runtime import clock, hub, saved_state, threads
from dfmeta.runtime.throttle import PROGRESS

LOG = logging.getLogger(__name__)


class Cleanup:
    """Removes flows, then the port, then rules and route."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._group: Any = conf.df_metadata
        self._keys, self._meta = metadata.keys_of(conf), metadata.meta_of(conf)
        self._state_file = saved_state.StateFile(Path(self._group.state_path))
        self._state = self._state_file.load()
        self._update = bridge_reader.Update(connected=False)
        self._deadline = clock.now() + self._group.startup_timeout

    def run(self) -> None:
        """Remove everything of dfmeta that exists.

        :raises StartError: when OVSDB or the switch cannot be reached; their part is not removed.
        """
        kept = keepers.make_keeper(self._group, os.environ)
        listeners = [adopt(fd) for fd in kept.take()]
        try:
            # The flows still lead guests to them. A closed port would refuse guests; they repeat
            # packets that are dropped.
            for listener in listeners:
                silence(listener)
            self._remove()
        finally:
            kept.drop()
            for listener in listeners:
                listener.close()

    def _remove(self) -> None:
        watcher = OvsdbWatcher(
            self._group.ovsdb_connection,
            self._group.integration_bridge,
            self._group.metadata_interface,
            deliver=self._updated,
            meta=self._meta,
        )
        self._clean_host(self._group.metadata_interface)
        before = self._state.arp_ignore
        if before is not None and device.restore_arp_ignore(before):
            LOG.info("Restored arp_ignore to %d", before)
        watcher.start()
        self._await(lambda: self._update.connected, f"OVSDB at {self._group.ovsdb_connection}")
        if self._update.bridge is not None:
            self._clean_bridge()
            for name in (*watcher.remove_taps(), *watcher.remove_meta()):
                LOG.info("Removed the port %s", name)
                self._clean_host(name)
            watcher.remove_keys((*external_ids.META_KEYS, subport_list.KEY))
        watcher.stop()
        self._state_file.save(saved_state.SavedState(port=self._state.port))

    def _clean_host(self, device: str) -> None:
        # IPv6 also where [df_metadata] ip6 is empty now: an earlier run may have had addresses.
        for family in (IPV4, IPV6):
            wanted = tap.wanted_side(self._group, family, self._keys, self._meta, device=device)
            # The device may be another program's, and stay, where it is on a second bridge.
            for removed in netlink.HostSide(wanted).remove(device_stays=self._meta is not None):
                LOG.info("Removed the %s", removed)

    def _clean_bridge(self) -> None:
        controller = Controller(
            Registry(),
            bridge=self._group.integration_bridge,
            layout=agent.layout_of(self._group),
            hold_timeout=0,
            datapath_id=lambda: None,
            adopts=lambda _endpoint: False,
            meta_bridge=self._meta.bridge if self._meta is not None else "",
            meta_datapath_id=lambda: self._update.meta.datapath_id if self._update.meta else None,
        )
        group = self._group
        connect(controller, group.openflow_connection, group.ovsdb_connection)
        self._await(lambda: controller.bridge.channel.connected, "the switch")
        saying = threads.spawn(self._say_removing)
        try:
            flows = controller.bridge.reconciler.clear()
            meta = controller.meta
            if meta is not None and self._update.meta and self._update.meta.datapath_id:
                self._await(lambda: meta.channel.connected, "the second bridge")
                flows += meta.reconciler.clear()
        finally:
            saying.kill()
        LOG.info("Removed %d flows", flows)

    def _say_removing(self) -> None:
        while True:
            threads.sleep(PROGRESS)
            LOG.info("Still removing the flows of %s", self._group.integration_bridge)

    def _updated(self, update: bridge_reader.Update) -> None:
        self._update = update

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        waiting = faults.StartupProgress(self._deadline)
        while not condition():
            hub.VITAL.check()
            if clock.now() >= self._deadline:
                raise StartError(
                    cause=f"{what} has not answered; flows and port were not removed",
                    remedy="Start Open vSwitch and run --cleanup again",
                )
            waiting.say(lambda: f"{what} has not answered")
            threads.sleep(clock.POLL)
