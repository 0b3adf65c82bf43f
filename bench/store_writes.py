"""What is written into the store: so many clients at once, each its own records.

What was answered has reached the disk: SQLite syncs it, and so does PostgreSQL.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from bench.store_targets import POSTGRESQL, SQLITE
from dfmeta.exceptions import StoreError
from dfmeta.store.repository import Kind, Repository
from tests.harness import netns
from tests.harness.guest import uuid_of
from tests.harness.postgres import Postgres

CLIENTS = 8
RECORDS = 100
"""Of each client; it writes one after the other, again and again."""

Write = Callable[[int, int], bool]
"""Writes a client's record of that number, and says whether that was done."""
Start = Callable[[str], Iterator[Write]]


@dataclass(frozen=True, kw_only=True)
class Writes:
    """One way under load. Times in milliseconds."""

    rate: float
    rates: list[float]
    """Of each round."""
    p50: float
    p99: float
    writes: int
    failed: int


@dataclass
class _Tally:
    """What one client saw."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0


def measure(*, rounds: int, seconds: int) -> dict[str, Writes]:
    """Way and database → the median of all rounds; writes and failures are added up."""
    found: dict[str, list[Writes]] = {}
    with ExitStack() as stack:
        folder = netns.temporary_folder("store")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = stack.enter_context(Postgres(durable=True))
        urls = {SQLITE: f"sqlite:///{folder}/store.db", POSTGRESQL: server.create_database()}
        for turn in range(rounds):
            for way, start in WAYS.items():
                for database, url in urls.items():
                    name = f"{way}, {database}"
                    print(f"round {turn + 1} of {rounds}: {name}", flush=True)
                    with start(url) as write:
                        found.setdefault(name, []).append(press(write, seconds))
    return {name: median(each) for name, each in found.items()}


@contextmanager
def pushing(url: str) -> Iterator[Write]:
    """The repository itself, without HTTP: what the database alone allows."""
    with Repository(url) as repository:

        def write(client: int, number: int) -> bool:
            try:
                return repository.push(
                    Kind.METADATA,
                    uuid_of(f"record {client} {number}"),
                    content=document(client, number),
                    networks=[IPv4Network((0x0A000000 | client << 16 | number, 32))],
                )
            except StoreError:
                return False

        yield write


WAYS = {"Repository.push": pushing}


def document(client: int, number: int) -> dict[str, object]:
    """What is pushed: about 1 kB."""
    return {
        "hostname": f"guest-{client}-{number}.bench.example",
        "plan": "c3.small.x86",
        "facility": "bench",
        "ssh_keys": ["ssh-rsa ".ljust(800, "k")],
    }


def press(write: Write, seconds: float) -> Writes:
    """Have all clients write for that long."""
    tallies = [_Tally() for _ in range(CLIENTS)]
    write(0, 0)
    begun = time.monotonic()
    threads = [
        threading.Thread(target=_client, args=(write, number, begun + seconds, tally))
        for number, tally in enumerate(tallies)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    times = sorted(1000 * one for tally in tallies for one in tally.seconds)
    failed = sum(tally.failed for tally in tallies)
    return Writes(
        rate=len(times) / took,
        rates=[len(times) / took],
        p50=times[len(times) // 2] if times else float("nan"),
        p99=times[len(times) * 99 // 100] if times else float("nan"),
        writes=len(times) + failed,
        failed=failed,
    )


def _client(write: Write, client: int, until: float, tally: _Tally) -> None:
    number = 0
    while (begun := time.monotonic()) < until:
        done = write(client, number % RECORDS)
        number += 1
        if done:
            tally.seconds.append(time.monotonic() - begun)
        else:
            tally.failed += 1


def median(found: list[Writes]) -> Writes:
    """The median of each figure; writes and failures are added up."""
    return Writes(
        rate=statistics.median(one.rate for one in found),
        rates=[one.rate for one in found],
        p50=statistics.median(one.p50 for one in found),
        p99=statistics.median(one.p99 for one in found),
        writes=sum(one.writes for one in found),
        failed=sum(one.failed for one in found),
    )
