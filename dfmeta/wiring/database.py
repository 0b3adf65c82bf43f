"""The process' own stores: one for each database, shared by all callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oslo_config import cfg

from dfmeta.conf import lookup as lookup_options
from dfmeta.errors import StoreError
from dfmeta.runtime import hub, names, threads
from dfmeta.store.db.repository import Repository
from dfmeta.wiring import lookup

if TYPE_CHECKING:
    from dfmeta.store.lookup.puller import Puller

READERS = {"sqlite": 2, "postgresql": 8}
WRITERS = {"sqlite": 1, "postgresql": 4}
"""Transactions at once, each with a connection that is kept open. SQLite allows one writer at a
time, and a file on this host answers fast enough for two readers."""
PATIENCE = 1.0
"""Seconds that a readiness request waits for the database."""

_opened: dict[str, Repository] = {}
_pullers: dict[object, Puller | None] = {}


def repository(url: str) -> Repository:
    """Return the store at *url*, the same for the same URL; its blocking calls run in threads.

    :raises ConfigError: when the URL is invalid.
    :raises StoreError: when it cannot be opened.
    """
    if url not in _opened:
        kind = url.partition(":")[0].partition("+")[0]
        threads = hub.Threads(readers=READERS.get(kind, 1), writers=WRITERS.get(kind, 1))
        _opened[url] = Repository(url, apart=threads)
    return _opened[url]


def puller(conf: cfg.ConfigOpts) -> Puller | None:
    """Return the puller, which looks up missing records upstream; None without an upstream store.

    It is the same object for the same configuration, so that callers share a running lookup.

    :raises ConfigError, StoreError: for the errors of :func:`repository`.
    """
    group = conf.store
    key = tuple((option.dest, str(group[option.dest])) for option in lookup_options.OPTS)
    if (group.connection, key) not in _pullers:
        _pullers[group.connection, key] = lookup.build(
            conf, repository(group.connection), resolve=names.addresses
        )
    return _pullers[group.connection, key]


def fault(url: str) -> str:
    """Return why the store at *url* does not answer within :data:`PATIENCE`; empty if it does."""
    found = f"no answer within {PATIENCE:g} s"
    # A thread that is connecting cannot be interrupted, so the time-out ends only this wait.
    with threads.Timeout(PATIENCE, False):
        try:
            repository(url).ping(seconds=PATIENCE)
            found = ""
        except StoreError as error:
            found = str(error)
    return found
