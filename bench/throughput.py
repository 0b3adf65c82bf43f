"""Requests a second and their cost: each proxy under each load, in turn, in several rounds."""

from __future__ import annotations

import http.client
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

from bench import peers, processes
from bench.crowded import Crowded
from bench.direct import Direct
from bench.load import PATH, Load, finish_wrk, start_wrk
from bench.programs import METADATA_IP, Program
from bench.stand import PORT, Stand
from bench.targets import (
    CROWD,
    HAPROXY,
    HAPROXY_ALWAYS,
    IN_HAPROXY,
    IN_HAPROXY_CROWD,
    IN_PROCESS,
    IPV6,
    NEUTRON,
    ONE_WORKER,
    OVN,
    TWO_WORKERS,
    path_name,
)
from dfmeta.conf.agent import HOST_IP6
from tests.harness.netns import Namespace

LOADS = tuple(
    Load(clients=clients, keep=keep) for keep in (False, True) for clients in (1, 32, 256)
)
GUESTS = max(load.threads for load in LOADS)
PEER_PORT = 18081
WARM_UP = 1
INSTANCES = (10, 200, 1000)
ALONE = (10, 1000)
"""Instances of metadata_path with one thread."""
NOVA = "nginx alone"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A proxy that accepts requests."""

    port: int
    pids: Sequence[int]
    """Without their descendants, which are counted too."""
    host: str = METADATA_IP
    """The proxy's own address: that of tap-metadata."""
    one_source: bool = False
    """Whether all requests come from one guest, the last one in its configuration."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The host on which a proxy is measured, and the path to it."""

    stand: Stand
    direct: Direct
    check: Callable[[], object] = lambda: None
    """Check that haproxy knows all guests of the host."""
    port: int = PEER_PORT
    """TCP port of a peer."""


Start = Callable[[Place], AbstractContextManager[Running]]


def proxy_starts() -> dict[str, Start]:
    """Return the function that starts each proxy, by the proxy's name."""
    result: dict[str, Start] = {
        IN_PROCESS: _dfmeta(0),
        IPV6: _dfmeta(0, HOST_IP6),
        ONE_WORKER: _dfmeta(1),
        TWO_WORKERS: _dfmeta(2),
        IN_HAPROXY: _haproxy,
        IN_HAPROXY_CROWD: _haproxy,
        HAPROXY: _peer(peers.Haproxy),
        HAPROXY_ALWAYS: _peer(partial(peers.Haproxy, reuse="always")),
        NEUTRON: _peer(peers.NeutronMetadata),
        OVN: _peer(partial(peers.NeutronMetadata, kind="ovn")),
        NOVA: _nova,
    }
    result |= {path_name(count): _path(count) for count in INSTANCES}
    result |= {path_name(count, one_thread=True): _path(count, 1) for count in ALONE}
    return result | {path_name(10, one_thread=True, logs=False): _path(10, 1, logs=False)}


def _dfmeta(workers: int, host: str = METADATA_IP) -> Start:
    @contextmanager
    def start(place: Place) -> Iterator[Running]:
        with place.stand.daemon(workers) as agent:
            yield Running(port=PORT, pids=[agent.pid], host=host)

    return start


@contextmanager
def _haproxy(place: Place) -> Iterator[Running]:
    with place.stand.daemon(0, engine="haproxy") as agent:
        place.check()
        yield Running(port=PORT, pids=[agent.pid])


def _peer(make: Callable[[Namespace, int], Program]) -> Start:
    @contextmanager
    def start(place: Place) -> Iterator[Running]:
        with make(place.stand.host.namespace, place.port) as program:
            yield Running(port=place.port, pids=program.pids)

    return start


def _path(count: int, threads: int = 0, *, logs: bool = True) -> Start:
    @contextmanager
    def start(place: Place) -> Iterator[Running]:
        first = IPv4Address("10.0.0.0")
        known = [str(first + number) for number in range(count - 1)]
        known.append(str(place.direct.sources[0]))
        namespace = place.stand.host.namespace
        with peers.MetadataPath(
            namespace, place.port, known, threads=threads, logs=logs
        ) as program:
            yield Running(port=place.port, pids=program.pids, one_source=True)

    return start


