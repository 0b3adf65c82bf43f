"""A guest that names what it has should be told so, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmeta.model import Answer, GuestRequest
from dfmeta.store.guest.etags import etag_of, tagged, unless_known

FOUND = Answer(200, b"web1", content_type="text/plain", headers=(("X-One", "1"),))
ETAG = etag_of(FOUND)


def asked(given: str | None, answer: Answer = FOUND, method: str = "GET") -> Answer:
    headers = {} if given is None else {"if-none-match": given}
    return unless_known(tagged(answer), GuestRequest(method, "/", headers=headers))


def test_an_answer_has_a_strong_tag() -> None:
    assert ETAG.startswith('"')
    assert asked(None).headers == (("X-One", "1"), ("ETag", ETAG))
    assert (asked(None).status, asked(None).body) == (200, b"web1")


def test_the_tag_is_of_the_bytes_and_their_type() -> None:
    tags = {etag_of(Answer(200, b"a")), etag_of(Answer(200, b"b")), etag_of(Answer(200, b""))}
    tags.add(etag_of(Answer(200, b"a", content_type="application/json")))
    assert len(tags) == 4
    assert etag_of(Answer(200, b"a")) == etag_of(Answer(200, b"a"))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "given",
    [
        *("*", " * ", ETAG, f"W/{ETAG}", f'"other", {ETAG}', f'{ETAG},"x"', f' ,,{ETAG}\t, ""'),
        f'W/"a,b" ,\t{ETAG}',
    ],
)
def test_what_the_guest_has_is_not_sent_again(given: str, method: str) -> None:
    answer = asked(given, method=method)
    assert (answer.status, answer.body, answer.content_type) == (304, b"", "")
    assert answer.headers == (("X-One", "1"), ("ETag", ETAG))


@pytest.mark.parametrize(
    "given",
    [
        *("", '"other"', ETAG.strip('"'), f'"x{ETAG}', f"w/{ETAG}", f"{ETAG} x", f"{ETAG}{ETAG}"),
        *(f"*, {ETAG}", f'{ETAG}, "open', f'"a b", {ETAG}', f'"{ETAG}"', ETAG.upper()),
    ],
)
def test_what_is_no_list_with_the_tag_changes_nothing(given: str) -> None:
    assert asked(given) == asked(None)


@pytest.mark.parametrize("status", [404, 405, 409, 503])
def test_what_is_not_200_has_no_tag(status: int) -> None:
    answer = Answer(status, b"x")
    assert asked("*", answer) == answer


@given(st.text() | st.text('",W/ *ab\t'))
def test_any_header_has_an_answer(given: str) -> None:
    assert asked(given).status in {200, 304}


def test_a_long_header_is_read_in_one_go() -> None:
    assert asked('"x",' * 2000 + ETAG).status == 304
    assert asked('"x' * 4000).status == 200
    assert asked(" " * 8000 + "x").status == 200


@pytest.mark.parametrize("given", ["\n", f"{ETAG}\n", f"{ETAG},\n"])
def test_a_line_break_ends_no_list(given: str) -> None:
    assert asked(given).status == 200
