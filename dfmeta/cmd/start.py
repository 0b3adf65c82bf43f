"""The start of ``dfmeta-agent``, step by step, until it serves.

The order matters: flows of an earlier run already lead guests to the listeners, so the listeners
come first. OVSDB, tap-metadata, the identities, the switch and the engine follow. One deadline,
``[df_metadata] startup_timeout``, limits all these waits.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dfmeta.apps.metadata import connect
from dfmeta.cmd.activation import activated_guests
from dfmeta.cmd.fd_store import notify
from dfmeta.cmd.parts import Parts
from dfmeta.cmd.proxy import Proxy
from dfmeta.cmd.stale_bridge import refuse_elsewhere
from dfmeta.cmd.startup_progress import Waiting, no_bridge, no_engine, no_ovsdb, no_switch, no_tap
from dfmeta.conf.daemons import AGENT
from dfmeta.doctor.checks_system import ANOTHER_IP, cloud_signs
from dfmeta.errors import DfmetaError, StartError
from dfmeta.host.system import OwnService, own_route
from dfmeta.runtime import clock, hub, threads

LOG = logging.getLogger("dfmeta.agent")

POLL: Final = 0.05
"""Seconds between two checks of a condition."""
FIRST_ROUND: Final = 0.5
"""Maximum number of seconds that the start waits for the identity sources."""


class Start:
    """One start of the daemon.

    :param argv: arguments of the program.
    :param ending: returns whether the process is to end.
    """

    def __init__(self, parts: Parts, *, argv: Sequence[str], ending: Callable[[], bool]) -> None:
        self._parts = parts
        self._argv = argv
        self._ending = ending
        self._deadline = 0.0
        """End of all waiting, monotonic seconds."""
        self.knows_ports = False
        """Whether OVSDB's ports have been processed once; the daemon sets it."""
        self.tap_is_told = False
        """Whether the controller knows tap-metadata."""

    def run(self, open_store: Callable[[], None]) -> bool:
        """Start the parts; return whether the daemon serves, False when the process is to end.

        :param open_store: opens the store's database, before any guest is accepted.
        :raises DfmetaError: when a part cannot be started, or not in time.
        """
        parts = self._parts
        group = parts.conf.df_metadata
        listeners = parts.tap.listeners
        own_service = parts.own_service()
        listeners.take_over(activated_guests(f"{AGENT}-guests", listeners.places))
        proxy = parts.proxy = Proxy(
            parts.conf,
            parts.registry,
            ovsdb=parts.watcher,
            heed=parts.controller.heed,
            confirm=parts.controller.bridge.reconciler.wait_for,
        )
        open_store()
        parts.tap.listen_early()
        self._deadline = clock.now() + group.startup_timeout
        parts.watcher.start()
        parts.identities.start()
        if not self._await_host():
            return False
        # The guest of a port decides which addresses may be kept. A slow source delays no start.
        self._await_identities()
        parts.memory.rest_strangers(parts.registry)
        if not self.wait_for(self._listens, self._no_tap):
            return False
        parts.tell_tap()
        self.tap_is_told = True
        connect(parts.controller, group.openflow_connection, group.ovsdb_connection)
        if not self._await_switch():
            return False
        engine = proxy.serve(listeners.sockets)
        if not self.wait_for(lambda: engine.serving, lambda: no_engine(group.engine)):
            return False
        if own_service is not None:
            self._warn_of_cloud(own_service)
        self._complete(proxy)
        return True

    def _warn_of_cloud(self, own_service: OwnService) -> None:
        """Say that the host itself needs the address that tap-metadata has now."""
        group, state = self._parts.conf.df_metadata, self._parts.memory.state
        state.host_service = own_service.take()
        route = own_route(group.ip, but=group.metadata_interface)
        if signs := cloud_signs(group.ip, route, service=state.host_service):
            LOG.warning(
                "This host seems to need %s for metadata of its own, and cannot reach it while %s "
                "has that address: %s. Set [df_metadata] host_ip to another address, such as %s, "
                "and restart dfmeta-agent",
                group.ip,
                group.metadata_interface,
                "; ".join(signs),
                ANOTHER_IP,
            )

    def _complete(self, proxy: Proxy) -> None:
        """Check the path, save the state, and report that the daemon is ready."""
        parts = self._parts
        group = parts.conf.df_metadata
        parts.tap.remove_former(parts.watcher)
        parts.controller.prove_path()
        parts.controller.limit_floods()
        parts.save(now=True)
        hub.resume_collection()
        notify(os.environ, "READY=1")
        LOG.info(
            "Serving the guests of %s on %s port %d, backend %s",
            group.integration_bridge,
            group.metadata_interface,
            proxy.listeners.port if proxy.listeners else 0,
            proxy.backend_name,
        )
        # Last, since other threads run while the state is saved: once readiness is UP, the state is
        # on disk, even if the daemon is killed then.
        parts.serving = True

    def _await_host(self) -> bool:
        parts = self._parts
        return all(
            self.wait_for(there, error)
            for there, error in (
                (
                    lambda: parts.update.connected and self.knows_ports,
                    partial(no_ovsdb, parts.watcher.remote),
                ),
                (
                    lambda: parts.update.bridge is not None,
                    partial(no_bridge, parts.watcher.bridge),
                ),
                (self._tap_is_there, self._no_tap),
            )
        )

    def _await_identities(self) -> None:
        with threads.Timeout(FIRST_ROUND, False):
            while not self._parts.identities.resolver.settled():
                threads.sleep(0.01)

    def _await_switch(self) -> bool:
        controller = self._parts.controller
        # Thousands of ports may take longer: a switch that accepts flows is not absent.
        return self.wait_for(
            # The port may be removed meanwhile, and flows have no target without it.
            lambda: self._tap_is_there() and controller.all_ready,
            partial(no_switch, self._parts.watcher.bridge),
            busy=lambda: controller.any_busy,
        )

    def _tap_is_there(self) -> bool:
        parts = self._parts
        try:
            return parts.tap.look_after(parts.watcher, parts.update)
        except DfmetaError as error:
            refuse_elsewhere(error, parts.conf.df_metadata, self._argv)
            parts.tap.last_error = str(error)
            return False

    def _no_tap(self) -> StartError:
        return no_tap(self._parts.watcher.tap, self._parts.tap.last_error)

    def _listens(self) -> bool:
        """Open the listeners if the device exists: its port may have been removed meanwhile."""
        tap = self._parts.tap
        if not self._tap_is_there():
            return False
        try:
            tap.listeners.open()
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            tap.last_error = os.strerror(error.errno)
            tap.look_now()
            return False
        return True

    def wait_for(
        self,
        there: Callable[[], bool],
        error: Callable[[], StartError],
        *,
        busy: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for a condition until the deadline; False when the process is to end.

        :param there: the condition.
        :param error: returns the error for a missed deadline.
        :param busy: returns whether there is progress; if so, the wait goes on after the deadline.
        :raises StartError: *error*, when the deadline has passed.
        :raises ThreadEndedError: when a thread has ended that the daemon needs.
        """
        waiting = Waiting(self._deadline)
        while not there():
            hub.VITAL.check()
            if self._ending():
                return False
            if clock.now() >= self._deadline and not busy():
                raise error()
            waiting.say(lambda: str(error().cause))
            threads.sleep(POLL)
        return True
