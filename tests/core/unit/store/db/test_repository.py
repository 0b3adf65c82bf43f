"""A repository should keep what it is given, and an address one owner; on PostgreSQL see host."""

import errno
import os
import uuid
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from dfmeta.errors import StoreError, StoreFullError
from dfmeta.runtime import clock
from dfmeta.runtime.throttle import LONGEST_PAUSE
from dfmeta.store.db.dialect import Sqlite
from dfmeta.store.db.record import Kind, Network, Push, Whole
from dfmeta.store.db.repository import DEFAULTS, PAGE, PAGE_TEXT, PutResult, Repository
from tests.core.unit.store.support import document, read
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.examples import examples
from tests.harness.records import push
from tests.harness.tier import CLOCK

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return value


def ids(count: int) -> list[str]:
    return [str(uuid.UUID(int=number << 64)) for number in range(count)]


def test_database_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_dialect: Sqlite) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Sqlite, "check_usable", refuse)
        repository = Repository(f"sqlite:///{tmp_path}/store.db")
        for _ in range(2):
            with pytest.raises(StoreFullError, match=r"store.db: No space left on device"):
                repository.get(INSTANCE)
            clock.sleep(LONGEST_PAUSE)
    with repository:
        repository.put(INSTANCE, document={"hostname": "a"})
        assert read(repository, INSTANCE).id == INSTANCE


def test_a_record_is_found_and_deleted_in_any_case(repository: Repository) -> None:
    assert repository.get(INSTANCE) is None
    repository.put(INSTANCE.upper(), document={"hostname": "a"})
    assert read(repository, INSTANCE.upper()).id == INSTANCE
    assert repository.get(INSTANCE) == repository.get(INSTANCE.upper())
    assert repository.delete(INSTANCE.upper())
    assert not repository.delete(INSTANCE)
    assert repository.get(INSTANCE) is None


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=examples(16),
)
@given(content=st.binary(max_size=3000), members=st.dictionaries(TEXT, JSON))
def test_a_record_comes_back_as_it_was_put(
    repository: Repository, content: bytes, members: dict[str, object]
) -> None:
    repository.delete(INSTANCE)
    repository.put(INSTANCE, document=members, userdata=content)
    assert read(repository).userdata == content
    assert document(repository) == without_nulls(members)


def test_a_put_changes_only_the_parts_that_it_names(repository: Repository) -> None:
    first = repository.put(
        INSTANCE, document={"hostname": "a", "meta": {"x": "1"}}, userdata=b"u", project_id="p"
    )
    assert first.created
    assert set(first.changed) == {"hostname", "meta", "userdata", "project_id"}
    before = read(repository)
    CLOCK.advance(1)
    second = repository.put(INSTANCE, document={"meta": {"y": "2"}})
    after = read(repository)
    assert (second.created, second.changed) == (False, ("meta",))
    assert document(repository) == {"hostname": "a", "meta": {"x": "1", "y": "2"}}
    assert (after.userdata, after.project_id) == (b"u", "p")
    assert (after.seed, after.created_at) == (before.seed, before.created_at)
    assert after.updated_at > before.updated_at
    again = repository.put(INSTANCE, document={"hostname": "a"}, userdata=b"u")
    assert again == PutResult(created=False, changed=())
    assert read(repository) == after
    assert repository.put(INSTANCE, userdata=b"").changed == ("userdata",)
    assert read(repository).userdata == b""
    removed = repository.put(INSTANCE, userdata=None, project_id=None)
    assert removed.changed == ("userdata", "project_id")
    assert (read(repository).userdata, read(repository).project_id) == (None, None)


def test_a_whole_document_replaces_the_earlier_one(repository: Repository) -> None:
    repository.put(INSTANCE, document={"a": {"b": 1}, "c": 1, "d": 1}, userdata=b"u")
    result = repository.put(INSTANCE, document=Whole({"a": {"x": None}, "c": 1}))
    assert result.changed == ("a", "d")
    assert document(repository) == {"a": {"x": None}, "c": 1}
    assert read(repository).userdata == b"u"
    assert repository.put(INSTANCE, document=Whole({"a": {"x": None}, "c": 1})).changed == ()


