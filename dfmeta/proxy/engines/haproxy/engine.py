"""The engine that uses haproxy: keep one process of it, with a map that is right.

How it works: haproxy has the guests' listeners and a map of the guests. The map follows the feed of
identities, as workers do, so a first SYN is sent on only when the map has its address
(:mod:`dfmeta.proxy.engines.haproxy.entries`). haproxy answers plain requests itself and hands all
others over to the daemon's own engine (:mod:`dfmeta.proxy.engines.haproxy.handover`).

A port never needs another process. A change of the configuration does, and so does a device that
was created again: the new process starts beside the old one, gets its map, and then the old one
finishes its requests. haproxy is killed, and started again, if it does not answer or does not
confirm a change of its map. Meanwhile connections wait in the listeners' queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from prometheus_client import Metric

from dfmeta import metrics
from dfmeta.errors import HaproxyError
from dfmeta.http.server import HttpServer
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import Endpoint
from dfmeta.proxy.engines.engine import Terms
from dfmeta.proxy.engines.haproxy import report
from dfmeta.proxy.engines.haproxy.counts import Counts
from dfmeta.proxy.engines.haproxy.entries import Entries, GuestMap
from dfmeta.proxy.engines.haproxy.plan import Plan
from dfmeta.proxy.engines.haproxy.process import Process, Secrets
from dfmeta.proxy.engines.haproxy.program import Program
from dfmeta.proxy.engines.haproxy.running import Failures, Running
from dfmeta.proxy.feed import SETTLE_TIMEOUT, Feed
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.threads import Event, Semaphore

LOG = logging.getLogger(__name__)

BEAT: Final = 0.15
"""Seconds between two checks whether haproxy answers."""
ANSWER: Final = 0.2
"""Seconds for its answer; without one, the next check follows at once."""
HANGS: Final = 3
"""Checks without an answer after which haproxy is killed: guests are served again within a second.
"""
LATE: Final = 0.1
"""Seconds by which a check may end late; if it is more, the daemon itself was late, and the check
does not count."""
DRAIN: Final = 10.0
"""Seconds that a replaced process may take to finish its requests."""
HEAD_START: Final = 0.3
"""Seconds by which haproxy's grace at a stop is shorter than the daemon's."""
LIVED: Final = 5.0
"""Seconds after which the end of a process does not count as a failed start."""
PAUSE_MIN: Final = 0.05
PAUSE_MAX: Final = 5.0
"""Shortest and longest pause in seconds until another process is started; it doubles after each
failed start."""
RESOLVE: Final = 30.0
"""Seconds between two resolutions of Nova's names."""
COUNT: Final = 1.0
"""Seconds between two readings of the connections that haproxy has accepted."""
NOTE: Final = 5
"""Such readings after which all counters are read."""
CHECK: Final = 30
"""Such readings after which haproxy's map is compared with the daemon's."""
POLL: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The part of the configuration that haproxy's depends on."""

    plan: Callable[[], Plan]
    """Return the plan; resolves Nova's names, and may wait."""
    secrets: Secrets
    program: Program
    entries: Entries


