"""Threads that use one database at once should lose nothing, on either database."""

import json
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network

import pytest

from dfmeta.store.db.record import Kind
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.api.support import Client, make_api
from tests.core.unit.store.support import document, read
from tests.core.unit.support import INSTANCE
from tests.harness.records import push

WRITERS = 8


@pytest.fixture
def writers(database_url: str) -> Iterator[list[Repository]]:
    opened = [Repository(database_url, seconds=60) for _ in range(WRITERS)]
    yield opened
    for repository in opened:
        repository.close()


def at_once(step: Callable[[int], object]) -> list[object]:
    """Return the results of all writers, which begin together."""
    start = threading.Barrier(WRITERS)

    def run(number: int) -> object:
        start.wait()
        return step(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run, range(WRITERS)))


def test_of_passwords_set_at_once_one_is_kept(writers: list[Repository]) -> None:
    writers[0].put(INSTANCE)
    kept = at_once(lambda number: writers[number].set_password(INSTANCE, b"p%d" % number))
    assert kept.count(True) == 1
    assert read(writers[0]).password == b"p%d" % kept.index(True)


def test_writers_of_the_same_addresses_leave_each_one_owner(writers: list[Repository]) -> None:
    names = [f"198.51.100.{number}" for number in range(12)] + ["198.51.100.0/28", "2001:db8::/64"]
    ids = [str(uuid.UUID(int=number)) for number in range(WRITERS)]
    last: dict[str, set[str]] = {}

    def write(number: int) -> None:
        chance = random.Random(number)
        for turn in range(25):
            networks = [
                ip_network(name) for name in chance.sample(names, chance.randint(0, len(names)))
            ]
            content = {"turn": turn}
            push(writers[number], Kind.METADATA, ids[number], content=content, networks=networks)
            if chance.random() < 0.1:
                writers[number].delete(ids[number])
                networks = []
            last[ids[number]] = {str(network) for network in networks}

    at_once(write)
    held = {record_id: writers[0].addresses(record_id) for record_id in ids}
    owned = [name for addresses in held.values() for name in addresses]
    assert len(owned) == len(set(owned))
    assert all(set(held[record_id]) <= last[record_id] for record_id in ids)
    assert any(set(held[record_id]) == last[record_id] for record_id in ids), (
        "the last writer has all of its own"
    )


def test_devices_attached_and_detached_at_once_lose_none(writers: list[Repository]) -> None:
    writers[0].put(INSTANCE, document={"hostname": "web1"})
    path = f"/device-metadata/{INSTANCE}/devices"

    def write(number: int) -> None:
        client = Client(make_api(writers[number]))
        for turn in range(6):
            serial = f"vol-{number}-{turn}"
            device = {"type": "disk", "bus": "none", "serial": serial, "tags": [serial]}
            assert client.ask("POST", path, json.dumps(device).encode()).status_int == 200
            if turn % 2:
                assert client.ask("DELETE", f"{path}?serial={serial}").status_int == 200

    at_once(write)
    expected = {f"vol-{number}-{turn}" for number in range(WRITERS) for turn in (0, 2, 4)}
    serials = [device["serial"] for device in document(writers[0])["devices"]]
    assert sorted(serials) == sorted(expected)
