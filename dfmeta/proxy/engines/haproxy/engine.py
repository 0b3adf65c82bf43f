"""The engine that uses haproxy: keep one process of it, with a map that is right.

How it works: haproxy has the guests' listeners and a map of the guests. The map is a replica of the
registry, as workers are, so a first SYN is sent on only when the map has its address
(:mod:`dfmeta.proxy.engines.haproxy.entries`). haproxy answers plain requests itself and hands all
others over to the daemon's own engine (:mod:`dfmeta.proxy.engines.haproxy.handover`).

A port never needs another process. A change of the configuration does, and so does a device that
was created again: the new process starts beside the old one, gets its map, and then the old one
finishes its requests. haproxy is killed, and started again, if it does not answer or does not
confirm a change of its map. Meanwhile connections wait in the listeners' queues.

Only the daemon can ask haproxy: the runtime interface has no name. ``GET /haproxy`` has facts about
it for the commands of an operator. Trust: the answer has numbers of entries, and no entry: an entry
has a signature.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from prometheus_client import Metric

from dfmeta import errors, metrics, model
from dfmeta.http.server import HttpServer
from dfmeta.identity.registry import Claim, Registry
from dfmeta.proxy.engines.engine import HEAD_START, Engine, EngineSettings, Restarts, watch
from dfmeta.proxy.engines.haproxy.counts import Counts, load
from dfmeta.proxy.engines.haproxy.entries import Entries, GuestMap
from dfmeta.proxy.engines.haproxy.plan import HaproxyPlan
from dfmeta.proxy.engines.haproxy.process import Process
from dfmeta.proxy.replicator import SETTLE_TIMEOUT, Replicator
from dfmeta.runtime import clock, hub, threads

LOG = logging.getLogger(__name__)

BEAT: Final = 0.12
"""Seconds between two checks whether haproxy answers: if it hangs, guests are served again within a
second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The part of the configuration that haproxy's depends on."""

    plan: Callable[[], HaproxyPlan]
    """Return the plan; resolves Nova's names, and may wait."""
    entries: Entries


@dataclass(slots=True)
class ProcessFailures:
    """Processes that have failed since the start of the daemon."""

    count: int = 0
    """Processes that ended, or that the daemon had to kill, while they answered guests."""
    last_at: float = 0.0
    """Time of the last of them, in seconds since the epoch."""
    last: str = ""
    """What the last of them did, such as ``hangs``."""
    start: str = ""
    """Why the last start has failed; empty: it has not."""

    def note(self, reason: metrics.HaproxyLost, fault: str) -> None:
        """Note that a process has failed."""
        metrics.HAPROXY_LOST.labels(reason).inc()
        self.count += 1
        self.last_at, self.last = clock.wall(), fault


