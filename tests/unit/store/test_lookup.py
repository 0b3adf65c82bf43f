"""What is not here should be asked of upstream once, kept, and served while upstream is away."""

from __future__ import annotations

import base64
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from dfmeta import metrics
from dfmeta.cmd import lookup as from_configuration
from dfmeta.exceptions import LookupAnswerError, LookupAwayError, StoreError
from dfmeta.store.lookup import LATER, Lifetimes, Puller
from dfmeta.store.lookup_http import Client
from dfmeta.store.lookup_memory import QUIET, REST, Flights, Memory
from dfmeta.store.lookup_upstream import Patience, Upstream, pause
from dfmeta.store.networks import Address
from dfmeta.store.record import Kind, Record, parse_document
from dfmeta.store.repository import Repository
from tests.harness.other_store import NOT_FOUND, Asked, Last, OtherStore, Reset, reply
from tests.harness.poll import wait_for
from tests.unit.store.conftest import INSTANCE
from tests.unit.support import OTHER_INSTANCE, Load

ROOT = Path(__file__).parents[3]
ADDRESS = IPv4Address("10.1.2.3")
METADATA = f"/device-metadata/{INSTANCE}"
USERDATA = f"/device-userdata/{INSTANCE}"
METADATA_OF = f"/device-metadata?ip_address={ADDRESS}"
USERDATA_OF = f"/device-userdata?ip_address={ADDRESS}"
SCRIPT = "#!/bin/sh\n"
BROKEN = reply({"message": "internal error"}, status=500)


