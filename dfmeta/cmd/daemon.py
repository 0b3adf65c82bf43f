"""The daemon: the one place where configuration is read and the parts are tied together."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import eventlet
from oslo_config import cfg
from prometheus_client import Metric

import dfmeta.conf
from dfmeta import hub, metrics
from dfmeta.admin import listener as admin
from dfmeta.apps import switch
from dfmeta.apps.controller import Controller
from dfmeta.cmd import options, readiness, reloading, status_page
from dfmeta.cmd.activation import ADMIN_OPTION, GUEST_OPTIONS, activated
from dfmeta.cmd.elsewhere import refuse_elsewhere
from dfmeta.cmd.keeping import keeper, notify
from dfmeta.cmd.logs import set_up_logging, warn
from dfmeta.cmd.privileges import allow_descriptors
from dfmeta.cmd.proxy import Proxy
from dfmeta.cmd.remembering import Memory
from dfmeta.cmd.tap import TapKeeper
from dfmeta.cmd.waiting import Waiting, no_bridge, no_ovsdb, no_switch, no_tap, no_workers
from dfmeta.cmd.watch import PortWatch
from dfmeta.conf import daemons
from dfmeta.conf.unknown import unknown_options
from dfmeta.exceptions import AlreadyRunningError, DfmetaError, StartError
from dfmeta.health import Health
from dfmeta.ports.bridge_reader import Update
from dfmeta.ports.ovsdb import OvsdbWatcher
from dfmeta.registry import Registry
from dfmeta.wiring import identity, last_words, layout
from dfmeta.wiring.lock import BridgeLock

if TYPE_CHECKING:
    from dfmeta.wiring.api import StoreApi

LOG = logging.getLogger("dfmeta.agent")

PROG = "dfmeta-agent"
GRACE = 3.8
"""Seconds from SIGTERM until requests that are still held are closed; 4 are promised."""
POLL = 0.05
PAUSE = 0.1
"""Seconds between two turns at least, and at most while a part is missing."""
TICK = 1.0
"""Seconds between two turns when nothing has happened."""
FIRST_ROUND = 0.5
"""Seconds that the start waits for the identity sources at most."""
CLI = (
    cfg.BoolOpt(
        "cleanup",
        default=False,
        help="Remove dfmeta's flows, meters, port, rules and route from this host, and end.",
    ),
)


def run(argv: Sequence[str]) -> int:
    """Run ``dfmeta-agent``; gives its exit status: 0, 1 (no --cleanup, an error in dfmeta) or 2."""
    try:
        conf = _load(argv)
        set_up_logging(debug=conf.debug)
        warn(unknown_options(conf))
        lock = BridgeLock(conf.df_metadata.ovsdb_connection, conf.df_metadata.integration_bridge)
        with lock:
            return cleanup(conf) if conf.cleanup else Daemon(conf, argv).run()
    except AlreadyRunningError as error:
        last_words.say(PROG, error)
        return 1 if conf.cleanup else 2
    except DfmetaError as error:
        last_words.say(PROG, error)
        return 2
    except Exception as error:
        last_words.say_unexpected(PROG, error, always=True)
        return 1


def cleanup(conf: cfg.ConfigOpts) -> int:
    """Take everything of dfmeta's away from the host.

    :raises StartError: when OVSDB or the bridge cannot be reached.
    """
    from dfmeta.cmd.cleanup import Cleanup

    Cleanup(conf).run()
    return 0


class Daemon:
    """The parts, tied together.

    :raises StartError: when something that cannot be waited for is missing.
    """

    def __init__(self, conf: cfg.ConfigOpts, argv: Sequence[str]) -> None:
        group = conf.df_metadata
        self.conf = conf
        self._argv = list(argv)
        self._memory = memory = Memory(Path(group.state_path))
        self.health = Health()
        self._keeper = keeper(group, memory.state, os.environ)
        self.tap = TapKeeper(group, memory.state, self._keeper, made_anew=self._rebind)
        self.registry = Registry(self.tap.host.addresses, ask=lambda: self.watcher.ask())
        self.identities = identity.build(conf, self.registry.set_port, self.registry.remove_port)
        self.registry.when_replaced(self.identities.renew)
        self.controller = Controller(
            self.registry,
            bridge=group.integration_bridge,
            layout=layout.layout_of(group),
            hold_timeout=group.hold_timeout,
            datapath_id=lambda: self._update.bridge.datapath_id if self._update.bridge else None,
            adopts=lambda endpoint: memory.adopts(endpoint, self.registry),
            meters=memory.meters,
            informed=self._inform,
        )
        self.watcher = OvsdbWatcher(
            group.ovsdb_connection,
            group.integration_bridge,
            group.metadata_interface,
            deliver=self._updated,
        )
        self._ports = PortWatch(
            self.registry,
            self.controller,
            needs_project=group.backend == "nova",
            gather=self._gather,
            userspace=lambda: (bridge := self._update.bridge) is not None and bridge.userspace,
        )
        self._update = Update(connected=False)
        self._serving = False
        self._tap_is_told = False
        self._knows_ports = False
        """Whether OVSDB's ports have been taken in, once."""
        self._proxy: Proxy | None = None
        self._api: StoreApi | None = None
        self._ending = False
        self._stopped = False
        self._ended_at = math.inf
        """When it was asked to end, monotonic seconds; an error ends it without."""
        self._reload = False
        self._bell = hub.Bell()
        """Rung when there is something for the next turn."""
        self.registry.watch(lambda _endpoint: self._bell.ring())

    def run(self) -> int:
        """Start, serve until SIGTERM or SIGINT, and stop; gives the exit status.

        :raises StartError: when the host does not come to have what is needed in time.
        :raises ThreadEndedError: when a thread has ended that the daemon cannot do without.
        """
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, self._end)
        signal.signal(signal.SIGHUP, self._ask_reload)
        self._bell.ring_on_signals()
        allow_descriptors()
        hub.prepare()
        hub.watch()
        hub.VITAL.on_failure = self._bell.ring
        hub.VITAL.spawn("watch over the ports", self._ports.run)
        self._start_admin()
        LOG.info("dfmeta-agent %s starts", version("dfmeta"))
        try:
            self._start()
            while not self._ending:
                self._turn()
        except DfmetaError:
            if not self._serving:
                self.tap.undo(self.watcher, self.controller)
            raise
        finally:
            self._stop()
        return 0

    def _start_admin(self) -> None:
        self.health.watch("threads", lambda: hub.VITAL.alive)
        self.health.watch("ovsdb", lambda: self._update.connected)
        self.health.watch("bridge", lambda: self._update.bridge is not None)
        self.health.watch("flows", lambda: self.controller.ready)
        self.health.watch("proxy", lambda: self._listening())
        # A path to a proxy that does not listen yet is no fault of its own.
        self.health.watch("path", lambda: self.controller.probe.passes or not self._listening())
        self.health.watch("store", self._store_answers)
        listings = {
            "/ports": self._ports.rows,
            "/probe": self.controller.probe.report,
            "/options": options.Options(lambda: self.conf).document,
        }
        place = self.conf.df_metadata.admin_listen
        page = status_page.page_of_agent(
            PROG,
            self.health,
            self._metrics,
            self._ports.rows,
            lambda: self.conf,
            lambda: self._api.repository if self._api else None,
        )
        self._admin = admin.AdminApplication(
            self.health, self._metrics, listings, api=self._make_api(), page=page, listen=place
        )
        admin.serve(place, self._admin, sock=activated(f"{PROG}-admin", ADMIN_OPTION, place=place))

    def _make_api(self) -> StoreApi | None:
        if self.conf.df_metadata.backend != "store":
            return None
        # SQLAlchemy takes a third of a second to import: not where Nova answers.
        from dfmeta.wiring.api import StoreApi

        self._api = StoreApi(self.conf)
        return self._api

    def _prepare_api(self, conf: cfg.ConfigOpts) -> Callable[[], None]:
        if conf.df_metadata.backend != "store":
            return partial(setattr, self._admin, "api", None)
        from dfmeta.wiring.api import StoreApi

        api = self._api = self._api or StoreApi(conf)
        replace = api.prepare(conf)

        def mount() -> None:
            replace()
            self._admin.api = api

        return mount

    def _store_answers(self) -> bool:
        if self._proxy is None or self.conf.df_metadata.backend != "store":
            return True
        from dfmeta.wiring.database import answers

        return answers(self.conf.store.connection)

    def _metrics(self) -> Iterable[Metric]:
        return metrics.REGISTRY.collect() if self._proxy is None else self._proxy.collect()

    def _listening(self) -> bool:
        serving = self._proxy is not None and self._proxy.serving
        return self._serving and serving and self.tap.in_place

    def _start(self) -> None:
        self.tap.adopt(activated(f"{PROG}-guests", GUEST_OPTIONS, place=self.tap.place))
        proxy = self._proxy = Proxy(self.conf, self.registry)
        if self._api is not None:
            from dfmeta.wiring.database import repository

            self._api.open(repository(self.conf.store.connection))
        # As early as can be: what is left of an earlier run already leads guests here.
        sock = self.tap.listen_early()
        deadline = time.monotonic() + self.conf.df_metadata.startup_timeout
        self.watcher.start()
        self.identities.start()
        for there, error in (
            (
                lambda: self._update.connected and self._knows_ports,
                partial(no_ovsdb, self.watcher.remote),
            ),
            (lambda: self._update.bridge is not None, partial(no_bridge, self.watcher.bridge)),
            (self._tap_is_there, lambda: no_tap(self.watcher.tap, self.tap.last_error)),
        ):
            if not self._await(there, deadline, error):
                return
        # Whose a port is decides which addresses may be kept; nobody waits long for who is slow.
        self._await_identities()
        self._memory.rest_strangers(self.registry)
        sock = self.tap.listen()
        self.controller.set_tap(self.tap.as_flows_need_it(self._update, sock))
        self._tap_is_told = True
        switch.connect(
            self.controller,
            self.conf.df_metadata.openflow_connection,
            self.conf.df_metadata.ovsdb_connection,
        )
        # Thousands of ports may take longer: a switch that takes flows is not absent.
        if not self._await(
            # The port may go meanwhile, and no flow leads anywhere without it.
            lambda: self._tap_is_there() and self.controller.ready,
            deadline,
            partial(no_switch, self.watcher.bridge),
            busy=lambda: self.controller.busy,
        ):
            return
        proxy.serve(sock)
        if not self._await(lambda: proxy.serving, deadline, no_workers):
            return
        self.tap.remove_former(self.watcher)
        self.controller.prove_path()
        self._save(now=True)
        hub.settle()
        notify(os.environ, "READY=1")
        LOG.info(
            "Serving the guests of %s on %s port %d, backend %s",
            self.conf.df_metadata.integration_bridge,
            self.conf.df_metadata.metadata_interface,
            proxy.listener[0] if proxy.listener else 0,
            proxy.backend_name,
        )
        # Last, since others ran while the state was saved: who is ready is to survive a kill.
        self._serving = True
        why = readiness.reasons(self.conf.df_metadata, lambda: self.tap.fault)
        why["path"] = self.controller.probe.fault
        readiness.begin(self.health, why, lambda: self._stopped)

    def _await_identities(self) -> None:
        with eventlet.Timeout(FIRST_ROUND, False):
            while not self.identities.settled():
                eventlet.sleep(0.01)

    def _turn(self) -> None:
        self._rest()
        hub.VITAL.check()
        if self._reload:
            self._reload = False
            self._do_reload()
        try:
            self.tap.look_after(self.watcher, self._update)
            self.tap.keep_listener()
        except DfmetaError as error:
            if str(error) != self.tap.last_error:
                LOG.warning("%s", error)
            self.tap.last_error = str(error)
        self._save()

    def _rest(self) -> None:
        """Wait for the next turn."""
        longest = min(TICK, self._memory.due_in(self.registry))
        rung = self._bell.wait(max(PAUSE, longest) if self.tap.in_place else PAUSE)
        if rung and not self._ending:
            # What comes together, from thousands of ports, is one turn's work.
            eventlet.sleep(PAUSE)

    def _stop(self) -> None:
        LOG.info("dfmeta-agent ends")
        self._stopped = True
        hub.VITAL.release()
        notify(os.environ, "STOPPING=1")
        if self._proxy is not None:
            since = max(0.0, time.monotonic() - self._ended_at)
            self._proxy.stop(max(0.0, GRACE - since))
        self._save(now=True)
        self.watcher.stop()
        hub.abandon_threads()

    # Changes

    def _updated(self, update: Update) -> None:
        if self._stopped:
            # The hub may go on until the process has ended: what OVSDB says now is no news.
            return
        before, self._update = self._update, update
        self._bell.ring()
        if not update.connected:
            # What was known stays in force: guests are served while OVSDB is away.
            if before.connected:
                LOG.warning("OVSDB at %s is away", self.watcher.remote)
            self._update = Update(connected=False, bridge=before.bridge, tap=before.tap)
            return
        self.tap.look_now()
        was, now = before.bridge, update.bridge
        if was is not None and now is not None and was.controllers != now.controllers:
            # A bridge that gains its first controller or loses its last loses all flows.
            self.controller.doubt()
        turns = hub.Turns()
        for port_id in update.gone:
            self.identities.forget(port_id)
            turns.give_way()
        for port in update.changed:
            if port.fault != self.registry.fault(port.id) and port.fault:
                LOG.warning("Port %s is not served: %s", port.name, port.fault)
            self.identities.update(port)
            turns.give_way()
        self._knows_ports = True
        if update.answered:
            self.controller.numbers.answered(update.answered)
        # Also while the switch is waited for: Open vSwitch may tell the device's MAC late.
        if self._tap_is_told and self.tap.sock is not None:
            self.controller.set_tap(self.tap.as_flows_need_it(update, self.tap.sock))

    def _save(self, *, now: bool = False) -> None:
        """Save what has changed since the last time; *now*: everything, whatever has been."""
        listener = self._proxy.listener if self._proxy is not None else None
        if listener is not None:
            self._memory.save(listener, self.registry, self.controller.meters, now=now)

    # Waiting at start

    def _await(
        self,
        there: Callable[[], bool],
        deadline: float,
        error: Callable[[], StartError],
        *,
        busy: Callable[[], bool] = lambda: False,
    ) -> bool:
        waiting = Waiting(deadline)
        while not there():
            hub.VITAL.check()
            if self._ending:
                return False
            if time.monotonic() >= deadline and not busy():
                raise error()
            waiting.say(lambda: str(error().cause))
            eventlet.sleep(POLL)
        return True

    def _tap_is_there(self) -> bool:
        try:
            return self.tap.look_after(self.watcher, self._update)
        except DfmetaError as error:
            refuse_elsewhere(error, self.conf.df_metadata, self._argv)
            self.tap.last_error = str(error)
            return False

    # Signals and listings

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        if not self._ending:
            self._ended_at = time.monotonic()
        self._ending = True

    def _ask_reload(self, _number: int, _frame: FrameType | None) -> None:
        self._reload = True

    def _do_reload(self) -> None:
        try:
            conf = _load(self._argv)
            changes = daemons.settle(conf, self.conf, daemon=PROG)
            mount = self._prepare_api(conf)
            if self._proxy is not None:
                self._proxy.reload(conf, partial(reloading.tell, LOG, changes))
        except DfmetaError as error:
            LOG.warning("Not reloaded, the configuration in force stays: %s", error)
            return
        self.conf = conf
        mount()
        set_up_logging(debug=conf.debug)
        self.controller.learner.hold_timeout = conf.df_metadata.hold_timeout

    # Of the proxy, as soon as there is one

    def _gather(self) -> None:
        if self._proxy is not None:
            self._proxy.gather()

    def _inform(self) -> None:
        if self._proxy is not None:
            self._proxy.settle()

    def _rebind(self) -> None:
        if self._proxy is not None:
            self._proxy.rebind()


def _load(argv: Sequence[str]) -> cfg.ConfigOpts:
    return dfmeta.conf.load((), prog=PROG, args=argv, cli=CLI)
