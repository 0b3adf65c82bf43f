"""What has been answered 200 should be there after kill -9, whole, and its addresses with it."""

import http.client
import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from dfmeta.store.db.record import parse_document
from dfmeta.store.db.repository import Repository
from tests.harness.poll import DEADLINE
from tests.host.store.server import ApiServer, Connection

WRITERS = 4
KILLS = 2
BEFORE = 25
"""Answers of each writer after which the server is killed."""
PADDING = "x" * 20_000
"""A document of several pages of the database: half of one would be seen."""


def instance(writer: int) -> str:
    return f"00000000-0000-4000-8000-{writer:012x}"


def push_until_killed(port: int, writer: int, start: int, enough: Event) -> tuple[int, int]:
    """Push the same record again and again; return the last turn answered and the last sent."""
    answered = sent = start
    try:
        with Connection(port) as connection:
            for sent in itertools.count(start + 1):
                members = {
                    "id": instance(writer),
                    "ipAddresses": [f"10.{writer}.{sent % 250}.0/24", f"10.{writer}.255.255"],
                    "metadata": {"turn": sent, "padding": PADDING, "end": sent},
                }
                status, _ = connection.ask("POST", "/device-metadata", members)
                assert status == 200
                answered = sent
                if answered - start >= BEFORE:
                    enough.set()
    except (OSError, http.client.HTTPException):
        return answered, sent
    raise AssertionError("it has not been killed")


def check(url: str, writer: int, answered: int, sent: int) -> int:
    """See that a record is as one of the last pushes left it; return which."""
    with Repository(url) as repository:
        record = repository.get(instance(writer))
        assert record is not None
        document = parse_document(record.id, record.metadata)
        turn = document["turn"]
        assert answered <= turn <= sent
        assert document == {"turn": turn, "padding": PADDING, "end": turn}
        assert repository.addresses(record.id) == (
            f"10.{writer}.{turn % 250}.0/24",
            f"10.{writer}.255.255/32",
        )
        return int(turn)


def test_kill_9_in_the_middle_of_writes_loses_nothing_acknowledged(database_url: str) -> None:
    turns = dict.fromkeys(range(WRITERS), 0)
    with ApiServer(database_url) as server, ThreadPoolExecutor(WRITERS) as pool:
        for kill in range(KILLS):
            if kill:
                server.start()
            enough = [Event() for _ in range(WRITERS)]
            running = [
                pool.submit(push_until_killed, server.port, writer, turns[writer], enough[writer])
                for writer in range(WRITERS)
            ]
            assert all(event.wait(DEADLINE) for event in enough)
            server.kill()
            for writer, future in enumerate(running):
                answered, sent = future.result(DEADLINE)
                assert answered >= turns[writer] + BEFORE
                turns[writer] = check(database_url, writer, answered, sent)
        assert server.complaints() == ""
