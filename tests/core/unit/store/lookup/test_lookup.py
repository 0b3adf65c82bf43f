"""A record that is not stored should be fetched from upstream, kept, and served while it fails."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_address

import pytest

from dfmeta import metrics
from dfmeta.errors import LookupAnswerError, LookupAwayError, StoreError
from dfmeta.http.responses import HttpResponse
from dfmeta.runtime.throttle import FIRST_PAUSE, LONGEST_PAUSE, QUIET
from dfmeta.store.db.record import METADATA_ALONE, USERDATA_ALONE, Kind, Record
from dfmeta.store.db.repository import Repository
from dfmeta.store.lookup.upstream import AT_ONCE, pause
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    AWAY,
    BROKEN,
    LATE,
    METADATA,
    METADATA_OF,
    NONSENSE,
    NOT_FOUND,
    SCRIPT,
    USERDATA,
    USERDATA_OF,
    Asked,
    Build,
    OtherStore,
    content,
    hostname,
    metadata,
    numbered,
    push,
    reply,
    userdata,
)
from tests.core.unit.store.support import named, read
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness.tier import CLOCK

FAULTS = [
    (AWAY, LookupAwayError),
    (BROKEN, LookupAwayError),
    (reply({}, status=429), LookupAwayError),
    (reply({}, status=302), LookupAnswerError),
    (NONSENSE, LookupAnswerError),
]
"""Answers that are none, and the errors that they cause."""


def test_an_unknown_instance_is_fetched_by_its_id(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(http_tokens="required"), USERDATA: userdata()}
    puller = build()
    record = puller.get(INSTANCE.upper())
    assert (hostname(record), content(record)) == ("a", SCRIPT.encode())
    assert record is not None
    assert record.http_tokens == "required"
    assert puller.get(INSTANCE) == record
    accepted = [request.headers["accept"] for request in store.asked]
    assert accepted == ["application/vnd.dfmeta.record+json, application/json"] * 2
    assert store.targets() == [METADATA, USERDATA]
    assert puller.addresses(INSTANCE) == ("10.1.2.3/32",)


def test_an_unknown_address_is_fetched_by_it(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    record = puller.find(ADDRESS)
    assert hostname(record) == "a"
    assert puller.find(ADDRESS) == record == puller.get(INSTANCE)
    assert store.targets() == [METADATA_OF, USERDATA]
    assert puller.find(ip_address("2001:db8::9")) is None
    assert store.targets()[0] == "/device-metadata?ip_address=2001%3Adb8%3A%3A9"


def test_instance_of_userdata_alone_has_its_address(store: OtherStore, build: Build) -> None:
    store.answers = {USERDATA_OF: userdata()}
    puller = build()
    for _ in range(2):
        assert content(puller.find(ADDRESS)) == SCRIPT.encode()
    assert store.targets() == [METADATA_OF, USERDATA_OF, METADATA]


def test_only_a_uuid_is_queried(store: OtherStore, build: Build) -> None:
    assert build().get("default:host") is None
    assert build().refresh(Kind.METADATA, "../secrets") is None
    assert store.asked == []


def test_an_absent_record_is_queried_again_after_its_time(store: OtherStore, build: Build) -> None:
    puller = build(negative=1000)
    for _ in range(3):
        assert puller.get(INSTANCE) is None
        assert puller.find(ADDRESS) is None
    assert sorted(store.targets()) == sorted([METADATA, USERDATA, METADATA_OF, USERDATA_OF])
    store.url = f"{OtherStore.url}/api/v1/"
    without = build(negative=0)
    for _ in range(2):
        assert without.get(INSTANCE, METADATA_ALONE) is None
    assert store.targets() == [f"/api/v1{METADATA}"] * 2, "without a cache"
    store.answers = {METADATA: metadata(), METADATA_OF: metadata()}
    CLOCK.advance(900)
    assert puller.get(INSTANCE) is None
    CLOCK.advance(101)
    assert hostname(puller.get(INSTANCE)) == "a"


def test_a_record_that_does_not_name_the_address_is_not_there(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    for listed in (["10.1.2.4"], None):
        store.answers = {METADATA_OF: metadata(ipAddresses=listed)}
        assert build().find(ADDRESS) is None, listed
        assert repository.get(INSTANCE) is None, listed


# Pushed records


def test_pushed_half_stays(store: OtherStore, build: Build, repository: Repository) -> None:
    puller = build(expiry=60)
    assert puller.find(ADDRESS) is None
    push(repository, "pushed", "10.1.2.3")
    store.answers = {METADATA: metadata("upstream's"), METADATA_OF: metadata("upstream's")}
    store.asked.clear()
    for _ in range(2):
        assert hostname(puller.get(INSTANCE)) == "pushed"
        assert hostname(puller.find(ADDRESS)) == "pushed"
        CLOCK.advance(61)
    assert set(store.targets()) == {USERDATA}


def test_the_other_half_of_a_pushed_record_leaves_its_addresses_and_its_mode(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    for answer, expected in (
        (userdata(http_tokens="required"), SCRIPT.encode()),
        (reply(b"\x00\xff", kind="text/plain"), b"\x00\xff"),
    ):
        repository.delete(INSTANCE)
        push(repository, "pushed", "10.1.2.9")
        store.answers = {USERDATA: answer}
        record = build().get(INSTANCE)
        assert content(record) == expected
        assert read(repository).http_tokens is None
        assert repository.addresses(INSTANCE) == ("10.1.2.9/32",)


def test_push_during_query_stays(store: OtherStore, build: Build, repository: Repository) -> None:
    def pushing(answer: HttpResponse) -> None:
        def answered(_request: Asked) -> HttpResponse:
            CLOCK.advance(1)
            push(repository, "pushed", "10.1.2.3", "10.1.2.9")
            return answer

        store.answer = answered

    pushing(metadata("upstream's"))
    assert hostname(build().find(ADDRESS, METADATA_ALONE)) == "pushed"
    assert repository.addresses(INSTANCE) == ("10.1.2.3/32", "10.1.2.9/32")
    push(repository, "before")
    assert hostname(build().refresh(Kind.METADATA, INSTANCE)) == "pushed"
    repository.delete(INSTANCE)
    store.always(metadata("a"))
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)
    pushing(NOT_FOUND)
    CLOCK.advance(61)
    assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "pushed", "it is not removed"


def test_upstream_does_not_take_an_address_from_a_record_that_was_pushed(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", "10.1.2.3", "10.1.2.4")
    answer = metadata("b", of=OTHER_INSTANCE, ipAddresses=["10.1.2.4", "10.1.2.5"])
    store.answers = {f"/device-metadata?ip_address={ADDRESS + 2}": answer}
    assert hostname(build().find(ADDRESS + 2)) == "b"
    assert repository.addresses(OTHER_INSTANCE) == ("10.1.2.5/32",)
    assert hostname(repository.find(ADDRESS + 1)) == "pushed"
    moved = metadata("c", of=numbered(1), ipAddresses=["10.1.2.5", "10.1.2.6"])
    store.answers = {f"/device-metadata?ip_address={ADDRESS + 3}": moved}
    assert hostname(build().find(ADDRESS + 3)) == "c"
    assert hostname(build().find(ADDRESS + 2)) == "c", "from a fetched one it does"


# Failures


def test_failure_is_no_absence(store: OtherStore, build: Build, repository: Repository) -> None:
    for answer, error in FAULTS:
        store.always(answer)
        puller = build()
        with named(answer), pytest.raises(error) as caught:
            puller.get(INSTANCE)
        assert type(caught.value) is error, answer
        assert repository.get(INSTANCE) is None, answer
        store.answer = store.known
        store.answers = {METADATA: metadata()}
        CLOCK.advance(LONGEST_PAUSE)
        assert hostname(puller.get(INSTANCE)) == "a", answer
        repository.delete(INSTANCE)


def test_a_temporary_failure_is_retried(store: OtherStore, build: Build) -> None:
    answers = iter([BROKEN, LATE, metadata()])
    store.answer = lambda _request: next(answers)
    assert hostname(build(retries=2).get(INSTANCE, METADATA_ALONE)) == "a"
    for answer, error, tries in ((BROKEN, LookupAwayError, 3), (NONSENSE, LookupAnswerError, 1)):
        store.asked.clear()
        store.always(answer)
        with pytest.raises(error):
            build(retries=2).get(OTHER_INSTANCE)
        assert len(store.asked) == tries, answer


def test_all_tries_share_their_time(store: OtherStore, build: Build) -> None:
    def late(request: Asked) -> LookupAwayError:
        CLOCK.advance(request.deadline - CLOCK.now())
        return LATE

    store.answer = late
    began = CLOCK.now()
    with pytest.raises(LookupAwayError):
        build(retries=2, timeout=1).get(INSTANCE)
    assert len(store.asked) == 3
    assert CLOCK.now() - began == pytest.approx(3)


def test_pauses_between_tries_grow_and_differ() -> None:
    for attempt, least in ((1, FIRST_PAUSE), (3, 4 * FIRST_PAUSE), (9, LONGEST_PAUSE)):
        pauses = {pause(attempt) for _ in range(20)}
        assert len(pauses) > 1
        assert all(least <= pause <= 2 * least for pause in pauses), attempt


def test_a_failed_query_rests_and_others_go_on(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: BROKEN}
    puller = build()
    for _ in range(5):
        with pytest.raises(LookupAwayError, match="answers 500"):
            puller.get(INSTANCE)
    assert puller.get(OTHER_INSTANCE) is None
    assert store.targets().count(METADATA) == 1
    CLOCK.advance(LONGEST_PAUSE)
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    assert store.targets() == [METADATA]


def test_upstream_that_fails_twice_rests_for_all_queries(store: OtherStore, build: Build) -> None:
    for answer, queries in ((BROKEN, 2), (AWAY, 1)):
        store.asked.clear()
        store.always(answer)
        puller = build()
        for number in range(5):
            with pytest.raises(LookupAwayError):
                puller.find(ip_address(f"10.0.0.{number}"))
        assert len(store.asked) == queries, answer


def test_a_failure_is_logged_once_in_a_while(
    store: OtherStore, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    store.always(reply(SCRIPT.encode(), status=500))
    puller = build()
    for rest, lines in ((LONGEST_PAUSE, 1), (QUIET, 1), (LONGEST_PAUSE, 2)):
        with pytest.raises(LookupAwayError):
            puller.get(INSTANCE)
        assert len(caplog.records) == lines
        CLOCK.advance(rest)
    assert "answers 500" in caplog.text
    assert SCRIPT not in caplog.text


def test_queries_are_counted_by_their_outcome(store: OtherStore, build: Build) -> None:
    def counted() -> dict[str, float]:
        name, get = "dfmeta_store_lookups_total", metrics.REGISTRY.get_sample_value
        outcomes = ("found", "absent", "away", "nonsense")
        return {outcome: get(name, {"outcome": outcome}) or 0.0 for outcome in outcomes}

    before, get = counted(), metrics.REGISTRY.get_sample_value
    left_out = get("dfmeta_store_keys_left_out_total") or 0.0
    puller = build()
    odd = {"id": INSTANCE, "ssh_keys": ["ssh-rsa AAAA", "web1"]}
    store.answers = {METADATA: reply({"id": INSTANCE, "metadata": odd}), USERDATA: BROKEN}
    with pytest.raises(LookupAwayError):
        puller.get(INSTANCE)
    store.answers = {USERDATA: NONSENSE}
    CLOCK.advance(LONGEST_PAUSE)
    with pytest.raises(LookupAnswerError):
        puller.get(INSTANCE)
    assert puller.find(ADDRESS + 100) is None
    counts = {outcome: count - before[outcome] for outcome, count in counted().items()}
    assert counts == {"found": 1, "absent": 2, "away": 1, "nonsense": 1}
    assert get("dfmeta_store_keys_left_out_total") == left_out + 1


def test_absent_userdata_stays_absent_without_upstream(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata()}
    puller = build(negative=10)
    puller.get(INSTANCE)
    assert puller.get(OTHER_INSTANCE) is None
    store.always(BROKEN)
    store.asked.clear()
    CLOCK.advance(1000)
    for _ in range(5):
        record = puller.get(INSTANCE)
        assert (hostname(record), content(record)) == ("a", None)
    assert store.targets() == [USERDATA]
    with pytest.raises(LookupAwayError):
        puller.get(OTHER_INSTANCE)


# Expiry


def test_expired_half_is_fetched_again(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata("a"), METADATA: metadata("b"), USERDATA: userdata()}
    for expiry, first in ((6000, "a"), (0, "b")):
        puller = build(expiry=expiry)
        assert hostname(puller.find(ADDRESS)) == first
        CLOCK.advance(5000)
        assert hostname(puller.find(ADDRESS)) == first
        CLOCK.advance(1001)
        assert hostname(puller.find(ADDRESS)) == "b"
    assert store.targets().count(METADATA) == 1, "without an expiry it is kept"


def test_address_moved_upstream_is_its_new_owners(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata("a")}
    puller = build(expiry=60)
    puller.find(ADDRESS)
    store.answers = {
        METADATA: metadata("a", ipAddresses=["10.9.9.9"]),
        METADATA_OF: metadata("b", of=OTHER_INSTANCE),
        f"/device-metadata/{OTHER_INSTANCE}": metadata("b", of=OTHER_INSTANCE),
    }
    CLOCK.advance(61)
    record = puller.find(ADDRESS)
    assert hostname(record) == "b"
    assert record is not None
    assert record.id == OTHER_INSTANCE


def test_expired_record_is_kept(store: OtherStore, build: Build, repository: Repository) -> None:
    for answer, _error in FAULTS:
        repository.delete(INSTANCE)
        store.answer = store.known
        store.answers = {METADATA: metadata("a"), USERDATA: userdata()}
        puller = build(expiry=60)
        puller.get(INSTANCE)
        store.always(answer)
        store.asked.clear()
        CLOCK.advance(61)
        for _ in range(5):
            assert hostname(puller.get(INSTANCE)) == "a", answer
            assert hostname(puller.find(ADDRESS)) == "a", answer
        assert len(store.asked) <= 2, answer
        store.answer = store.known
        store.answers[METADATA] = metadata("b")
        CLOCK.advance(LONGEST_PAUSE)
        assert hostname(puller.get(INSTANCE)) == "b", answer


def test_an_older_document_of_upstream_is_not_taken(store: OtherStore, build: Build) -> None:
    def at(name: str, day: int) -> HttpResponse:
        document = {"hostname": name, "updated_at": f"2026-01-0{day}T00:00:00Z"}
        return metadata(metadata=document)

    store.answers = {METADATA: at("new", 2)}
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)
    store.answers = {METADATA: at("old", 1)}
    CLOCK.advance(61)
    for _ in range(3):
        assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "new"
    assert len(store.asked) == 2


# Refresh


def test_refresh_asks_upstream(store: OtherStore, build: Build, repository: Repository) -> None:
    puller = build()
    assert puller.get(INSTANCE) is None
    store.answers = {METADATA: metadata("a"), USERDATA: userdata()}
    assert hostname(puller.refresh(Kind.METADATA, INSTANCE.upper())) == "a"
    push(repository, "pushed", "10.1.2.9")
    assert hostname(puller.refresh(Kind.METADATA, INSTANCE)) == "a"
    assert repository.addresses(INSTANCE) == ("10.1.2.0/28",)
    puller.refresh(Kind.USERDATA, INSTANCE)
    push(repository, "pushed")
    store.answers = {}
    assert puller.refresh(Kind.METADATA, INSTANCE) is None
    assert puller.refresh(Kind.USERDATA, INSTANCE) is None
    assert hostname(read(repository)) == "pushed", "a pushed half stays"
    assert read(repository).userdata is None


# Callers at once


CALLERS = 20


def at_once(store: OtherStore, ask: Callable[[], Record | None]) -> list[Future[Record | None]]:
    """Ask in threads; upstream answers once all have begun."""
    begun, answer = threading.Semaphore(0), store.answer

    def one() -> Record | None:
        begun.release()
        return ask()

    def late(request: Asked) -> HttpResponse | StoreError:
        if len(store.asked) == 1:
            for _ in range(CALLERS):
                begun.acquire()
        return answer(request)

    store.answer = late
    with ThreadPoolExecutor(CALLERS) as pool:
        return [pool.submit(one) for _ in range(CALLERS)]


def test_callers_at_once_share_one_query(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    records = at_once(store, lambda: puller.find(ADDRESS))
    assert {hostname(record.result()) for record in records} == {"a"}
    assert store.targets() == [METADATA_OF, USERDATA]


def test_an_expired_record_is_served_while_it_is_fetched(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata("a")}
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)
    CLOCK.advance(61)
    request, go = threading.Event(), threading.Event()

    def answer(_request: Asked) -> HttpResponse:
        request.set()
        go.wait()
        return metadata("b")

    store.answer = answer
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: puller.get(INSTANCE, METADATA_ALONE))
        request.wait()
        assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "a"
        go.set()
        assert hostname(first.result()) == "b"


def test_userdata_takes_no_turn_from_metadata(store: OtherStore, build: Build) -> None:
    waiting, go = threading.Semaphore(0), threading.Event()

    def answer(request: Asked) -> HttpResponse:
        if "userdata" in request.target:
            waiting.release()
            go.wait()
            return NOT_FOUND
        return metadata(of=request.target.rpartition("/")[2])

    store.answer = answer
    puller = build()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [
            pool.submit(puller.get, numbered(number), USERDATA_ALONE) for number in range(AT_ONCE)
        ]
        for _ in range(AT_ONCE):
            waiting.acquire()
        for number in range(AT_ONCE):
            assert hostname(puller.get(numbered(number), METADATA_ALONE)) == "a"
        assert not any(future.done() for future in futures)
        go.set()
