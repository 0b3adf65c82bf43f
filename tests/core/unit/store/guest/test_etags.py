"""A guest that names the entity tag of the answer should get a 304, and no other guest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dfmeta.model import Answer, GuestRequest
from dfmeta.store.guest.etags import etag_of, tagged, unless_known

ANSWER = Answer(200, b"web1", content_type="text/plain", headers=(("X-One", "1"),))
ETAG = etag_of(ANSWER)


def asked(given: str | None, answer: Answer = ANSWER, method: str = "GET") -> Answer:
    headers = {} if given is None else {"if-none-match": given}
    return unless_known(tagged(answer), GuestRequest(method, "/", headers=headers))


def test_an_answer_has_a_strong_tag_of_its_bytes_and_type() -> None:
    assert ETAG.startswith('"')
    assert asked(None).headers == (("X-One", "1"), ("ETag", ETAG))
    assert (asked(None).status, asked(None).body) == (200, b"web1")
    tags = {etag_of(Answer(200, body)) for body in (b"a", b"a", b"b", b"")}
    tags.add(etag_of(Answer(200, b"a", content_type="application/json")))
    assert len(tags) == 4
    for status in (404, 405, 409, 503):
        assert asked("*", Answer(status, b"x")) == Answer(status, b"x")


def test_a_list_with_the_tag_gives_304() -> None:
    for value in (
        *("*", " * ", ETAG, f"W/{ETAG}", f'"other", {ETAG}', f'{ETAG},"x"', f' ,,{ETAG}\t, ""'),
        *(f'W/"a,b" ,\t{ETAG}', '"x",' * 2000 + ETAG),
    ):
        for method in ("GET", "HEAD"):
            answer = asked(value, method=method)
            assert (answer.status, answer.body, answer.content_type) == (304, b"", ""), value
            assert answer.headers == (("X-One", "1"), ("ETag", ETAG)), value


def test_other_text_changes_nothing() -> None:
    for value in (
        *("", '"other"', ETAG.strip('"'), f'"x{ETAG}', f"w/{ETAG}", f"{ETAG} x", f"{ETAG}{ETAG}"),
        *(f"*, {ETAG}", f'{ETAG}, "open', f'"a b", {ETAG}', f'"{ETAG}"', ETAG.upper()),
        *("\n", f"{ETAG}\n", f"{ETAG},\n", '"x' * 4000, " " * 8000 + "x"),
    ):
        assert asked(value) == asked(None), value


@given(st.text() | st.text('",W/ *ab\t'))
def test_any_header_has_an_answer(given: str) -> None:
    assert asked(given).status in {200, 304}