class Clock:
    """Moves when it is told to, and the time of day with it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.ahead)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Iterator[OtherStore]:
    with OtherStore() as store:
        yield store


Build = Callable[..., Puller]


@pytest.fixture
def build(repository: Repository, store: OtherStore, clock: Clock) -> Iterator[Build]:
    pullers = []

    def build(
        *,
        negative: float = 10,
        expiry: float = 0,
        retries: int = 0,
        timeout: float = 5,
        url: str = "",
    ) -> Puller:
        upstream = Upstream(
            url or store.url,
            client=Client(),
            patience=Patience(timeout, retries),
            wait=lambda _try: 0.0,
        )
        lifetimes = Lifetimes(negative, expiry)
        puller = Puller(repository, upstream, lifetimes=lifetimes, clock=clock, now=clock.now)
        pullers.append(puller)
        return puller

    yield build
    for puller in pullers:
        puller.close()


def metadata(hostname: str = "a", *, of: str = INSTANCE, **members: object) -> bytes:
    document = {"id": of, "hostname": hostname}
    return reply({"id": of, "ipAddresses": [f"{ADDRESS}/28"], "metadata": document, **members})


def userdata(text: str = SCRIPT, **members: object) -> bytes:
    return reply({"id": INSTANCE, "ipAddresses": [str(ADDRESS)], "userdata": text, **members})


def hostname(record: Record | None) -> object:
    assert record is not None
    return parse_document(record.id, record.metadata).get("hostname")


def push(repository: Repository, name: str, *, networks: tuple[str, ...] = ()) -> None:
    repository.push(
        Kind.METADATA,
        INSTANCE,
        content={"hostname": name},
        networks=[ip_network(one) for one in networks],
    )


# What is asked, and when.


def test_an_unknown_instance_is_asked_for_by_its_id(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build()
    record = puller.get(INSTANCE.upper())
    assert hostname(record) == "a"
    assert record is not None
    assert record.userdata == SCRIPT.encode()
    assert puller.get(INSTANCE) == record
    assert store.targets() == [METADATA, USERDATA]
    accepted = [asked.headers["accept"] for asked in store.asked]
    assert accepted == ["application/vnd.dfmeta.record+json, application/json"] * 2
    assert puller.addresses(INSTANCE) == ("10.1.2.3/32",)


def test_an_unknown_address_is_asked_for_by_it(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    record = puller.find(ADDRESS)
    assert hostname(record) == "a"
    assert puller.find(ADDRESS) == record == puller.get(INSTANCE)
    assert store.targets() == [METADATA_OF, USERDATA]


def test_one_that_has_userdata_alone_is_found_as_well(store: OtherStore, build: Build) -> None:
    store.answers = {USERDATA_OF: userdata()}
    puller = build()
    for _ in range(2):
        record = puller.find(ADDRESS)
        assert record is not None
        assert record.userdata == SCRIPT.encode()
    assert store.targets() == [METADATA_OF, USERDATA_OF, METADATA]


def test_an_ipv6_address_is_escaped(store: OtherStore, build: Build) -> None:
    assert build().find(ip_address("2001:db8::9")) is None
    assert store.targets()[0] == "/device-metadata?ip_address=2001%3Adb8%3A%3A9"


def test_a_path_of_upstreams_is_kept(store: OtherStore, build: Build) -> None:
    build(url=f"{store.url}/api/v1/").get(INSTANCE, kinds=[Kind.METADATA])
    assert store.targets() == [f"/api/v1{METADATA}"]


def test_only_what_is_needed_is_asked_for(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build()
    assert hostname(puller.get(INSTANCE, kinds=[Kind.METADATA])) == "a"
    assert store.targets() == [METADATA]
    puller.get(INSTANCE, kinds=[Kind.USERDATA])
    assert store.targets() == [METADATA, USERDATA]


def test_what_has_no_uuid_is_not_asked_for(store: OtherStore, build: Build) -> None:
    assert build().get("default:host") is None
    assert build().refresh(Kind.METADATA, "../secrets") is None
    assert store.asked == []


def test_an_upstream_of_the_original_is_understood(store: OtherStore, build: Build) -> None:
    envelope = {"id": INSTANCE, "ipAddresses": [str(ADDRESS)]}
    coded = base64.b64encode(SCRIPT.encode()).decode()
    store.answers = {
        METADATA_OF: reply({**envelope, "metadata": '{"hostname": "a"}'}, kind="text/plain"),
        USERDATA: reply({**envelope, "userdata": coded}, kind="text/plain"),
    }
    record = build().find(ADDRESS)
    assert hostname(record) == "a"
    assert record is not None
    assert record.userdata == SCRIPT.encode()


def test_one_that_gives_the_content_alone_leaves_addresses_as_they_are(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3",))
    store.answers = {USERDATA: reply(b"\x00\xff", kind="text/plain")}
    puller = build()
    record = puller.find(ADDRESS)
    assert record is not None
    assert record.userdata == b"\x00\xff"
    assert puller.addresses(INSTANCE) == ("10.1.2.3/32",)


def test_a_mode_of_tokens_is_kept(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata(http_tokens="required")}
    record = build().get(INSTANCE)
    assert record is not None
    assert record.http_tokens == "required"


# What is not there.


def test_what_is_not_there_is_not_asked_for_again_for_a_while(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    puller = build(negative=10)
    for _ in range(3):
        assert puller.get(INSTANCE) is None
        assert puller.find(ADDRESS) is None
    assert sorted(store.targets()) == sorted([METADATA, USERDATA, METADATA_OF, USERDATA_OF])
    store.answers = {METADATA: metadata(), METADATA_OF: metadata()}
    clock.ahead = 9
    assert puller.get(INSTANCE) is None
    clock.ahead = 11
    assert hostname(puller.get(INSTANCE)) == "a"


def test_what_is_pushed_meanwhile_is_there(build: Build, repository: Repository) -> None:
    puller = build()
    assert puller.find(ADDRESS) is None
    push(repository, "pushed", networks=("10.1.2.0/24",))
    assert hostname(puller.find(ADDRESS)) == "pushed"


def test_without_a_negative_cache_it_is_asked_for_each_time(
    store: OtherStore, build: Build
) -> None:
    puller = build(negative=0)
    for _ in range(2):
        assert puller.get(INSTANCE, kinds=[Kind.METADATA]) is None
    assert store.targets() == [METADATA, METADATA]


@pytest.mark.parametrize("listed", [["10.1.2.4"], ["10.0.0.0/16"], [], None])
def test_a_record_that_does_not_name_the_address_is_not_there(
    store: OtherStore, build: Build, repository: Repository, listed: object
) -> None:
    store.answers = {METADATA_OF: metadata(ipAddresses=listed)}
    assert build().find(ADDRESS) is None
    assert repository.get(INSTANCE) is None


# What fails.


def slow(store: OtherStore) -> Callable[[Asked], Iterator[bytes]]:
    return lambda _asked: store.trickle(b"", b"H")


def resets(_asked: Asked) -> bytes:
    raise Reset


FAULTS: dict[str, tuple[Callable[[OtherStore], Any], type[StoreError]]] = {
    "slow": (slow, LookupAwayError),
    "reset": (lambda _: resets, LookupAwayError),
    "half a body": (lambda _: lambda _asked: Last(metadata()[:-5]), LookupAwayError),
    "no answer": (lambda _: lambda _asked: Last(b""), LookupAwayError),
    "500": (lambda _: lambda _asked: BROKEN, LookupAwayError),
    "429": (lambda _: lambda _asked: reply({}, status=429), LookupAwayError),
    "403": (lambda _: lambda _asked: reply({}, status=403), LookupAnswerError),
    "302": (lambda _: lambda _asked: reply({}, status=302), LookupAnswerError),
    "no JSON": (lambda _: lambda _asked: reply(b"<html>"), LookupAnswerError),
    "NaN": (lambda _: lambda _asked: reply(b'{"a": NaN}'), LookupAnswerError),
    "not HTTP": (lambda _: lambda _asked: Last(b"220 mail\r\n"), LookupAnswerError),
    "another id": (lambda _: lambda _asked: metadata(of=OTHER_INSTANCE), LookupAnswerError),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_an_error_and_never_not_there(
    store: OtherStore, build: Build, repository: Repository, clock: Clock, fault: str
) -> None:
    answer, error = FAULTS[fault]
    store.answer = answer(store)
    puller = build(timeout=0.2 if fault == "slow" else 5)
    with pytest.raises(error) as caught:
        puller.get(INSTANCE)
    assert type(caught.value) is error
    assert repository.get(INSTANCE) is None
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
    assert hostname(build(retries=2).get(INSTANCE, kinds=[Kind.METADATA])) == "a"
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


def test_a_slow_upstream_costs_no_more_than_its_tries_may_take(
    store: OtherStore, build: Build
) -> None:
    store.answer = slow(store)
    began = time.monotonic()
    with pytest.raises(LookupAwayError):
        build(retries=2, timeout=0.2).get(INSTANCE)
    assert 0.5 < time.monotonic() - began < 3
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


# What is known.


def test_what_was_fetched_is_asked_for_again_when_it_has_expired(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answers = {METADATA_OF: metadata("a"), METADATA: metadata("b")}
    puller = build(expiry=60)
    assert hostname(puller.find(ADDRESS)) == "a"
    clock.ahead = 59
    assert hostname(puller.find(ADDRESS)) == "a"
    clock.ahead = 61
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


@pytest.mark.parametrize("fault", FAULTS)
def test_while_upstream_fails_what_has_expired_is_served(
    store: OtherStore, build: Build, clock: Clock, fault: str
) -> None:
    store.answers = {METADATA: metadata("a"), USERDATA: userdata()}
    puller = build(expiry=60, retries=1, timeout=0.2 if fault == "slow" else 5)
    puller.get(INSTANCE)
    well, store.answer = store.answer, FAULTS[fault][0](store)
    store.asked.clear()
    clock.ahead = 61
    for _ in range(5):
        assert hostname(puller.get(INSTANCE)) == "a"
        assert hostname(puller.find(ADDRESS)) == "a"
    # Once for each half, and once more where a kept connection may just have been closed.
    assert len(store.asked) <= 3
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
    assert hostname(puller.get(INSTANCE, kinds=[Kind.METADATA])) == "pushed"


def test_what_upstream_calls_older_than_what_is_here_is_not_taken(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    def at(name: str, day: int) -> bytes:
        document = {"hostname": name, "updated_at": f"2026-01-0{day}T00:00:00Z"}
        return metadata(metadata=document)

    store.answers = {METADATA: at("new", 2)}
    puller = build(expiry=60)
    puller.get(INSTANCE, kinds=[Kind.METADATA])
    store.answers = {METADATA: at("old", 1)}
    clock.ahead = 61
    for _ in range(3):
        assert hostname(puller.get(INSTANCE, kinds=[Kind.METADATA])) == "new"
    assert len(store.asked) == 2


# What was pushed.


def test_what_was_pushed_is_neither_asked_for_nor_expires(
    store: OtherStore, build: Build, clock: Clock, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3",))
    store.answers = {METADATA: metadata("upstream's"), METADATA_OF: metadata("upstream's")}
    puller = build(expiry=60)
    for _ in range(2):
        assert hostname(puller.get(INSTANCE)) == "pushed"
        assert hostname(puller.find(ADDRESS)) == "pushed"
        clock.ahead += 61
    assert set(store.targets()) == {USERDATA}


def test_its_other_half_is_asked_for_and_leaves_its_addresses(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.9",))
    store.answers = {USERDATA: userdata(http_tokens="required")}
    record = build().get(INSTANCE)
    assert record is not None
    assert record.userdata == SCRIPT.encode()
    assert record.http_tokens is None
    assert repository.addresses(INSTANCE) == ("10.1.2.9/32",)


def test_what_is_pushed_while_upstream_is_asked_stays(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    def answer(_asked: Asked) -> bytes:
        push(repository, "pushed", networks=("10.1.2.3", "10.1.2.9"))
        return metadata("upstream's")

    store.answer = answer
    record = build().find(ADDRESS, kinds=[Kind.METADATA])
    assert hostname(record) == "pushed"
    assert repository.addresses(INSTANCE) == ("10.1.2.3/32", "10.1.2.9/32")


def test_what_is_pushed_while_upstream_is_asked_is_not_removed(
    store: OtherStore, build: Build, clock: Clock, repository: Repository
) -> None:
    store.answers = {METADATA: metadata("a")}
    puller = build(expiry=60)
    puller.get(INSTANCE, kinds=[Kind.METADATA])

    def answer(_asked: Asked) -> bytes:
        push(repository, "pushed")
        return NOT_FOUND

    store.answer = answer
    clock.ahead = 61
    assert hostname(puller.get(INSTANCE, kinds=[Kind.METADATA])) == "pushed"


def test_upstream_does_not_take_an_address_from_a_record_that_was_pushed(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.3", "10.1.2.4"))
    answer = metadata("b", of=OTHER_INSTANCE, ipAddresses=["10.1.2.4", "10.1.2.5"])
    store.answers = {f"/device-metadata?ip_address={ADDRESS + 2}": answer}
    puller = build()
    assert hostname(puller.find(ADDRESS + 2)) == "b"
    assert repository.addresses(OTHER_INSTANCE) == ("10.1.2.5/32",)
    assert hostname(repository.find(ADDRESS + 1)) == "pushed"


def test_it_does_from_one_that_was_fetched(store: OtherStore, build: Build) -> None:
    answer = metadata("b", of=OTHER_INSTANCE, ipAddresses=["10.1.2.3", "10.1.2.5"])
    store.answers = {
        METADATA_OF: metadata("a", ipAddresses=["10.1.2.3"]),
        f"/device-metadata?ip_address={ADDRESS + 2}": answer,
    }
    puller = build()
    assert hostname(puller.find(ADDRESS)) == "a"
    assert hostname(puller.find(ADDRESS + 2)) == "b"
    assert hostname(puller.find(ADDRESS)) == "b"


def test_an_address_that_a_pushed_record_is_said_to_have_and_has_not_is_nobodys(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "pushed", networks=("10.1.2.9",))
    store.answers = {METADATA_OF: metadata("a", ipAddresses=[str(ADDRESS)])}
    puller = build()
    for _ in range(2):
        assert puller.find(ADDRESS) is None
    assert store.targets() == [METADATA_OF, USERDATA_OF]


# Refreshing.


def test_a_refresh_asks_now_whatever_is_stored(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    puller = build()
    assert puller.get(INSTANCE) is None
    store.answers = {METADATA: metadata("a")}
    assert hostname(puller.refresh(Kind.METADATA, INSTANCE.upper())) == "a"
    push(repository, "pushed", networks=("10.1.2.9",))
    assert hostname(puller.refresh(Kind.METADATA, INSTANCE)) == "a"
    assert repository.addresses(INSTANCE) == ("10.1.2.0/28",)


def test_a_refresh_of_what_upstream_has_not_is_none(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    store.answers = {METADATA: metadata(), USERDATA: userdata()}
    puller = build()
    puller.get(INSTANCE)
    push(repository, "pushed")
    store.answers = {}
    assert puller.refresh(Kind.METADATA, INSTANCE) is None
    assert puller.refresh(Kind.USERDATA, INSTANCE) is None
    record = repository.get(INSTANCE)
    assert hostname(record) == "pushed"
    assert record is not None
    assert record.userdata is None


def test_what_is_pushed_during_a_refresh_stays(
    store: OtherStore, build: Build, repository: Repository
) -> None:
    push(repository, "before")

    def answer(_asked: Asked) -> bytes:
        push(repository, "pushed")
        return metadata("upstream's")

    store.answer = answer
    assert hostname(build().refresh(Kind.METADATA, INSTANCE)) == "pushed"


def test_a_refresh_says_when_upstream_fails(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata()}
    puller = build()
    puller.get(INSTANCE, kinds=[Kind.METADATA])
    store.answer = lambda _asked: BROKEN
    with pytest.raises(LookupAwayError):
        puller.refresh(Kind.METADATA, INSTANCE)
    store.answer = lambda _asked: reply(b"nonsense")
    with pytest.raises(LookupAnswerError):
        puller.refresh(Kind.METADATA, INSTANCE)


# Many at once.


def at_once(count: int, ask: Callable[[], Record | None]) -> list[Future[Record | None]]:
    gate = threading.Barrier(count)

    def one() -> Record | None:
        gate.wait()
        return ask()

    with ThreadPoolExecutor(count) as pool:
        return [pool.submit(one) for _ in range(count)]


def test_fifty_at_once_make_one_call(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    found = at_once(50, lambda: puller.find(ADDRESS))
    assert {hostname(one.result()) for one in found} == {"a"}
    assert store.targets() == [METADATA_OF, USERDATA]


def test_fifty_at_once_get_one_error(store: OtherStore, build: Build) -> None:
    store.answer = lambda _asked: BROKEN
    puller = build()
    for one in at_once(50, lambda: puller.get(INSTANCE)):
        with pytest.raises(LookupAwayError, match="answers 500"):
            one.result()
    assert store.targets() == [METADATA]


def test_refreshes_at_once_make_one_call(store: OtherStore, build: Build) -> None:
    go = threading.Event()

    def answer(_asked: Asked) -> bytes:
        go.wait(10)
        return metadata()

    store.answer = answer
    puller = build()
    found: list[Record | None] = []
    ask = lambda: found.append(puller.refresh(Kind.METADATA, INSTANCE))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_for(lambda: sum(is_waiting(one) for one in threads) == 4, 10, "four that wait for one")
    go.set()
    for thread in threads:
        thread.join()
    assert [hostname(one) for one in found] == ["a"] * 5
    assert len(store.asked) == 1


def is_waiting(thread: threading.Thread) -> bool:
    """Whether a thread waits for an event."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


