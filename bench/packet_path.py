"""The packet path: times of a guest's first and later connections, and of the switch alone.

Run as root, after ``tools/setup.sh``::

    .venv/bin/python -m bench.packet_path [--json FILE]

*first*: the first connection of an address, including packet-in, bundle, barrier and packet-out.
*later*: further connections of the same address, which never reach the controller.
*storm*: all guests at once, each from a new address.
*release*: from a packet-in to its packet-out inside dfmeta-agent, by the daemon's own histogram; a
value is the upper bound of its bucket.
*switch alone*: the same client and a plain responder behind two static flows of the same bridge: no
controller can be faster. The proxy answers the requested path itself, so that the times include no
backend.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.processes import thread_seconds
from tests.harness.agent import Agent
from tests.harness.guest import Guest, Ids, Sample
from tests.harness.netns import Namespace
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

PATH = "/healthz"
GUESTS = 20
ADDRESSES = 5
LATER = 20
RATE_COUNT = 3000
RESPONDER = Path(__file__).with_name("responder.py")


def main() -> None:
    """Measure and print the values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        agent = stack.enter_context(Agent(host))
        guests = [stack.enter_context(Guest(host, f"g{n}")) for n in range(GUESTS)]
        figures = {"switch alone": alone(host), **served(agent, guests)}
        release = released(agent)
        costs = {
            "release p50 ms": release[0.5],
            "release p99 ms": release[0.99],
            **rates(agent, guests[0]),
            **crawl(agent, guests[1]),
        }
    report = {"machine": machine(), "milliseconds": figures, "costs": costs}
    print_table(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def served(agent: Agent, guests: Sequence[Guest]) -> dict[str, dict[str, float]]:
    """Measure first and later connections through dfmeta."""
    agent.start()
    first: list[Sample] = []
    later: list[Sample] = []
    for guest in guests:
        for number in range(ADDRESSES):
            address = f"10.0.0.{10 + number}"
            guest.add_address(f"{address}/24")
            # A neighbour entry of an earlier try would hide, or add, an ARP exchange.
            guest.forget_neighbours()
            first += guest.http_many(1, path=PATH, source=address)
            later += guest.http_many(LATER, path=PATH, source=address)
    connections = len(first) + len(later)
    print(f"{len(first)} addresses, {connections} connections, {packet_ins(agent):.0f} packet-ins")
    return {"first": summary(first), "later": summary(later), "storm": storm(agent, guests)}


def storm(agent: Agent, guests: Sequence[Guest]) -> dict[str, float]:
    """Measure connections of all guests at once, each from a new address."""
    del agent
    address = "10.0.0.99"
    for guest in guests:
        guest.add_address(f"{address}/24")
    batches = [guest.start_many(1, path=PATH, source=address) for guest in guests]
    return summary([sample for batch in batches for sample in batch.samples()])


def released(agent: Agent) -> dict[float, float]:
    """Return the median and the 99th percentile of milliseconds from packet-in to packet-out."""
    prefix = "dfmeta_first_syn_seconds_bucket"
    buckets = {
        float(name.split('"')[1]): value
        for name, value in agent.metrics().items()
        if name.startswith(prefix)
    }
    total = max(buckets.values())
    return {
        part: 1000 * min(bound for bound, value in buckets.items() if value >= part * total)
        for part in (0.5, 0.99)
    }


def rates(agent: Agent, guest: Guest) -> dict[str, float]:
    """Measure connections a second of one guest, 16 at a time, and dfmeta-agent's CPU time."""
    cpu, began = thread_seconds(agent.pid), time.monotonic()
    samples = guest.http_many(RATE_COUNT, 16, path=PATH)
    took = time.monotonic() - began
    assert all(sample.status for sample in samples)
    return {
        "connections/s": round(len(samples) / took),
        "agent CPU ms/connection": round(
            1000 * (thread_seconds(agent.pid) - cpu) / len(samples), 3
        ),
    }


def crawl(agent: Agent, guest: Guest) -> dict[str, float]:
    """Count the packet-ins of cloud-init's 28 connections from a new address."""
    guest.add_address("10.0.0.98/24")
    before = packet_ins(agent)
    guest.http_many(28, path=PATH, source="10.0.0.98")
    return {"packet-ins/crawl": packet_ins(agent) - before}


def packet_ins(agent: Agent) -> float:
    """Return the number of packet-ins so far."""
    return sum(v for k, v in agent.metrics().items() if k.startswith("dfmeta_packet_ins"))


def alone(host: OpenvSwitch) -> dict[str, float]:
    """Measure a responder on a port of the same bridge, reached over NORMAL."""
    with (
        Guest(host, "asks", address="10.9.0.1/24", ids=Ids()) as guest,
        Guest(host, "answers", address="10.9.0.2/24", ids=Ids()) as responder,
    ):
        process = start_responder(responder.namespace)
        try:
            return summary(guest.http_many(LATER * ADDRESSES, path=PATH, host=responder.ip))
        finally:
            process.kill()
            process.wait()


def start_responder(namespace: Namespace) -> subprocess.Popen[bytes]:
    """Start the plain responder and wait until it accepts connections."""
    process = namespace.spawn([sys.executable, str(RESPONDER), "80"], stdout=subprocess.DEVNULL)
    wait_for(lambda: _answers(namespace), "the responder")
    return process


def _answers(namespace: Namespace) -> bool:
    try:
        namespace.connect("127.0.0.1", 80).close()
    except OSError:
        return False
    return True


def summary(samples: Sequence[Sample]) -> dict[str, float]:
    """Return p50 and p99 of connection and answer in milliseconds, and the number of failures."""
    good = [sample for sample in samples if sample.status]
    return {
        "connect p50": quantile([s.connect for s in good], 0.5),
        "connect p99": quantile([s.connect for s in good], 0.99),
        "answer p50": quantile([s.seconds for s in good], 0.5),
        "answer p99": quantile([s.seconds for s in good], 0.99),
        "count": len(samples),
        "failed": len(samples) - len(good),
    }


def quantile(values: Sequence[float], part: float) -> float:
    """Return the *part* quantile of *values* (seconds) in milliseconds."""
    if len(values) < 2:
        return round(1000 * (values[0] if values else float("nan")), 3)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return round(1000 * cuts[int(part * 100) - 1], 3)


def machine() -> dict[str, Any]:
    """Return facts on the machine, and the date."""
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "cores": len(set(Path("/proc/cpuinfo").read_text().split("processor"))) - 1,
        "date": time.strftime("%Y-%m-%d"),
    }


def print_table(report: dict[str, Any]) -> None:
    """Print the values as a table."""
    rows: dict[str, dict[str, float]] = report["milliseconds"]
    columns = list(next(iter(rows.values())))
    print(f"{'':14}" + "".join(f"{column:>13}" for column in columns))
    for name, row in rows.items():
        print(f"{name:14}" + "".join(f"{row[column]:>13.2f}" for column in columns))
    for name, value in report["costs"].items():
        print(f"{name:26}{value:>10.3f}")


if __name__ == "__main__":
    main()
