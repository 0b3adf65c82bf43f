"""The process' own store: one for each database, whoever asks for it."""

from __future__ import annotations

from dfmeta import hub
from dfmeta.exceptions import StoreError
from dfmeta.store.repository import Repository

READERS = 8
WRITERS = {"sqlite": 1, "postgresql": 4}
"""Transactions at once. SQLite has one writer at a time, whatever its threads would like."""
PATIENCE = 1.0
"""Seconds that whoever asks for readiness waits for the database."""

_opened: dict[str, Repository] = {}


def repository(url: str) -> Repository:
    """Return the store at *url*, the same for the same URL; its blocking calls run in threads.

    :raises ConfigError: the URL cannot work.
    :raises StoreError: it cannot be opened.
    """
    if url not in _opened:
        writers = WRITERS.get(url.partition(":")[0].partition("+")[0], 1)
        _opened[url] = Repository(url, apart=hub.Threads(readers=READERS, writers=writers))
    return _opened[url]


def answers(url: str) -> bool:
    """Whether the store at *url* answers at the moment."""
    try:
        repository(url).ping(seconds=PATIENCE)
    except StoreError:
        return False
    return True
