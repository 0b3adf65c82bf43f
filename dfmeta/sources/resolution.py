"""The resolution of one port: the answers of the sources so far, and its next queries. Pure.

The order decides: a value comes from the first source that has one, and later sources fill the
missing fields. If a source names another instance than the sources before it, its whole answer is
ignored, because its project and name belong to that other instance.

A source is queried for a port while it can give a field that the port lacks:

* at once, and after an answer without the field again, with growing pauses;
* only once for fields that are not :data:`~dfmeta.sources.source.NEEDED`;
* not at all if it knows no such port, or only instances and the port's is not proven.

OVSDB's own values count from the beginning, or from its turn in the order on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dfmeta import metrics
from dfmeta.model import Port, PortKind
from dfmeta.runtime.throttle import Backoff
from dfmeta.sources.source import (
    FIELDS,
    INSTANCE,
    NEEDED,
    OVSDB,
    PORT_PROJECT,
    PROJECT,
    Ownership,
    PortQuery,
    Source,
)

PORT_PROJECT_AFTER: Final = 3.0
"""Seconds until a port's own project counts as its instance's project, if another source could give
the latter: longer than libvirt's file takes to appear, shorter than a guest waits."""


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """The answer of a source for a port."""

    source: str
    ownership: Ownership = field(default_factory=Ownership)
    unverified: bool = False


def bare(row: Port) -> Port:
    """Return OVSDB's port without its values of the instance."""
    return replace(
        row, instance_id="", project_id="", instance_name="", unverified=False, sources={}
    )


def merge(row: Port, answers: Sequence[SourceAnswer], *, port_project: bool = False) -> Port:
    """Merge the answers for a port.

    :param row: OVSDB's port. Its values of the instance are used at the position of the answer of
        source ``ovsdb`` in *answers*; the content of that answer is ignored.
    :param answers: answers in order of precedence.
    :param port_project: use the port's own project if no answer gives the instance's.
    """
    port = bare(row)
    for answer in answers:
        ownership = _of_row(row) if answer.source == OVSDB else answer.ownership
        if not contradicts(port, ownership):
            port = _fill(port, ownership, answer)
    if port_project and not port.project_id:
        for answer in answers:
            if answer.ownership.port_project:
                sources = {**port.sources, PROJECT: f"{answer.source} (port)"}
                return replace(port, project_id=answer.ownership.port_project, sources=sources)
    return port


def contradicts(port: Port, ownership: Ownership) -> bool:
    """Return whether *found* has another instance than *port*."""
    return (
        bool(port.instance_id and ownership.instance_id)
        and port.instance_id != ownership.instance_id
    )


def open_fields(port: Port) -> frozenset[str]:
    """Return the fields that are unknown or provisional."""
    provisional = port.sources.get(PROJECT, "").endswith("(port)")
    return frozenset(
        name for name in FIELDS if not getattr(port, name) or (provisional and name == PROJECT)
    )


def _fill(port: Port, ownership: Ownership, answer: SourceAnswer) -> Port:
    new = {
        name: value
        for name in FIELDS
        if (value := getattr(ownership, name)) and not getattr(port, name)
    }
    unverified = answer.unverified if INSTANCE in new else port.unverified
    if ownership.instance_id and not answer.unverified:
        unverified = False  # the host itself confirms the instance
    sources = {**port.sources, **dict.fromkeys(new, answer.source)}
    return replace(port, **new, unverified=unverified, sources=sources)


def _of_row(row: Port) -> Ownership:
    return Ownership(row.instance_id, row.project_id)


