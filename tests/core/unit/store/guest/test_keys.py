"""Keys should have names that no listing trips over, however a document writes them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.store.guest.keys import keys_of, name_keys

A, B = "ssh-rsa AAAA a", "ssh-rsa BBBB b"


def test_keys_are_read_in_each_form_with_their_names() -> None:
    labelled = [
        {"id": "x", "label": "work / laptop", "key": A},
        {"key": B},
        {"label": "no key"},
        {"label": 5, "key": ["ssh-rsa CCCC"]},
        "ssh-rsa DDDD b",
    ]
    members: dict[str, object]
    for members, expected in (
        ({"ssh_keys": [f"# mine\n{A}\r\n\n{B}", 5, None, ""]}, [("a", A), ("b", B)]),
        (
            {"ssh_keys": labelled},
            [("work-laptop", A), ("b", B), ("b-2", "ssh-rsa DDDD b")],
        ),
        ({"public_keys": {"mine": A, "": B}}, [("mine", A), ("b", B)]),
        ({"ssh_keys": [A], "public_keys": [A, B]}, [("a", A), ("b", B)]),
    ):
        assert [(key.name, key.data) for key in keys_of(members)] == expected, members
    for wrong in (None, 5, True, "ssh-rsa AAAA", [], {}, [[]], {"a": {}}):
        assert list(keys_of({"ssh_keys": wrong, "public_keys": wrong})) == [], wrong


def test_key_names_come_from_the_comments() -> None:
    for comments, names in (
        (["me@host"], ["me@host"]),
        (["", ""], ["key", "key-2"]),
        (["a", "a", "a-2", "a"], ["a", "a-2", "a-2-2", "a-3"]),
        (["folder/"], ["folder"]),
        (["a=b", "a b"], ["a-b", "a-b-2"]),
        (["///"], ["key"]),
        (["../x"], ["..-x"]),
        (["x" * 100], ["x" * 64]),
    ):
        keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
        assert [key.name for key in keys] == names, comments


@given(st.lists(st.text() | st.sampled_from(["a", "a-2", "/", "0=x", "key", "key-2"])))
def test_key_names_are_safe_and_unique_for_any_comments(comments: list[str]) -> None:
    keys = name_keys([("", f"ssh-rsa AAAA {comment}") for comment in comments])
    assert len({key.name for key in keys}) == len(comments)
    assert all(re.fullmatch(r"[A-Za-z0-9._@-]+", key.name) for key in keys)
