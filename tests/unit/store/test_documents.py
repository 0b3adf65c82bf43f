"""A document should say only what is known, under names that no listing trips over."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.exceptions import StoreError
from dfmeta.store.documents import (
    RANDOM_SEED_BYTES,
    Document,
    from_record,
    hostname_of,
    name_keys,
)
from dfmeta.store.repository import Record

INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def document(members: object = None, *, seed: bytes = b"s" * 32) -> Document:
    text = None if members is None else json.dumps(members)
    return from_record(
        Record(id=INSTANCE, seed=seed, created_at=NOW, updated_at=NOW, metadata=text)
    )


def test_an_empty_record_still_has_a_host_name() -> None:
    found = document()
    assert (found.hostname, found.name) == (INSTANCE, INSTANCE)
    assert (found.zone, found.project_id, found.keys, found.meta) == ("", "", (), {})
    assert (found.userdata, found.password) == (None, b"")


def test_the_host_name_comes_from_the_name_where_none_is_given() -> None:
    found = document({"name": "My Web_Server #1"})
    assert (found.hostname, found.name) == ("my-web-server-1", "My Web_Server #1")


def test_a_given_host_name_stands() -> None:
    found = document({"name": "web", "hostname": "Web.example.org"})
    assert (found.hostname, found.name) == ("Web.example.org", "web")


@pytest.mark.parametrize("wrong", [1, None, [], {}, True, "a\nb", "\0", "\ud800", " "])
def test_a_member_of_the_wrong_kind_counts_as_not_there(wrong: object) -> None:
    names = ("hostname", "name", "availability_zone", "ssh_keys", "meta")
    assert document(dict.fromkeys(names, wrong)) == document()


@pytest.mark.parametrize("text", ["[]", "{", '"x"'])
def test_a_broken_document_is_an_error(text: str) -> None:
    record = Record(id=INSTANCE, seed=b"", created_at=NOW, updated_at=NOW, metadata=text)
    with pytest.raises(StoreError, match=INSTANCE):
        from_record(record)


def test_the_random_seed_is_stable_and_its_record_s_own() -> None:
    assert document().random_seed == document({"name": "x"}).random_seed
    assert document().random_seed != document(seed=b"t" * 32).random_seed
    assert len(document().random_seed) == RANDOM_SEED_BYTES


def test_keys_are_the_lines_of_the_texts_without_comments() -> None:
    found = document({"ssh_keys": ["# mine\nssh-rsa AAAA a\r\n\nssh-rsa BBBB b", 5, None, ""]})
    assert [key.data for key in found.keys] == ["ssh-rsa AAAA a", "ssh-rsa BBBB b"]


@pytest.mark.parametrize(
    ("comments", "names"),
    [
        (["me@host"], ["me@host"]),
        (["", ""], ["key", "key-2"]),
        (["a", "a", "a-2", "a"], ["a", "a-2", "a-2-2", "a-3"]),
        (["folder/"], ["folder"]),
        (["a=b", "a b"], ["a-b", "a-b-2"]),
        (["///"], ["key"]),
        (["../x"], ["..-x"]),
        (["x" * 100], ["x" * 64]),
    ],
)
def test_key_names_come_from_the_comments(comments: list[str], names: list[str]) -> None:
    keys = name_keys([f"ssh-rsa AAAA {comment}" for comment in comments])
    assert [key.name for key in keys] == names


@given(st.lists(st.text() | st.sampled_from(["a", "a-2", "/", "0=x", "key", "key-2"])))
def test_key_names_are_safe_and_unique_whatever_the_comments(comments: list[str]) -> None:
    keys = name_keys([f"ssh-rsa AAAA {comment}" for comment in comments])
    assert len({key.name for key in keys}) == len(comments)
    assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", key.name) for key in keys)


@given(st.text())
def test_a_host_name_made_of_any_text_is_one(name: str) -> None:
    made = hostname_of(name)
    labels = made.split(".") if made else []
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["hostname", "name", "ssh_keys", "meta"]), JSON))
def test_any_json_object_makes_a_document(members: dict[str, object]) -> None:
    found = document(members)
    assert found.hostname
    assert found.name


def test_secrets_are_in_no_repr() -> None:
    record = Record(
        id=INSTANCE, seed=b"", created_at=NOW, updated_at=NOW, userdata=b"hush", password=b"hush"
    )
    assert "hush" not in repr(from_record(record))