def test_a_change_that_is_not_made_leaves_the_record_alone(repository: Repository) -> None:
    def refuse(members: dict[str, Any]) -> None:
        members["hostname"] = "never"

    def fail(members: dict[str, Any]) -> None:
        raise KeyError(members["hostname"])

    assert repository.change(INSTANCE, dict) is None
    repository.put(INSTANCE, document={"hostname": "web1"})
    before = read(repository)
    assert repository.change(INSTANCE, refuse) is None
    with pytest.raises(KeyError, match="web1"):
        repository.change(INSTANCE, fail)
    assert read(repository) == before
    changed = repository.change(INSTANCE.upper(), lambda members: {**members, "n": 1})
    assert changed == {"hostname": "web1", "n": 1}


def test_pushes_are_done_in_their_order(repository: Repository) -> None:
    network = ip_network("10.0.0.5")
    first = Push(kind=Kind.METADATA, record_id=INSTANCE, content={"n": 1}, networks=[network])
    second = Push(kind=Kind.USERDATA, record_id=OTHER_INSTANCE, content=b"u", networks=[network])
    older = {"updated_at": "2026-01-01T00:00:00Z"}
    newer = {"updated_at": "2026-01-02T00:00:00Z"}
    guarded = [
        Push(kind=Kind.METADATA, record_id=OTHER_INSTANCE, content=content, networks=[network])
        for content in (newer, older)
    ]
    assert repository.push_all([first, second, *guarded]) == (True, True, True, False)
    assert repository.addresses(INSTANCE) == ()
    assert repository.addresses(OTHER_INSTANCE) == ("10.0.0.5/32",)
    assert document(repository, OTHER_INSTANCE) == newer


def test_pushes_are_written_together_or_not_at_all(repository: Repository) -> None:
    good = Push(kind=Kind.METADATA, record_id=INSTANCE, content={"n": 1}, networks=[])
    for unfit in ("\ud800", float("nan")):
        bad = Push(kind=Kind.METADATA, record_id=OTHER_INSTANCE, content={"n": unfit}, networks=[])
        with pytest.raises(StoreError, match="not JSON that can be stored"):
            repository.push_all([good, bad])
        assert repository.get(INSTANCE) is None


def test_a_list_has_all_records_in_order_without_their_content(repository: Repository) -> None:
    assert list(repository.list()) == []
    expected = ids(PAGE + 2)
    for record_id in expected[::-1]:
        repository.put(record_id, userdata=b"12345")
    repository.put(f"{DEFAULTS}project:{'f' * 64}", document={"a": 1})
    rows = list(repository.list())
    assert [row.id for row in rows] == expected
    assert {row.userdata_bytes for row in rows} == {5}
    assert not any(hasattr(row, "userdata") for row in rows)
    assert [row.id for row in repository.list(defaults=True)] == [f"{DEFAULTS}project:{'f' * 64}"]


