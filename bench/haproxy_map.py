"""Time of a change of haproxy's map: from the registry until haproxy has confirmed it.

The engine of dfmeta runs in this process, with a haproxy of its own, whose map has an entry for
each guest of a registry. A guest more enters the registry (*add*), and leaves it (*delete*). After
each, :meth:`~dfmeta.proxy.engines.haproxy.engine.Haproxy.inform` is called, as it is before a first
SYN is sent on: the entries go over the runtime interface, and haproxy confirms them. The time is
that from the registry's change to the end of this call. Meanwhile the engine also reads haproxy's
counters, checks that it answers, and compares the map, as it does in the daemon.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address

import eventlet

from bench.programs import HAPROXY
from bench.targets import ADD, DELETE, ENTRIES, change_name
from dfmeta.http.limits import Limits
from dfmeta.identity.registry import Registry
from dfmeta.model import Answer, Endpoint, GuestAddress, Port
from dfmeta.proxy.engines.haproxy.engine import Haproxy, Setup
from dfmeta.proxy.engines.haproxy.entries import Entries
from dfmeta.proxy.engines.haproxy.handover import handover_server, listen
from dfmeta.proxy.engines.haproxy.plan import HaproxyPlan, Program
from tests.harness.guest import uuid_of

COUNTS = (10, 1000, ENTRIES)
CHANGES = 1000
"""Changes of each kind."""
READY_TIMEOUT = 30.0
POLL = 0.01
HOLD_TIMEOUT = 8.0
_FIRST_ADDRESS = IPv4Address("10.0.0.0")
_SIGNATURE = "0" * 64


def measure(counts: Sequence[int] = COUNTS, *, changes: int) -> dict[str, dict[str, float]]:
    """Return the times in milliseconds of each change, with each number of entries.

    :param changes: number of changes of each kind.
    """
    figures = {}
    for count in counts:
        print(f"map: {count:,} entries", flush=True)
        for change, times in _of(count, changes).items():
            figures[change_name(count, change)] = _summary(times)
    return figures


def _of(count: int, changes: int) -> dict[str, list[float]]:
    registry = Registry()
    for number in range(1, count + 1):
        _enter(registry, number)
    times: dict[str, list[float]] = {ADD: [], DELETE: []}
    with _engine(registry, count) as engine:
        for turn in range(changes):
            # The number of another port each time: a number rests after its guest has left.
            number = count + 1 + turn

            def add(number: int = number) -> None:
                _enter(registry, number)

            def delete(number: int = number) -> None:
                registry.remove_port(_port(number).id)

            times[ADD].append(_timed(engine, add))
            _assert_entries(engine, count + 1)
            times[DELETE].append(_timed(engine, delete))
            _assert_entries(engine, count)
        compared = engine.report(thorough=True)["map"]
        assert [*compared.values()] == [count, 0, 0, 0], "haproxy's map is not the daemon's"
    return times


def _timed(engine: Haproxy, change: Callable[[], object]) -> float:
    eventlet.sleep(0)
    began = time.perf_counter()
    change()
    engine.inform()
    return time.perf_counter() - began


def _assert_entries(engine: Haproxy, count: int) -> None:
    """:raises AssertionError: haproxy has not confirmed that many entries."""
    present = len(engine.current.map) if engine.current is not None else 0
    assert present == count, f"the map has {present} entries, not {count}"


def _summary(times: Sequence[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(times, n=100, method="inclusive")
    values = {"p50": percentiles[49], "p99": percentiles[98], "longest": max(times)}
    return {name: round(1000 * value, 3) for name, value in values.items()}


def _port(number: int) -> Port:
    return Port(
        f"tap{number}",
        row=f"row {number}",
        ofport=number,
        iface_id=uuid_of(f"port {number}"),
        mac=_mac(number),
        instance_id=uuid_of(f"instance {number}"),
        project_id=uuid_of("project"),
    )


def _mac(number: int) -> str:
    return f"fa:16:3e:00:{number >> 8:02x}:{number & 255:02x}"


def _enter(registry: Registry, number: int) -> None:
    """Put a guest's port and its address into the registry, as after its first SYN."""
    registry.set_port(_port(number))
    address = GuestAddress(_mac(number), _FIRST_ADDRESS + number)
    assert registry.learn(Endpoint(number), address, time.monotonic()) is not None


@contextmanager
def _engine(registry: Registry, count: int) -> Iterator[Haproxy]:
    """Run the engine during the block; its map is complete when the block begins."""
    guests = eventlet.listen(("127.0.0.1", 0))
    entrance = listen("/dev/shm")
    program = Program(binary=str(HAPROXY), user="")
    plan = HaproxyPlan(program=program, servers=(), hold_timeout=HOLD_TIMEOUT)
    engine = Haproxy(
        [guests],
        registry,
        handover=lambda peers: handover_server(
            entrance.listener,
            registry,
            lambda _exchange: Answer(200),
            peers=peers,
            hold_timeout=HOLD_TIMEOUT,
            limits=Limits(),
        ),
        entrance=entrance.descriptor,
        setup=lambda: Setup(
            plan=lambda: plan,
            entries=Entries(registry, lambda _instance: _SIGNATURE, lambda *_one: True),
        ),
    )
    engine.start()
    try:
        until = time.monotonic() + READY_TIMEOUT
        while not engine.serving or engine.current is None or len(engine.current.map) < count:
            assert time.monotonic() < until, "haproxy does not serve"
            eventlet.sleep(POLL)
        yield engine
    finally:
        engine.stop(0.0)
