"""Cached answers of a record should be those that would be made of it, and no other record's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dfmeta.exceptions import StoreError
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.record import Record
from dfmeta.store.guest import answers
from dfmeta.store.guest.answers import Answers
from dfmeta.store.guest.dialects import Settings
from dfmeta.store.guest.etags import etag_of, tagged, unless_known
from dfmeta.store.guest.paths import split_path
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
RECORD = Record(
    id=INSTANCE,
    seed=b"seed",
    created_at=MOMENT,
    updated_at=MOMENT,
    metadata='{"hostname": "one"}',
    userdata=b"#!/bin/sh\n",
)
HOSTNAME = "/latest/meta-data/local-hostname"
META_DATA = "/openstack/latest/meta_data.json"


@pytest.fixture
def kept() -> Answers:
    return Answers(Settings())


def ask(kept: Answers, record: Record, path: str, **headers: str) -> Answer | None:
    segments = split_path(path)
    assert segments is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return kept.answer(record, segments, GuestRequest("GET", path, headers=named))


def made(kept: Answers, record: Record) -> int:
    """How many answers are kept of a record."""
    return len(kept._of(record).answers)


def test_an_answer_is_made_once_for_equal_records_and_all_spellings(kept: Answers) -> None:
    for path in (HOSTNAME, META_DATA, "/latest/user-data", "/metadata", "/nocloud/"):
        first = ask(kept, RECORD, path)
        assert first == ask(Answers(Settings()), RECORD, path), path
        assert ask(kept, replace(RECORD), path) is first, path
    first = ask(kept, RECORD, "/latest/meta-data")
    count = made(kept, RECORD)
    for number in range(50):
        slashes = "/" * number
        for path in (f"/{slashes}latest/meta-data/", f"/latest/meta%2Ddata/{slashes}"):
            assert ask(kept, RECORD, path) is first
        assert ask(kept, RECORD, f"/latest/{number}") is None
    assert made(kept, RECORD) == count, "a 404 takes no memory"


def test_each_record_and_each_version_has_its_own_answers(kept: Answers) -> None:
    other = replace(RECORD, id=OTHER_INSTANCE, metadata='{"hostname": "two"}')
    changed = replace(RECORD, metadata='{"hostname": "three"}')
    for record, name in ((RECORD, b"one"), (other, b"two"), (changed, b"three"), (RECORD, b"one")):
        assert (ask(kept, record, HOSTNAME) or Answer(0)).body == name


def test_a_cached_answer_is_a_304_to_a_guest_that_has_it(kept: Answers) -> None:
    first = ask(kept, RECORD, META_DATA)
    assert first is not None
    conditional = ask(kept, RECORD, META_DATA, if_none_match=dict(first.headers)["ETag"])
    assert conditional == Answer(304, content_type="", headers=first.headers)
    assert ask(kept, RECORD, META_DATA, if_none_match='"another"') is first


def test_answers_beyond_the_limit_are_made_each_time(kept: Answers) -> None:
    large = replace(RECORD, metadata=f'{{"meta": {{"a": "{"b" * (answers.ANSWERS // 2)}"}}}}')
    paths = [f"/openstack/{version}/meta_data.json" for version in ("2012-08-10", "latest")]
    for path in [*paths, *paths]:
        assert len((ask(kept, large, path) or Answer(0)).body) > answers.ANSWERS // 2
    assert made(kept, large) == 1


def test_a_document_that_is_no_object_is_an_error_each_time(kept: Answers) -> None:
    for _ in range(2):
        with pytest.raises(StoreError):
            ask(kept, replace(RECORD, metadata="[]"), HOSTNAME)


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
        *("", ETAG.strip('"'), f'"x{ETAG}', f"w/{ETAG}", f"{ETAG}{ETAG}", f"*, {ETAG}"),
        *(f'{ETAG}, "open', f'"a b", {ETAG}', ETAG.upper(), f"{ETAG}\n", '"x' * 4000),
    ):
        assert asked(value) == asked(None), value
