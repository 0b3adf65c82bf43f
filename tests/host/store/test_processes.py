"""Processes and threads that use one database at once should lose nothing, on either database."""

import subprocess
import sys
import tempfile
from pathlib import Path

from dfmeta.store.db.repository import Repository

OPEN = """
import sys
from dfmeta.store.db.repository import Repository
sys.stdin.readline()
with Repository(sys.argv[1]) as repository:
    repository.put(sys.argv[2])
    print("open", flush=True)
    sys.stdin.readline()
"""
FIRST_START = """
import sys
from dfmeta.store.db.repository import Repository
with Repository(sys.argv[1]) as repository:
    repository.get("web1")
print([name for name in sys.modules if name.startswith("alembic")])
"""
UNPRIVILEGED = """
import os, sys
from dfmeta.errors import StoreError
from dfmeta.store.db import dialect
from dfmeta.store.db.repository import Repository
os.setegid(65534)
os.seteuid(65534)
try:
    Repository(sys.argv[1])
except StoreError as error:
    print(error)
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# Processes


def test_processes_that_open_a_new_database_at_once_all_succeed(database_url: str) -> None:
    ids = [f"00000000-0000-0000-0000-{number:012}" for number in range(3)]
    racers = [python(OPEN, database_url, record_id) for record_id in ids]
    for racer in racers:
        print(file=racer.stdin, flush=True)
    ends = [racer.communicate("\n") for racer in racers]
    assert ends == [("open\n", "")] * len(ids)
    with Repository(database_url) as repository:
        assert [row.id for row in repository.list()] == ids


def test_a_first_start_imports_no_alembic(database_url: str) -> None:
    assert python(FIRST_START, database_url).communicate() == ("[]\n", "")


def test_a_file_that_may_not_be_written_is_named() -> None:
    # pytest's own folder is closed to other users.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state" / "store.db"
        Repository(f"sqlite:///{path}").close()
        Path(name).chmod(0o755)
        path.parent.chmod(0o555)
        path.chmod(0o400)
        printed, _ = python(UNPRIVILEGED, f"sqlite:///{path}").communicate()
    assert "may not read and write" in printed
    assert str(path) in printed


# Threads
