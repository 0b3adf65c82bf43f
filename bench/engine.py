"""The engine haproxy beside its peers: all of them run at once, and each is loaded in its turn.

The speed of a virtual machine changes within seconds. A turn is short and loads every proxy, so the
ratio of two proxies in one turn is that of two values which were measured seconds apart.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from bench.targets import HAPROXY_PEERS, IN_HAPROXY_CROWD, IN_PROCESS, TWO_LOADS
from bench.throughput import (
    LOADS,
    PEER_PORT,
    Cell,
    ask,
    contenders,
    crowded_place,
    median,
    usual_place,
    warm_up,
)

TURNS, SECONDS = 21, 1


def measure(*, turns: int = TURNS) -> dict[str, dict[str, Cell]]:
    """Return, for each proxy and load, medians of all turns; failures are added up."""
    starts = contenders()
    loads = [one for one in LOADS if one.name in TWO_LOADS]
    cells: dict[str, dict[str, list[Cell]]] = {
        name: {one.name: [] for one in loads} for name in HAPROXY_PEERS
    }
    with ExitStack() as stack:
        # Only one daemon runs on a host.
        others = usual_place(stack)
        places = {IN_PROCESS: usual_place(stack), IN_HAPROXY_CROWD: crowded_place(stack)}
        running = []
        for number, name in enumerate(HAPROXY_PEERS):
            place = replace(places.get(name, others), port=PEER_PORT + number)
            running.append((name, place.direct, stack.enter_context(starts[name](place))))
        for _name, direct, proxy in running:
            warm_up(direct, proxy)
        for one in loads:
            for turn in range(turns):
                print(f"engine haproxy, {one.name}: turn {turn + 1} of {turns}", flush=True)
                first = turn % len(running)
                for name, direct, proxy in [*running[first:], *running[:first]]:
                    cell = ask(direct, proxy, one, seconds=SECONDS)
                    cells[name][one.name].append(cell)
    return {
        name: {each: median(found) for each, found in by_load.items()}
        for name, by_load in cells.items()
    }