class Ended(BaseException):
    """As eventlet ends a green thread whose time is over."""


def test_who_waits_takes_over_from_one_that_is_ended() -> None:
    flights = Flights()
    found: list[str] = []
    second = threading.Thread(target=lambda: found.append(flights.run("a", lambda: "second")))

    def first() -> str:
        second.start()
        wait_for(lambda: is_waiting(second), 10, "one that waits")
        raise Ended

    with pytest.raises(Ended):
        flights.run("a", first)
    second.join(10)
    assert found == ["second"]
    assert not flights.busy("a")


def test_what_is_remembered_is_bounded() -> None:
    memory: Memory[int, int] = Memory(entries=3)
    for number in range(5):
        memory.put(number, number)
    assert [memory.get(number) for number in range(5)] == [None, None, 2, 3, 4]
    memory.put(2, 7)
    memory.put(5, 5)
    assert (memory.get(2), memory.get(3)) == (7, None)


def test_what_has_expired_is_served_to_those_who_come_while_it_is_asked_for(
    store: OtherStore, build: Build, clock: Clock
) -> None:
    store.answers = {METADATA: metadata("a")}
    puller = build(expiry=60)
    puller.get(INSTANCE, kinds=[Kind.METADATA])
    clock.ahead = 61
    asked, go = threading.Event(), threading.Event()

    def answer(_asked: Asked) -> bytes:
        asked.set()
        go.wait(10)
        return metadata("b")

    store.answer = answer
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: puller.get(INSTANCE, kinds=[Kind.METADATA]))
        assert asked.wait(10)
        assert hostname(puller.get(INSTANCE, kinds=[Kind.METADATA])) == "a"
        go.set()
        assert hostname(first.result()) == "b"


