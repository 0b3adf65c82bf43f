"""A failure of upstream should be an error, never "not there", and what is known be served."""

from __future__ import annotations

import logging
import time
from ipaddress import ip_address

import pytest

from dfmeta import metrics
from dfmeta.exceptions import LookupAnswerError, LookupAwayError
from dfmeta.quiet import QUIET
from dfmeta.store.db.repository import Repository
from dfmeta.store.guest.need import METADATA_ALONE
from dfmeta.store.lookup.memory import REST
from dfmeta.store.lookup.puller import LATER
from dfmeta.store.lookup.upstream import pause
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    BROKEN,
    FAULTS,
    METADATA,
    METADATA_OF,
    ON_SQLITE,
    SCRIPT,
    USERDATA,
    Build,
    Clock,
    hostname,
    limit,
    metadata,
    push,
    slow,
    userdata,
)
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.other_store import NOT_FOUND, Last, OtherStore, reply


@ON_SQLITE
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_an_error_and_never_not_there(
    store: OtherStore, build: Build, repository: Repository, clock: Clock, fault: str
) -> None:
    answer, error = FAULTS[fault]
    store.answer = answer(store)
    puller = build()
    if fault == "slow":
        limit(puller, 0.2)
    with pytest.raises(error) as caught:
        puller.get(INSTANCE)
    assert type(caught.value) is error
    assert repository.get(INSTANCE) is None
    limit(puller, 60)
    store.answer = lambda asked: metadata() if asked.target == METADATA else NOT_FOUND
    clock.ahead += REST
    assert hostname(puller.get(INSTANCE)) == "a"


def test_an_upstream_that_is_away_is_an_error(store: OtherStore, build: Build) -> None:
    store.stop()
    with pytest.raises(LookupAwayError, match="refused"):
        build().find(ADDRESS)


def test_what_may_pass_is_tried_again(store: OtherStore, build: Build) -> None:
    said = iter([BROKEN, Last(b""), metadata()])
    store.answer = lambda _asked: next(said)
    assert hostname(build(retries=2).get(INSTANCE, METADATA_ALONE)) == "a"
    assert len(store.asked) == 3


@pytest.mark.parametrize("said", [BROKEN, Last(b"")])
def test_but_not_for_ever(store: OtherStore, build: Build, said: bytes) -> None:
    store.answer = lambda _asked: said
    with pytest.raises(LookupAwayError):
        build(retries=2).get(INSTANCE)
    assert len(store.asked) == 3


def test_nonsense_is_not_tried_again(store: OtherStore, build: Build) -> None:
    store.answer = lambda _asked: reply(b"nonsense")
    with pytest.raises(LookupAnswerError):
        build(retries=2).get(INSTANCE)
    assert len(store.asked) == 1


@ON_SQLITE
def test_a_slow_upstream_costs_no_more_than_its_tries_may_take(
    store: OtherStore, build: Build
) -> None:
    store.answer = slow(store)
    began = time.monotonic()
    with pytest.raises(LookupAwayError):
        build(retries=2, timeout=1).get(INSTANCE)
    # A host that trickles would be waited for without end.
    assert 2.5 < time.monotonic() - began < 10
    assert len(store.asked) == 3


def test_waits_grow_and_differ() -> None:
    for attempt, least in ((1, 0.05), (2, 0.1), (3, 0.2), (9, 0.5)):
        waits = {pause(attempt) for _ in range(20)}
        assert len(waits) > 1
        assert all(least <= wait <= 2 * least for wait in waits)


