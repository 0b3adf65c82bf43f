"""Fixtures: an engine on a database with its schema, and on a data plane in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dfmeta.attach import batches
from dfmeta.store.db.database import Database
from tests.unit.attach.support import World, world_in


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the schema of this version, closed."""
    path = tmp_path_factory.mktemp("attachments") / "store.db"
    Database(f"sqlite:///{path}").close()
    return path


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "WINDOW", 0.0)


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Iterator[World]:
    with world_in(made, tmp_path) as one:
        yield one
