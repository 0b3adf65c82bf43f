"""A back-up should be all of a store at one moment, and a restore bring back just that."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from dfmeta.exceptions import StoreDamagedError, StoreError
from dfmeta.store.db import backup as copies
from dfmeta.store.db.database_facts import look
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import OTHER_INSTANCE, succeeded
from tests.harness import nursery
from tests.harness.agent import program
from tests.harness.tty import on_terminal

Run = Callable[..., Result]


def failed(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


def store_file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


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
    assert sorted(one.name for one in file.parent.iterdir() if one.is_file()) == [
        "back-up.db",
        "dfmeta.conf",
    ]
    repository.put(instance_id, document={"hostname": "after"})
    repository.put(OTHER_INSTANCE)
    inode = store_file(url).stat().st_ino
    restored = succeeded(run("restore", str(file)))
    kept = f"{store_file(url)}.before-restore"
    assert restored == f"1 record as in {file}; the earlier content of the store is in {kept}\n"
    assert repository.get(instance_id) == before, "with the repository open all the time"
    assert repository.get(OTHER_INSTANCE) is None
    repository.put(OTHER_INSTANCE)
    assert store_file(url).stat().st_ino == inode
    assert stat.S_IMODE(store_file(url).stat().st_mode) == 0o600
    assert {one.name for one in store_file(url).parent.iterdir()} <= {
        "store.db",
        "store.db-wal",
        "store.db-shm",
        "store.db.before-restore",
    }
    assert stat.S_IMODE(Path(kept).stat().st_mode) == 0o600
    repository.delete(instance_id)
    back = succeeded(run("restore", kept, "--copy", ""))
    assert back == f"2 records as in {kept}; the earlier content of the store is deleted\n"
    after = repository.get(instance_id)
    assert after is not None
    assert after.metadata == '{"hostname":"after"}'


@pytest.mark.parametrize(("typed", "status"), [("n\n", 1), ("y\n", 0)])
def test_on_a_terminal_restore_asks_first(
    repository: Repository, url: str, config: Path, file: Path, typed: str, status: int
) -> None:
    copies.backup(url, file)
    repository.put(OTHER_INSTANCE)
    command = [*program("dfmeta"), "store", "restore", str(file), "--config-file", str(config)]
    done = on_terminal(command, columns=80, typed=typed)
    assert done.status == status, done.text
    assert f"Replace the whole content of the store by {file}?" in " ".join(done.text.split())
    assert (repository.get(OTHER_INSTANCE) is None) == (status == 0)


def test_a_restore_whose_copy_cannot_be_kept_changes_nothing(
    run: Run, repository: Repository, url: str, file: Path
) -> None:
    copies.backup(url, file)
    repository.put(OTHER_INSTANCE)
    said = failed(run("restore", str(file), "--copy", str(file.parent / "missing" / "a.db")))
    assert "missing" in said
    assert repository.get(OTHER_INSTANCE) is not None


def test_a_back_up_while_others_write_is_of_one_moment(url: str, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with Repository(url) as writer:
            number = 0
            while not stop.is_set():
                number += 1
                for record_id in ("a", "b"):
                    writer.put(record_id, document={"n": number})

    Repository(url).close()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(5):
            copies.backup(url, tmp_path / f"{number}.db")
    finally:
        stop.set()
        thread.join()
    for number in range(5):
        with Repository(f"sqlite:///{tmp_path}/{number}.db") as copy:
            found = [json.loads(one.metadata or "")["n"] for one in copy.list()]
        first, second = [*found, 0, 0][:2]
        assert first - second in (0, 1)


def test_a_restore_while_others_write_loses_no_write_that_comes_after(
    url: str, file: Path, instance_id: str
) -> None:
    with Repository(url) as repository:
        repository.put(instance_id, document={"n": 0})
        copies.backup(url, file)
        stop, failures = threading.Event(), []

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    repository.put(OTHER_INSTANCE, document={"n": number})
                except StoreError as error:
                    failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                copies.restore(url, file)
        finally:
            stop.set()
            thread.join()
        repository.put(OTHER_INSTANCE, document={"n": "last"})
        found = {record.id: record.metadata for record in repository.list()}
    assert failures == []
    assert found == {instance_id: '{"n":0}', OTHER_INSTANCE: '{"n":"last"}'}
    with sqlite3.connect(store_file(url)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_earlier_schema_is_brought_up_to_date(
    run: Run, repository: Repository, url: str, file: Path, instance_id: str
) -> None:
    repository.put(instance_id, document={"n": 1})
    copies.backup(url, file)
    with sqlite3.connect(file) as connection:
        for table in ("addresses", "attachments", "rests", "trunks"):
            connection.execute(f"DROP TABLE {table}")
        for column in ("metadata_fetched_at", "userdata_fetched_at", "http_tokens"):
            connection.execute(f"ALTER TABLE records DROP COLUMN {column}")
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    before = file.read_bytes()
    repository.delete(instance_id)
    succeeded(run("restore", str(file)))
    record = repository.get(instance_id)
    assert record is not None
    assert repository.addresses(instance_id) == ()
    assert file.read_bytes() == before, "the back-up stays as it is"


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda file: file.write_bytes(b"text"), "it is not an SQLite file"),
        (lambda file: file.unlink(), "No such file or directory"),
        (lambda file: file.write_bytes(file.read_bytes()[:9000]), "malformed|damaged"),
        (lambda file: execute(file, "DROP TABLE records"), "not a dfmeta store"),
        (lambda file: execute(file, "DROP TABLE alembic_version"), "not a dfmeta store"),
        (
            lambda file: execute(file, "UPDATE alembic_version SET version_num = '9999'"),
            "has schema 9999, this version of dfmeta knows up to",
        ),
    ],
)
def test_what_is_no_back_up_changes_nothing(
    run: Run,
    repository: Repository,
    url: str,
    file: Path,
    instance_id: str,
    damage: Callable[[Path], None],
    cause: str,
) -> None:
    for number in range(20):
        repository.put(f"{number:036}", userdata=b"u" * 5000)
    copies.backup(url, file)
    damage(file)
    repository.put(instance_id, document={"n": "now"})
    said = failed(run("restore", str(file)))
    assert re.search(cause, said), said
    record = repository.get(instance_id)
    assert record is not None
    assert record.metadata == '{"n":"now"}'
    leftover = [one for one in store_file(url).parent.iterdir() if one.name.startswith(".")]
    assert leftover == []


def execute(file: Path, statement: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()


def test_a_file_that_is_there_is_not_overwritten(
    run: Run, repository: Repository, url: str, file: Path
) -> None:
    file.write_text("mine")
    assert "it already exists. Name a new file" in failed(run("backup", str(file)))
    assert file.read_text() == "mine"
    assert "it already exists" in failed(run("backup", str(store_file(url))))


def test_a_store_that_is_not_there_has_no_back_up(run: Run, url: str, file: Path) -> None:
    assert "the store does not exist" in failed(run("backup", str(file)))
    assert not store_file(url).exists()
    assert not file.exists()


def test_a_folder_that_is_not_there_is_named(run: Run, repository: Repository, file: Path) -> None:
    said = failed(run("backup", str(file.parent / "missing" / "a.db")))
    assert "its directory does not exist" in said


def test_a_store_that_is_gone_or_damaged_is_restored_too(
    run: Run, url: str, file: Path, instance_id: str
) -> None:
    with Repository(url) as repository:
        repository.put(instance_id, document={"n": 1})
        copies.backup(url, file)
    path = store_file(url)
    for harm in (path.unlink, lambda: path.write_bytes(b"x" * 8192), lambda: path.write_bytes(b"")):
        harm()
        succeeded(run("restore", str(file)))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with Repository(url) as repository:
            assert [record.id for record in repository.list()] == [instance_id]


def test_a_file_that_is_cut_to_nothing_is_named_and_restored_while_it_is_open(
    run: Run, url: str, file: Path, instance_id: str
) -> None:
    path = store_file(url)
    with Repository(url) as daemon:
        daemon.put(instance_id, document={"n": 1})
        copies.backup(url, file)
        os.truncate(path, 0)
        for ask in (
            lambda: daemon.get(instance_id),
            daemon.ping,
            lambda: daemon.put(OTHER_INSTANCE, document={"n": 2}),
        ):
            with pytest.raises(StoreDamagedError, match=r"store\.db: it was truncated to 0 bytes"):
                ask()
        assert look(url).cut
        config = file.parent / "dfmeta.conf"
        for words in (("list",), ("backup", "x.db"), ("restore", str(file))):
            # In another process.
            command = [*program("dfmeta"), "store", *words, "--config-file", str(config)]
            done = nursery.run(command, check=False)
            if words[0] != "restore":
                assert done.returncode == 1
                assert "it was truncated to 0 bytes" in done.stderr
                assert "dfmeta store restore FILE" in done.stderr
        assert (done.returncode, done.stderr) == (0, "")
        record = daemon.get(instance_id)
        assert record is not None
        assert record.metadata == '{"n":1}', "without a restart"
        assert daemon.put(OTHER_INSTANCE, document={"n": 2}).created
    with Repository(url) as again:
        assert len(list(again.list())) == 2, "what was written is in the file"


def test_another_program_that_keeps_the_store_locked_is_named(
    repository: Repository, url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.backup(url, file)
    monkeypatch.setattr(copies, "BUSY_SECONDS", 0.01)
    other = sqlite3.connect(store_file(url), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"another program has been writing|locked"):
        copies.restore(url, file)
    other.close()


def test_postgresql_has_programs_of_its_own(config: Path, run: Run, file: Path) -> None:
    config.write_text("[store]\nconnection = postgresql://u:hush@127.0.0.1/d\n")
    for command, remedy in (("backup", "pg_dump"), ("restore", "pg_restore")):
        said = failed(run(command, str(file)))
        assert remedy in said
        assert "hush" not in said
