"""The daemon: starts its parts, runs the main loop, and processes changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

from oslo_config import cfg

import dfmeta.conf
from dfmeta.cmd import missing_parts, readiness
from dfmeta.cmd.agent_admin import PROG, AgentAdmin
from dfmeta.cmd.fd_store import notify
from dfmeta.cmd.logs import set_up_logging, warn
from dfmeta.cmd.parts import Parts
from dfmeta.cmd.privileges import allow_descriptors
from dfmeta.cmd.signals import Signals
from dfmeta.cmd.start import Start
from dfmeta.conf import daemons
from dfmeta.conf.unknown import unknown_options
from dfmeta.errors import AlreadyRunningError, DfmetaError
from dfmeta.model import Port
from dfmeta.ovsdb.bridge_reader import Update
from dfmeta.runtime import clock, hub, threads
from dfmeta.wiring import process
from dfmeta.wiring.process import BridgeLock

LOG = logging.getLogger("dfmeta.agent")

GRACE = 3.8
"""Seconds from SIGTERM until requests that are still held are closed; 4 are documented."""
PAUSE = 0.1
"""Minimum seconds between two iterations, and the maximum while tap-metadata is not in place."""
TICK = 1.0
"""Seconds between two iterations when no event occurs."""
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
    try:
        conf = _load(argv)
        set_up_logging(debug=conf.debug)
        warn(unknown_options(conf))
        lock = BridgeLock(conf.df_metadata.ovsdb_connection, conf.df_metadata.integration_bridge)
        with lock:
            return cleanup(conf) if conf.cleanup else Daemon(conf, argv).run()
    except AlreadyRunningError as error:
        process.print_error(PROG, error)
        return 1 if conf.cleanup else 2
    except DfmetaError as error:
        process.print_error(PROG, error)
        return 2
    except Exception as error:
        process.print_unexpected(PROG, error, always=True)
        return 1


def cleanup(conf: cfg.ConfigOpts) -> int:
    """Remove everything of dfmeta from the host.

    :raises StartError: when OVSDB or the bridge cannot be reached.
    """
    from dfmeta.cmd.cleanup import Cleanup

    Cleanup(conf).run()
    return 0


class Daemon:
    """The process ``dfmeta-agent``.

    :raises StartError: when a requirement is missing for which waiting does not help.
    """

    def __init__(self, conf: cfg.ConfigOpts, argv: Sequence[str]) -> None:
        self._argv = list(argv)
        self.parts = Parts(conf, deliver=self._updated)
        self._signals = Signals(self.parts.bell)
        self._start = Start(self.parts, argv=self._argv, ending=lambda: self._signals.ending)
        self._admin = AgentAdmin(self.parts)
        self._stopped = False

    def run(self) -> int:
        """Start, serve until SIGTERM or SIGINT, and stop; return the exit status.

        :raises StartError: when a requirement on the host is not met in time.
        :raises ThreadEndedError: when a required thread has ended.
        """
        parts = self.parts
        self._signals.install()
        allow_descriptors()
        hub.prepare()
        hub.watch()
        hub.VITAL.on_failure = parts.bell.ring
        hub.VITAL.spawn("watch over the ports", parts.ports.run)
        hub.VITAL.spawn("watch over routing rules", parts.tap.follow_rules)
        self._admin.serve()
        LOG.info("dfmeta-agent %s starts", version("dfmeta"))
        try:
            if self._start.run(self._admin.open_store):
                self._log_readiness()
            while not self._signals.ending:
                self._turn()
        except DfmetaError:
            if not parts.serving:
                parts.tap.undo(parts.watcher, parts.controller)
            raise
        finally:
            self._stop()
        return 0

    def _log_readiness(self) -> None:
        parts = self.parts
        why = missing_parts.reasons(parts.conf.df_metadata, lambda: parts.tap.fault)
        why |= {
            "path": lambda: missing_parts.path_fault(parts.update.bridge, parts.controller.probe),
            "store": self._admin.store_fault,
            "disk": self._admin.disk_fault,
        }
        readiness.begin(parts.health, why, lambda: self._stopped)

    def _turn(self) -> None:
        self._rest()
        hub.VITAL.check()
        if self._signals.take_reload():
            self._reload()
        tap = self.parts.tap
        try:
            tap.look_after(self.parts.watcher, self.parts.update)
            tap.listeners.look_after()
            self.parts.write_ids()
        except DfmetaError as error:
            if str(error) != tap.last_error:
                LOG.warning("%s", error)
            tap.last_error = str(error)
        self._tell_tap()
        self.parts.save()

    def _rest(self) -> None:
        """Wait for the next iteration of the main loop."""
        parts = self.parts
        longest = min(TICK, parts.memory.due_in(parts.registry))
        rung = parts.bell.wait(max(PAUSE, longest) if parts.tap.in_place else PAUSE)
        if rung and not self._signals.ending:
            # Collect simultaneous events, of thousands of ports, for one iteration.
            threads.sleep(PAUSE)

    def _stop(self) -> None:
        LOG.info("dfmeta-agent ends")
        self._stopped = True
        hub.VITAL.release()
        notify(os.environ, "STOPPING=1")
        if self.parts.engine is not None:
            since = max(0.0, clock.now() - self._signals.ended_at)
            self.parts.engine.stop(max(0.0, GRACE - since))
        self.parts.save(now=True)
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
            parts.update = Update(
                connected=False,
                bridge=before.bridge,
                tap=before.tap,
                meta=before.meta,
                others=before.others,
                restore_wait=before.restore_wait,
            )
            return
        parts.tap.look_now()
        was, now = before.bridge, update.bridge
        if was is not None and now is not None and was.controllers != now.controllers:
            # A bridge deletes all flows when its first controller is added or its last one removed.
            parts.controller.bridge.reconciler.doubt()
        if before.meta is not None and before.meta != update.meta and parts.controller.meta:
            # Open vSwitch may have made the bridge or its ports anew.
            parts.controller.meta.reconciler.doubt()
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
        self._tell_tap()

    def _tell_tap(self) -> None:
        """Pass tap-metadata to the controller, which changes the flows if it differs."""
        parts = self.parts
        if self._start.tap_is_told and 4 in parts.tap.listeners.sockets:
            parts.tell_tap()

    def _reload(self) -> None:
        parts = self.parts
        try:
            conf = _load(self._argv)
            changes = daemons.keep_running_values(conf, parts.conf, daemon=PROG)
            mount = self._admin.prepare(conf)
            if parts.proxy is not None:
                parts.proxy.reload(conf, partial(changes.tell, LOG))
        except DfmetaError as error:
            LOG.warning("Not reloaded, the configuration in force stays: %s", error)
            return
        warn(unknown_options(conf))
        parts.take_conf(conf)
        mount()
        set_up_logging(debug=conf.debug)
        parts.controller.learner.hold_timeout = conf.df_metadata.hold_timeout


def _log_faults(before: Port | None, port: Port) -> None:
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
