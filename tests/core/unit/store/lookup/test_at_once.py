"""Callers of one record at once should make one query, and no half should keep the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dfmeta.exceptions import LookupAwayError, StoreError
from dfmeta.store.db.record import Record
from dfmeta.store.guest.need import METADATA_ALONE, USERDATA_ALONE
from dfmeta.store.http import Reply
from dfmeta.store.lookup.upstream import AT_ONCE
from tests.core.unit.store.lookup.support import (
    ADDRESS,
    BROKEN,
    METADATA,
    METADATA_OF,
    NOT_FOUND,
    USERDATA,
    Asked,
    Build,
    OtherStore,
    hostname,
    metadata,
    numbered,
    userdata,
)
from tests.core.unit.support import INSTANCE
from tests.harness.tier import CLOCK

CALLERS = 20


def at_once(store: OtherStore, ask: Callable[[], Record | None]) -> list[Future[Record | None]]:
    """Ask in threads; upstream answers once all have begun."""
    begun, answer = threading.Semaphore(0), store.answer

    def one() -> Record | None:
        begun.release()
        return ask()

    def late(asked: Asked) -> Reply | StoreError:
        if len(store.asked) == 1:
            for _ in range(CALLERS):
                begun.acquire()
        return answer(asked)

    store.answer = late
    with ThreadPoolExecutor(CALLERS) as pool:
        return [pool.submit(one) for _ in range(CALLERS)]


def test_callers_at_once_share_one_query(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA_OF: metadata(), USERDATA: userdata()}
    puller = build()
    records = at_once(store, lambda: puller.find(ADDRESS))
    assert {hostname(one.result()) for one in records} == {"a"}
    assert store.targets() == [METADATA_OF, USERDATA]


def test_callers_at_once_share_one_error(store: OtherStore, build: Build) -> None:
    store.always(BROKEN)
    puller = build()
    for one in at_once(store, lambda: puller.get(INSTANCE)):
        with pytest.raises(LookupAwayError, match="answers 500"):
            one.result()
    assert store.targets() == [METADATA]


def test_an_expired_record_is_served_while_it_is_fetched(store: OtherStore, build: Build) -> None:
    store.answers = {METADATA: metadata("a")}
    puller = build(expiry=60)
    puller.get(INSTANCE, METADATA_ALONE)
    CLOCK.advance(61)
    asked, go = threading.Event(), threading.Event()

    def answer(_asked: Asked) -> Reply:
        asked.set()
        go.wait()
        return metadata("b")

    store.answer = answer
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(lambda: puller.get(INSTANCE, METADATA_ALONE))
        asked.wait()
        assert hostname(puller.get(INSTANCE, METADATA_ALONE)) == "a"
        go.set()
        assert hostname(first.result()) == "b"


def test_queries_for_userdata_take_no_turns_from_those_for_metadata(
    store: OtherStore, build: Build
) -> None:
    waiting, go = threading.Semaphore(0), threading.Event()

    def answer(asked: Asked) -> Reply:
        if "userdata" in asked.target:
            waiting.release()
            go.wait()
            return NOT_FOUND
        return metadata(of=asked.target.rpartition("/")[2])

    store.answer = answer
    puller = build()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [
            pool.submit(puller.get, numbered(number), USERDATA_ALONE) for number in range(AT_ONCE)
        ]
        for _ in range(AT_ONCE):
            waiting.acquire()
        for number in range(AT_ONCE):
            assert hostname(puller.get(numbered(number), METADATA_ALONE)) == "a"
        assert not any(one.done() for one in asked)
        go.set()