def test_a_storm_of_different_guests_is_answered(store: OtherStore, build: Build) -> None:
    def answer(asked: Asked) -> bytes:
        path, _, address = asked.target.partition("?ip_address=")
        if path != "/device-metadata":
            return NOT_FOUND
        number = int(address.rpartition(".")[2])
        instance = f"6f1c2b5e-3a44-4a55-9d0e-{number:012x}"
        return metadata(str(number), of=instance, ipAddresses=[address])

    store.answer = answer
    puller = build(timeout=30)

    def ask(number: int) -> object:
        address: Address = ip_address(f"10.0.0.{number}")
        return hostname(puller.find(address))

    with ThreadPoolExecutor(100) as pool:
        assert list(pool.map(ask, range(1, 101))) == [str(one) for one in range(1, 101)]
    assert store.connections <= 64


GREEN = """
import eventlet
eventlet.monkey_patch()
import sys, time
from dfmeta.exceptions import LookupAwayError
from dfmeta.store.lookup import Puller
from dfmeta.store.lookup_http import Client
from dfmeta.store.lookup_upstream import Patience, Upstream
from dfmeta.store.record import Kind
from dfmeta.store.repository import Repository

url, database, known, unknown = sys.argv[1:]
turns = 0

def turn():
    global turns
    while True:
        turns += 1
        eventlet.sleep(0.01)

eventlet.spawn(turn)
puller = Puller(Repository(database), Upstream(url, client=Client(), patience=Patience(0.5, 0)))
asking = [eventlet.spawn(puller.get, known, kinds=[Kind.METADATA]) for _ in range(50)]
print(len({one.wait().metadata for one in asking}))
began = time.monotonic()
try:
    puller.get(unknown)
except LookupAwayError as error:
    print("in time" in str(error), turns > 20, time.monotonic() - began < 3)
"""


