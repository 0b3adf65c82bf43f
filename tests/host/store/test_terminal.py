"""Commands of the store on a terminal and in a pipe: progress, questions and tables."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from dfmeta.cli import common
from dfmeta.store.db.repository import Repository
from tests.core.unit.support import INSTANCE
from tests.harness.agent import program
from tests.harness.tty import on_terminal

PROGRAM = (
    sys.executable,
    "-c",
    (
        "import os; from dfmeta.cli import common; from dfmeta.cli.ctl import main; "
        "lines = float(os.environ.get('DFMETA_TEST_LINES', 5)); "
        "common.PROGRESS = common.CHECK_INTERVAL = lines; main()"
    ),
    "store",
    "import",
)


@contextlib.contextmanager
def importing(config: Path, stderr: int) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """An import of a hundred lines from a pipe that stays open."""
    with subprocess.Popen(
        [*PROGRAM, "--config-file", str(config), "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        assert process.stdin is not None
        for number in range(100):
            record_id = f"00000000-0000-0000-0000-{number:012}"
            process.stdin.write(b"%s\n" % json.dumps({"id": record_id, "metadata": {}}).encode())
        process.stdin.flush()
        yield process, process.stdin


def count(url: str) -> int:
    with Repository(url) as repository:
        return repository.count()


def test_import_reports_progress(config: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFMETA_TEST_LINES", "0.2")
    read, write = os.pipe()
    with importing(config, write) as (process, feed):
        os.close(write)
        with os.fdopen(read) as lines:
            # On a busy machine, to open the store takes long enough for a line as well.
            first = next(line for line in lines if "opening the store" not in line)
            feed.close()
            assert process.wait() == 0
            rest = lines.readlines()
    assert re.fullmatch(r"dfmeta: importing -: [0-9,]+ bytes\n", first)
    assert all(line.startswith("dfmeta: importing -") for line in rest)
    assert count(url) == 100


def test_delete_asks_first_on_a_terminal(url: str, config: Path) -> None:
    line = [*program("dfmeta"), "store", "delete", INSTANCE, "--config-file", str(config)]
    for typed, options, status in (("n\n", (), 1), ("", ("--yes",), 0)):
        with Repository(url) as repository:
            repository.put(INSTANCE)
        done = on_terminal([*line, *options], columns=80, typed=typed)
        assert done.status == status, done.text
        assert ("Delete the record of" in done.text) == bool(typed), done.text
        assert ("Nothing was changed." in done.text) == bool(status), done.text
        assert count(url) == status


def test_table_on_a_terminal_has_markup_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        row = {"id": "i" * 36, "a": "[red]x[/red]", "b": "y" * 100}
        common.print_rows([row], {"id": "ID", "a": "HEAD", "b": "B"}, common.TABLE)
        monkeypatch.undo()
        stdout.flush()
        shown = os.read(main, 65536).decode()
    os.close(main)
    for text in ("HEAD", "[red]x[/red]", "i" * 36, "\u2500"):
        assert text in shown
    assert shown.count("y") == 100