@contextmanager
def _nova(place: Place) -> Iterator[Running]:
    yield Running(port=peers.NOVA_PORT, pids=place.stand.nova.pids)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One proxy under one load. Times in milliseconds, CPU time in seconds, memory in MB."""

    rate: float
    rates: Sequence[float]
    """The rate of each round."""
    p50: float
    p99: float
    requests: int
    failed: int
    causes: Mapping[str, int]
    resent: int
    """SYNs that were resent, each a second late; wrk does not see them."""
    cpu: float
    """CPU time of all processes of the proxy, for 1,000 requests."""
    memory: float
    idle: float
    """Number of idle cores."""


def measure(names: Sequence[str], *, rounds: int, seconds: int) -> dict[str, dict[str, Cell]]:
    """Return, for each proxy and load, medians of all rounds; failures are added up."""
    starts = proxy_starts()
    cells: dict[str, dict[str, list[Cell]]] = {
        name: {load.name: [] for load in LOADS} for name in names
    }
    with ExitStack() as stack:
        usual = usual_place(stack)
        crowded = crowded_place(stack) if IN_HAPROXY_CROWD in names else usual
        for turn in range(rounds):
            # Regular work of other programs on the machine must not always meet the same proxy.
            first = turn * len(names) // rounds
            for name in [*names[first:], *names[:first]]:
                print(f"round {turn + 1} of {rounds}: {name}", flush=True)
                place = crowded if name == IN_HAPROXY_CROWD else usual
                with starts[name](place) as running:
                    warm_up(place.direct, running)
                    for load in LOADS:
                        cell = ask(place.direct, running, load, seconds=seconds)
                        cells[name][load.name].append(cell)
    return {
        name: {load: median(turns) for load, turns in loads.items()}
        for name, loads in cells.items()
    }


def usual_place(stack: ExitStack) -> Place:
    """Start a host with a few real guests; *stack* ends it."""
    stand = stack.enter_context(Stand(GUESTS))
    with stand.daemon(0):
        direct = Direct(stand.host.namespace, [*stand.introduce(), *stand.introduce(6)])
        stack.callback(direct.close)
    return Place(stand=stand, direct=direct)


def crowded_place(stack: ExitStack) -> Place:
    """Start a host with many guests; *stack* ends it."""
    stand = stack.enter_context(Stand(dummies=True))
    crowded = Crowded(stand, CROWD, sources=GUESTS)
    stack.callback(crowded.direct.close)
    return Place(stand=stand, direct=crowded.direct, check=crowded.check)


def warm_up(
    direct: Direct, running: Running, *, path: str = PATH, wanted: str | None = None
) -> None:
    """Check the answer of the proxy, and warm the proxy up.

    :param wanted: a part of the expected answer; None: Nova's document.
    :raises AssertionError: the answer is another one.
    """
    connection = http.client.HTTPConnection(running.host, running.port)
    connection.sock = direct.namespace.connect(running.host, running.port)
    connection.request("GET", path, headers={"Connection": "close"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    assert answer.status == 200, answer.status
    assert (wanted or peers.document()) in body, body
    ask(direct, running, Load(clients=8, keep=False), seconds=WARM_UP, path=path)


def ask(direct: Direct, running: Running, load: Load, *, seconds: int, path: str = PATH) -> Cell:
    """Measure a proxy under one load."""
    cpu, idle = processes.cpu_seconds(running.pids), processes.idle_seconds()
    resent = direct.resent()
    process = start_wrk(
        direct.namespace,
        load,
        f"http://{bracketed(running.host)}:{running.port}{path}",
        seconds=seconds,
        users=1 if running.one_source else load.threads,
    )
    outcome = finish_wrk(process, seconds)
    cpu = processes.cpu_seconds(running.pids) - cpu
    return Cell(
        rate=outcome.rate,
        rates=[outcome.rate],
        p50=outcome.p50,
        p99=outcome.p99,
        requests=outcome.requests,
        failed=outcome.failed,
        causes=outcome.causes,
        resent=direct.resent() - resent,
        cpu=1000 * cpu / max(1, outcome.requests),
        memory=processes.resident(running.pids),
        idle=(processes.idle_seconds() - idle) / outcome.seconds,
    )


def bracketed(host: str) -> str:
    """Return an address as URLs have it."""
    return f"[{host}]" if ":" in host else host


def median(cells: Sequence[Cell]) -> Cell:
    """Return the median of each value; failures and other counts are added up."""

    def middle(name: str) -> float:
        return float(statistics.median(getattr(cell, name) for cell in cells))

    return Cell(
        rate=middle("rate"),
        rates=[cell.rate for cell in cells],
        p50=middle("p50"),
        p99=middle("p99"),
        cpu=middle("cpu"),
        memory=middle("memory"),
        idle=middle("idle"),
        requests=sum(cell.requests for cell in cells),
        failed=sum(cell.failed for cell in cells),
        resent=sum(cell.resent for cell in cells),
        causes={name: sum(cell.causes[name] for cell in cells) for name in cells[0].causes},
    )
