"""What the status page shows, gathered from the daemon, or from the store as a service."""

from __future__ import annotations

import heapq
import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from eventlet import tpool
from eventlet.semaphore import Semaphore
from oslo_config import cfg
from prometheus_client import Metric

from dfmeta.admin.page import StatusPage
from dfmeta.admin.status import FAILURES_SHOWN, Query, Status, render
from dfmeta.cmd.rows import failure_row
from dfmeta.exceptions import StoreError
from dfmeta.health import Health
from dfmeta.hub import Turns
from dfmeta.metrics import Samples
from dfmeta.model import Caller, Endpoint, Peer
from dfmeta.ports.sources import name_of
from dfmeta.proxy.nova import remedies
from dfmeta.proxy.recent import RECENT, Failure, Recent

if TYPE_CHECKING:
    from dfmeta.store.db.repository import Repository

RECORDS_KEPT: Final = 30.0
"""Seconds for which a count of records, and a record's name, is shown."""
NAMES_ASKED: Final = 200
"""Records whose names are looked for, for one page."""

Facts = Callable[[], Sequence[tuple[str, str]]]
Rows = Callable[[], list[dict[str, Any]]]
Names = Callable[[Iterable[str]], Mapping[str, str]]
"""Gives names of instances' records, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the page's values come from.

    :param failures: gives the latest as :attr:`Status.failures` has them, and how many there are,
        given the ports' rows.
    """

    program: str
    health: Health
    metrics: Callable[[], Iterable[Metric]]
    facts: Facts
    failures: Callable[[Sequence[Mapping[str, Any]]], tuple[Sequence[Mapping[str, Any]], int]]
    ports: Rows | None = None
    names: Names = lambda _instances: {}
    since: float = field(default_factory=time.time)


def page(listen: str, sources: Sources) -> StatusPage:
    """The page.

    :param listen: admin_listen.
    """
    one_at_a_time = Semaphore(1)

    def draw(query: Query) -> str:
        # However many browsers there are, one page is made at a time, in a thread: the hub is the
        # guests'.
        with one_at_a_time:
            status = gather(sources)
            drawn: str = tpool.execute(render, status, query)
            return drawn

    return StatusPage(listen, draw)


def page_of_agent(
    program: str,
    health: Health,
    metrics: Callable[[], Iterable[Metric]],
    ports: Rows,
    conf: Callable[[], cfg.ConfigOpts],
    repository: Callable[[], Repository | None],
) -> StatusPage:
    """The page of a daemon that serves ports.

    :param ports: gives the rows of ``GET /ports``.
    :param repository: gives the store, where there is one and it is open.
    """
    sources = Sources(
        program=program,
        health=health,
        metrics=metrics,
        facts=lambda: facts_of_host(conf()),
        failures=partial(failures_of_ports, backend=conf().df_metadata.backend),
        ports=ports,
        names=RecordNames(repository),
    )
    return page(conf().df_metadata.admin_listen, sources)


def gather(sources: Sources) -> Status:
    """What is to be shown now. Gives way to others."""
    rows = None if sources.ports is None else sources.ports()
    _name(rows or (), sources.names)
    failures, in_all = sources.failures(rows or ())
    return Status(
        program=sources.program,
        version=version("dfmeta"),
        host=socket.gethostname(),
        now=time.time(),
        since=sources.since,
        missing=sources.health.missing(),
        facts=sources.facts(),
        ports=rows,
        failures=failures,
        failures_in_all=in_all,
        samples=_samples(sources.metrics()),
    )


def facts_of_host(conf: cfg.ConfigOpts) -> tuple[tuple[str, str], ...]:
    """What people ask first of a daemon's configuration."""
    group = conf.df_metadata
    workers = str(group.proxy_workers or "none, the daemon answers itself")
    return (
        ("Bridge", group.integration_bridge),
        ("Backend", group.backend),
        ("Workers", workers),
    )


def facts_of_store(conf: cfg.ConfigOpts, records: Callable[[], str]) -> Sequence[tuple[str, str]]:
    """What people ask first of a store that many hosts share."""
    group = conf.store
    return (
        ("Database", group.connection.partition(":")[0].partition("+")[0]),
        ("Records", records()),
        ("Guests", group.guest_listen or "none are served here"),
        ("Asks another store", "yes" if group.lookup_base_url else "no"),
    )