class Resolution:
    """One incarnation of a port, and its state; :attr:`port` is the result so far.

    Answers belong to one incarnation (LP#1868867): another row, instance, id, MAC or number begins
    a new one.

    :param row: OVSDB's port.
    :param order: names of the sources; ``ovsdb`` is OVSDB's row itself.
    :param sources: all other sources in *order*, by name.
    :param now: monotonic seconds.
    """

    def __init__(
        self, row: Port, order: Sequence[str], sources: Mapping[str, Source], *, now: float
    ) -> None:
        self.row = row
        self._order, self._sources = order, sources
        self._begun = now
        self._answers: dict[str, SourceAnswer] = {}
        """Source → its answer, in order of precedence."""
        self._queries: dict[str, Backoff] = {}
        """Source that has answered → the pause until its next query."""
        self._takes_port_project = False
        self.running = False
        """Whether a greenthread makes the queries."""
        self.rounds = 0
        """Number of times that all queries due were made."""
        if order[0] == OVSDB:
            self._answers[OVSDB] = SourceAnswer(OVSDB)
        self.port = bare(row)
        self._merge()

    @property
    def settled(self) -> bool:
        """Whether the first queries are over, or none is needed."""
        return bool(self.rounds) or not self.running

    def has(self, row: Port) -> bool:
        """Return whether *row* is a row of this incarnation."""
        old = self.row
        if (old.iface_id, old.instance_id) != (row.iface_id, row.instance_id):
            return False
        if self.port.sources.get(INSTANCE) == OVSDB:
            return True
        # Only its place indicates that the port belongs to the same guest.
        if old.ofport is not None and old.ofport != row.ofport:
            return False
        return (old.name, old.mac) == (row.name, row.mac)

    def update(self, row: Port) -> None:
        """Take the current row of the incarnation."""
        self.row = row
        self._merge()

    def due(self, name: str) -> float | None:
        """Return the moment of the next query of a source; None: it can give nothing more."""
        if name == OVSDB:
            return None if OVSDB in self._answers else -math.inf
        source, query = self._sources[name], self._queries.get(name)
        lacking = set(open_fields(self.port))
        if not self.port.project_id and not self._port_project():
            lacking.add(PORT_PROJECT)
        if query is not None:
            lacking &= NEEDED
        if not self._is_known_to(source) or not source.gives & lacking:
            return None
        return -math.inf if query is None else query.until

    def port_project_due(self) -> float | None:
        """Return the moment from which the port's own project counts; None: it is not needed."""
        port = self.port
        if not port.instance_id or port.project_id or not self._port_project():
            return None
        others = any(
            PROJECT in source.gives and self._is_known_to(source)
            for source in self._sources.values()
        )
        return self._begun + (PORT_PROJECT_AFTER if others else 0.0)

    def take_port_project(self) -> None:
        """Use the port's own project as that of its instance, until a source gives the latter."""
        self._takes_port_project = True
        self._merge()

    def take_row(self) -> None:
        """Take OVSDB's own values, because it is their turn in the order."""
        self._answers[OVSDB] = SourceAnswer(OVSDB)
        self._merge()

    def answer(
        self, name: str, ownership: Ownership, *, now: float, crowd: float
    ) -> metrics.LookupOutcome:
        """Take the answer of a source, and return its kind.

        :param crowd: factor of the longest pause until the next query.
        """
        source = self._sources[name]
        query = self._queries.setdefault(name, Backoff(*source.retry))
        query.failed(now)
        longest = source.retry[1]
        if query.until >= now + longest:
            query.until = now + longest * crowd
        if contradicts(self.port, ownership):
            return "conflict"
        if ownership != Ownership():
            self._answers[name] = SourceAnswer(name, ownership, source.unverified)
        self._merge()
        return "found" if ownership != Ownership() else "nothing"

    def _merge(self) -> None:
        answers = list(self._answers.values())
        port = merge(self.row, answers, port_project=self._takes_port_project)
        self.port = replace(port, unnamed=self._is_unnamed(port))

    def _is_unnamed(self, port: Port) -> bool:
        """Return whether all sources have answered, and none gives the instance of a subport."""
        if port.kind is not PortKind.SUBPORT or port.instance_id or port.fault:
            return False
        return all(
            name in self._queries or name in self._answers
            for name in self._order
            if name == OVSDB or self._may_name(self._sources[name])
        )

    def _may_name(self, source: Source) -> bool:
        return INSTANCE in source.gives and self._is_known_to(source)

    def _is_known_to(self, source: Source) -> bool:
        """Return whether a source can know anything of the port."""
        if self.port.kind is PortKind.SUBPORT and not source.subports:
            return False
        return not source.by_instance or PortQuery(self.port, 0.0).proven

    def _port_project(self) -> bool:
        return any(answer.ownership.port_project for answer in self._answers.values())
