"""The engine haproxy beside each of its peers, in short turns.

The speed of a virtual machine changes within seconds, and a proxy that idles for a part of its time
leaves more to the next one. So all proxies run at once, and each turn loads two of them, one after
the other: their ratio is that of two values which were measured a second apart. The next turn has
the opposite order.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from bench.load import Load
from bench.targets import (
    HAPROXY_PEERS,
    IN_HAPROXY_CROWD,
    IN_PROCESS,
    PAIRS,
    TWO_LOADS,
    pair_name,
)
from bench.throughput import (
    LOADS,
    PEER_PORT,
    Cell,
    Place,
    Running,
    ask,
    crowded_place,
    median,
    proxy_starts,
    usual_place,
    warm_up,
)

TURNS, SECONDS = 31, 1


class Comparison:
    """Proxies that run, and what was measured of them.

    :param running: name of a proxy → its host, and where it accepts requests.
    """

    def __init__(self, running: Mapping[str, tuple[Place, Running]]) -> None:
        self._running = running
        self._cells: dict[str, dict[str, list[Cell]]] = {name: {} for name in running}
        self._ratios: dict[str, dict[str, list[float]]] = {}

    def turn(self, pair: tuple[str, str], load: Load, *, swapped: bool) -> None:
        """Load both proxies of a pair, and note the ratio of their rates."""
        result = {}
        for name in reversed(pair) if swapped else pair:
            place, proxy = self._running[name]
            result[name] = ask(place.direct, proxy, load, seconds=SECONDS)
            self._cells[name].setdefault(load.name, []).append(result[name])
        rate, other = (result[name].rate for name in pair)
        by_load = self._ratios.setdefault(pair_name(*pair), {})
        by_load.setdefault(load.name, []).append(rate / other if other else float("nan"))

    def report(self) -> dict[str, Any]:
        """Return medians for each proxy and load, and the ratios of all turns of each pair."""
        proxies = {
            name: {load: asdict(median(cells)) for load, cells in by_load.items()}
            for name, by_load in self._cells.items()
        }
        return {"proxies": proxies, "ratios": self._ratios}


def measure(*, turns: int = TURNS) -> dict[str, Any]:
    """Return the report on all pairs; see :meth:`Comparison.report`."""
    starts = proxy_starts()
    with ExitStack() as stack:
        # Only one daemon runs on a host.
        others = usual_place(stack)
        places = {IN_PROCESS: usual_place(stack), IN_HAPROXY_CROWD: crowded_place(stack)}
        running = {}
        for number, name in enumerate(HAPROXY_PEERS):
            place = replace(places.get(name, others), port=PEER_PORT + number)
            running[name] = place, stack.enter_context(starts[name](place))
        for place, proxy in running.values():
            warm_up(place.direct, proxy)
        comparison = Comparison(running)
        for load in (load for load in LOADS if load.name in TWO_LOADS):
            for turn in range(turns):
                print(f"engine haproxy, {load.name}: turn {turn + 1} of {turns}", flush=True)
                for pair in PAIRS:
                    comparison.turn(pair, load, swapped=bool(turn % 2))
        return comparison.report()
