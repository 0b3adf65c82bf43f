"""A SQLite store should be its owner's alone, notice another file, and name what is wrong."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from pathlib import Path

import eventlet
import pytest

from dfmeta.exceptions import ConfigError, StoreError
from dfmeta.store.db import sqlite
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import database_file, document, named
from tests.core.unit.support import INSTANCE


def test_the_files_are_their_owners_alone(url: str) -> None:
    old = os.umask(0)
    try:
        with Repository(url) as opened:
            opened.put(INSTANCE, userdata=b"x")
            folder = database_file(url).parent
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    finally:
        os.umask(old)
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    database_file(url).chmod(0o644)
    Repository(url).close()
    assert stat.S_IMODE(database_file(url).stat().st_mode) == 0o600, "wide rights are narrowed"


def test_a_file_that_replaces_the_store_is_noticed(url: str, tmp_path: Path) -> None:
    path = database_file(url)
    with Repository(url) as opened:
        opened.put(INSTANCE, document={"hostname": "old"})
    shutil.copy(path, tmp_path / "backup.db")
    with Repository(url) as opened:
        opened.put(INSTANCE, document={"hostname": "new"})
        for file in list(path.parent.iterdir()):
            file.unlink()
        with pytest.raises(StoreError, match="No such file"):
            opened.get(INSTANCE)
        shutil.copy(tmp_path / "backup.db", path)
        assert document(opened) == {"hostname": "old"}


def test_a_reader_does_not_wait_for_a_writer_and_a_writer_not_for_ever(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_STEP_MS", 1)
    with Repository(url, seconds=0.05) as opened:
        opened.put(INSTANCE, document={"hostname": "a"})
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE records SET metadata = '{}'")
        assert document(opened) == {"hostname": "a"}
        with pytest.raises(StoreError, match="locked"):
            opened.put(INSTANCE)
        writer.close()


def test_a_writer_that_waits_for_another_lets_the_hub_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_STEP_MS", 1)
    with Repository(url) as opened:
        opened.put(INSTANCE)
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        waiting = eventlet.spawn(opened.put, INSTANCE, userdata=b"x")
        eventlet.sleep(0.1)
        assert not waiting.dead
        writer.execute("COMMIT")
        writer.close()
        assert waiting.wait().changed == ("userdata",)


def test_an_error_repeats_no_userdata(url: str) -> None:
    with Repository(url) as opened:
        other = sqlite3.connect(database_file(url))
        other.execute("DROP TABLE records")
        other.close()
        with pytest.raises(StoreError) as caught:
            opened.put(INSTANCE, userdata=b"hush")
    assert "no such table" in str(caught.value)
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"


def test_an_unusable_url_is_refused_without_its_password() -> None:
    for url in (
        *("", "nonsense", "sqlite:///:memory:", "sqlite:///file:x?uri=true"),
        *("mysql://user:hush@host/db", "postgresql://user:hush@host/"),
        *("postgresql://user:hush@host:bad/db", "postgresql+psycopg2://user:hush@host/db"),
    ):
        with named(url), pytest.raises(ConfigError, match="connection") as caught:
            Repository(url)
        assert "hush" not in str(caught.value)


def test_a_path_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"these are notes, and not few of them " * 100)
    for path, cause in (
        (tmp_path, "not a regular file"),
        (tmp_path / "notes", "not a database"),
        (tmp_path / "notes/store.db", "store: "),
    ):
        with named(path), pytest.raises(StoreError, match=cause):
            Repository(f"sqlite:///{path}")
