"""Hosts that share a PostgreSQL should never give a VLAN id, an address or a MAC twice."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from operator import attrgetter

import pytest

from dfmeta.attach.engine import AttachmentEngine
from dfmeta.attach.model import Attachment, AttachmentLimits, Network, Parent
from dfmeta.errors import AttachError
from dfmeta.store.db.attachments import AttachmentTables
from dfmeta.store.db.database import Database
from tests.core.unit.attach.support import OTHER, VM, Breaking, Plane, World, wanted

ENGINES = 3
EACH = 25
SMALL = {"blue": Network(name="blue", subnet=IPv4Network("10.1.0.0/25"))}
"""All engines together need nearly all of its addresses, so that they meet at each."""


@pytest.fixture
def engines(postgres_url: str) -> Iterator[list[AttachmentEngine]]:
    databases = [Database(postgres_url, seconds=60) for _ in range(ENGINES)]
    yield [
        AttachmentEngine(
            AttachmentTables(database),
            Plane(),
            SMALL,
            AttachmentLimits(rate=1e9),
            host=f"host-{number}",
        )
        for number, database in enumerate(databases)
    ]
    for database in databases:
        database.close()


def single(rows: list[Attachment]) -> None:
    for key in ("parent", "vid"), ("network", "ip"), ("network", "mac"):
        assert len({attrgetter(*key)(row) for row in rows}) == len(rows), key


@pytest.mark.parametrize("same_vm", [True, False], ids=["same-vm", "other-vms"])
def test_values_of_engines_are_unique(engines: list[AttachmentEngine], same_vm: bool) -> None:
    def run(number: int) -> list[Attachment]:
        engine = engines[number]
        parent = VM if same_vm else Parent(port_id=f"p{number}", port_name="t", instance_id="i")
        return [engine.attach(parent, wanted(f"{number}-{n}"))[0] for n in range(EACH)]

    with ThreadPoolExecutor(ENGINES) as pool:
        given = [attachment for some in pool.map(run, range(ENGINES)) for attachment in some]
    rows = engines[0].everything()
    assert {row.id for row in rows} == {attachment.id for attachment in given}
    assert len(rows) == ENGINES * EACH
    single(rows)


def test_requests_through_three_engines_give_one(engines: list[AttachmentEngine]) -> None:
    def run(engine: AttachmentEngine) -> set[str]:
        return {engine.attach(VM, wanted(f"c{number}"))[0].id for number in range(10)}

    with ThreadPoolExecutor(ENGINES) as pool:
        result = list(pool.map(run, engines))
    assert result[0] == result[1] == result[2]
    assert len(engines[0].everything()) == 10


def test_each_of_the_last_addresses_is_given_once(engines: list[AttachmentEngine]) -> None:
    def run(number: int) -> list[int]:
        statuses = []
        for n in range(50):
            parent = Parent(port_id=f"p{number}", port_name="t", instance_id="i")
            try:
                engines[number].attach(parent, wanted(f"{number}-{n}"))
            except AttachError as error:
                statuses.append(error.status)
            else:
                statuses.append(201)
        return statuses

    with ThreadPoolExecutor(ENGINES) as pool:
        statuses = [status for some in pool.map(run, range(ENGINES)) for status in some]
    rows = engines[0].everything()
    # The last eighth is for virtual machines that have none yet on the network.
    assert statuses.count(201) == len(rows)
    assert len(rows) - (126 - 126 // 8) in range(ENGINES)
    assert {*statuses} <= {201, 503, 507}
    single(rows)


def test_a_life_on_postgresql(postgres_url: str) -> None:
    world = World(Breaking(postgres_url), vids=range(2, 6))
    attachment = world.attach(boot_id="a", avoid=frozenset({2}))
    assert attachment.vid == 3
    assert world.attach("c2", boot_id="b").vid == 4
    assert world.attach("c2", boot_id="b", avoid=frozenset({4})).vid != 4
    world.attach(parent=OTHER)
    world.detach(parent=OTHER)
    world.detach("c2", gone=False)
    world.there.clear()
    world.engine.tidy()
    world.now += 1000
    world.engine.tidy()
    assert world.database.run(lambda c: c.exec_driver_sql("SELECT * FROM trunks").all()) == []
    world.check_nothing_leaked()
    world.database.close()
