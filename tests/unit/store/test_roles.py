"""Roles should come in vendor data beside what the operator gives, and change nothing of it."""

from __future__ import annotations

from email import message_from_string
from email.message import Message

import pytest

from dfmeta.guest import snippet
from dfmeta.store.roles import with_roles

OWN = "#cloud-config\nruncmd:\n- [echo, \N{SNOWMAN}]\n"


def parts(text: object) -> list[str]:
    assert isinstance(text, str)
    found = message_from_string(text)
    assert found.is_multipart()
    texts = []
    for part in found.get_payload():
        assert isinstance(part, Message)
        payload = part.get_payload(decode=True)
        assert isinstance(payload, bytes)
        texts.append(payload.decode())
    return texts


def test_a_text_and_the_program_are_two_parts_of_one_message() -> None:
    assert parts(with_roles(OWN)) == [OWN, snippet.vendor_data()]


def test_it_is_the_same_each_time() -> None:
    assert with_roles(OWN) == with_roles(OWN)


def test_a_list_gets_one_more() -> None:
    assert with_roles([OWN]) == [OWN, snippet.vendor_data()]


@pytest.mark.parametrize("nothing", [None, "", {}, 5])
def test_where_there_is_nothing_the_program_is_all(nothing: object) -> None:
    assert with_roles(nothing) == snippet.vendor_data()
