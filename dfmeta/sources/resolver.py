"""Queries the identity sources for each port with missing fields, and delivers the result.

Each port is handled on its own. The values from OVSDB are delivered at once. For each port that
lacks a field, a greenthread queries the sources in order, and again with growing pauses while the
port exists. A source that fails rests for a moment and is skipped meanwhile, so that it does not
delay ports that other sources can identify.

Later answers for a former incarnation of a port (:mod:`dfmeta.sources.resolution`) are dropped. An
instance that OVSDB does not name can change without a change in OVSDB (a tap that stays while one
domain ends and another starts), so the source that named it is queried again regularly.

Everything runs on the hub.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from dfmeta import errors, metrics, model
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.throttle import LONGEST_PAUSE, Backoff, LogThrottle
from dfmeta.sources.resolution import Resolution, bare
from dfmeta.sources.source import INSTANCE, OVSDB, Ownership, PortQuery, Source

LOG = logging.getLogger(__name__)

CROWD: Final = 500
"""Number of ports above which the longest pause between two queries grows: repeated queries for
thousands of unknown ports would keep a core busy indefinitely."""


@dataclass(slots=True, eq=False)
class _SourceState:
    """The state of one source for all ports."""

    source: Source
    room: threads.Semaphore
    throttle: LogThrottle
    rest: Backoff


class Resolver:
    """Turns OVSDB's ports into ports with an instance and a project.

    :param order: names of the sources; ``ovsdb`` is OVSDB's row itself.
    :param sources: all other sources in *order*.
    :param deliver: called with a port each time that more of its fields are known.
    :param drop: called with the id of each removed port.
    """

    def __init__(
        self,
        order: Sequence[str],
        sources: Sequence[Source],
        deliver: Callable[[model.Port], None],
        *,
        drop: Callable[[model.PortId], None] = lambda _port_id: None,
    ) -> None:
        self._order = tuple(order)
        self._deliver, self._drop = deliver, drop
        self._resolutions: dict[model.PortId, Resolution] = {}
        self._gate = threads.Semaphore()
        self._by_name: dict[str, Source] = {source.name: source for source in sources}
        self._states: dict[str, _SourceState] = {
            source.name: _SourceState(
                source,
                threads.Semaphore(source.at_once),
                LogThrottle(),
                Backoff(),
            )
            for source in sources
        }

    def start(self) -> None:
        """Begin to check regularly that the instances which a source named still exist."""
        for state in self._states.values():
            if state.source.recheck:
                name = f"identity source {state.source.name}"
                hub.VITAL.spawn(name, self._recheck_loop, state)

    def update(self, row: model.Port) -> None:
        """Process the current row of a port in OVSDB. Never waits."""
        resolution = self._resolutions.get(row.id)
        if resolution is not None and resolution.has(row):
            resolution.update(row)
            self._deliver(resolution.port)
            self._work_on(resolution)
        else:
            self._begin(row)

    def forget(self, port_id: model.PortId) -> None:
        """Drop that port and all later answers for it."""
        self._drop(port_id)
        self._resolutions.pop(port_id, None)

    def renew(self, port_id: model.PortId) -> None:
        """Query the sources for that port again, because it has another device now.

        An instance from OVSDB stays: OVSDB is checked in another way, see
        :mod:`dfmeta.identity.numbering`. Any other answer was for the previous device. Both devices
        may have the same row, such as that of a tap that another domain has created again.
        """
        resolution = self._resolutions.get(port_id)
        if resolution is not None and resolution.port.sources.get(INSTANCE) != OVSDB:
            self._begin(resolution.row)

    def renew_named(self, source: str, ids: Collection[str]) -> None:
        """Query the sources again for the ports of these iface-ids, which a source knows anew.

        A port whose instance another source has named keeps it.
        """
        turns = hub.Turns()
        for resolution in list(self._resolutions.values()) if ids else ():
            is_named = resolution.port.sources.get(INSTANCE, source) != source
            if resolution.row.iface_id in ids and not is_named and self._is_current(resolution):
                self._begin(resolution.row)
                turns.give_way()

    def settled(self) -> bool:
        """Return whether the sources were queried once for each port with missing fields."""
        return all(resolution.settled for resolution in self._resolutions.values())

    # One port

    def _begin(self, row: model.Port) -> None:
        resolution = Resolution(row, self._order, self._by_name, now=clock.now())
        self._resolutions[row.id] = resolution
        self._deliver(resolution.port)
        self._work_on(resolution)

    def _work_on(self, resolution: Resolution) -> None:
        if resolution.running or resolution.row.fault or self._next(resolution) is None:
            return
        resolution.running = True
        threads.spawn_detached(self._work, resolution)

    def _work(self, resolution: Resolution) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None:
                threads.sleep(pause)
                try:
                    pause = self._round(resolution)
                except Exception:
                    # A defect in dfmeta must delay only this port, by some seconds.
                    name = resolution.row.name
                    LOG.exception("The identity query for port %s failed; retrying", name)
                    pause = LONGEST_PAUSE
        finally:
            resolution.running = False

    def _round(self, resolution: Resolution) -> float | None:
        """Query each source that is due; return seconds until the next round, None for no more."""
        self._take_turn()
        for name in self._order:
            if self._is_current(resolution) and self._is_due(self._due(resolution, name)):
                self._query(resolution, name)
        if not self._is_current(resolution):
            return None
        resolution.rounds += 1
        if self._is_due(resolution.port_project_due()):
            resolution.take_port_project()
            self._deliver(resolution.port)
        moment = self._next(resolution)
        return None if moment is None else max(clock.POLL, moment - clock.now())

    def _take_turn(self) -> None:
        """Wait until this greenthread may continue.

        After a start thousands of greenthreads wake at once; one continues in each turn of the hub.
        """
        with self._gate:
            threads.sleep(0)

    def _is_current(self, resolution: Resolution) -> bool:
        return self._resolutions.get(resolution.row.id) is resolution

    def _is_due(self, moment: float | None) -> bool:
        return moment is not None and moment <= clock.now()

    def _due(self, resolution: Resolution, name: str) -> float | None:
        """Return the moment of a source's next query for a port; None: it is not needed."""
        moment = resolution.due(name)
        if moment is None or name == OVSDB:
            return moment
        return max(moment, self._states[name].rest.until)

    def _next(self, resolution: Resolution) -> float | None:
        """Return the moment of the next change of a port; None: none is left."""
        moments = [self._due(resolution, name) for name in self._order]
        moments.append(resolution.port_project_due())
        return min((moment for moment in moments if moment is not None), default=None)

    def _query(self, resolution: Resolution, name: str) -> None:
        if name == OVSDB:
            resolution.take_row()
            self._deliver(resolution.port)
            return
        state = self._states[name]
        answer = self._look_up(state, resolution.port)
        if answer is None:
            return
        if not self._is_current(resolution):
            _count(state.source.name, "late")
            return
        before = resolution.port
        crowd = max(1.0, len(self._resolutions) / CROWD)
        outcome = resolution.answer(name, answer, now=clock.now(), crowd=crowd)
        _count(state.source.name, outcome)
        if outcome == "conflict":
            state.throttle.warn(
                LOG,
                "Identity source %s names instance %s for port %s; the port keeps instance %s, "
                "which source %s has named",
                *(name, answer.instance_id, before.name, before.instance_id),
                before.sources.get(INSTANCE),
            )
        elif resolution.port != before:
            self._deliver(resolution.port)

    # One source

    def _look_up(self, state: _SourceState, port: model.Port) -> Ownership | None:
        """Query a source once; None when there was no answer."""
        source = state.source
        answer: Ownership | None = None
        with state.room:
            if state.rest.rests(clock.now()):
                return None  # it failed while this port waited for its turn
            timer = threads.Timeout(source.timeout)
            try:
                answer = source.find(PortQuery(port, clock.now()))
            except threads.Timeout as timeout:
                if timeout is not timer:
                    raise
                cause = f"no answer within {source.timeout:g} s"
                self._failed(state, "timeout", errors.SourceError(source=source.name, cause=cause))
            except errors.SourceError as error:
                self._failed(state, "failed", error)
            except Exception as error:
                # A defect in dfmeta must affect only this query.
                LOG.exception("Identity source %s failed for port %s", source.name, port.name)
                self._failed(state, "failed", error)
            else:
                state.rest.reset()
            finally:
                timer.cancel()
        if answer is not None:
            # All greenthreads that waited for the same answer have woken at once.
            self._take_turn()
        return answer

    def _failed(
        self, state: _SourceState, outcome: metrics.LookupOutcome, error: Exception
    ) -> None:
        _count(state.source.name, outcome)
        state.throttle.warn(LOG, "%s; ports that need it wait", error)
        now = clock.now()
        # Queries that ran at the same time fail together, and count as one failure.
        if not state.rest.rests(now):
            state.rest.failed(now)

    def _recheck_loop(self, state: _SourceState) -> None:
        while True:
            threads.sleep(state.source.recheck)
            pool = threads.GreenPool()
            for resolution in list(self._resolutions.values()):
                if resolution.port.sources.get(INSTANCE) == state.source.name:
                    pool.spawn_n(self._recheck, resolution, state)
            pool.waitall()

    def _recheck(self, resolution: Resolution, state: _SourceState) -> None:
        answer = self._look_up(state, bare(resolution.row))
        if answer is None or not self._is_current(resolution):
            return
        _count(state.source.name, "found" if answer != Ownership() else "nothing")
        if answer.instance_id != resolution.port.instance_id:
            LOG.info(
                "Port %s no longer belongs to instance %s, according to source %s",
                *(resolution.port.name, resolution.port.instance_id, state.source.name),
            )
            self._begin(resolution.row)


def _count(source: metrics.IdentitySource, outcome: metrics.LookupOutcome) -> None:
    metrics.IDENTITY_LOOKUPS.labels(source, outcome).inc()
