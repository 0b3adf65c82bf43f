"""Queries that wait for another one should share it, in threads and in a patched process."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dfmeta.store.lookup.puller import Flights
from tests.core.unit.store.lookup.support import METADATA
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.other_store import Asked, OtherStore, reply
from tests.harness.poll import wait_for

GREEN = """
import eventlet
eventlet.monkey_patch()
import sys
from dfmeta.errors import LookupAwayError
from dfmeta.store.lookup.puller import Puller
from dfmeta.http.client import HttpClient
from dfmeta.store.lookup.upstream import Patience, Upstream
from dfmeta.store.db.record import METADATA_ALONE
from dfmeta.store.db.repository import Repository

url, database, known, unknown = sys.argv[1:]
turns = 0

def turn():
    global turns
    while True:
        turns += 1
        eventlet.sleep(0.01)

eventlet.spawn(turn)
upstream = Upstream(url, client=HttpClient(), patience=Patience(60, 0))
puller = Puller(Repository(database), upstream)
asking = [eventlet.spawn(puller.get, known, METADATA_ALONE) for _ in range(50)]
print(len({one.wait().metadata for one in asking}))
upstream._patience = Patience(0.5, 0)
turns = 0
try:
    puller.get(unknown)
except LookupAwayError as error:
    # A hub that is kept gives no turn; upstream would trickle without end.
    print("in time" in str(error), turns > 5)
"""


def is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread waits for an event."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


class Ended(BaseException):
    """As eventlet ends a greenthread whose time is over."""


def test_a_waiting_caller_takes_over_from_one_that_is_ended() -> None:
    flights = Flights()
    results: list[str] = []
    second = threading.Thread(target=lambda: results.append(flights.run("a", lambda: "second")))

    def first() -> str:
        second.start()
        wait_for(lambda: is_waiting(second), "the second caller to wait")
        raise Ended

    with pytest.raises(Ended):
        flights.run("a", first)
    second.join()
    assert results == ["second"]
    assert not flights.busy("a")


def test_greenthreads_share_one_query_and_do_not_stop_the_hub(url: str) -> None:
    with OtherStore() as server:

        def answer(asked: Asked) -> bytes | Iterator[bytes]:
            if asked.target == METADATA:
                return reply({"id": INSTANCE, "ipAddresses": [], "metadata": {}})
            return server.trickle(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n")

        server.answer = answer
        command = [sys.executable, "-W", "ignore", "-c", GREEN]
        ran = subprocess.run(
            [*command, server.url, url, INSTANCE, OTHER_INSTANCE], capture_output=True, text=True
        )
        assert ran.stdout.split() == ["1", "True", "True"], ran.stderr
        assert server.targets().count(METADATA) == 1