def test_a_failure_is_not_waited_for_by_each_guest_of_a_storm(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answer = lambda _asked: BROKEN
    puller = build()
    for _ in range(5):
        with pytest.raises(LookupAwayError, match="answers 500"):
            puller.get(INSTANCE)
    assert len(store.asked) == 1
    clock.ahead = REST
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert len(store.asked) == 2


def test_one_broken_record_keeps_nobody_from_theirs(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: BROKEN}
    puller = build()
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert puller.get(OTHER_INSTANCE) is None
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert store.targets().count(METADATA) == 1


def test_an_upstream_that_fails_twice_in_a_row_rests_for_all(
    store: OtherStore, build: Build
) -> None:
    store.answer = lambda _asked: BROKEN
    puller = build()
    for number in range(5):
        with pytest.raises(LookupAwayError):
            puller.find(ip_address(f"10.0.0.{number}"))
    assert len(store.asked) == 2


def test_a_failure_is_said_once_in_the_log(
    store: OtherStore, build: Build, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store.answer = lambda _asked: reply(SCRIPT.encode(), status=500)
    puller = build()
    for _ in range(3):
        with pytest.raises(LookupAwayError):
            puller.get(INSTANCE)
        clock.ahead += REST
    assert len(caplog.records) == 1
    assert "answers 500" in caplog.text
    assert SCRIPT not in caplog.text
    clock.ahead += QUIET
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert len(caplog.records) == 2


def test_questions_are_counted_by_what_came_of_them(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    def counted() -> dict[str, float]:
        name = "dfmeta_store_lookups_total"
        outcomes = ("found", "absent", "away", "nonsense")
        get = metrics.REGISTRY.get_sample_value
        return {one: get(name, {"outcome": one}) or 0.0 for one in outcomes}

    before = counted()
    puller = build()
    store.answers = {METADATA: metadata(), USERDATA: BROKEN}
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    store.answers = {USERDATA: reply(b"nonsense")}
    clock.ahead = REST
    with pytest.raises(LookupAnswerError):
        puller.get(INSTANCE)
    assert puller.find(ADDRESS + 100) is None
    after = counted()
    assert {one: after[one] - before[one] for one in after} == {
        "found": 1,
        "absent": 2,
        "away": 1,
        "nonsense": 1,
    }


def test_what_was_fetched_is_asked_for_again_when_it_has_expired(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answers = {METADATA_OF: metadata("a"), METADATA: metadata("b")}
    puller = build(expiry=6000)
    assert hostname(puller.find(ADDRESS)) == "a"
    clock.ahead = 5000
    assert hostname(puller.find(ADDRESS)) == "a"
    clock.ahead = 6001
    assert hostname(puller.find(ADDRESS)) == "b"


def test_without_an_expiry_it_is_not(store: OtherStore, build: Build, clock: Clock) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build()
    puller.get(INSTANCE)
    clock.ahead = 1e9
    assert hostname(puller.get(INSTANCE)) == "a"
    assert len(store.asked) == 2


def test_what_has_expired_and_is_not_there_any_more_is_gone(
    store: OtherStore, build: Build, clock: Clock, repository: Repository
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build(expiry=60)
    puller.get(INSTANCE)
    store.answers = {}
    clock.ahead = 61
    assert puller.find(ADDRESS) is None
    assert repository.get(INSTANCE) is None
    assert repository.find(ADDRESS) is None


def test_an_address_that_has_moved_upstream_is_its_new_owners(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answers = {METADATA_OF: metadata("a")}
    puller = build(expiry=60)
    puller.find(ADDRESS)
    store.answers = {
        METADATA: metadata("a", ipAddresses=["10.9.9.9"]),
        METADATA_OF: metadata("b", of=OTHER_INSTANCE),
        f"/device-metadata/{OTHER_INSTANCE}": metadata("b", of=OTHER_INSTANCE),
    }
    clock.ahead = 61
    record = puller.find(ADDRESS)
    assert hostname(record) == "b"
    assert record is not None
    assert record.id == OTHER_INSTANCE


@ON_SQLITE
@pytest.mark.parametrize("fault", FAULTS)
def test_while_upstream_fails_what_has_expired_is_served(
    store: OtherStore, build: Build, clock: Clock, fault: str
) -> None:
    store.answers = {METADATA: metadata("a"), USERDATA: userdata()}
    puller = build(expiry=60, retries=1)
    puller.get(INSTANCE)
    if fault == "slow":
        limit(puller, 0.2, retries=1)
    well, store.answer = store.answer, FAULTS[fault][0](store)
    store.asked.clear()
    clock.ahead = 61
    for _ in range(5):
        assert hostname(puller.get(INSTANCE)) == "a"
        assert hostname(puller.find(ADDRESS)) == "a"
    # Once for each half, and once more where a kept connection may just have been closed.
    assert len(store.asked) <= 3
    limit(puller, 60, retries=1)
    store.answer = well
    store.answers[METADATA] = metadata("b")
    clock.ahead += LATER
    assert hostname(puller.get(INSTANCE)) == "b"


def test_what_upstream_did_not_have_is_not_there_while_it_is_away(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answers = {METADATA: metadata()}
    puller = build(negative=10)
    puller.get(INSTANCE)
    store.answer = lambda _asked: BROKEN
    store.asked.clear()
    clock.ahead = 1000
    for _ in range(5):
        record = puller.get(INSTANCE)
        assert hostname(record) == "a"
        assert record is not None
        assert record.userdata is None
    assert store.targets() == [USERDATA]


def test_but_an_instance_of_which_nothing_is_known_is_an_error_then(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    puller = build()
    assert puller.get(INSTANCE) is None
    store.stop()
    clock.ahead = 1000
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)


def test_whether_there_is_userdata_is_an_error_when_nobody_could_be_asked(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed")
    store.stop()
    puller = build()
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "pushed"


def test_what_upstream_calls_older_than_what_is_here_is_not_taken(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    def at(name: str, day: int) -> bytes:
        document = {"hostname": name, "updated_at": f"2026-01-0{day}T00:00:00Z"}
        return metadata(metadata=document)

    store.answers = {METADATA: at("new", 2)}
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)
    store.answers = {METADATA: at("old", 1)}
    clock.ahead = 61
    for _ in range(3):
        assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "new"
    assert len(store.asked) == 2
