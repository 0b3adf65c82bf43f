"""Gathers the contents of the status page, in the daemon and in the central store."""

from __future__ import annotations

import contextlib
import heapq
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from dfmeta import errors, model
from dfmeta.admin.history import History
from dfmeta.admin.status import FAILURES_SHOWN, Query, Status, StatusPage, render
from dfmeta.conf.haproxy import HAPROXY
from dfmeta.proxy.recent import CLOSED, RECENT, Failure, Recent, guest_remedy
from dfmeta.runtime import clock, threads
from dfmeta.runtime.clock import FULL_CHECK_INTERVAL
from dfmeta.runtime.hub import Health, Turns
from dfmeta.sources.records import names_in

if TYPE_CHECKING:
    from dfmeta.store.db.repository import Record, Repository

NAMES_ASKED: Final = 200
"""Maximum number of records of which PostgreSQL is asked for one page."""

Facts = Callable[[], Sequence[tuple[str, str]]]
Rows = Callable[[], list[dict[str, Any]]]
Names = Callable[[Iterable[str]], Mapping[str, Sequence[str]]]
"""Returns the known names of instances' records: name, host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of the page's values.

    :param failures: takes the ports' rows and returns the latest failures, in the form of
        :attr:`Status.failures`, and the number of all failures.
    """

    program: str
    health: Health
    history: History
    facts: Facts
    failures: Callable[[Sequence[Mapping[str, Any]]], tuple[Sequence[Mapping[str, Any]], int]]
    ports: Rows | None = None
    names: Names = lambda _instances: {}
    others: Callable[[], Sequence[str]] = tuple
    """Returns the names of the bridge's ports that are no guest's and could have a guest."""
    bridge: str = ""
    since: float = field(default_factory=clock.wall)


def page(listen: str, sources: Sources) -> StatusPage:
    """Return the status page.

    :param listen: value of admin_listen.
    """
    one_at_a_time = threads.Semaphore(1)

    def draw(query: Query) -> str:
        # One page is made at a time, for any number of browsers, and in a thread, so that the hub
        # stays free for guests.
        with one_at_a_time:
            status = gather(sources)
            drawn: str = threads.call_in_thread(render, status, query)
            return drawn

    return StatusPage(listen, draw)


def gather(sources: Sources) -> Status:
    """Return the current contents of the page. Yields to other greenthreads."""
    rows = None if sources.ports is None else sources.ports()
    _name(rows or (), sources.names)
    failures, in_all = sources.failures(rows or ())
    samples = sources.history.read()
    return Status(
        program=sources.program,
        version=version("dfmeta"),
        host=socket.gethostname(),
        now=clock.wall(),
        since=sources.since,
        missing=sources.health.missing(),
        facts=sources.facts(),
        ports=rows,
        failures=failures,
        failures_in_all=in_all,
        others=sources.others(),
        samples=samples,
        minutes=sources.history.minutes,
        bridge=sources.bridge,
    )


def facts_of_host(
    conf: cfg.ConfigOpts, service: Mapping[str, Any], haproxy: Mapping[str, Any] | None = None
) -> tuple[tuple[str, str], ...]:
    """Return the most important options of a daemon, and the addresses that it serves.

    :param haproxy: facts about haproxy; None: the engine is another one, or has not started.
    """
    group = conf.df_metadata
    addresses = [service["ip"], *service["ip6"]] if service["ip"] else ["none yet"]
    workers = str(group.proxy_workers or "none, the daemon answers guests itself")
    engine = ("Workers", workers)
    if group.engine == HAPROXY:
        engine = ("Engine", _haproxy_in_words(haproxy))
    fault = service["ip6_fault"]
    return (
        ("Bridge", group.integration_bridge),
        ("Service", ", ".join(addresses)),
        *((("IPv6", f"{fault}; see dfmeta doctor"),) if fault else ()),
        ("Backend", group.backend),
        engine,
    )


