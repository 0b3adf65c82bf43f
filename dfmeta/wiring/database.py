"""The process' own store: one for each database, whoever asks for it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import eventlet
from oslo_config import cfg

from dfmeta import hub, names
from dfmeta.conf import lookup as lookup_options
from dfmeta.exceptions import StoreError
from dfmeta.store.db.repository import Repository
from dfmeta.wiring import lookup

if TYPE_CHECKING:
    from dfmeta.store.lookup.puller import Puller

READERS = {"sqlite": 2, "postgresql": 8}
WRITERS = {"sqlite": 1, "postgresql": 4}
"""Transactions at once, each with a connection that is kept. SQLite has one writer at a time,
whatever its threads would like, and a file on this host keeps nobody waiting for long."""
PATIENCE = 1.0
"""Seconds that whoever asks for readiness waits for the database."""

_opened: dict[str, Repository] = {}
_pullers: dict[object, Puller | None] = {}


def repository(url: str) -> Repository:
    """Return the store at *url*, the same for the same URL; its blocking calls run in threads.

    :raises ConfigError: the URL cannot work.
    :raises StoreError: it cannot be opened.
    """
    if url not in _opened:
        kind = url.partition(":")[0].partition("+")[0]
        threads = hub.Threads(readers=READERS.get(kind, 1), writers=WRITERS.get(kind, 1))
        _opened[url] = Repository(url, apart=threads)
    return _opened[url]


def puller(conf: cfg.ConfigOpts) -> Puller | None:
    """Return what asks another store for what this one does not have; None: nobody does.

    The same for the same configuration: who waits for an answer is to wait for one alone.

    :raises ConfigError, StoreError: as :func:`repository` does.
    """
    group = conf.store
    key = tuple((option.dest, str(group[option.dest])) for option in lookup_options.OPTS)
    if (group.connection, key) not in _pullers:
        _pullers[group.connection, key] = lookup.build(
            conf, repository(group.connection), resolve=names.addresses
        )
    return _pullers[group.connection, key]


def answers(url: str) -> bool:
    """Whether the store at *url* answers at the moment; said within :data:`PATIENCE`."""
    answered = False
    # A connection in the making cannot be interrupted: it is not waited for either.
    with eventlet.Timeout(PATIENCE, False), contextlib.suppress(StoreError):
        repository(url).ping(seconds=PATIENCE)
        answered = True
    return answered