def test_large_documents_end_a_page_sooner(repository: Repository) -> None:
    known = ids(6)
    for record_id in known:
        repository.put(record_id, document={"x": "x" * (PAGE_TEXT // 2)})
    assert [row.id for row in repository.page("")] == known[:2]
    assert [row.id for row in repository.page(known[1].upper())] == known[2:4]
    between = str(uuid.UUID(int=(1 << 64) + 1))
    assert [row.id for row in repository.page(between)] == known[2:4], "it need not exist"
    assert [row.id for row in repository.list()] == known


def test_a_password_is_set_once_and_needs_a_record_or_a_seed(repository: Repository) -> None:
    assert not repository.set_password(INSTANCE, b"x")
    assert repository.set_password(INSTANCE, b"hush", seed=b"s" * 32)
    assert not repository.set_password(INSTANCE, b"again", seed=b"t" * 32)
    record = read(repository)
    assert (record.empty, record.password, record.seed) == (True, b"hush", b"s" * 32)


def test_secrets_are_in_no_repr(repository: Repository) -> None:
    repository.put(INSTANCE, document={"meta": {"m": "hush"}}, userdata=b"hush")
    repository.set_password(INSTANCE, b"hush")
    assert "hush" not in repr(repository.get(INSTANCE))
    assert "hush" not in repr(list(repository.list()))


# Pushes


ONE, TWO, THREE = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))
OLDER = [
    ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", False),
    ("2026-01-02T00:00:00Z", "2026-01-02T00:00:00Z", True),
    ("2026-01-02T00:00:00+02:00", "2026-01-01T23:00:00Z", True),
    ("2026-01-02", "2026-01-01T00:00:00Z", False),
    ("b", "a", False),
    ("a", "b", True),
    (2, "2026-01-01T00:00:00Z", True),
    (None, "2026-01-01T00:00:00Z", True),
]
"""Stored and pushed updated_at, and whether the push is taken."""


def nets(*texts: str) -> list[Network]:
    return [ip_network(text, strict=False) for text in texts]


def owner(repository: Repository, address: str) -> str | None:
    record = repository.find(ip_address(address))
    return None if record is None else record.id


def pushed(repository: Repository, record_id: str, *networks: str, **document: object) -> bool:
    return push(repository, Kind.METADATA, record_id, content=document, networks=nets(*networks))


def test_an_older_document_changes_nothing(repository: Repository) -> None:
    for before, after, taken in OLDER:
        repository.delete(ONE)
        pushed(repository, ONE, "192.0.2.1", updated_at=before, hostname="before")
        done = pushed(repository, ONE, "192.0.2.2", updated_at=after, hostname="after")
        assert done is taken, (before, after)
        assert ("after" in (read(repository, ONE).metadata or "")) is taken, (before, after)
        expected = "192.0.2.2/32" if taken else "192.0.2.1/32"
        assert repository.addresses(ONE) == (expected,), (before, after)


def test_each_half_is_replaced_alone_and_addresses_go_with_the_last(repository: Repository) -> None:
    push(repository, Kind.METADATA, ONE, content={"a": 1}, http_tokens="required")
    assert repository.put(ONE, networks=nets("192.0.2.3")).changed == ("addresses",)
    assert repository.put(ONE, networks=nets("192.0.2.3")).changed == ()
    push(repository, Kind.USERDATA, ONE, content=b"\0\xff", networks=nets("192.0.2.1"))
    assert repository.addresses(ONE) == ("192.0.2.1/32",)
    pushed(repository, ONE, "192.0.2.1", b=1)
    record = read(repository, ONE)
    assert (record.metadata, record.userdata) == ('{"b":1}', b"\0\xff")
    assert record.http_tokens == "required"
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
    repository.store_fetched(Push(kind=Kind.METADATA, record_id=ONE, content={}, networks=[]))
    record = read(repository, ONE)
    assert record.metadata_fetched_at == record.updated_at
    assert record.userdata_fetched_at is None
    pushed(repository, ONE)
    assert read(repository, ONE).metadata_fetched_at is None


def test_record_is_cached_until_it_changes(repository: Repository, database_url: str) -> None:
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
def test_owners_are_the_models(repository: Repository, writes: list[tuple[str, list[str]]]) -> None:
    order: dict[str, list[str]] = {ONE: [], TWO: [], THREE: []}
    for record_id in order:
        repository.delete(record_id)
    model: dict[Network, str] = {}
    for record_id, names in writes:
        pushed(repository, record_id, *names)
        model = {network: owner for network, owner in model.items() if owner != record_id}
        model.update(dict.fromkeys(nets(*names), record_id))
        order[record_id] = list(dict.fromkeys(names))
    for address in map(ip_address, ("10.0.0.1", "10.0.0.3", "10.9.9.9", "2001:db8::1", "::1")):
        matching = [network for network in model if address in network]
        best = max(matching, key=lambda network: network.prefixlen, default=None)
        assert owner(repository, str(address)) == (None if best is None else model[best])
    for record_id, names in order.items():
        held = [name for name in names if model.get(ip_network(name)) == record_id]
        assert repository.addresses(record_id) == tuple(held)