class Haproxy:
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
        self._handover = handover(self._pids)
        self._running: list[Running] = []
        self._stopping = False
        self._feed: Feed[GuestMap] = Feed(
            registry,
            lambda endpoints, new: self._setup.entries.news(endpoints, new),
            lambda: [one.map for one in self._running],
        )
        registry.watch(self._withdraw)
        self._counts = Counts(registry, remark)
        self._failures = Failures()
        self._starting = Semaphore()
        """Held while a process is started: two of them would both go on."""
        self._ended = Event()
        """Sent at the next end of a process."""

    @property
    def serving(self) -> bool:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        return any(one.map.follows for one in self._running)

    def look(self, endpoint: Endpoint) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        for one in self._running:
            if one.map.follows and not one.leaving:
                self._counts.look(one.process.pid, one.process.runtime, endpoint)

    @property
    def current(self) -> Running | None:
        """Return the process that accepts connections, with its map; None: there is none."""
        return next((one for one in reversed(self._running) if one.map.follows), None)

    def start(self) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self._handover.start()
        hub.VITAL.spawn(
            "changes for haproxy", self._feed.run, lambda: self._stopping, may_return=True
        )
        hub.VITAL.spawn("keeper of haproxy", self._keep, may_return=True)
        hub.VITAL.spawn("counts of haproxy", self._count, may_return=True)
        hub.VITAL.spawn("names of Nova's hosts", self._resolve, may_return=True)

    def inform(self) -> None:
        """Wait until the map of haproxy has the present state of the registry."""
        for behind in self._feed.inform():
            for one in self._running:
                if one.map is behind:
                    self._end(one, "map", f"has not changed its map within {SETTLE_TIMEOUT:g} s")

    def rebind(self) -> None:
        """Replace haproxy: its connections came in over the device that does not exist any more."""
        threads.spawn_detached(self._replace)

    def reload(self, terms: Terms, done: Callable[[], None]) -> None:
        """Apply a new configuration; haproxy is replaced only if its own differs."""
        service = self._handover.service
        service.hold_timeout, service.limits = terms.hold_timeout, terms.limits
        threads.spawn_detached(self._reload, done)

    def collect(self) -> Iterable[Metric]:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self._read_counts(self.current)
        return metrics.REGISTRY.collect()

    def gather(self) -> None:
        """Note what haproxy has answered in the recent requests."""
        self._read_counts(self.current)

    def stop(self, grace: float) -> None:
        """See :class:`~dfmeta.proxy.engines.engine.Engine`."""
        self._stopping = True
        until = clock.now() + max(grace - HEAD_START, 0.0)
        for one in list(self._running):
            self._dismiss(one)
        while self._running and clock.now() < until:
            threads.sleep(POLL)
        for one in list(self._running):
            one.process.kill()
        self._handover.stop(min(HEAD_START, grace))
        for sock in self._listeners:
            sock.close()

    def report(self, *, thorough: bool) -> dict[str, Any]:
        """Return facts about haproxy: ``GET /haproxy``.

        :param thorough: compare the map with the registry as well, in the member ``map``. Waits.
        """
        one = self.current
        found = report.describe(one, self._failures)
        if thorough:
            found["map"] = report.compare(
                one, lambda: report.wanted_of(self._registry, self._setup.entries)
            )
        return found

    # Processes

    def _pids(self) -> set[int]:
        return {one.process.pid for one in self._running}

    def _withdraw(self, endpoint: Endpoint) -> None:
        """Have haproxy answer no guest whose number is in doubt from now on."""
        if not self._registry.certain(endpoint):
            for one in self._running:
                one.map.withdraw(endpoint)

    def _keep(self) -> None:
        """Start haproxy, and start it again whenever none is left."""
        pause = PAUSE_MIN
        while not self._stopping:
            begun = clock.now()
            with self._starting:
                if not self._accepting():
                    self._begin()
            while self._accepting():
                self._ended.wait()
                self._ended = Event()
            pause = PAUSE_MIN if clock.now() - begun > LIVED else min(2 * pause, PAUSE_MAX)
            threads.sleep(pause)

    def _accepting(self) -> list[Running]:
        return [one for one in self._running if not one.leaving]

    def _begin(self) -> Running | None:
        """Start a process and bring its map up to date; None: it does not start."""
        setup = self._setup
        plan = setup.plan()
        try:
            process = Process(
                setup.program,
                plan,
                setup.secrets,
                listeners=self._listeners,
                handover=self._entrance,
                told=self._counts.request if plan.debug else self._counts.failed,
            )
        except OSError as error:
            LOG.warning("haproxy cannot be started: %s; dfmeta tries again", error.strerror)
            self._failures.start = f"it cannot be started: {error.strerror}"
            return None
        one = Running(process)
        self._running.append(one)
        try:
            self._bring_up(one)
        except HaproxyError as error:
            LOG.warning("%s; dfmeta starts it again. See the log lines of haproxy above", error)
            self._failures.start = str(error.fields["cause"])
            self._forget(one)
            return None
        self._failures.start = ""
        LOG.info("haproxy runs with process id %d", process.pid)
        hub.VITAL.spawn("watch over haproxy", self._watch, one, may_return=True)
        return one

    def _bring_up(self, one: Running) -> None:
        one.process.wait_ready()
        threads.spawn_detached(self._run_map, one)
        self._feed.introduce(one.map)
        # From now on no guest goes on before this map has it.
        one.map.follows = True
        position = one.map.position
        for _ in range(round(SETTLE_TIMEOUT / POLL)):
            if one.map.has(position):
                return
            threads.sleep(POLL)
        raise HaproxyError(cause=f"its map was not complete within {SETTLE_TIMEOUT:g} s")

    def _forget(self, one: Running) -> None:
        one.map.end()
        one.process.kill()
        one.process.close()
        self._running.remove(one)
        self._counts.ended(one.process.pid)
        if not self._ended.ready():
            self._ended.send()

    def _run_map(self, one: Running) -> None:
        try:
            one.map.run()
        except HaproxyError as error:
            self._end(one, "map", f"has not changed its map: {error}")

    def _watch(self, one: Running) -> None:
        """Wait until a process ends, and kill it if it does not answer."""
        asking = threads.spawn(self._ask, one)
        one.process.wait()
        asking.kill()
        if not (one.leaving or one.lost or self._stopping):
            LOG.error("haproxy ended with status %s; it is started again", one.process.status)
            self._failures.note("ended", f"ended with status {one.process.status}")
        self._forget(one)

    def _ask(self, one: Running) -> None:
        missed = 0
        while missed < HANGS:
            begun = clock.now()
            try:
                one.process.runtime.ask("show version", timeout=ANSWER)
                missed, pause = 0, BEAT
            except HaproxyError:
                took = clock.now() - begun
                # If the check itself was late, the host has too little CPU time.
                missed += took <= ANSWER + LATE
                # A check that fails at once takes as long as others.
                pause = max(ANSWER - took, 0)
            threads.sleep(pause)
            if one.leaving:
                return
        self._end(one, "hangs", "hangs")

    def _end(self, one: Running, reason: metrics.HaproxyLost, fault: str) -> None:
        """Kill a process; its keeper starts another one."""
        if not (one.lost or one.leaving):
            one.lost = True
            self._failures.note(reason, fault)
            LOG.error(
                "haproxy %s; it is killed and started again. If this happens again, check that the "
                "host has enough CPU time and memory",
                fault,
            )
        one.process.kill()

    def _replace(self) -> bool:
        """Start another process, which takes over from the present one; return whether it does."""
        with self._starting:
            before = self._accepting()
            one = self._begin()
            if one is None:
                LOG.error(
                    "The present haproxy continues with its former configuration; dfmeta tries "
                    "the new one again within %d s",
                    RESOLVE,
                )
                return False
            for other in before:
                self._dismiss(other)
                threads.spawn_after(DRAIN, self._drained, other)
            return True

    def _dismiss(self, one: Running) -> None:
        """Make a process answer its running requests and end."""
        self._read_counts(one)
        one.leave(lambda: self._counts.read(one.process.pid, one.process.runtime))

    def _drained(self, one: Running) -> None:
        """Kill a process that has had its time to end."""
        if one.process.running:
            self._read_counts(one)
            one.process.kill()

    def _reload(self, done: Callable[[], None]) -> None:
        self._setup = setup = self._make_setup()
        plan, one = setup.plan(), self.current
        same = one is not None and one.process.runs(setup.program, plan, setup.secrets)
        replaced = not same and self._replace()
        if one is not None and not replaced:
            self._feed.introduce(one.map)
        if same or replaced:
            done()

    def _resolve(self) -> None:
        """Replace haproxy if the addresses of Nova's hosts change, or if a reload has failed."""
        while not self._stopping:
            threads.sleep(RESOLVE)
            one, setup = self.current, self._setup
            plan = setup.plan()
            if one is None:
                continue
            known = one.process.plan.servers
            # A resolver may change their order each time. While it is away, the known ones count.
            if not plan.servers or set(plan.servers) == set(known):
                plan = replace(plan, servers=known)
            if not one.process.runs(setup.program, plan, setup.secrets):
                LOG.info(
                    "The addresses of Nova's hosts have changed, or a reload has failed; "
                    "haproxy is replaced"
                )
                self._replace()

    # Counts

    def _count(self) -> None:
        turn = 0
        while not self._stopping:
            threads.sleep(COUNT)
            turn, one = turn + 1, self.current
            if one is None:
                continue
            if turn % NOTE:
                self._counts.read_accepted(one.process.pid, one.process.runtime)
            else:
                self._counts.note_all(one.process.pid, one.process.runtime)
            if not turn % CHECK:
                self._check(one)

    def _check(self, one: Running) -> None:
        """Replace a haproxy whose map is not the one that it was given."""
        try:
            different = one.map.differs()
        except HaproxyError as error:
            LOG.debug("haproxy's map cannot be read: %s", error)
            return
        if different:
            self._end(
                one, "map", f"has {different} entries in its map that differ from the daemon's"
            )

    def _read_counts(self, one: Running | None) -> None:
        if one is None:
            return
        try:
            self._counts.read(one.process.pid, one.process.runtime)
        except HaproxyError as error:
            LOG.debug("haproxy's counters cannot be read: %s", error)
