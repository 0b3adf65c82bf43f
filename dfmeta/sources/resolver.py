"""Queries the identity sources for each port with missing fields, and delivers the result.

Each port is handled on its own. The values from OVSDB are delivered at once. For each port that
lacks a field, a greenthread queries the sources in order, and again with growing pauses while the
port exists. A source that fails rests for a moment and is skipped meanwhile, so that it does not
delay ports that other sources can identify.

Answers belong to one incarnation of a port (LP#1868867). Another row, instance, id, MAC or number
begins a new incarnation, and later answers for the old one are dropped. An instance that OVSDB does
not name can change without a change in OVSDB (a tap that stays while one domain ends and another
starts), so the source that named it is queried again regularly.

Everything runs on the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dfmeta import metrics
from dfmeta.errors import SourceError
from dfmeta.model import Port, PortId, PortKind
from dfmeta.runtime import clock, hub, threads
from dfmeta.runtime.threads import Semaphore
from dfmeta.runtime.throttle import Backoff, Seldom
from dfmeta.sources.merge import (
    INSTANCE,
    NEEDED,
    OVSDB,
    PORT_PROJECT,
    PROJECT,
    Ownership,
    Question,
    Source,
    SourceAnswer,
    bare,
    contradicts,
    merge,
    open_fields,
)

LOG = logging.getLogger(__name__)

REST_FIRST: Final = 0.5
REST_MOST: Final = 4.0
"""Seconds that a source rests after a failure, well below the time that a guest can wait."""
PORT_PROJECT_AFTER: Final = 3.0
"""Seconds until a port's own project counts as its instance's project, if another source could give
the latter: longer than libvirt's file takes to appear, shorter than a guest waits."""
PAUSE_LEAST: Final = 0.01
CROWD: Final = 500
"""Number of ports above which the longest pause between two queries grows: repeated queries for
thousands of unknown ports would keep a core busy indefinitely."""


@dataclass(slots=True)
class _Asked:
    """The queries of one source for one port."""

    times: int = 0
    next: float = 0.0
    pause: float = 0.0


@dataclass(slots=True, eq=False)
class _Entry:
    """One incarnation of a port."""

    row: Port
    port: Port
    seen: float
    answers: list[SourceAnswer] = field(default_factory=list)
    asked: dict[str, _Asked] = field(default_factory=dict)
    port_project: bool = False
    working: bool = False
    rounds: int = 0


@dataclass(slots=True, eq=False)
class _Asking:
    """The state of one source for all ports."""

    source: Source
    room: Semaphore
    seldom: Seldom
    rest: Backoff


