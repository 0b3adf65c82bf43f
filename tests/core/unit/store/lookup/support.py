"""What the tests of upstream look-up share: an upstream, a clock, and what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, ip_network
from pathlib import Path
from typing import Any

import pytest

from dfmeta.exceptions import LookupAnswerError, LookupAwayError, StoreError
from dfmeta.store.db.record import Kind, Record, parse_document
from dfmeta.store.db.repository import Repository
from dfmeta.store.http import Client
from dfmeta.store.lookup.puller import Lifetimes, Puller
from dfmeta.store.lookup.upstream import Patience, Upstream
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE
from tests.harness import records
from tests.harness.other_store import Asked, Last, OtherStore, ResetError, reply

ROOT = Path(__file__).parents[5]
ADDRESS = IPv4Address("10.1.2.3")
METADATA = f"/device-metadata/{INSTANCE}"
USERDATA = f"/device-userdata/{INSTANCE}"
METADATA_OF = f"/device-metadata?ip_address={ADDRESS}"
USERDATA_OF = f"/device-userdata?ip_address={ADDRESS}"
SCRIPT = "#!/bin/sh\n"
BROKEN = reply({"message": "internal error"}, status=500)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what another store says, to which the kind of this one's database makes no difference."""


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
        timeout: float = 60,
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


def limit(puller: Puller, seconds: float, *, retries: int = 0) -> None:
    """Let a puller wait so long for an answer from now on."""
    assert puller._upstream is not None
    puller._upstream._patience = Patience(seconds, retries)


def metadata(hostname: str = "a", *, of: str = INSTANCE, **members: object) -> bytes:
    document = {"id": of, "hostname": hostname}
    return reply({"id": of, "ipAddresses": [f"{ADDRESS}/28"], "metadata": document, **members})


def userdata(text: str = SCRIPT, **members: object) -> bytes:
    return reply({"id": INSTANCE, "ipAddresses": [str(ADDRESS)], "userdata": text, **members})


def hostname(record: Record | None) -> object:
    assert record is not None
    return parse_document(record.id, record.metadata).get("hostname")


def push(repository: Repository, name: str, *, networks: tuple[str, ...] = ()) -> None:
    records.push(
        repository,
        Kind.METADATA,
        INSTANCE,
        content={"hostname": name},
        networks=[ip_network(one) for one in networks],
    )


def slow(store: OtherStore) -> Callable[[Asked], Iterator[bytes]]:
    return lambda _asked: store.trickle(b"", b"H")


def resets(_asked: Asked) -> bytes:
    raise ResetError


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
