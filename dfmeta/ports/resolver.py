"""Asks the identity sources about each port that lacks something, and hands on what is known.

Each port has a life of its own: what OVSDB itself says is handed on at once, the rest by a
greenthread for each port that lacks something, which asks the sources in order and again, with
growing pauses, while the port is there. A source that fails rests for a moment and is passed over
meanwhile, so that it delays nobody who can do without.

Answers belong to one incarnation of a port (LP#1868867): another row, instance, id, MAC or number
starts anew, and an answer that comes later is dropped. An instance that OVSDB does not name can
change without a trace in OVSDB (a tap that stays while one domain ends and another starts), so
the source that named it is asked again every now and then.

Everything runs on the hub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import eventlet
from eventlet.semaphore import Semaphore

from dfmeta import hub, metrics
from dfmeta.exceptions import SourceError
from dfmeta.model import Port, PortId
from dfmeta.ports.sources import (
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
from dfmeta.quiet import Seldom

LOG = logging.getLogger(__name__)

REST_FIRST: Final = 0.5
REST_MOST: Final = 4.0
"""Seconds that a source rests after a failure: well below the time that a guest can wait."""
PORT_PROJECT_AFTER: Final = 3.0
"""Seconds until a port's own project is taken for its instance's, where another source could
still give that: longer than libvirt's file takes to appear, shorter than a guest waits."""
PAUSE_LEAST: Final = 0.01
CROWD: Final = 500
"""Ports from which on one that has been asked about for long waits longer than its source says:
asking again about thousands that nobody knows would keep a core busy for ever."""


@dataclass(slots=True)
class _Asked:
    """A source, as seen from one port."""

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
    """A source, for all ports."""

    source: Source
    room: Semaphore
    seldom: Seldom
    failures: int = 0
    rests_until: float = 0.0