class Resolver:
    """Turns OVSDB's ports into ports with an instance and a project.

    :param order: names of the sources; ``ovsdb`` is OVSDB's row itself.
    :param sources: all other sources in *order*.
    :param deliver: called with a port each time that more of its fields are known.
    :param drop: called with the id of each removed port.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        order: Sequence[str],
        sources: Sequence[Source],
        deliver: Callable[[Port], None],
        *,
        drop: Callable[[PortId], None] = lambda _port_id: None,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._order = tuple(order)
        self._deliver = deliver
        self._drop = drop
        self._clock = clock
        self._entries: dict[PortId, _Entry] = {}
        self._unsettled: set[_Entry | None] = set()
        """Ports with missing fields for which no round of queries has finished."""
        self._gate = Semaphore()
        self._sources: dict[str, _Asking] = {
            source.name: _Asking(
                source,
                Semaphore(source.at_once),
                Seldom(clock=clock),
                Backoff(REST_FIRST, REST_MOST),
            )
            for source in sources
        }

    def start(self) -> None:
        """Begin to check regularly that the instances which a source named still exist."""
        for asking in self._sources.values():
            if asking.source.recheck:
                name = f"identity source {asking.source.name}"
                hub.VITAL.spawn(name, self._recheck_loop, asking)

    def update(self, row: Port) -> None:
        """Process the current row of a port in OVSDB. Never waits."""
        entry = self._entries.get(row.id)
        if entry is not None and self._same(entry, row):
            entry.row = row
            self._hand_on(entry)
        else:
            entry = self._anew(row)
        self._work_on(entry)

    def forget(self, port_id: PortId) -> None:
        """Drop that port and all later answers for it."""
        self._drop(port_id)
        self._unsettled.discard(self._entries.pop(port_id, None))

    def renew(self, port_id: PortId) -> None:
        """Query the sources for that port again, because it has another device now.

        An instance from OVSDB stays: OVSDB is checked in another way, see
        :mod:`dfmeta.identity.numbering`. Any other answer was for the previous device. Both devices
        may have the same row, such as that of a tap that another domain has created again.
        """
        entry = self._entries.get(port_id)
        if entry is not None and entry.port.sources.get(INSTANCE) != OVSDB:
            self._work_on(self._anew(entry.row))

    def settled(self) -> bool:
        """Return whether the sources were queried once for each port with missing fields."""
        return not self._unsettled

    # One port

    def _same(self, entry: _Entry, row: Port) -> bool:
        old = entry.row
        if (old.iface_id, old.instance_id) != (row.iface_id, row.instance_id):
            return False
        if entry.port.sources.get(INSTANCE) == OVSDB:
            return True
        # Only its place indicates that the port belongs to the same guest.
        if old.ofport is not None and old.ofport != row.ofport:
            return False
        return (old.name, old.mac) == (row.name, row.mac)

    def _anew(self, row: Port) -> _Entry:
        entry = _Entry(row, bare(row), self._clock())
        self._unsettled.discard(self._entries.get(row.id))
        self._entries[row.id] = entry
        for name in self._order:
            if name != OVSDB:
                break
            entry.answers.append(SourceAnswer(OVSDB))
        self._hand_on(entry)
        return entry

    def _hand_on(self, entry: _Entry) -> None:
        port = merge(entry.row, entry.answers, port_project=entry.port_project)
        entry.port = replace(port, unnamed=self._is_unnamed(entry, port))
        self._deliver(entry.port)

    def _is_unnamed(self, entry: _Entry, port: Port) -> bool:
        """Return whether all sources have answered, and none gives the instance of a subport."""
        if port.kind is not PortKind.SUBPORT or port.instance_id or port.fault:
            return False
        missing = {
            name
            for name, asking in self._sources.items()
            if INSTANCE in asking.source.gives and self._knows(asking.source, port)
        }
        missing -= entry.asked.keys()
        has_ovsdb = any(answer.source == OVSDB for answer in entry.answers)
        return not missing and (has_ovsdb or OVSDB not in self._order)

    def _knows(self, source: Source, port: Port) -> bool:
        """Return whether a source can know anything of *port*."""
        if port.kind is PortKind.SUBPORT and not source.subports:
            return False
        return not source.by_instance or _proven(port)

    def _work_on(self, entry: _Entry) -> None:
        if not entry.working and not entry.row.fault and self._pause(entry) is not None:
            entry.working = True
            if not entry.rounds:
                self._unsettled.add(entry)
            threads.spawn_detached(self._work, entry)

    def _work(self, entry: _Entry) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None:
                threads.sleep(pause)
                try:
                    pause = self._round(entry)
                except Exception:
                    # A defect in dfmeta must delay only this port, by some seconds.
                    LOG.exception("The identity query for port %s failed; retrying", entry.row.name)
                    pause = REST_MOST
        finally:
            entry.working = False
            self._unsettled.discard(entry)

    def _round(self, entry: _Entry) -> float | None:
        """Query each source that is due; return seconds until the next round, None for no more."""
        self._take_turn()
        for name in self._order:
            if self._current(entry) and self._due(entry, name):
                self._ask(entry, name)
        if not self._current(entry):
            return None
        entry.rounds += 1
        self._unsettled.discard(entry)
        if entry.port.unnamed != self._is_unnamed(entry, entry.port):
            self._hand_on(entry)
        self._consider_port_project(entry)
        return self._pause(entry)

    def _take_turn(self) -> None:
        """Wait until this greenthread may continue.

        After a start thousands of greenthreads wake at once; one continues in each turn of the hub.
        """
        with self._gate:
            threads.sleep(0)

    def _current(self, entry: _Entry) -> bool:
        return self._entries.get(entry.row.id) is entry

    def _open(self, entry: _Entry, name: str) -> frozenset[str]:
        """Return the fields that source *name* can still give.

        Optional fields are among them only before the first query.
        """
        source = self._sources[name].source
        if not self._knows(source, entry.port):
            return frozenset()
        lacking = set(open_fields(entry.port))
        if not entry.port.project_id and not _has_port_project(entry):
            lacking.add(PORT_PROJECT)
        can = source.gives & lacking
        return can & NEEDED if entry.asked.get(name) else can

    def _due(self, entry: _Entry, name: str) -> bool:
        if name == OVSDB:
            return all(answer.source != OVSDB for answer in entry.answers)
        now = self._clock()
        asked = entry.asked.get(name)
        return (
            bool(self._open(entry, name))
            and not self._sources[name].rest.rests(now)
            and (asked is None or asked.next <= now)
        )

    def _pause(self, entry: _Entry) -> float | None:
        """Return seconds until the next query; None when no more queries are needed."""
        now = self._clock()
        moments = [
            max(self._sources[name].rest.until, asked.next if asked else 0.0)
            for name in self._order
            if name != OVSDB and self._open(entry, name)
            for asked in [entry.asked.get(name)]
        ]
        if any(name == OVSDB and self._due(entry, name) for name in self._order):
            moments.append(now)
        port = entry.port
        if port.instance_id and not port.project_id and _has_port_project(entry):
            moments.append(entry.seen + PORT_PROJECT_AFTER)
        if not moments:
            return None
        first = 0.0 if not entry.rounds else PAUSE_LEAST
        return max(first, min(moments) - now)

    def _ask(self, entry: _Entry, name: str) -> None:
        if name == OVSDB:
            entry.answers.append(SourceAnswer(OVSDB))
            self._hand_on(entry)
            return
        asking = self._sources[name]
        found = self._look_up(asking, entry.port)
        if found is None:
            return
        if not self._current(entry):
            _count(asking.source.name, "late")
            return
        asked = entry.asked.setdefault(name, _Asked())
        first, most = asking.source.retry
        asked.pause = min(most, asked.pause * 2) if asked.times else first
        asked.times += 1
        crowded = max(1.0, len(self._entries) / CROWD) if asked.pause == most else 1.0
        asked.next = self._clock() + asked.pause * crowded
        if contradicts(entry.port, found):
            _count(asking.source.name, "conflict")
            asking.seldom.warn(
                LOG,
                "Identity source %s names instance %s for port %s; the port keeps instance %s, "
                "which source %s has named",
                *(name, found.instance_id, entry.port.name, entry.port.instance_id),
                entry.port.sources.get(INSTANCE),
            )
            return
        _count(asking.source.name, "found" if found != Ownership() else "nothing")
        if found != Ownership():
            _put(entry.answers, SourceAnswer(name, found, asking.source.unverified))
            self._hand_on(entry)

    def _consider_port_project(self, entry: _Entry) -> None:
        port = entry.port
        if not port.instance_id or port.project_id or not _has_port_project(entry):
            return
        others = any(
            PROJECT in asking.source.gives and self._knows(asking.source, port)
            for asking in self._sources.values()
        )
        if others and self._clock() < entry.seen + PORT_PROJECT_AFTER:
            return
        entry.port_project = True
        self._hand_on(entry)

    # One source

    def _look_up(self, asking: _Asking, port: Port) -> Ownership | None:
        """Query a source once; None when there was no answer."""
        source = asking.source
        found: Ownership | None = None
        with asking.room:
            if asking.rest.rests(self._clock()):
                return None  # it failed while this port waited for its turn
            timer = threads.Timeout(source.timeout)
            try:
                found = source.find(Question(port, self._clock()))
            except threads.Timeout as timeout:
                if timeout is not timer:
                    raise
                cause = f"no answer within {source.timeout:g} s"
                self._failed(asking, "timeout", SourceError(source=source.name, cause=cause))
            except SourceError as error:
                self._failed(asking, "failed", error)
            except Exception as error:
                # A defect in dfmeta must affect only this query.
                LOG.exception("Identity source %s failed for port %s", source.name, port.name)
                self._failed(asking, "failed", error)
            else:
                asking.rest.reset()
            finally:
                timer.cancel()
        if found is not None:
            # All greenthreads that waited for the same answer have woken at once.
            self._take_turn()
        return found

    def _failed(self, asking: _Asking, outcome: metrics.LookupOutcome, error: Exception) -> None:
        _count(asking.source.name, outcome)
        asking.seldom.warn(LOG, "%s; ports that need it wait", error)
        now = self._clock()
        # Queries that ran at the same time fail together, and count as one failure.
        if not asking.rest.rests(now):
            asking.rest.failed(now)

    def _recheck_loop(self, asking: _Asking) -> None:
        while True:
            threads.sleep(asking.source.recheck)
            pool = threads.GreenPool()
            for entry in list(self._entries.values()):
                if entry.port.sources.get(INSTANCE) == asking.source.name:
                    pool.spawn_n(self._recheck, entry, asking)
            pool.waitall()

    def _recheck(self, entry: _Entry, asking: _Asking) -> None:
        found = self._look_up(asking, bare(entry.row))
        if found is None or not self._current(entry):
            return
        _count(asking.source.name, "found" if found != Ownership() else "nothing")
        if found.instance_id != entry.port.instance_id:
            LOG.info(
                "Port %s no longer belongs to instance %s, according to source %s",
                *(entry.port.name, entry.port.instance_id, asking.source.name),
            )
            self._work_on(self._anew(entry.row))


def _proven(port: Port) -> bool:
    return Question(port, 0.0).proven


def _has_port_project(entry: _Entry) -> bool:
    return any(answer.found.port_project for answer in entry.answers)


def _put(answers: list[SourceAnswer], new: SourceAnswer) -> None:
    """Replace an earlier answer of the same source, or append the answer."""
    for number, old in enumerate(answers):
        if old.source == new.source:
            answers[number] = new
            return
    answers.append(new)


def _count(source: metrics.IdentitySource, outcome: metrics.LookupOutcome) -> None:
    metrics.IDENTITY_LOOKUPS.labels(source, outcome).inc()
