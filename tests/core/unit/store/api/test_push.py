"""Pushes should leave an address one owner and a record what was last said, in any database."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from dfmeta.exceptions import StoreError
from dfmeta.store.db.networks import Network
from dfmeta.store.db.record import FetchedHalf, Kind, Record
from dfmeta.store.db.repository import DEFAULTS, Repository
from tests.harness.examples import examples
from tests.harness.records import push

ONE, TWO, THREE = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))
SAME_DATABASE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(10),
)


def nets(*texts: str) -> list[Network]:
    return [ip_network(one, strict=False) for one in texts]


def owner(repository: Repository, address: str) -> str | None:
    record = repository.find(ip_address(address))
    return None if record is None else record.id


def pushed(repository: Repository, record_id: str, *networks: str, **document: object) -> bool:
    return push(repository, Kind.METADATA, record_id, content=document, networks=nets(*networks))


def read(repository: Repository, record_id: str) -> Record:
    record = repository.get(record_id)
    assert record is not None
    return record


def test_a_block_serves_each_of_its_addresses_and_no_others(repository: Repository) -> None:
    pushed(repository, ONE, "10.1.2.0/28", "2001:db8:0:1::/64")
    found = [owner(repository, one) for one in ("10.1.2.0", "10.1.2.15", "2001:db8:0:1:ffff::")]
    assert found == [ONE] * 3
    strangers = ("10.1.1.255", "10.1.2.16", "2001:db8:0:2::", "::10.1.2.0")
    assert [owner(repository, one) for one in strangers] == [None] * 4


def test_the_longest_prefix_wins_whoever_came_first(repository: Repository) -> None:
    pushed(repository, TWO, "10.1.2.3")
    pushed(repository, ONE, "10.1.2.0/28")
    pushed(repository, THREE, "0.0.0.0/0", "::/0")
    assert owner(repository, "10.1.2.3") == TWO
    assert owner(repository, "10.1.2.4") == ONE
    assert owner(repository, "192.0.2.1") == THREE
    assert owner(repository, "2001:db8::1") == THREE


def test_the_last_write_has_the_address_and_the_document_of_before_stays(
    repository: Repository,
) -> None:
    pushed(repository, ONE, "192.0.2.1", "192.0.2.2", hostname="one")
    pushed(repository, TWO, "192.0.2.1")
    assert owner(repository, "192.0.2.1") == TWO
    assert repository.addresses(ONE) == ("192.0.2.2/32",)
    assert read(repository, ONE).metadata == '{"hostname":"one"}'


def test_the_same_address_with_another_mask_is_another_one(repository: Repository) -> None:
    pushed(repository, ONE, "10.1.2.0/28")
    pushed(repository, TWO, "10.1.2.0/29")
    assert repository.addresses(ONE) == ("10.1.2.0/28",)


def test_what_is_not_named_any_more_goes_and_the_order_is_the_writers(
    repository: Repository,
) -> None:
    pushed(repository, ONE, "192.0.2.1", "192.0.2.2", "2001:db8::1")
    pushed(repository, ONE, "2001:db8::1", "192.0.2.9", "192.0.2.1", "192.0.2.9")
    expected = ("2001:db8::1/128", "192.0.2.9/32", "192.0.2.1/32")
    assert repository.addresses(ONE) == expected
    assert owner(repository, "192.0.2.2") is None
    pushed(repository, ONE)
    assert repository.addresses(ONE) == ()


def test_each_half_replaces_itself_alone(repository: Repository) -> None:
    pushed(repository, ONE, "192.0.2.1", hostname="a", plan="b")
    push(repository, Kind.USERDATA, ONE, content=b"\0\xff", networks=nets("192.0.2.2"))
    pushed(repository, ONE, "192.0.2.2", hostname="c")
    record = read(repository, ONE)
    assert (record.metadata, record.userdata) == ('{"hostname":"c"}', b"\0\xff")
    assert repository.addresses(ONE) == ("192.0.2.2/32",)


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", False),
        ("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", True),
        ("2026-01-02T00:00:00Z", "2026-01-02T00:30:00+01:00", False),
        ("2026-01-02T00:00:00+02:00", "2026-01-01T23:00:00Z", True),
        ("2026-01-02", "2026-01-01T00:00:00Z", False),
        ("b", "a", False),
        ("a", "b", True),
        ("2026-01-02T00:00:00Z", 1, True),
        (2, "2026-01-01T00:00:00Z", True),
        (None, "2026-01-01T00:00:00Z", True),
    ],
)
def test_an_older_document_changes_nothing(
    repository: Repository, before: object, after: object, taken: bool
) -> None:
    pushed(repository, ONE, "192.0.2.1", updated_at=before, hostname="before")
    assert pushed(repository, ONE, "192.0.2.2", updated_at=after, hostname="after") is taken
    assert ("after" in (read(repository, ONE).metadata or "")) is taken
    assert repository.addresses(ONE) == (("192.0.2.2/32",) if taken else ("192.0.2.1/32",))


def test_addresses_go_with_the_last_half(repository: Repository) -> None:
    pushed(repository, ONE, "192.0.2.1")
    push(repository, Kind.USERDATA, ONE, content=b"", networks=nets("192.0.2.1"))
    repository.set_password(ONE, b"hush")
    assert repository.remove(Kind.METADATA, ONE)
    assert not repository.remove(Kind.METADATA, ONE)
    assert owner(repository, "192.0.2.1") == ONE
    assert repository.remove(Kind.USERDATA, ONE)
    assert owner(repository, "192.0.2.1") is None
    assert repository.get(ONE) is None
    assert not repository.remove(Kind.USERDATA, ONE)


def test_a_deleted_record_has_no_address(repository: Repository) -> None:
    pushed(repository, ONE, "192.0.2.1")
    assert repository.delete(ONE)
    assert owner(repository, "192.0.2.1") is None
    assert repository.addresses(ONE) == ()


def test_what_was_fetched_says_when_and_a_push_ends_that(repository: Repository) -> None:
    push(repository, Kind.USERDATA, ONE, content=b"u")
    repository.store_fetched(Kind.METADATA, FetchedHalf(ONE, {}, []))
    record = read(repository, ONE)
    assert record.metadata_fetched_at == record.updated_at
    assert record.userdata_fetched_at is None
    pushed(repository, ONE)
    assert read(repository, ONE).metadata_fetched_at is None


def test_tokens_are_kept_when_a_push_leaves_them_out(repository: Repository) -> None:
    push(repository, Kind.METADATA, ONE, content={}, http_tokens="required")
    pushed(repository, ONE)
    assert read(repository, ONE).http_tokens == "required"


def test_a_password_alone_is_a_record_that_is_empty(repository: Repository) -> None:
    assert repository.set_password(ONE, b"hush", seed=b"s" * 32)
    assert not repository.set_password(ONE, b"again", seed=b"t" * 32)
    record = read(repository, ONE)
    assert (record.empty, record.password, record.seed) == (True, b"hush", b"s" * 32)


def test_defaults_are_listed_by_themselves(repository: Repository) -> None:
    repository.put(ONE)
    repository.put(f"{DEFAULTS}project:{'f' * 64}", document={"a": 1})
    assert [one.id for one in repository.list()] == [ONE]
    assert [one.id for one in repository.list(defaults=True)] == [f"{DEFAULTS}project:{'f' * 64}"]


def test_a_put_may_name_the_addresses_too(repository: Repository) -> None:
    assert repository.put(ONE, networks=nets("192.0.2.1")).changed == ("addresses",)
    assert repository.put(ONE, document={"hostname": "a"}).changed == ("hostname",)
    assert repository.put(ONE, networks=nets("192.0.2.1")).changed == ()
    assert owner(repository, "192.0.2.1") == ONE


def test_a_document_that_utf_8_cannot_hold_is_refused(repository: Repository) -> None:
    with pytest.raises(StoreError, match="not JSON that can be stored"):
        pushed(repository, ONE, hostname="\ud800")
    with pytest.raises(StoreError, match="not JSON that can be stored"):
        pushed(repository, ONE, number=float("nan"))
    assert repository.get(ONE) is None


def test_the_same_record_is_not_read_twice_until_somebody_writes(
    repository: Repository, database_url: str
) -> None:
    pushed(repository, ONE, hostname="a")
    first = read(repository, ONE)
    assert repository.get(ONE.upper()) is first
    with Repository(database_url) as other:
        pushed(other, ONE, hostname="b")
    assert "b" in (read(repository, ONE).metadata or "")


def test_what_is_changed_by_hand_is_seen_at_once(repository: Repository, database_url: str) -> None:
    pushed(repository, ONE, hostname="a")
    read(repository, ONE)
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE records SET metadata = '{}'"))
    assert read(repository, ONE).metadata == "{}"
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM records"))
    engine.dispose()
    assert repository.get(ONE) is None


@pytest.fixture
def writers(database_url: str) -> Iterator[list[Repository]]:
    # On a busy machine, one of eight may wait longer than usual for its turn.
    opened = [Repository(database_url, seconds=60) for _ in range(8)]
    yield opened
    for one in opened:
        one.close()


def test_of_eight_writers_over_the_same_addresses_each_has_one_owner(
    repository: Repository, writers: list[Repository]
) -> None:
    names = [f"198.51.100.{number}" for number in range(12)] + ["198.51.100.0/28", "2001:db8::/64"]
    ids = [str(uuid.UUID(int=number)) for number in range(8)]
    last: dict[str, list[str]] = {}

    def write(number: int) -> None:
        chance = random.Random(number)
        for turn in range(25):
            chosen = chance.sample(names, chance.randint(0, len(names)))
            pushed(writers[number], ids[number], *chosen, turn=turn)
            if chance.random() < 0.1:
                writers[number].delete(ids[number])
                chosen = []
            last[ids[number]] = chosen

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    held = [name for one in ids for name in repository.addresses(one)]
    assert len(held) == len(set(held))
    for one in ids:
        assert set(repository.addresses(one)) <= {str(ip_network(name)) for name in last[one]}
    # The record that was written last has all the addresses that it named.
    whole = [{str(ip_network(name)) for name in last[one]} for one in ids]
    assert any(
        set(repository.addresses(one)) == named for one, named in zip(ids, whole, strict=True)
    )


def test_writers_of_one_record_leave_it_whole(
    repository: Repository, writers: list[Repository]
) -> None:
    start = threading.Barrier(8)

    def write(number: int) -> None:
        start.wait()
        for turn in range(10):
            name = f"192.0.2.{number * 10 + turn}"
            pushed(writers[number], ONE, name, hostname=f"h{number}-{turn}", address=name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    (address,) = repository.addresses(ONE)
    assert f'"address":"{address.removesuffix("/32")}"' in (read(repository, ONE).metadata or "")


ADDRESSES = st.sampled_from(
    [
        *("10.0.0.0/30", "10.0.0.0/31", "10.0.0.1/32", "10.0.0.2/32", "0.0.0.0/0"),
        *("2001:db8::/126", "2001:db8::1/128", "2001:db8::2/128"),
    ]
)


@SAME_DATABASE
@given(
    writes=st.lists(
        st.tuples(st.sampled_from([ONE, TWO, THREE]), st.lists(ADDRESSES, max_size=5)), max_size=12
    )
)
def test_whoever_a_plain_model_says_is_found(
    repository: Repository, writes: list[tuple[str, list[str]]]
) -> None:
    for record_id in (ONE, TWO, THREE):
        repository.delete(record_id)
    model: dict[Network, str] = {}
    for record_id, names in writes:
        pushed(repository, record_id, *names)
        model = {network: one for network, one in model.items() if one != record_id}
        model.update(dict.fromkeys(nets(*names), record_id))
    for address in map(ip_address, ("10.0.0.1", "10.0.0.3", "10.9.9.9", "2001:db8::1", "::1")):
        matching = [network for network in model if address in network]
        best = max(matching, key=lambda network: network.prefixlen, default=None)
        assert owner(repository, str(address)) == (None if best is None else model[best])