class Resolver:
    """Turns OVSDB's ports into ports with an instance and a project.

    :param order: names of the sources; ``ovsdb`` is OVSDB's row itself.
    :param sources: all the others that *order* names.
    :param deliver: takes each port, as far as it is known, whenever more is.
    :param drop: takes the id of each port that is gone.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        order: Sequence[str],
        sources: Sequence[Source],
        deliver: Callable[[Port], None],
        *,
        drop: Callable[[PortId], None] = lambda _port_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._order = tuple(order)
        self._deliver = deliver
        self._drop = drop
        self._clock = clock
        self._entries: dict[PortId, _Entry] = {}
        self._unsettled: set[_Entry | None] = set()
        """Those that lack something and have not been asked about once."""
        self._gate = Semaphore()
        self._sources: dict[str, _Asking] = {
            source.name: _Asking(source, Semaphore(source.at_once), Seldom(clock=clock))
            for source in sources
        }

    def start(self) -> None:
        """Check from now on that the instances which a source named are still there."""
        for asking in self._sources.values():
            if asking.source.recheck:
                name = f"identity source {asking.source.name}"
                hub.VITAL.spawn(name, self._recheck_loop, asking)

    def update(self, row: Port) -> None:
        """Take in a port as OVSDB has it now. Never waits."""
        entry = self._entries.get(row.id)
        if entry is not None and self._same(entry, row):
            entry.row = row
            self._hand_on(entry)
        else:
            entry = self._anew(row)
        self._work_on(entry)

    def forget(self, port_id: PortId) -> None:
        """Drop that port, and every answer that is still to come for it."""
        self._drop(port_id)
        self._unsettled.discard(self._entries.pop(port_id, None))

    def renew(self, port_id: PortId) -> None:
        """Ask anew about that port: it has another device now.

        An instance that OVSDB names stays: OVSDB is asked about it by other means, see
        :mod:`dfmeta.numbering`. Any other answer was about the device of before, and a row may be
        the same for both, such as that of a tap which another domain has made anew.
        """
        entry = self._entries.get(port_id)
        if entry is not None and entry.port.sources.get(INSTANCE) != OVSDB:
            self._work_on(self._anew(entry.row))

    def settled(self) -> bool:
        """Whether each port that lacks something has been asked about once."""
        return not self._unsettled

    # One port

    def _same(self, entry: _Entry, row: Port) -> bool:
        old = entry.row
        if (old.iface_id, old.instance_id) != (row.iface_id, row.instance_id):
            return False
        if entry.port.sources.get(INSTANCE) == OVSDB:
            return True
        # Nothing but the place says that it is the same guest's.
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
        entry.port = merge(entry.row, entry.answers, port_project=entry.port_project)
        self._deliver(entry.port)

    def _work_on(self, entry: _Entry) -> None:
        if not entry.working and not entry.row.fault and self._pause(entry) is not None:
            entry.working = True
            if not entry.rounds:
                self._unsettled.add(entry)
            eventlet.spawn_n(self._work, entry)

    def _work(self, entry: _Entry) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None:
                eventlet.sleep(pause)
                try:
                    pause = self._round(entry)
                except Exception:
                    # A defect of ours must cost this port some seconds, and no other anything.
                    LOG.exception("Asking about port %s failed; it is tried again", entry.row.name)
                    pause = REST_MOST
        finally:
            entry.working = False
            self._unsettled.discard(entry)

    def _round(self, entry: _Entry) -> float | None:
        """Ask each source that is due; return seconds until the next round, None for no more."""
        self._take_turn()
        for name in self._order:
            if self._current(entry) and self._due(entry, name):
                self._ask(entry, name)
        if not self._current(entry):
            return None
        entry.rounds += 1
        self._unsettled.discard(entry)
        self._consider_port_project(entry)
        return self._pause(entry)

    def _take_turn(self) -> None:
        """Wait for this greenthread's turn: of those that wake at once, by the thousand after a
        start, one goes on in each turn of the hub."""
        with self._gate:
            eventlet.sleep(0)

    def _current(self, entry: _Entry) -> bool:
        return self._entries.get(entry.row.id) is entry

    def _open(self, entry: _Entry, name: str) -> frozenset[str]:
        """What *name* may still give; optional things only before it has been asked."""
        source = self._sources[name].source
        if source.by_instance and not _proven(entry.port):
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
            and self._sources[name].rests_until <= now
            and (asked is None or asked.next <= now)
        )

    def _pause(self, entry: _Entry) -> float | None:
        """Seconds until something can be asked again; None when nothing has to be."""
        now = self._clock()
        moments = [
            max(self._sources[name].rests_until, asked.next if asked else 0.0)
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
                "%s says that %s is instance %s's; it stays with %s, as %s says",
                *(name, entry.port.name, found.instance_id, entry.port.instance_id),
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
            PROJECT in asking.source.gives and (_proven(port) or not asking.source.by_instance)
            for asking in self._sources.values()
        )
        if others and self._clock() < entry.seen + PORT_PROJECT_AFTER:
            return
        entry.port_project = True
        self._hand_on(entry)

    # One source

    def _look_up(self, asking: _Asking, port: Port) -> Ownership | None:
        """Ask once; None when there was no answer."""
        source = asking.source
        found: Ownership | None = None
        with asking.room:
            if asking.rests_until > self._clock():
                return None  # it failed while this port waited for its turn
            timer = eventlet.Timeout(source.timeout)
            try:
                found = source.find(Question(port, self._clock()))
            except eventlet.Timeout as timeout:
                if timeout is not timer:
                    raise
                cause = f"no answer within {source.timeout:g} s"
                self._failed(asking, "timeout", SourceError(source=source.name, cause=cause))
            except SourceError as error:
                self._failed(asking, "failed", error)
            except Exception as error:
                # A defect of ours must cost this question alone.
                LOG.exception("Identity source %s failed on %s", source.name, port.name)
                self._failed(asking, "failed", error)
            else:
                asking.failures = 0
            finally:
                timer.cancel()
        if found is not None:
            # All that waited for the same answer have woken at once.
            self._take_turn()
        return found

    def _failed(self, asking: _Asking, outcome: metrics.LookupOutcome, error: Exception) -> None:
        _count(asking.source.name, outcome)
        asking.seldom.warn(LOG, "%s; ports that need it wait", error)
        now = self._clock()
        if asking.rests_until <= now:
            rest = min(REST_MOST, REST_FIRST * 2 ** min(asking.failures, 10))
            asking.failures += 1
            asking.rests_until = now + rest

    def _recheck_loop(self, asking: _Asking) -> None:
        while True:
            eventlet.sleep(asking.source.recheck)
            pool = eventlet.GreenPool()
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
                "Port %s no longer belongs to %s, says %s",
                *(entry.port.name, entry.port.instance_id, asking.source.name),
            )
            self._work_on(self._anew(entry.row))


def _proven(port: Port) -> bool:
    return Question(port, 0.0).proven


def _has_port_project(entry: _Entry) -> bool:
    return any(answer.found.port_project for answer in entry.answers)


def _put(answers: list[SourceAnswer], new: SourceAnswer) -> None:
    """Put an answer in the place of an earlier one of the same source, or at the end."""
    for number, old in enumerate(answers):
        if old.source == new.source:
            answers[number] = new
            return
    answers.append(new)


def _count(source: metrics.IdentitySource, outcome: metrics.LookupOutcome) -> None:
    metrics.IDENTITY_LOOKUPS.labels(source, outcome).inc()
