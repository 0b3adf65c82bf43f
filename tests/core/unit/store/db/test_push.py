"""Pushes should leave an address one owner and a record its newest content, in any database."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from dfmeta.store.db.networks import Network
from dfmeta.store.db.record import FetchedHalf, Kind
from dfmeta.store.db.repository import Repository
from tests.core.unit.store.support import read
from tests.harness.examples import examples
from tests.harness.records import push

ONE, TWO, THREE = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))
OLDER = [
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
]
"""Stored and pushed updated_at, and whether the push is taken."""


def nets(*texts: str) -> list[Network]:
    return [ip_network(one, strict=False) for one in texts]


def owner(repository: Repository, address: str) -> str | None:
    record = repository.find(ip_address(address))
    return None if record is None else record.id


def pushed(repository: Repository, record_id: str, *networks: str, **document: object) -> bool:
    return push(repository, Kind.METADATA, record_id, content=document, networks=nets(*networks))


def test_the_longest_prefix_wins_in_any_order_of_pushes(repository: Repository) -> None:
    pushed(repository, TWO, "10.1.2.3")
    pushed(repository, ONE, "10.1.2.0/28", "2001:db8:0:1::/64")
    for address, expected in (
        ("10.1.2.3", TWO),
        *((inside, ONE) for inside in ("10.1.2.0", "10.1.2.15", "2001:db8:0:1:ffff::")),
        *((other, None) for other in ("10.1.1.255", "10.1.2.16", "2001:db8:0:2::", "::10.1.2.0")),
    ):
        assert owner(repository, address) == expected, address
    pushed(repository, THREE, "0.0.0.0/0", "::/0")
    assert owner(repository, "192.0.2.1") == owner(repository, "2001:db8::1") == THREE


def test_an_address_is_of_its_last_writer_and_the_other_keeps_its_document(
    repository: Repository,
) -> None:
    pushed(repository, ONE, "192.0.2.1", "192.0.2.2", hostname="one")
    pushed(repository, TWO, "192.0.2.1")
    assert owner(repository, "192.0.2.1") == TWO
    assert repository.addresses(ONE) == ("192.0.2.2/32",)
    assert read(repository, ONE).metadata == '{"hostname":"one"}'


def test_each_half_replaces_itself_alone(repository: Repository) -> None:
    pushed(repository, ONE, "192.0.2.1", hostname="a", plan="b")
    push(repository, Kind.USERDATA, ONE, content=b"\0\xff", networks=nets("192.0.2.2"))
    pushed(repository, ONE, "192.0.2.2", hostname="c")
    record = read(repository, ONE)
    assert (record.metadata, record.userdata) == ('{"hostname":"c"}', b"\0\xff")
    assert repository.addresses(ONE) == ("192.0.2.2/32",)


def test_an_older_document_changes_nothing(repository: Repository) -> None:
    for before, after, taken in OLDER:
        repository.delete(ONE)
        pushed(repository, ONE, "192.0.2.1", updated_at=before, hostname="before")
        done = pushed(repository, ONE, "192.0.2.2", updated_at=after, hostname="after")
        assert done is taken, (before, after)
        assert ("after" in (read(repository, ONE).metadata or "")) is taken, (before, after)
        expected = "192.0.2.2/32" if taken else "192.0.2.1/32"
        assert repository.addresses(ONE) == (expected,), (before, after)


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


def test_a_fetched_half_has_its_time_until_a_push(repository: Repository) -> None:
    push(repository, Kind.USERDATA, ONE, content=b"u")
    repository.store_fetched(Kind.METADATA, FetchedHalf(ONE, {}, []))
    record = read(repository, ONE)
    assert record.metadata_fetched_at == record.updated_at
    assert record.userdata_fetched_at is None
    pushed(repository, ONE)
    assert read(repository, ONE).metadata_fetched_at is None


def test_a_push_without_a_mode_of_tokens_keeps_it(repository: Repository) -> None:
    push(repository, Kind.METADATA, ONE, content={}, http_tokens="required")
    pushed(repository, ONE)
    assert read(repository, ONE).http_tokens == "required"


def test_a_put_may_name_the_addresses(repository: Repository) -> None:
    assert repository.put(ONE, networks=nets("192.0.2.1")).changed == ("addresses",)
    assert repository.put(ONE, document={"hostname": "a"}).changed == ("hostname",)
    assert repository.put(ONE, networks=nets("192.0.2.1")).changed == ()
    assert owner(repository, "192.0.2.1") == ONE
    assert repository.delete(ONE)
    assert owner(repository, "192.0.2.1") is None


def test_a_record_is_cached_until_any_process_changes_it(
    repository: Repository, database_url: str
) -> None:
    pushed(repository, ONE, hostname="a")
    first = read(repository, ONE)
    assert repository.get(ONE.upper()) is first
    with Repository(database_url) as other:
        pushed(other, ONE, hostname="b")
    assert "b" in (read(repository, ONE).metadata or "")
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE records SET metadata = '{}'"))
    assert read(repository, ONE).metadata == "{}"
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM records"))
    engine.dispose()
    assert repository.get(ONE) is None


ADDRESSES = st.sampled_from(
    [
        *("10.0.0.0/30", "10.0.0.0/31", "10.0.0.1/32", "10.0.0.2/32", "0.0.0.0/0"),
        *("2001:db8::/126", "2001:db8::1/128", "2001:db8::2/128"),
    ]
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(10),
)
@given(
    writes=st.lists(
        st.tuples(st.sampled_from([ONE, TWO, THREE]), st.lists(ADDRESSES, max_size=5)), max_size=12
    )
)
def test_owners_and_the_order_of_addresses_are_those_of_a_model(
    repository: Repository, writes: list[tuple[str, list[str]]]
) -> None:
    order: dict[str, list[str]] = {ONE: [], TWO: [], THREE: []}
    for record_id in order:
        repository.delete(record_id)
    model: dict[Network, str] = {}
    for record_id, names in writes:
        pushed(repository, record_id, *names)
        model = {network: one for network, one in model.items() if one != record_id}
        model.update(dict.fromkeys(nets(*names), record_id))
        order[record_id] = list(dict.fromkeys(names))
    for address in map(ip_address, ("10.0.0.1", "10.0.0.3", "10.9.9.9", "2001:db8::1", "::1")):
        matching = [network for network in model if address in network]
        best = max(matching, key=lambda network: network.prefixlen, default=None)
        assert owner(repository, str(address)) == (None if best is None else model[best])
    for record_id, names in order.items():
        held = [name for name in names if model[ip_network(name)] == record_id]
        assert repository.addresses(record_id) == tuple(held)
