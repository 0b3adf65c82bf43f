"""A SQLite store should be its owner's alone, and a back-up be all of it at one moment."""

import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import eventlet
import pytest

from dfmeta.errors import ConfigError, StoreError
from dfmeta.runtime import clock
from dfmeta.store.db import backup as copies
from dfmeta.store.db import dialect
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import Run, database_file, document, named, refusal
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, succeeded


@pytest.fixture
def repository(url: str) -> Iterator[Repository]:
    """A store in SQLite alone."""
    with Repository(url) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "back-up.db"


def test_what_was_backed_up_is_what_is_restored(
    run: Run, repository: Repository, url: str, file: Path, instance_id: str
) -> None:
    repository.put(instance_id, document={"hostname": "before"}, userdata=b"\xff")
    repository.set_password(instance_id, b"secret")
    before = repository.get(instance_id)
    assert succeeded(run("backup", str(file))) == f"{file}: 1 record\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    repository.put(instance_id, document={"hostname": "after"})
    repository.put(OTHER_INSTANCE)
    inode = database_file(url).stat().st_ino
    unkept = refusal(run("restore", str(file), "--copy", str(file.parent / "missing" / "a.db")), 1)
    assert "missing" in unkept
    assert repository.get(OTHER_INSTANCE) is not None, "a restore without its copy changes nothing"
    restored = succeeded(run("restore", str(file)))
    kept = f"{database_file(url)}.before-restore"
    assert restored == f"1 record as in {file}; the earlier content of the store is in {kept}\n"
    assert repository.get(instance_id) == before, "with the repository open all the time"
    assert repository.get(OTHER_INSTANCE) is None
    repository.put(OTHER_INSTANCE)
    assert database_file(url).stat().st_ino == inode
    assert stat.S_IMODE(database_file(url).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(kept).stat().st_mode) == 0o600
    repository.delete(instance_id)
    back = succeeded(run("restore", kept, "--copy", ""))
    assert back == f"2 records as in {kept}; the earlier content of the store is deleted\n"
    assert document(repository) == {"hostname": "after"}


def test_what_is_no_back_up_changes_nothing(
    run: Run, repository: Repository, url: str, file: Path, instance_id: str
) -> None:
    for number in range(20):
        repository.put(f"{number:036}", userdata=b"u" * 5000)
    repository.put(instance_id, document={"n": "now"})
    damages: list[tuple[Callable[[], object], str]] = [
        (lambda: file.write_bytes(b"text"), "it is not an SQLite file"),
        (file.unlink, "No such file or directory"),
        (lambda: file.write_bytes(file.read_bytes()[:9000]), "malformed|damaged"),
        (lambda: execute(file, "DROP TABLE records"), "not a dfmeta store"),
        (lambda: execute(file, "DROP TABLE alembic_version"), "not a dfmeta store"),
        (lambda: execute(file, "UPDATE alembic_version SET version_num = '9999'"), "schema 9999"),
    ]
    for damage, cause in damages:
        file.unlink(missing_ok=True)
        copies.backup(url, file)
        damage()
        message = refusal(run("restore", str(file)), 1)
        assert re.search(cause, message), message
        assert document(repository) == {"n": "now"}, cause
        names = [path.name for path in database_file(url).parent.iterdir()]
        assert [name for name in names if name.startswith(".")] == [], cause


def execute(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()


def test_lost_store_is_restored_too(run: Run, url: str, file: Path, instance_id: str) -> None:
    with Repository(url) as repository:
        repository.put(instance_id, document={"n": 1})
        copies.backup(url, file)
    path = database_file(url)
    for harm in (path.unlink, lambda: path.write_bytes(b"x" * 8192), lambda: path.write_bytes(b"")):
        harm()
        succeeded(run("restore", str(file)))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with Repository(url) as repository:
            assert [record.id for record in repository.list()] == [instance_id]


def test_a_back_up_needs_a_store_and_a_new_file(run: Run, url: str, file: Path) -> None:
    assert "the store does not exist" in refusal(run("backup", str(file)), 1)
    assert not database_file(url).exists()
    assert not file.exists()
    Repository(url).close()
    message = refusal(run("backup", str(file.parent / "missing" / "a.db")), 1)
    assert "its directory does not exist" in message
    file.write_text("mine")
    assert "it already exists. Name a new file" in refusal(run("backup", str(file)), 1)
    assert file.read_text() == "mine"
    assert "it already exists" in refusal(run("backup", str(database_file(url))), 1)


def test_another_program_that_keeps_the_store_locked_is_named(
    repository: Repository, url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.backup(url, file)
    monkeypatch.setattr(clock, "ANSWER_TIMEOUT", -1)
    other = sqlite3.connect(database_file(url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"another program has been writing|locked"):
        copies.restore(url, file)
    other.close()


def test_postgresql_has_programs_of_its_own(config: Path, run: Run, file: Path) -> None:
    config.write_text("[store]\nconnection = postgresql://u:hush@127.0.0.1/d\n")
    for command, remedy in (("backup", "pg_dump"), ("restore", "pg_restore")):
        message = refusal(run(command, str(file)), 1)
        assert remedy in message
        assert "hush" not in message


# A SQLite store


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


def test_readers_do_not_wait_and_writers_give_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "BUSY_STEP_MS", 1)
    with Repository(url, seconds=0.05) as opened:
        opened.put(INSTANCE, document={"hostname": "a"})
        writer = sqlite3.connect(database_file(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE records SET metadata = '{}'")
        assert document(opened) == {"hostname": "a"}
        with pytest.raises(StoreError, match="locked"):
            opened.put(INSTANCE)
        writer.close()


def test_waiting_writer_lets_the_hub_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "BUSY_STEP_MS", 1)
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
