"""Writes to the store: several clients at once, each with its own records.

A write has reached the disk when it is answered: SQLite syncs it, and so does PostgreSQL.
"""

from __future__ import annotations

import http.client
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from bench.stand import Stand
from bench.store_targets import POSTGRESQL, SQLITE
from dfmeta.errors import StoreError
from dfmeta.store.db.repository import Kind, Repository
from tests.harness.agent import ADMIN_PORT
from tests.harness.guest import uuid_of
from tests.harness.postgres import Postgres
from tests.harness.records import push

CLIENTS = 8
RECORDS = 100
"""Records of each client; it writes them one after the other, again and again."""
LOOPBACK = "127.0.0.1"

Write = Callable[[int, int], bool]
"""Function that writes the record of a client and number, and returns whether this succeeded."""


@dataclass(frozen=True, kw_only=True)
class Writes:
    """Results of one interface under load. Times in milliseconds."""

    rate: float
    rates: list[float]
    """The rate of each round."""
    p50: float
    p99: float
    writes: int
    failed: int


@dataclass
class _Tally:
    """The results of one client."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0


def measure(*, rounds: int, seconds: int) -> dict[str, Writes]:
    """Return, for each interface and database, medians of all rounds; counts are added up."""
    result: dict[str, list[Writes]] = {}
    with ExitStack() as stack:
        stand = stack.enter_context(Stand())
        server = stack.enter_context(Postgres(durable=True))
        urls = {
            SQLITE: f"sqlite:///{stand.agent.state_path}/written.db",
            POSTGRESQL: server.create_database(),
        }
        for turn in range(rounds):
            for way, start in WAYS.items():
                for database, url in urls.items():
                    name = f"{way}, {database}"
                    print(f"round {turn + 1} of {rounds}: {name}", flush=True)
                    with start(stand, url) as write:
                        result.setdefault(name, []).append(press(write, seconds))
    return {name: median(turns) for name, turns in result.items()}


@contextmanager
def over_http(stand: Stand, url: str) -> Iterator[Write]:
    """Write through dfmeta-agent's admin API, over a kept connection for each client."""
    options = {"df_metadata": {"backend": "store"}, "store": {"connection": url}}
    stand.agent.configure(options)
    with stand.daemon(0), ExitStack() as stack:
        connections = []
        for _ in range(CLIENTS):
            connection = http.client.HTTPConnection(LOOPBACK, ADMIN_PORT)
            # http.client would reconnect from another namespace.
            connection.auto_open = 0
            connection.sock = stand.host.namespace.connect(LOOPBACK, ADMIN_PORT)
            # As http.client sets it on its own sockets: head and body are sent in two pieces.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(stack.enter_context(closing(connection)))

        def write(client: int, number: int) -> bool:
            body = {
                "id": record_id(client, number),
                "ipAddresses": [str(network(client, number))],
                "metadata": document(client, number),
            }
            try:
                connections[client].request("POST", "/device-metadata", json.dumps(body))
                answer = connections[client].getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                return False
            return 200 <= answer.status < 300

        yield write


@contextmanager
def pushing(_stand: Stand, url: str) -> Iterator[Write]:
    """Write to the repository itself, without HTTP, from threads of this process."""
    with Repository(url) as repository:

        def write(client: int, number: int) -> bool:
            try:
                return push(
                    repository,
                    Kind.METADATA,
                    record_id(client, number),
                    content=document(client, number),
                    networks=[network(client, number)],
                )
            except StoreError:
                return False

        yield write


WAYS: dict[str, Callable[[Stand, str], AbstractContextManager[Write]]] = {
    "admin API": over_http,
    "Repository.push": pushing,
}


def record_id(client: int, number: int) -> str:
    """Return the id of a client's record."""
    return uuid_of(f"record {client} {number}")


def network(client: int, number: int) -> IPv4Network:
    """Return the one address of a client's record, as a network."""
    return IPv4Network((0x0A000000 | client << 16 | number, 32))


def document(client: int, number: int) -> dict[str, object]:
    """Return the document to push, of about 1 kB."""
    return {
        "hostname": f"guest-{client}-{number}.bench.example",
        "plan": "c3.small.x86",
        "facility": "bench",
        "ssh_keys": ["ssh-rsa ".ljust(800, "k")],
    }


def press(write: Write, seconds: float) -> Writes:
    """Let all clients write for *seconds*."""
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
    times = sorted(1000 * second for tally in tallies for second in tally.seconds)
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


def median(results: list[Writes]) -> Writes:
    """Return the median of each value; writes and failures are added up."""
    return Writes(
        rate=statistics.median(result.rate for result in results),
        rates=[result.rate for result in results],
        p50=statistics.median(result.p50 for result in results),
        p99=statistics.median(result.p99 for result in results),
        writes=sum(result.writes for result in results),
        failed=sum(result.failed for result in results),
    )
