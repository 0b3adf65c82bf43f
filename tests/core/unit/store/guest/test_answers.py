"""What is remembered of a record should be what would be made of it, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dfmeta.exceptions import StoreError
from dfmeta.model import Answer, GuestRequest
from dfmeta.store.db.record import Record
from dfmeta.store.guest import answers, documents
from dfmeta.store.guest.answers import Answers
from dfmeta.store.guest.dialects import Settings
from dfmeta.store.guest.paths import split_path

ID = "5a9c2b1e-0f3d-4c6b-8a7e-1d2c3b4a5f60"
OTHER_ID = "5a9c2b1e-0f3d-4c6b-8a7e-1d2c3b4a5f61"
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
RECORD = Record(
    id=ID,
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


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Records whose documents have been read, in their order."""
    found: list[Record] = []
    read = documents.from_record

    def from_record(record: Record) -> documents.Document:
        found.append(record)
        return read(record)

    monkeypatch.setattr(documents, "from_record", from_record)
    return found


def ask(kept: Answers, record: Record, path: str, **headers: str) -> Answer | None:
    segments = split_path(path)
    assert segments is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return kept.answer(record, segments, GuestRequest("GET", path, headers=named))


def made(kept: Answers, record: Record) -> int:
    """How many answers are kept of a record."""
    return len(kept._of(record).answers)


@pytest.mark.parametrize(
    "path", [HOSTNAME, META_DATA, "/latest/user-data", "/metadata", "/nocloud/"]
)
def test_what_is_remembered_is_what_was_made(kept: Answers, path: str) -> None:
    first = ask(kept, RECORD, path)
    assert first == ask(Answers(Settings()), RECORD, path)
    assert ask(kept, RECORD, path) is first


def test_a_document_is_read_once_for_all_that_is_asked_of_it(
    kept: Answers, parsed: list[Record]
) -> None:
    for path in ("/latest/none", "/latest/none", HOSTNAME, META_DATA, META_DATA):
        ask(kept, RECORD, path)
    assert parsed == [RECORD]


def test_an_equal_record_is_as_good_as_the_same(kept: Answers, parsed: list[Record]) -> None:
    first = ask(kept, RECORD, HOSTNAME)
    assert ask(kept, replace(RECORD), HOSTNAME) is first
    assert parsed == [RECORD]


def test_a_record_that_has_changed_is_answered_anew(kept: Answers) -> None:
    ask(kept, RECORD, HOSTNAME)
    changed = replace(RECORD, metadata='{"hostname": "two"}')
    assert (ask(kept, changed, HOSTNAME) or Answer(0)).body == b"two"
    assert (ask(kept, RECORD, HOSTNAME) or Answer(0)).body == b"one"


def test_a_record_of_another_instance_is_answered_from_itself(kept: Answers) -> None:
    other = replace(RECORD, id=OTHER_ID, metadata='{"hostname": "two"}')
    for record, name in ((RECORD, b"one"), (other, b"two"), (RECORD, b"one")):
        assert (ask(kept, record, HOSTNAME) or Answer(0)).body == name


def test_a_remembered_answer_is_a_304_for_who_has_it_alone(kept: Answers) -> None:
    first = ask(kept, RECORD, META_DATA)
    assert first is not None
    etag = dict(first.headers)["ETag"]
    conditional = ask(kept, RECORD, META_DATA, if_none_match=etag)
    assert conditional == Answer(304, content_type="", headers=first.headers)
    assert ask(kept, RECORD, META_DATA, if_none_match='"another"') is first
    assert ask(kept, RECORD, META_DATA) is first


def test_a_path_that_is_spelt_in_many_ways_is_made_and_remembered_once(kept: Answers) -> None:
    first = ask(kept, RECORD, "/latest/meta-data")
    assert first is not None
    for number in range(50):
        slashes = "/" * number
        for path in (f"/{slashes}latest/meta-data/", f"/latest/meta%2Ddata/{slashes}"):
            assert ask(kept, RECORD, path) is first
    assert made(kept, RECORD) == 1


def test_what_is_not_there_takes_no_memory(kept: Answers) -> None:
    for number in range(50):
        assert ask(kept, RECORD, f"/latest/{number}") is None
    assert made(kept, RECORD) == 0


def test_answers_beyond_their_room_are_made_each_time(kept: Answers) -> None:
    large = replace(RECORD, metadata=f'{{"meta": {{"a": "{"b" * (answers.ANSWERS // 2)}"}}}}')
    paths = [f"/openstack/{version}/meta_data.json" for version in ("2012-08-10", "latest")]
    for path in [*paths, *paths]:
        assert len((ask(kept, large, path) or Answer(0)).body) > answers.ANSWERS // 2
    assert made(kept, large) == 1


def test_a_record_that_is_no_object_is_an_error_each_time(kept: Answers) -> None:
    broken = replace(RECORD, metadata="[]")
    for _ in range(2):
        with pytest.raises(StoreError):
            ask(kept, broken, HOSTNAME)