class Haproxy(Engine):
    """The engine; see :class:`~dfmeta.proxy.engines.engine.Engine`.

    :param listeners: the guests' listening sockets, which stay open here.
    :param handover: answers the requests that haproxy hands over.
    :param entrance: descriptor through which haproxy connects to the handover's listener.
    :param setup: return the setup of the configuration in force.
    :param remark: see :class:`~dfmeta.proxy.engines.haproxy.counts.Counts`.
    """

    def __init__(
        self,
        listeners: Sequence[Any],
        registry: Registry,
        *,
        handover: Callable[[Callable[[], set[int]]], HttpServer[Claim]],
        entrance: int,
        setup: Callable[[], Setup],
        remark: Callable[[Claim, int], str] = lambda _claim, _status: "",
    ) -> None:
        self._listeners = tuple(listeners)
        self._registry = registry
        self._entrance = entrance
        self._make_setup = setup
        self._setup = setup()
        self._handover = handover(lambda: {process.pid for process in self._processes})
        self._processes: list[Process] = []
        self._stopping = False
        self._replicator: Replicator[GuestMap] = Replicator(
            registry,
            lambda endpoints, _new: self._setup.entries.batch_of(endpoints),
            lambda: [process.map for process in self._processes],
        )
        registry.watch(self._withdraw)
        self._remark = remark
        self._failures = ProcessFailures()
        self._starting = threads.Semaphore()
        """Held while a process is started: two of them would both go on."""
        self._ended = threads.Event()
        """Sent at the next end of a process."""

    @property
    def serving(self) -> bool:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        return self.current is not None

    def look(self, endpoint: model.Endpoint) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        for process in self._accepting():
            if process.map.serving:
                process.counts.look(process.runtime, endpoint)

    @property
    def current(self) -> Process | None:
        """Return the process that accepts connections; None: there is none."""
        serving = (process for process in reversed(self._processes) if process.map.serving)
        return next(serving, None)

    def start(self) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self._handover.start()
        hub.VITAL.spawn(
            "changes for haproxy", self._replicator.run, lambda: self._stopping, may_return=True
        )
        hub.VITAL.spawn("keeper of haproxy", self._keep, may_return=True)
        hub.VITAL.spawn("counts of haproxy", self._count, may_return=True)
        hub.VITAL.spawn("comparison with haproxy", self._recheck, may_return=True)

    def inform(self) -> None:
        """Wait until the map of haproxy has the present state of the registry."""
        behind = self._replicator.flush()
        for process in list(self._processes):
            if process.map in behind:
                self._end(process, "map", f"has not changed its map within {SETTLE_TIMEOUT:g} s")

    def rebind(self) -> None:
        """Replace haproxy: its connections came in over the device that does not exist any more."""
        threads.spawn_detached(self._replace)

    def reload(self, settings: EngineSettings, done: Callable[[], None]) -> None:
        """Apply a new configuration; haproxy is replaced only if its own differs."""
        service = self._handover.service
        service.hold_timeout, service.limits = settings.hold_timeout, settings.limits
        threads.spawn_detached(self._reload, done)

    def collect(self) -> Iterable[Metric]:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self.gather()
        return super().collect()

    def gather(self) -> None:
        """Note what haproxy has answered in the recent requests."""
        process = self.current
        if process is not None:
            process.read_counts()

    def stop(self, grace: float) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self._stopping = True
        for process in list(self._processes):
            process.leave()
        threads.wait_until(lambda: not self._processes, max(grace - HEAD_START, 0.0))
        for process in list(self._processes):
            process.kill()
        self._handover.stop(min(HEAD_START, grace))
        for sock in self._listeners:
            sock.close()

    # Processes

    def _withdraw(self, endpoint: model.Endpoint) -> None:
        """Have haproxy answer no guest whose number is in doubt from now on."""
        if not self._registry.certain(endpoint):
            for process in self._processes:
                process.map.withdraw(endpoint)

    def _keep(self) -> None:
        """Start haproxy, and start it again whenever none is left."""
        restarts = Restarts()
        while not self._stopping:
            begun = clock.now()
            with self._starting:
                if not self._accepting():
                    self._begin()
            while self._accepting():
                self._ended.wait()
                self._ended = threads.Event()
            restarts.pause(begun)

    def _accepting(self) -> list[Process]:
        return [process for process in self._processes if not process.leaving]

    def _begin(self) -> Process | None:
        """Start a process and bring its map up to date; None: it does not start."""
        plan = self._setup.plan()
        try:
            process = Process(
                plan,
                listeners=self._listeners,
                handover=self._entrance,
                counts=Counts(self._registry, self._remark),
            )
        except OSError as error:
            LOG.warning("haproxy cannot be started: %s; dfmeta tries again", error.strerror)
            self._failures.start = f"it cannot be started: {error.strerror}"
            return None
        self._processes.append(process)
        try:
            self._bring_up(process)
        except errors.HaproxyError as error:
            LOG.warning("%s; dfmeta starts it again. See the log lines of haproxy above", error)
            self._failures.start = error.cause
            self._forget(process)
            return None
        self._failures.start = ""
        LOG.info("haproxy runs with process id %d", process.pid)
        hub.VITAL.spawn("watch over haproxy", self._watch, process, may_return=True)
        return process

    def _bring_up(self, process: Process) -> None:
        process.wait_ready()
        threads.spawn_detached(self._run_map, process)
        self._replicator.add_replica(process.map)
        # From now on no guest goes on before this map has it.
        process.map.serving = True
        if process.map in self._replicator.flush():
            raise errors.HaproxyError(cause=f"its map was not complete within {SETTLE_TIMEOUT:g} s")

    def _forget(self, process: Process) -> None:
        process.close()
        self._processes.remove(process)
        if not self._ended.ready():
            self._ended.send()

    def _run_map(self, process: Process) -> None:
        try:
            process.map.run()
        except errors.HaproxyError as error:
            self._end(process, "map", f"has not changed its map: {error}")

    def _watch(self, process: Process) -> None:
        """Wait until a process ends, and kill it if it does not answer."""
        asking = threads.spawn(self._ask, process)
        process.wait()
        asking.kill()
        if not (process.leaving or process.lost or self._stopping):
            LOG.error("haproxy ended with status %s; it is started again", process.status)
            self._failures.note("ended", f"ended with status {process.status}")
        self._forget(process)

    def _ask(self, process: Process) -> None:
        if watch(process.answers, lambda: process.leaving, beat=BEAT):
            self._end(process, "hangs", "hangs")

    def _end(self, process: Process, reason: metrics.HaproxyLost, fault: str) -> None:
        """Kill a process; its keeper starts another one."""
        if not (process.lost or process.leaving):
            process.lost = True
            self._failures.note(reason, fault)
            LOG.error(
                "haproxy %s; it is killed and started again. If this happens again, check that the "
                "host has enough CPU time and memory",
                fault,
            )
        process.kill()

    def _replace(self) -> bool:
        """Start another process, which takes over from the present one; return whether it does."""
        with self._starting:
            before = self._accepting()
            if self._begin() is None:
                LOG.error(
                    "The present haproxy continues with its former configuration; dfmeta tries "
                    "the new one again within %d s",
                    clock.FULL_CHECK_INTERVAL,
                )
                return False
            for process in before:
                process.leave()
            return True

    def _reload(self, done: Callable[[], None]) -> None:
        self._setup = self._make_setup()
        plan, process = self._setup.plan(), self.current
        same = process is not None and process.plan == plan
        replaced = not same and self._replace()
        if process is not None and not replaced:
            self._replicator.add_replica(process.map)
        if same or replaced:
            done()

    def _recheck(self) -> None:
        """Compare everything from time to time: counters, the map, and the plan."""
        while not self._stopping:
            threads.sleep(clock.FULL_CHECK_INTERVAL)
            process = self.current
            if process is None:
                continue
            process.read_counts()
            try:
                self._check(process)
            except errors.HaproxyError as error:
                LOG.debug("haproxy cannot be read: %s", error)
            self._resolve(process)

    def _resolve(self, process: Process) -> None:
        """Replace haproxy if the addresses of Nova's hosts change, or if a reload has failed."""
        plan, present = self._setup.plan(), process.plan.servers
        # A resolver may change their order each time. While it is away, the present ones count.
        if not plan.servers or set(plan.servers) == set(present):
            plan = replace(plan, servers=present)
        if process.plan != plan:
            LOG.info(
                "The addresses of Nova's hosts have changed, or a reload has failed; "
                "haproxy is replaced"
            )
            self._replace()

    # Counts

    def _count(self) -> None:
        while not self._stopping:
            threads.sleep(clock.CHECK_INTERVAL)
            process = self.current
            with contextlib.suppress(errors.HaproxyError):
                if process is not None:
                    process.counts.read_accepted(process.runtime)

    def _check(self, process: Process) -> None:
        """Replace a haproxy whose map is not the registry's.

        :raises HaproxyError: when it does not answer.
        """
        counts = process.map.compare(self._wanted_entries)
        different = sum(counts.values()) - counts["entries"]
        if different:
            self._end(
                process, "map", f"has {different} entries in its map that differ from the daemon's"
            )

    def _wanted_entries(self) -> dict[str, str]:
        """Return all entries that the registry gives now, when haproxy has confirmed them."""
        self._replicator.flush()
        return self._setup.entries.all()

    # Facts about haproxy

    def report(self, *, thorough: bool) -> dict[str, Any]:
        """Return facts about haproxy: ``GET /haproxy``.

        :param thorough: compare the map with the registry as well, in the member ``map``: the
            number of its entries, and of those that are missing, superfluous or different. Waits.
        """
        process = self.current
        facts = self._describe(process)
        if thorough:
            facts["map"] = None
            with contextlib.suppress(errors.HaproxyError):
                if process is not None:
                    facts["map"] = process.map.compare(self._wanted_entries)
        return facts

    def _describe(self, process: Process | None) -> dict[str, Any]:
        """Return process, connections and failures; does not wait for the map."""
        failures = self._failures
        facts: dict[str, Any] = {
            "pid": None,
            "version": "",
            "user": "",
            "connections": None,
            "maxconn": None,
            "fault": failures.start,
            "failed_replacement": "",
            "restarts": failures.count,
            "last_restart": _moment(failures.last_at) if failures.count else None,
            "last_fault": failures.last,
        }
        if process is None:
            return facts
        facts |= {
            "pid": process.pid,
            # Until it names its own: the program may be another one since its last start.
            "version": process.plan.program.version,
            "user": process.plan.program.user,
            "maxconn": process.plan.maxconn,
            "fault": "",
            "failed_replacement": failures.start,
        }
        try:
            facts["version"] = process.runtime.ask("show version").strip()
            facts["connections"], _requests = load(process.runtime)
        except errors.HaproxyError as error:
            facts["fault"] = error.cause
        return facts


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
