"""A database that goes away should be reported as away, and be used again when it is back."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from dfmeta.errors import StoreAwayError, StoreError
from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import read
from tests.harness.poll import wait_for
from tests.harness.postgres import Postgres
from tests.harness.records import push

ONE = "00000000-0000-4000-8000-000000000001"

HANGING = """
import sys
from dfmeta.runtime import patch
patch()
import eventlet
from dfmeta.wiring.store import open_repository, store_fault
from dfmeta.errors import StoreAwayError

url, one = sys.argv[1:]
store = open_repository(url)
store.put(one, document={"hostname": "a"})
assert not store_fault(url)
print("paused?", flush=True)
sys.stdin.readline()


def ask(_number):
    try:
        store.get(one)
    except StoreAwayError as error:
        return str(error)


pool = eventlet.GreenPool(40)
asking = [pool.spawn(ask, number) for number in range(40)]
turns = 0
while pool.running():
    turns += 1
    eventlet.sleep(0.01)
said = [one.wait() for one in asking]
assert all(said), said
assert turns > 10, "the hub has stood"
assert store_fault(url)
print("away", flush=True)
sys.stdin.readline()
while store_fault(url):
    eventlet.sleep(0.05)
assert store.get(one).id
print("back", flush=True)
"""


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as started:
        yield started


def succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except StoreAwayError:
        return False
    return True


def test_a_server_that_is_away_is_reported_and_used_again(server: Postgres) -> None:
    url = server.create_database()
    with Repository(url.replace(server.password, "hush")) as repository:
        with pytest.raises(StoreError, match="authentication failed") as caught:
            repository.get(ONE)
        assert "hush" not in str(caught.value)
    with Repository(url) as repository:
        repository.put(ONE, userdata=b"u")
        server.kill()
        with pytest.raises(StoreAwayError, match="postgresql://dfmeta:"):
            repository.get(ONE)
        with pytest.raises(StoreAwayError):
            repository.ping()
        with pytest.raises(StoreAwayError):
            push(repository, Kind.USERDATA, ONE, content=b"v")
        server.start()
        wait_for(lambda: succeeds(lambda: repository.get(ONE)), "the store to find its server")
        assert read(repository, ONE).userdata == b"u"
        server.stop()
        server.start()
        changed = repository.put(ONE, document={"hostname": "a"}).changed
        assert changed == ("hostname",), "a server that was away between two requests"


def test_a_server_that_is_away_at_the_start_is_used_when_it_comes(server: Postgres) -> None:
    url = server.create_database()
    server.stop()
    with Repository(url) as repository:
        with pytest.raises(StoreAwayError):
            repository.put(ONE)
        server.start()
        wait_for(lambda: succeeds(lambda: repository.put(ONE)), "the store to find its server")
        assert repository.get(ONE) is not None


def test_a_server_that_hangs_does_not_stop_the_hub(server: Postgres) -> None:
    url = server.create_database()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HANGING, url, ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        try:
            assert asking.stdout.readline() == "paused?\n"
            server.pause()
            print(file=asking.stdin, flush=True)
            assert asking.stdout.readline() == "away\n"
            server.resume()
            print(file=asking.stdin, flush=True)
            assert asking.stdout.readline() == "back\n"
        finally:
            asking.kill()