def test_green_threads_make_one_call_and_keep_nobody(store: OtherStore, url: str) -> None:
    def answer(asked: Asked) -> bytes | Iterator[bytes]:
        if asked.target == METADATA:
            return metadata()
        return store.trickle(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n")

    store.answer = answer
    command = [sys.executable, "-W", "ignore", "-c", GREEN]
    ran = subprocess.run(
        [*command, store.url, url, INSTANCE, OTHER_INSTANCE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stdout.split() == ["1", "True", "True", "True"], ran.stderr
    assert store.targets().count(METADATA) == 1


# From the configuration.


def test_nobody_is_asked_unless_it_is_configured(load: Load, repository: Repository) -> None:
    assert from_configuration.build(load(), repository) is None


def test_the_options_make_a_puller(
    load: Load, repository: Repository, store: OtherStore, caplog: pytest.LogCaptureFixture
) -> None:
    conf = load(
        store__lookup_base_url=store.url,
        store__lookup_issuer=store.url,
        store__lookup_client_id="me",
        store__lookup_client_secret="a secret nobody may see",
        store__lookup_scopes="read,more",
        store__lookup_retries=0,
    )
    puller = from_configuration.build(conf, repository)
    assert puller is not None
    with pytest.raises(LookupAwayError, match="there is no token"):
        puller.get(INSTANCE)
    puller.close()
    assert store.targets() == ["/.well-known/openid-configuration"]
    assert "lookup_issuer is http" in caplog.text
    assert "a secret nobody may see" not in caplog.text
