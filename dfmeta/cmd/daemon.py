"""The daemon: starts its parts, runs the main loop, and processes changes.

The order of the start matters: flows of an earlier run already lead guests to the listeners, so the
listeners come first. OVSDB, tap-metadata, the identities, the switch and the engine follow. One
deadline, ``[df_metadata] startup_timeout``, limits all these waits.
"""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from oslo_config import cfg

import dfmeta.conf
from dfmeta import errors, model
from dfmeta.apps.metadata import connect
from dfmeta.cmd import faults, keepers, service
from dfmeta.cmd.agent_admin import PROG, AgentAdmin
from dfmeta.cmd.parts import Parts
from dfmeta.cmd.proxy import Proxy
from dfmeta.conf import unknown_options, values
from dfmeta.doctor.checks_system import ANOTHER_IP, cloud_signs
from dfmeta.host.system import EarlierService, own_route
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.clock import CHECK_INTERVAL
from dfmeta.runtime.throttle import FIRST_PAUSE
from dfmeta.wiring.logs import print_last, set_up_logging
from dfmeta.wiring.process import BridgeLock, warn

LOG = logging.getLogger("dfmeta.agent")


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
        self.tap_is_known = False
        """Whether the controller knows tap-metadata."""

    def run(self, open_store: Callable[[], None]) -> bool:
        """Start the parts; return whether the daemon serves, False when the process is to end.

        :param open_store: opens the store's database, before any guest is accepted.
        :raises DfmetaError: when a part cannot be started, or not in time.
        """
        parts = self._parts
        group = parts.conf.df_metadata
        listeners = parts.tap.listeners
        earlier_service = parts.earlier_service()
        listeners.take_over(keepers.activated_guests(f"{PROG}-guests", listeners.places))
        proxy = parts.proxy = Proxy(
            parts.conf,
            parts.registry,
            ovsdb=parts.watcher,
            drain_switch_messages=parts.controller.drain_switch_messages,
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
        threads.wait_until(parts.identities.resolver.settled, CHECK_INTERVAL)
        parts.memory.quarantine_keys(parts.registry)
        if not self.wait_for(self._listens, self._no_tap):
            return False
        parts.update_tap()
        self.tap_is_known = True
        connect(parts.controller, group.openflow_connection, group.ovsdb_connection)
        if not self._await_switch():
            return False
        engine = proxy.serve(listeners.sockets)
        if not self.wait_for(lambda: engine.serving, lambda: faults.no_engine(group.engine)):
            return False
        if earlier_service is not None:
            self._warn_of_cloud(earlier_service)
        self._complete(proxy)
        return True

    def _warn_of_cloud(self, earlier_service: EarlierService) -> None:
        """Say that the host itself needs the address that tap-metadata has now."""
        group, state = self._parts.conf.df_metadata, self._parts.memory.state
        state.host_service = earlier_service.take()
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
        service.report_ready()
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
            self.wait_for(condition, error)
            for condition, error in (
                (
                    lambda: parts.update.connected and self.knows_ports,
                    partial(faults.no_ovsdb, parts.watcher.remote),
                ),
                (
                    lambda: parts.update.bridge is not None,
                    partial(faults.no_bridge, parts.watcher.bridge),
                ),
                (self._tap_is_there, self._no_tap),
            )
        )

    def _await_switch(self) -> bool:
        controller = self._parts.controller
        # Thousands of ports may take longer: a switch that accepts flows is not absent.
        return self.wait_for(
            # The port may be removed meanwhile, and flows have no target without it.
            lambda: self._tap_is_there() and controller.all_ready,
            partial(faults.no_switch, self._parts.watcher.bridge),
            busy=lambda: controller.any_busy,
        )

    def _tap_is_there(self) -> bool:
        parts = self._parts
        try:
            return parts.tap.ensure(parts.watcher, parts.update)
        except errors.DfmetaError as error:
            faults.refuse_elsewhere(error, parts.conf.df_metadata, self._argv)
            parts.tap.last_error = str(error)
            return False

    def _no_tap(self) -> errors.StartError:
        return faults.no_tap(self._parts.watcher.tap, self._parts.tap.last_error)

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
            tap.recheck()
            return False
        return True

    def wait_for(
        self,
        condition: Callable[[], bool],
        error: Callable[[], errors.StartError],
        *,
        busy: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for a condition until the deadline; False when the process is to end.

        :param condition: returns whether the wait is over.
        :param error: returns the error for a missed deadline.
        :param busy: returns whether there is progress; if so, the wait goes on after the deadline.
        :raises StartError: *error*, when the deadline has passed.
        :raises ThreadEndedError: when a thread has ended that the daemon needs.
        """
        waiting = faults.StartupProgress(self._deadline)
        while not condition():
            hub.VITAL.check()
            if self._ending():
                return False
            if clock.now() >= self._deadline and not busy():
                raise error()
            waiting.say(lambda: str(error().cause))
            self._parts.bell.wait(FIRST_PAUSE)
        return True


CLI = (
    cfg.BoolOpt(
        "cleanup",
        default=False,
        help="Remove dfmeta's flows, port, rules and route from this host, and exit.",
    ),
)


def run(argv: Sequence[str]) -> int:
    """Run ``dfmeta-agent``; return its exit status.

    It is 0; 1 when --cleanup is refused or for an error in dfmeta; or 2.
    """

    def start() -> int:
        conf = _load(argv)
        set_up_logging(debug=conf.debug, use_json=conf.use_json)
        warn(unknown_options(conf))
        group = conf.df_metadata
        try:
            with BridgeLock(group.ovsdb_connection, group.integration_bridge):
                if not conf.cleanup:
                    return Daemon(conf, argv).run()
                from dfmeta.cmd.cleanup import Cleanup

                Cleanup(conf).run()
                return 0
        except errors.AlreadyRunningError as error:
            if not conf.cleanup:
                raise
            print_last(PROG, error)
            return 1

    return service.run_service(PROG, start)


class Daemon:
    """The process ``dfmeta-agent``.

    :raises StartError: when a requirement is missing for which waiting does not help.
    """

    def __init__(self, conf: cfg.ConfigOpts, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self.parts = Parts(conf, deliver=self._updated)
        self._signals = service.Signals(self.parts.bell)
        self._start = Start(self.parts, argv=self._argv, ending=lambda: self._signals.ending)
        self._admin = AgentAdmin(self.parts)
        self._stopped = False
        self._refused = ""
        """Why the last reload was refused, for the status; empty: it was not."""

    def run(self) -> int:
        """Start, serve until SIGTERM or SIGINT, and stop; return the exit status.

        :raises StartError: when a requirement on the host is not met in time.
        :raises ThreadEndedError: when a required thread has ended.
        """
        parts = self.parts
        self._signals.start()
        hub.VITAL.spawn("watch over the ports", parts.ports.run)
        hub.VITAL.spawn("watch over routing rules", parts.tap.follow_rules)
        self._admin.serve()
        LOG.info("dfmeta-agent %s starts", version("dfmeta"))
        try:
            if self._start.run(self._admin.open_store):
                self._log_readiness()
            while not self._signals.ending:
                self._turn()
        except errors.DfmetaError:
            if not parts.serving:
                parts.tap.undo(parts.watcher, parts.controller)
            raise
        finally:
            self._stop()
        return 0

    def _log_readiness(self) -> None:
        parts = self.parts
        why = faults.make_reasons(parts.conf.df_metadata, lambda: parts.tap.fault)
        why |= {
            "path": lambda: faults.path_fault(parts.update.bridge, parts.controller.probe),
            "store": self._admin.store_fault,
            "disk": self._admin.disk_fault,
        }
        service.log_readiness(parts.health, why, self._facts, lambda: self._stopped)

    def _facts(self) -> str:
        ports = self.parts.ports.states.reviewed
        served = ports[model.PortState.SERVED]
        return f"{served:,} of {ports.total():,} guest ports served{self._refused}"

    def _turn(self) -> None:
        self._rest()
        hub.VITAL.check()
        if self._signals.take_reload():
            with service.reported_reload():
                self._reload()
        tap = self.parts.tap
        try:
            tap.ensure(self.parts.watcher, self.parts.update)
            tap.listeners.ensure_kept()
            self.parts.write_ids()
        except errors.DfmetaError as error:
            if str(error) != tap.last_error:
                LOG.warning("%s", error)
            tap.last_error = str(error)
        self._update_tap()
        self._admin.history.look()
        self.parts.save()

    def _rest(self) -> None:
        """Wait for the next iteration of the main loop."""
        parts = self.parts
        longest = min(CHECK_INTERVAL, parts.memory.due_in(parts.registry))
        rung = parts.bell.wait(max(FIRST_PAUSE, longest) if parts.tap.in_place else FIRST_PAUSE)
        if rung and not self._signals.ending:
            # Collect simultaneous events, of thousands of ports, for one iteration.
            threads.sleep(FIRST_PAUSE)

    def _stop(self) -> None:
        LOG.info("dfmeta-agent ends")
        self._stopped = True
        hub.VITAL.release()
        keepers.notify(os.environ, "STOPPING=1\nSTATUS=")
        if self.parts.engine is not None:
            self.parts.engine.stop(self._signals.grace)
        self.parts.tap.listeners.leave()
        self.parts.save(now=True)
        self.parts.identities.stop()
        self.parts.watcher.stop()

    # Changes

    def _updated(self, update: Update) -> None:
        if self._stopped:
            # The hub may run on until the process has ended; updates are ignored from now on.
            return
        parts = self.parts
        before, parts.update = parts.update, update
        parts.bell.ring()
        if not update.connected:
            # The known ports stay valid: guests are served while OVSDB does not answer.
            if before.connected:
                LOG.warning("OVSDB at %s does not answer", parts.watcher.remote)
            parts.update = replace(before, connected=False, changed=(), gone=(), answered=0)
            return
        parts.tap.recheck()
        was, now = before.bridge, update.bridge
        if was is not None and now is not None and was.controllers != now.controllers:
            # A bridge deletes all flows when its first controller is added or its last one removed.
            parts.controller.bridge.reconciler.doubt()
        if before.meta is not None and before.meta != update.meta and parts.controller.meta:
            # Open vSwitch may have made the bridge or its ports anew.
            parts.controller.meta.reconciler.doubt()
        parts.identities.redirect(update.southbound)
        turns = hub.Turns()
        for port_id in update.gone:
            parts.identities.forget(port_id)
            turns.give_way()
        for port in update.changed:
            _log_faults(parts.registry.port(port.id), port)
            parts.identities.update(port)
            turns.give_way()
        self._start.knows_ports = True
        if update.answered:
            parts.controller.numbers.answered(update.answered)
        # Also while waiting for the switch: Open vSwitch may report the device's MAC late.
        self._update_tap()

    def _update_tap(self) -> None:
        """Pass tap-metadata to the controller, which changes the flows if it differs."""
        parts = self.parts
        if self._start.tap_is_known and 4 in parts.tap.listeners.sockets:
            parts.update_tap()

    def _reload(self) -> None:
        parts = self.parts
        try:
            conf = _load(self._argv)
            changes = values.keep_running_values(conf, parts.conf, daemon=PROG)
            mount = self._admin.prepare(conf)
            if parts.proxy is not None:
                parts.proxy.reload(conf, partial(changes.log, LOG))
        except errors.DfmetaError as error:
            LOG.warning("Not reloaded, the configuration in force stays: %s", error)
            self._refused = f"; not reloaded: {error}"
            return
        self._refused = ""
        warn(unknown_options(conf))
        parts.take_conf(conf)
        mount()
        set_up_logging(debug=conf.debug, use_json=conf.use_json)
        parts.controller.learner.hold_timeout = conf.df_metadata.hold_timeout


def _log_faults(before: model.Port | None, port: model.Port) -> None:
    """Log the faults of a changed port that it did not have before."""
    if port.fault and (before is None or before.fault != port.fault):
        LOG.warning("Port %s is not served: %s", port.name, port.fault)
    for fault in port.subport_faults:
        if before is None or fault not in before.subport_faults:
            LOG.warning("Port %s: a subport is left out: %s", port.name, fault)
    for fault in port.next_hop_faults:
        if before is None or fault not in before.next_hop_faults:
            LOG.warning("Port %s: a guest next hop is left out: %s", port.name, fault)


def _load(argv: Sequence[str]) -> cfg.ConfigOpts:
    return dfmeta.conf.load((), prog=PROG, args=argv, cli=CLI)