def _haproxy_in_words(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return f"{HAPROXY}, which has not started yet"
    runs = f"process {facts['pid']}" if facts["pid"] else "not running, see dfmeta doctor"
    count = facts["restarts"]
    times = "once" if count == 1 else f"{count} times"
    ended = f", restarted {times} after a fault" if count else ""
    return f"{' '.join(filter(None, (HAPROXY, facts['version'])))}, {runs}{ended}"


def facts_of_store(conf: cfg.ConfigOpts, records: str) -> Sequence[tuple[str, str]]:
    """Return the most important options of a central store, and its number of records."""
    group = conf.store
    return (
        ("Database", group.connection.partition(":")[0].partition("+")[0]),
        ("Records", records),
        ("Guests", group.guest_listen or "none are served here"),
        ("Queries an upstream store", "yes" if group.lookup_base_url else "no"),
    )


def count_records(repository: Repository | None) -> str:
    """Return the number of records as text.

    :param repository: the store; None until it is open.
    """
    if repository is None:
        return "the database is not open yet"
    try:
        return f"{repository.count():,}"
    except errors.StoreError:
        return "the database does not answer"


class RecordNames:
    """Names of instances' records in the store.

    A record that has not changed is not read again from SQLite. A server of PostgreSQL is asked for
    each record at most twice a minute.

    :param repository: returns the store; None when there is none or it is not open.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        repository: Callable[[], Repository | None],
        *,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._repository, self._clock = repository, clock
        self._cached: dict[str, tuple[float, Record | None, tuple[str, ...]]] = {}
        """Instance → when its record was read, the record and its names."""

    def __call__(self, instances: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the names by instance, without instances that have none.

        A call asks PostgreSQL for at most :data:`NAMES_ASKED` records.
        """
        repository, now = self._repository(), self._clock()
        if repository is None:
            return {}
        wanted = dict.fromkeys(filter(None, instances))
        cached = {name: old for name, old in self._cached.items() if name in wanted}
        due = list(wanted)
        if not repository.shows_changes:
            fresh = {name for name, old in cached.items() if now - old[0] < FULL_CHECK_INTERVAL}
            due = [instance for instance in wanted if instance not in fresh][:NAMES_ASKED]
        turns = Turns()
        # The page has its own line for the database; without it, names are left out.
        with contextlib.suppress(errors.StoreError):
            for instance in due:
                turns.give_way()
                record = repository.get(instance)
                old = cached.get(instance)
                same = old is not None and old[1] is record
                names = old[2] if old and same else names_in(record.metadata if record else None)
                cached[instance] = now, record, names
        self._cached = cached
        return {name: cached[name][2] for name in wanted if name in cached and cached[name][2]}


def moment(seconds: float) -> str:
    """Format a time as RFC 3339, in whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def failure_row(failure: Failure) -> dict[str, Any]:
    """Return a row for failed requests; status None: closed without an answer."""
    return {
        "at": moment(failure.at),
        "status": None if failure.status == CLOSED else failure.status,
        "path": failure.path,
        "reason": failure.reason,
        "times": failure.times,
    }


def failures_of_ports(
    rows: Sequence[Mapping[str, Any]], recent: Recent = RECENT, *, backend: str = "store"
) -> tuple[list[Mapping[str, Any]], int]:
    """Return the failed requests of the guests of those ports; see :attr:`Sources.failures`.

    :param backend: ``store`` or ``nova``.
    """
    # A subport without an instance gets 404 as it should.
    asking = (row for row in rows if row["requests"] and row["instance"])
    by_place = {model.Endpoint(row["ofport"], row["vid"]): row for row in asking}

    def describe(caller: model.Caller, failure: Failure) -> Mapping[str, Any] | None:
        row = by_place.get(caller) if isinstance(caller, model.Endpoint) else None
        if row is None:
            return None
        port, instance = row["port"], row["instance"]
        remedy = guest_remedy(failure, backend, port=port, instance=instance)
        name = row["instance_name"] or row.get("record_name", "")
        return {"port": port, "instance": instance, "name": name, "remedy": remedy}

    return _latest(recent, describe)


def failures_of_addresses(recent: Recent = RECENT) -> tuple[list[Mapping[str, Any]], int]:
    """Return failed requests to a central store, by address; see :attr:`Sources.failures`."""
    return _latest(recent, _of_address)


def _of_address(caller: model.Caller, _failure: Failure) -> Mapping[str, Any]:
    address = caller.address if isinstance(caller, model.Peer) else None
    named = "a trusted proxy" if address is None else str(address)
    return {"port": named, "instance": "", "name": "", "remedy": ""}


def _latest(
    recent: Recent, describe: Callable[[model.Caller, Failure], Mapping[str, Any] | None]
) -> tuple[list[Mapping[str, Any]], int]:
    """Return the latest failures that concern the operator, and their total number.

    Failures that guests cause themselves are left out.

    :param describe: returns further members of a failure's row; None leaves the failure out.
    """
    failures: list[tuple[float, Failure, model.Caller]] = []
    turns = Turns()
    for caller, requests in recent:
        turns.give_way()
        failures += [
            (failure.at, failure, caller)
            for failure in requests.failures()
            if requests.counts_as(failure) and describe(caller, failure) is not None
        ]
    shown = heapq.nlargest(FAILURES_SHOWN, failures, key=itemgetter(0))
    rows = [
        {**failure_row(failure), **(describe(caller, failure) or {})}
        for _at, failure, caller in shown
    ]
    return list(rows), len(failures)


def _name(rows: Sequence[dict[str, Any]], names: Names) -> None:
    """Set ``record_names``, and the first as ``record_name``, in each row; rows of failing guests
    come first."""

    def failing(row: Mapping[str, Any]) -> bool:
        return bool(row["last_failure"] and row["last_failure"]["failing"])

    by_instance = names(row["instance"] for row in sorted(rows, key=failing, reverse=True))
    for row in rows:
        row["record_names"] = by_instance.get(row["instance"], ())
        row["record_name"] = next(iter(row["record_names"]), "")
