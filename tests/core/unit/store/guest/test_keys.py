"""Keys should have names that no listing trips over, however a document writes them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.guest.keys import keys_of, name_keys


def lines(members: dict[str, object]) -> list[str]:
    return [key.data for key in keys_of(members)]


def test_keys_are_the_lines_of_the_texts_without_comments() -> None:
    texts = ["# mine\nssh-rsa AAAA a\r\n\nssh-rsa BBBB b", 5, None, ""]
    assert lines({"ssh_keys": texts}) == ["ssh-rsa AAAA a", "ssh-rsa BBBB b"]


def test_a_key_may_be_an_object_with_a_label() -> None:
    keys = keys_of(
        {
            "ssh_keys": [
                {"id": "x", "label": "work / laptop", "key": "ssh-rsa AAAA a"},
                {"key": "ssh-rsa BBBB b"},
                {"label": "no key"},
                {"label": 5, "key": ["ssh-rsa CCCC"]},
                "ssh-rsa DDDD b",
            ]
        }
    )
    assert [(key.name, key.data) for key in keys] == [
        ("work-laptop", "ssh-rsa AAAA a"),
        ("b", "ssh-rsa BBBB b"),
        ("b-2", "ssh-rsa DDDD b"),
    ]


def test_keys_may_stand_under_their_names_as_in_nova() -> None:
    members: dict[str, object] = {"public_keys": {"mine": "ssh-rsa AAAA a", "": "ssh-rsa BBBB b"}}
    assert [key.name for key in keys_of(members)] == ["mine", "b"]


def test_a_key_that_stands_in_both_members_is_there_once() -> None:
    members: dict[str, object] = {
        "ssh_keys": ["ssh-rsa AAAA a"],
        "public_keys": ["ssh-rsa AAAA a", "ssh-rsa BBBB b"],
    }
    assert lines(members) == ["ssh-rsa AAAA a", "ssh-rsa BBBB b"]


@pytest.mark.parametrize("wrong", [None, 5, True, "ssh-rsa AAAA", [], {}, [[]], {"a": {}}])
def test_keys_of_another_kind_are_not_there(wrong: object) -> None:
    assert lines({"ssh_keys": wrong, "public_keys": wrong}) == []


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
    keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
    assert [key.name for key in keys] == names


@given(st.lists(st.text() | st.sampled_from(["a", "a-2", "/", "0=x", "key", "key-2"])))
def test_key_names_are_safe_and_unique_whatever_the_comments(comments: list[str]) -> None:
    keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
    assert len({key.name for key in keys}) == len(comments)
    assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", key.name) for key in keys)
