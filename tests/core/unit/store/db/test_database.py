"""A database that goes away should be said to be away, and be used again when it is back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from dfmeta.exceptions import StoreAwayError, StoreError
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from tests.harness import nursery
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres
from tests.harness.records import push

ONE = "00000000-0000-4000-8000-000000000001"

HANGING = """
import sys, time
from dfmeta.cmd.patching import patch
patch()
import eventlet
from dfmeta.wiring.database import answers, repository
from dfmeta.exceptions import StoreAwayError

url = sys.argv[1]
store = repository(url)
store.put("00000000-0000-4000-8000-000000000001", document={"hostname": "a"})
longest = 0.0


def waited():
    # Seconds for which this thread wanted a CPU and had none: the time of other processes.
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def watch():
    global longest
    while True:
        begun, queued = time.monotonic(), waited()
        eventlet.sleep(0.005)
        longest = max(longest, time.monotonic() - begun - (waited() - queued))


eventlet.spawn(watch)
assert answers(url)
print("paused?", flush=True)
sys.stdin.readline()


def ask():
    try:
        store.get("00000000-0000-4000-8000-000000000001")
    except StoreAwayError as error:
        return str(error)


pool = eventlet.GreenPool(40)
begun = time.monotonic()
said = list(pool.imap(lambda _number: ask(), range(40)))
took = time.monotonic() - begun
assert all(said), said
assert not answers(url)
print(f"{longest:.3f} {took:.3f}", flush=True)
sys.stdin.readline()
while not answers(url):
    eventlet.sleep(0.05)
assert store.get("00000000-0000-4000-8000-000000000001").id
print("back", flush=True)
"""


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres(address="127.0.0.1") as started:
        yield started


def works(repository: Repository) -> bool:
    try:
        return repository.get(ONE) is not None
    except StoreAwayError:
        return False


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_is_away_is_said_to_be_and_comes_back(server: Postgres, how: str) -> None:
    with Repository(server.create_database()) as repository:
        repository.put(ONE, userdata=b"u")
        getattr(server, how)()
        with pytest.raises(StoreAwayError, match="postgresql://dfmeta:"):
            repository.get(ONE)
        with pytest.raises(StoreAwayError):
            repository.ping()
        with pytest.raises(StoreAwayError):
            push(repository, Kind.USERDATA, ONE, content=b"v")
        server.start()
        wait_for(lambda: works(repository), "the store to find its server")
        record = repository.get(ONE)
        assert record is not None
        assert record.userdata == b"u"


def test_a_server_that_was_away_between_two_requests_was_never_missed(server: Postgres) -> None:
    with Repository(server.create_database()) as repository:
        repository.put(ONE)
        server.stop()
        server.start()
        assert repository.put(ONE, document={"hostname": "a"}).changed == ("hostname",)


def test_a_server_that_is_away_at_the_start_is_used_when_it_comes(server: Postgres) -> None:
    url = server.create_database()
    server.stop()
    with Repository(url) as repository:
        with pytest.raises(StoreAwayError):
            repository.put(ONE)
        server.start()
        wait_for(lambda: _puts(repository), "the store to find its server")
        assert repository.get(ONE) is not None


def _puts(repository: Repository) -> bool:
    try:
        repository.put(ONE)
    except StoreAwayError:
        return False
    return True


def test_a_password_is_in_no_error(server: Postgres) -> None:
    url = server.create_database()
    wrong = url.replace(server.password, "hush")
    with Repository(wrong) as repository, pytest.raises(StoreError) as caught:
        repository.get(ONE)
    assert "authentication failed" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_server_that_hangs_keeps_nobody_but_who_asks_it(server: Postgres) -> None:
    url = server.create_database()
    asking = subprocess.Popen(
        nursery.in_shell(["dfmeta-store", url], HANGING),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asking.stdin is not None
    assert asking.stdout is not None
    try:
        assert asking.stdout.readline() == "paused?\n"
        server.pause()
        asking.stdin.write("\n")
        asking.stdin.flush()
        longest, took = map(float, asking.stdout.readline().split())
        assert longest < 3, "less than an operation may take"
        # One time-out after the other would be forty of them.
        assert took < 20
        server.resume()
        asking.stdin.write("\n")
        asking.stdin.flush()
        assert asking.stdout.readline() == "back\n"
    finally:
        asking.kill()
        asking.communicate()
