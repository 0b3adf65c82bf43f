"""Fixtures: an engine on a database with its schema, and on a data plane in memory."""

from collections.abc import Iterator

import pytest
from eventlet.green import threading

from dfmeta.attach import engine, limits, trunk_loop
from tests.core.unit.attach.support import Breaking, World


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Breaking]:
    """An open SQLite database with the schema of this version; a world begins by clearing it.

    One for all: SQLAlchemy compiles each statement anew for each database that is opened.
    """
    breaking = Breaking(f"sqlite:///{tmp_path_factory.mktemp('attachments')}/store.db")
    yield breaking
    breaking.close()


@pytest.fixture(autouse=True)
def green_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine wait in the hub, as it does in the daemon."""
    for module in (engine, limits, trunk_loop):
        monkeypatch.setattr(module, "threading", threading)
    single = trunk_loop._Pass
    monkeypatch.setattr(
        trunk_loop, "_Pass", lambda parent: single(parent=parent, done=threading.Event())
    )


@pytest.fixture
def world(database: Breaking) -> World:
    return World(database)
