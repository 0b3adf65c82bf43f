"""A repository should keep what it is given, byte for byte; on PostgreSQL see tests/host/store."""

from __future__ import annotations

import uuid
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dfmeta.exceptions import StoreError
from dfmeta.store.db.record import Kind, Push, Whole
from dfmeta.store.db.repository import DEFAULTS, PAGE, PAGE_TEXT, PutResult, Repository
from tests.core.unit.store.support import document, read
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.examples import examples
from tests.harness.tier import CLOCK

TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=8,
)


def without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return value


def ids(count: int) -> list[str]:
    return [str(uuid.UUID(int=number << 64)) for number in range(count)]


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


def test_none_removes_and_empty_is_not_none(repository: Repository) -> None:
    repository.put(INSTANCE, userdata=b"", project_id="p")
    assert read(repository).userdata == b""
    removed = repository.put(INSTANCE, userdata=None, project_id=None)
    assert removed.changed == ("userdata", "project_id")
    record = read(repository)
    assert (record.userdata, record.project_id) == (None, None)


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
    one = Push(kind=Kind.METADATA, record_id=INSTANCE, content={"n": 1}, networks=[network])
    two = Push(kind=Kind.USERDATA, record_id=OTHER_INSTANCE, content=b"u", networks=[network])
    older = {"updated_at": "2026-01-01T00:00:00Z"}
    newer = {"updated_at": "2026-01-02T00:00:00Z"}
    guarded = [
        Push(kind=Kind.METADATA, record_id=OTHER_INSTANCE, content=content, networks=[network])
        for content in (newer, older)
    ]
    assert repository.push_all([one, two, *guarded]) == (True, True, True, False)
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


def test_a_page_follows_an_id_that_need_not_exist(repository: Repository) -> None:
    known = ids(4)
    for record_id in known:
        repository.put(record_id)
    between = str(uuid.UUID(int=(1 << 64) + 1))
    for after, expected in (
        ("", known),
        (known[1].upper(), known[2:]),
        (between, known[2:]),
        (known[3], []),
    ):
        assert [row.id for row in repository.page(after)] == expected, after


def test_large_documents_end_a_page_sooner(repository: Repository) -> None:
    known = ids(6)
    for record_id in known:
        repository.put(record_id, document={"x": "x" * (PAGE_TEXT // 2)})
    assert [row.id for row in repository.page("")] == known[:2]
    assert [row.id for row in repository.page(known[1])] == known[2:4]
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
