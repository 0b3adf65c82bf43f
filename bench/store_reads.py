"""Reads by guests: dfmeta-agent with each database, and with forwarding to Nova, in turn.

The daemon, the guests and the path to the proxy are the same each time; only the backend differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from bench import throughput
from bench.direct import Direct
from bench.load import PATH, Load
from bench.peers import BODY_SIZE, document
from bench.stand import PORT, PROJECT, Stand
from bench.store_targets import FORWARDING, POSTGRESQL, SQLITE, WORKERS
from bench.throughput import Cell, Running
from dfmeta.store.db.repository import Repository
from tests.harness.guest import uuid_of
from tests.harness.postgres import Postgres

CONTENDERS = {
    f"{backend}{words}": (backend, workers)
    for workers, words in ((0, ""), (2, WORKERS))
    for backend in (FORWARDING, SQLITE, POSTGRESQL)
}
"""Name → the backend, and ``proxy_workers``."""
ITEMS = {"meta_data.json": PATH, "local-hostname": "/latest/meta-data/local-hostname"}
LOADS = tuple(Load(clients=clients, keep=keep) for keep in (False, True) for clients in (1, 32))
GUESTS = max(load.threads for load in LOADS)
RECORDS = 200
"""Records in each database. The first ones are the guests'."""
USERDATA = b"#cloud-config\n".ljust(16384, b"#")
OWN = 1100
"""Bytes of meta_data.json without the SSH key: the random seed, names, an id and the rest."""

Figures = dict[str, dict[str, dict[str, Cell]]]
"""Name → item → load → values."""


def measure(*, rounds: int, seconds: int) -> Figures:
    """Measure all contenders. Values are medians of all rounds; failures are added up."""
    cells: dict[str, dict[str, dict[str, list[Cell]]]] = {
        name: {item: {item.name: [] for item in LOADS} for item in ITEMS} for name in CONTENDERS
    }
    with ExitStack() as stack:
        stand = stack.enter_context(Stand(GUESTS))
        with stand.daemon(0):
            direct = Direct(stand.host.namespace, stand.introduce())
            stack.callback(direct.close)
        urls = databases(stand, stack)
        for turn in range(rounds):
            # Regular work of other programs on the machine must not always meet the same contender.
            names = list(CONTENDERS)[:: -1 if turn % 2 else 1]
            for name in names:
                print(f"round {turn + 1} of {rounds}: {name}", flush=True)
                backend, workers = CONTENDERS[name]
                with daemon(stand, backend, workers, urls=urls) as running:
                    for item, path in ITEMS.items():
                        wanted = expected(backend)[item]
                        throughput.warm_up(direct, running, path=path, wanted=wanted)
                        for load in LOADS:
                            cell = throughput.ask(direct, running, load, seconds=seconds, path=path)
                            cells[name][item][load.name].append(cell)
    return {
        name: {
            item: {load: throughput.median(turns) for load, turns in loads.items()}
            for item, loads in items.items()
        }
        for name, items in cells.items()
    }


def databases(stand: Stand, stack: ExitStack) -> dict[str, str]:
    """Fill a database of each kind; return their URLs. The server's is its Unix socket."""
    server = stack.enter_context(Postgres(durable=True))
    urls = {
        SQLITE: f"sqlite:///{stand.agent.state_path}/store.db",
        POSTGRESQL: server.create_database(),
    }
    for url in urls.values():
        with Repository(url) as repository:
            for number in range(RECORDS):
                repository.put(
                    uuid_of(f"instance {number}"),
                    document=record(number),
                    userdata=USERDATA,
                    project_id=PROJECT,
                )
    return urls


def record(number: int) -> dict[str, Any]:
    """Return the document of a guest; its meta_data.json is about as long as Nova's answer here."""
    return {
        "name": f"guest-{number}",
        "hostname": hostname(number),
        "availability_zone": "nova",
        "ssh_keys": ["ssh-rsa ".ljust((BODY_SIZE - OWN) // 2, "k")],
        "network": {"addresses": [{"address": f"10.0.0.{number % 250 + 2}", "public": False}]},
        "meta": {"role": "bench"},
    }


def hostname(number: int) -> str:
    """Return the host name of a guest."""
    return f"guest-{number}.bench.example"


@contextmanager
def daemon(
    stand: Stand, backend: str, workers: int, *, urls: Mapping[str, str]
) -> Iterator[Running]:
    """Run the daemon with that backend during the block."""
    name = "nova" if backend == FORWARDING else "store"
    stand.agent.configure(
        {"df_metadata": {"backend": name}, "store": {"connection": urls.get(backend)}}
    )
    with stand.daemon(workers) as agent:
        yield Running(port=PORT, pids=[agent.pid])


def expected(backend: str) -> dict[str, str]:
    """Return, for each item, a part of its answer to the first guest."""
    if backend == FORWARDING:
        return dict.fromkeys(ITEMS, document())
    return dict(zip(ITEMS, (f'"hostname": "{hostname(0)}"', hostname(0)), strict=True))