class Records:
    """How many there are, in words; asked for twice a minute at most, however many look.

    :param repository: gives the store, once it is open.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        repository: Callable[[], Repository | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository, self._clock = repository, clock
        self._asked_at, self._said = float("-inf"), ""

    def __call__(self) -> str:
        now, repository = self._clock(), self._repository()
        if repository is None:
            return "the database is not open yet"
        if now - self._asked_at >= RECORDS_KEPT:
            try:
                self._said, self._asked_at = f"{repository.count():,}", now
            except StoreError:
                return "the database does not say"
        return self._said


class RecordNames:
    """Names of instances' records in the store, each looked for twice a minute at most.

    :param repository: gives the store, once it is open; None: there is none.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        repository: Callable[[], Repository | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository, self._clock = repository, clock
        self._known: dict[str, tuple[float, str]] = {}

    def __call__(self, instances: Iterable[str]) -> Mapping[str, str]:
        """Names by instance; of more than :data:`NAMES_ASKED` new ones the rest is for later."""
        repository, now = self._repository(), self._clock()
        if repository is None:
            return {}
        kept = {one: old for one, old in self._known.items() if now - old[0] < RECORDS_KEPT}
        wanted = [one for one in dict.fromkeys(instances) if one]
        turns = Turns()
        try:
            for instance in [one for one in wanted if one not in kept][:NAMES_ASKED]:
                turns.give_way()
                record = repository.get(instance)
                kept[instance] = now, _name_in(record.metadata if record else None)
        except StoreError:
            # The database has its own line; the page does without names.
            pass
        self._known = kept
        return {one: kept[one][1] for one in wanted if one in kept}


def failures_of_ports(
    rows: Sequence[Mapping[str, Any]], recent: Recent = RECENT, *, backend: str = "store"
) -> tuple[list[Mapping[str, Any]], int]:
    """How the guests of those ports have failed; see :attr:`Sources.failures`.

    :param backend: who answers them.
    """
    by_place = {Endpoint(row["ofport"], row["vid"]): row for row in rows if row["requests"]}

    def told(caller: Caller, failure: Failure) -> Mapping[str, Any] | None:
        row = by_place.get(caller) if isinstance(caller, Endpoint) else None
        if row is None:
            return None
        port, instance = row["port"], row["instance"]
        remedy = remedies.of_guest(failure, backend, port=port, instance=instance)
        name = row["instance_name"] or row.get("record_name", "")
        return {"port": port, "instance": instance, "name": name, "remedy": remedy}

    return _latest(recent, told)


def failures_of_addresses(recent: Recent = RECENT) -> tuple[list[Mapping[str, Any]], int]:
    """How guests of a store have failed, by address; see :attr:`Sources.failures`."""
    return _latest(recent, _of_address)


def _of_address(caller: Caller, _failure: Failure) -> Mapping[str, Any]:
    address = caller.address if isinstance(caller, Peer) else None
    named = "a trusted proxy" if address is None else str(address)
    return {"port": named, "instance": "", "name": "", "remedy": ""}


def _latest(
    recent: Recent, told: Callable[[Caller, Failure], Mapping[str, Any] | None]
) -> tuple[list[Mapping[str, Any]], int]:
    """Those that are the service's; what guests do to themselves is none of the operator's.

    :param told: what a row has besides the failure; None: it is not shown.
    """
    found: list[tuple[float, Failure, Caller]] = []
    turns = Turns()
    for caller, asked in recent:
        turns.give_way()
        found += [(one.at, one, caller) for one in asked.failures() if asked.counts_as(one)]
    found = [one for one in found if told(one[2], one[1]) is not None]
    shown = heapq.nlargest(FAILURES_SHOWN, found, key=itemgetter(0))
    rows = [{**failure_row(one), **(told(caller, one) or {})} for _at, one, caller in shown]
    return list(rows), len(found)


def _name(rows: Sequence[dict[str, Any]], names: Names) -> None:
    """Give each row ``record_name``, first to those that fail."""

    def failing(row: Mapping[str, Any]) -> bool:
        return bool(row["last_failure"] and row["last_failure"]["failing"])

    known = names(row["instance"] for row in sorted(rows, key=failing, reverse=True))
    for row in rows:
        row["record_name"] = known.get(row["instance"], "")


def _name_in(document: str | None) -> str:
    """The name that a record's document has, else its host name."""
    try:
        members = json.loads(document or "{}")
    except (ValueError, RecursionError):
        return ""
    if not isinstance(members, dict):
        return ""
    texts = (members.get(one) for one in ("name", "hostname"))
    return next((name_of(text) for text in texts if isinstance(text, str) and text), "")


def _samples(families: Iterable[Metric]) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
