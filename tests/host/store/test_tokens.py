"""Tokens of files and of issuers should hold in processes of their own."""

import multiprocessing
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from dfmeta.store.auth import tokens
from dfmeta.store.auth.tokens import Grant, TokenFile
from tests.harness.other_store import OtherStore

READ = Grant(("read",), datetime(2030, 1, 31, 12, tzinfo=UTC))
GREEN = """
import eventlet
eventlet.monkey_patch()
import sys
from dfmeta.store.auth.oidc import fetch_json
from dfmeta.errors import IssuerError

turns = 0

def turn():
    global turns
    while True:
        turns += 1
        eventlet.sleep(0.01)

eventlet.spawn(turn)
try:
    found = fetch_json(sys.argv[1], timeout=float(sys.argv[2]))
except IssuerError as error:
    found = str(error)
print(turns, found)
"""


def _add_some(path: Path, start: int) -> None:
    for number in range(start, start + 10):
        tokens.add(path, READ, f"token {number}")


def test_processes_that_add_tokens_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_some, args=(path, 10 * n)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    file = TokenFile(path)
    assert all(file.client(f"token {number}") for number in range(40))


def green(url: str, timeout: float, **environment: str) -> tuple[int, str]:
    """Fetch in a process that is patched as the daemons are: turns of others, and the document."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GREEN, url, str(timeout)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    turns, _, result = ran.stdout.strip().partition(" ")
    return int(turns), result


def test_a_slow_issuer_does_not_stop_the_hub() -> None:
    with OtherStore() as issuer:
        # No more than its first line until the end.
        issuer.answer = lambda _request: issuer.trickle(b"HTTP/1.1 200 OK\r\n", b"")
        turns, result = green(f"{issuer.url}/x", 0.5)
    assert "no answer in time" in result
    assert turns >= 5
