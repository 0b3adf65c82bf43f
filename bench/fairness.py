"""The delay of other guests' requests while some guests cause as much work as they can.

Run as root, after ``tools/setup.sh``::

    .venv/bin/python -m bench.fairness [--hostile 4] [--workers 0] [--json FILE]

*asks*: kept connections that request a document again and again, as many as a port may have;
*spellings*: the same, each time with a spelling of the path that was not used before; *chunks*:
bodies in chunks of one byte; *elsewhere*: the same flood against another process, behind the same
switch on the same cores: a cost that no scheduling in dfmeta can avoid. *first* is the first
request of an address that is not known, including its packet-in; *later* is a request of a known
guest. Ratios are to quiet times between the floods, because other programs use the machine as well.
*stall* is the average delay of the daemon's hub, *core* its share of one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.packet_path import machine, quantile, start_responder
from bench.processes import thread_seconds
from dfmeta.http.limits import Limits
from tests.harness.agent import Agent
from tests.harness.greedy import Greedy, Kind
from tests.harness.guest import Guest, Ids, Sample
from tests.harness.ovs import OpenvSwitch

PATH = "/latest/meta-data/instance-id"
KINDS: dict[str, tuple[Kind, str]] = {
    "asks": ("asks", PATH),
    "spellings": ("spellings", "/nocloud/network-config"),
    "chunks": ("chunks", PATH),
}
"""Name of a flood → its kind and its path."""
SITUATIONS = (*KINDS, "asks elsewhere", "chunks elsewhere")
QUIET = "quiet"
ROUNDS = 4
ADDRESSES = 6
"""New addresses in each measurement; fewer than a port has slots."""
LATER = 30
AT_ONCE = Limits().connections_per_port
INTERFACES = 8
STALLS = "dfmeta_hub_stall_seconds"


def main() -> None:
    """Measure and print the values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--hostile", type=int, default=4, help="number of guests that flood the proxy"
    )
    parser.add_argument("--workers", type=int, default=0, help="number of workers of the proxy")
    parser.add_argument(
        "--only", action="append", choices=SITUATIONS, help="measure only this situation"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    rows = measure(options.hostile, options.workers, options.only or SITUATIONS)
    for name, row in rows.items():
        print(f"{name:10} " + ", ".join(f"{part} {value:g}" for part, value in row.items()))
    if options.json:
        report = {"machine": machine(), "milliseconds": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(hostile: int, workers: int, wanted: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return, for each situation, values in milliseconds and their ratios to the quiet time."""
    result: dict[str, list[Taken]] = {name: [] for name in (QUIET, *wanted)}
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host, {"df_metadata": {"proxy_workers": workers}}))
        agent.start()
        document = agent.folder / "document.json"
        document.write_text(json.dumps({"network_config": network_config()}))
        # The other process is reached over the bridge, so the addresses have to differ.
        *greedy, known, away = (
            stack.enter_context(Guest(host, name, address=f"10.0.0.{number}/24", ids=ids))
            for number, (name, ids) in enumerate(
                [*((f"greedy{n}", None) for n in range(hostile)), ("known", None), ("away", Ids())],
                10,
            )
        )
        for guest in (*greedy, known):
            agent.ctl("store", "put", guest.instance_id, "--json", str(document))
            guest.http_many(50, path=PATH)
        for turn, hostile_situation in itertools.product(range(ROUNDS), wanted):
            for situation in (QUIET, hostile_situation):
                what, _, elsewhere = situation.partition(" ")
                kind, path = KINDS.get(what, ("asks", PATH))
                with ExitStack() as floods:
                    fresh = floods.enter_context(Guest(host, "fresh"))
                    agent.ctl("store", "put", fresh.instance_id, "--json", str(document))
                    if elsewhere:
                        # A new responder each time: it ends when a client disconnects.
                        responder = start_responder(away.namespace)
                        floods.callback(responder.wait)
                        floods.callback(responder.kill)
                    target = {"host": away.ip} if elsewhere else {}
                    running = [
                        floods.enter_context(
                            Greedy(guest, kind, wanted=AT_ONCE, path=path, **target)
                        )
                        for guest in (() if situation == QUIET else greedy)
                    ]
                    began = time.monotonic()
                    taken = take(agent, known, fresh)
                    opened = sum(flood.finish().opened for flood in running)
                    opened_a_second = opened / (time.monotonic() - began)
                    result[situation].append(replace(taken, opened=opened_a_second))
                print(f"{turn + 1} of {ROUNDS}: {situation}", flush=True)
    rows = {name: figures(measurements) for name, measurements in result.items()}
    for row in rows.values():
        for part in ("first p50", "first p90", "later p50"):
            row[f"{part} ratio"] = round(row[part] / rows[QUIET][part], 2)
    return rows


@dataclass(frozen=True)
class Taken:
    """The results of one measurement."""

    first: list[Sample]
    later: list[Sample]
    stalls: tuple[float, float]
    """Seconds of all stalls of the hub, and the number of samples."""
    requests: float
    """Requests that the daemon answered in a second."""
    share: float
    """Share of one core that the daemon used."""
    opened: float = 0.0
    """Connections that the flood opened in a second."""


def take(agent: Agent, known: Guest, fresh: Guest) -> Taken:
    """Measure first requests of new addresses, and requests of a known guest."""
    before, answered = stalls(agent), requests(agent)
    cpu, began = thread_seconds(agent.pid), time.monotonic()
    first: list[Sample] = []
    for number in range(ADDRESSES):
        address = f"10.0.1.{number + 1}"
        fresh.add_address(f"{address}/24")
        fresh.forget_neighbours()
        first += fresh.http_many(1, path=PATH, source=address)
    later = known.http_many(LATER, path=PATH)
    seconds = time.monotonic() - began
    total, count = (after - was for after, was in zip(stalls(agent), before, strict=True))
    return Taken(
        first,
        later,
        (total, count),
        (requests(agent) - answered) / seconds,
        (thread_seconds(agent.pid) - cpu) / seconds,
    )


def figures(measurements: Sequence[Taken]) -> dict[str, float]:
    """Return the values over all measurements of a situation."""
    first = [sample for taken in measurements for sample in taken.first]
    later = [sample for taken in measurements for sample in taken.later]
    stalled, looks = (
        sum(column) for column in zip(*(taken.stalls for taken in measurements), strict=True)
    )
    return {
        "first p50": quantile([sample.seconds for sample in first if sample.status], 0.5),
        "first p90": quantile([sample.seconds for sample in first if sample.status], 0.9),
        "later p50": quantile([sample.seconds for sample in later if sample.status], 0.5),
        "later p99": quantile([sample.seconds for sample in later if sample.status], 0.99),
        "failed": sum(not sample.status for sample in (*first, *later)),
        "stall": round(1000 * stalled / max(looks, 1), 2),
        "requests/s": round(statistics.mean(taken.requests for taken in measurements)),
        "opened/s": round(statistics.mean(taken.opened for taken in measurements)),
        "core %": round(100 * statistics.mean(taken.share for taken in measurements)),
    }


def requests(agent: Agent) -> float:
    """Return the number of the daemon's answers so far."""
    metrics = agent.metrics().items()
    return sum(value for name, value in metrics if name.startswith("dfmeta_requests_total"))


def stalls(agent: Agent) -> tuple[float, float]:
    """Return the seconds of all stalls of the hub so far, and the number of samples."""
    return agent.metric(f"{STALLS}_sum"), agent.metric(f"{STALLS}_count")


def network_config() -> dict[str, object]:
    """Return a network configuration with many NICs, in netplan's format, version 2."""
    interfaces = {
        f"eth{number}": {
            "match": {"macaddress": f"fa:16:3e:00:01:{number:02x}"},
            "addresses": [f"192.0.2.{number}/24", f"2001:db8::{number}/64"],
            "nameservers": {"addresses": ["192.0.2.53"], "search": ["example.org"]},
            "routes": [{"to": "0.0.0.0/0", "via": "192.0.2.254", "metric": number}],
        }
        for number in range(1, INTERFACES + 1)
    }
    return {"version": 2, "ethernets": interfaces}


if __name__ == "__main__":
    main()
