"""What the status page shows, gathered from the daemon, or from the store as a service."""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import IPv4Address, IPv6Address
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from eventlet import tpool
from eventlet.semaphore import Semaphore
from oslo_config import cfg
from prometheus_client import Metric

from dfmeta.cmd.rows import failure_row
from dfmeta.exceptions import StoreError
from dfmeta.health import Health
from dfmeta.hub import Turns
from dfmeta.metrics import Samples
from dfmeta.model import Endpoint
from dfmeta.proxy.recent import RECENT, Failure, Recent
from dfmeta.proxy.status import FAILURES_SHOWN, Query, Status, render
from dfmeta.proxy.status_http import StatusPage

if TYPE_CHECKING:
    from dfmeta.store.repository import Repository

RECORDS_KEPT: Final = 30.0
"""Seconds for which a count of records is shown."""

Facts = Callable[[], Sequence[tuple[str, str]]]
Rows = Callable[[], list[dict[str, Any]]]


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


def gather(sources: Sources) -> Status:
    """What is to be shown now. Gives way to others."""
    rows = None if sources.ports is None else sources.ports()
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


def failures_of_ports(
    rows: Sequence[Mapping[str, Any]], recent: Recent = RECENT
) -> tuple[list[Mapping[str, Any]], int]:
    """How the guests of those ports have failed; see :attr:`Sources.failures`."""
    names = {row["ofport"]: (row["port"], row["instance"]) for row in rows if row["requests"]}
    return _latest(recent, lambda endpoint: names.get(endpoint.ofport))


def failures_of_addresses(recent: Recent = RECENT) -> tuple[list[Mapping[str, Any]], int]:
    """How guests of a store have failed, by address; see :attr:`Sources.failures`."""
    return _latest(recent, _address)


def _address(endpoint: Endpoint) -> tuple[str, str]:
    kinds: dict[int, type[IPv4Address | IPv6Address]] = {4: IPv4Address, 6: IPv6Address}
    kind = kinds.get(endpoint.vid)
    # What stands for no address is the connection of a trusted proxy.
    return ("a trusted proxy" if kind is None else str(kind(endpoint.ofport))), ""


def _latest(
    recent: Recent, name: Callable[[Endpoint], tuple[str, str] | None]
) -> tuple[list[Mapping[str, Any]], int]:
    found: list[tuple[float, Failure, tuple[str, str]]] = []
    turns = Turns()
    for endpoint, asked in recent:
        turns.give_way()
        named = name(endpoint)
        if named is not None:
            found += [(one.at, one, named) for one in asked.failures()]
    shown = heapq.nlargest(FAILURES_SHOWN, found, key=itemgetter(0))
    rows = [{**failure_row(one), "port": port, "instance": by} for _at, one, (port, by) in shown]
    return list(rows), len(found)


def _samples(families: Iterable[Metric]) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
