"""A back-up beside programs that use the store should be of one moment, and lose no write."""

import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dfmeta.errors import StoreDamagedError
from dfmeta.store.db import backup as copies
from dfmeta.store.db.database_facts import look
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import database_file, document
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.agent import program
from tests.harness.tty import on_terminal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "back-up.db"


@contextmanager
def writing(repository: Repository, *names: str) -> Iterator[None]:
    """Write a growing number to all records again and again, in a thread."""
    stop, failures = threading.Event(), []

    def write() -> None:
        number = 0
        try:
            while not stop.is_set():
                number += 1
                for name in names:
                    repository.put(name, document={"n": number})
        except Exception as error:  # whatever it is
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_a_back_up_beside_writers_is_of_one_moment(url: str, tmp_path: Path) -> None:
    with Repository(url) as repository, writing(repository, "a", "b"):
        for number in range(5):
            copies.backup(url, tmp_path / f"{number}.db")
    for number in range(5):
        with Repository(f"sqlite:///{tmp_path}/{number}.db") as copy:
            rows = [json.loads(row.metadata or "")["n"] for row in copy.list()]
        first, second = [*rows, 0, 0][:2]
        assert first - second in (0, 1)


def test_a_restore_beside_a_writer_loses_no_later_write(url: str, file: Path) -> None:
    with Repository(url) as repository:
        repository.put(INSTANCE, document={"n": 0})
        copies.backup(url, file)
        with writing(repository, OTHER_INSTANCE):
            for _ in range(5):
                copies.restore(url, file)
        repository.put(OTHER_INSTANCE, document={"n": "last"})
        assert document(repository) == {"n": 0}
        assert document(repository, OTHER_INSTANCE) == {"n": "last"}
    connection = sqlite3.connect(database_file(url))
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_open_truncated_file_is_named_and_restored(config: Path, url: str, file: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [*program("dfmeta"), "store", *words, "--config-file", str(config)]
        return subprocess.run(line, capture_output=True, text=True)

    with Repository(url) as daemon:
        daemon.put(INSTANCE, document={"n": 1})
        copies.backup(url, file)
        os.truncate(database_file(url), 0)
        for ask in (
            lambda: daemon.get(INSTANCE),
            daemon.ping,
            lambda: daemon.put(OTHER_INSTANCE, document={"n": 2}),
        ):
            with pytest.raises(StoreDamagedError, match=r"store\.db: it was truncated to 0 bytes"):
                ask()
        assert look(url).cut
        failed = command("list")
        assert failed.returncode == 1
        assert "it was truncated to 0 bytes" in failed.stderr
        assert "dfmeta store restore FILE" in failed.stderr
        restored = command("restore", str(file))
        assert (restored.returncode, restored.stderr) == (0, "")
        assert document(daemon) == {"n": 1}, "without a restart"
        assert daemon.put(OTHER_INSTANCE, document={"n": 2}).created
    with Repository(url) as again:
        assert len(list(again.list())) == 2, "what was written is in the file"


def test_restore_asks_first_on_a_terminal(url: str, config: Path, file: Path) -> None:
    with Repository(url) as repository:
        copies.backup(url, file)
        repository.put(OTHER_INSTANCE)
        line = [*program("dfmeta"), "store", "restore", str(file), "--config-file", str(config)]
        for typed, status in (("n\n", 1), ("y\n", 0)):
            done = on_terminal(line, columns=80, typed=typed)
            assert done.status == status, done.text
            question = f"Replace the whole content of the store by {file}?"
            assert question in " ".join(done.text.split())
            assert (repository.get(OTHER_INSTANCE) is None) == (status == 0)
