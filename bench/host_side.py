"""The check of tap-metadata's host side, on hosts of several sizes.

Run as root, after ``tools/setup.sh``::

    .venv/bin/python -m bench.host_side [--json FILE] [--of routes=10000,links=2000]

In a network namespace with many routes, rules, addresses, neighbours or links: milliseconds of a
check (the median of several), as a multiple of the time on an empty host, and the longest time that
another greenthread waited during a check. The check is the daemon's, in a process that is patched
as the daemon is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from bench.packet_path import machine
from tests.harness.netns import Namespace, veth

SIZES = (
    ("routes", 1_000),
    ("routes", 10_000),
    ("routes", 50_000),
    ("rules", 5_000),
    ("addresses", 10_000),
    ("neighbours", 900),
    ("links", 2_000),
)
DEVICE, ADDRESS = "tap-metadata", "169.254.169.254"
LOOKS = 20
PAUSE = 0.02
TICK = 0.001
MAKE: dict[str, Callable[[str, int], str]] = {
    "routes": lambda net, n: f"route add 20.{net}/32 via 10.0.0.2 dev up0",
    "rules": lambda net, n: f"rule add from 20.{net} lookup 77 pref 1000",
    "addresses": lambda net, n: f"addr add 20.{net}/32 dev up0",
    "neighbours": lambda net, n: f"neigh add 10.{net} lladdr 02:00:00:00:00:01 dev up0",
    "links": lambda net, n: f"link add l{n}a type veth peer name l{n}b",
}


def main() -> None:
    """Measure and print a table; with ``look``, measure in the current namespace."""
    if sys.argv[1:] == ["look"]:
        print(json.dumps(look()))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument(
        "--of", help="sizes to measure, as KIND=COUNT,…, for example routes=10000,links=2000"
    )
    options = parser.parse_args()
    sizes = (
        [(kind, int(n)) for kind, n in (word.split("=") for word in options.of.split(","))]
        if (options.of)
        else SIZES
    )
    report: dict[str, Any] = {"machine": machine(), "looks": {"an empty host": measure("", 0)}}
    show("an empty host", report)
    for kind, count in sizes:
        report["looks"][f"{count:,} {kind}"] = measure(kind, count)
        show(f"{count:,} {kind}", report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def show(name: str, report: dict[str, Any]) -> None:
    """Print a line of the table."""
    empty, result = report["looks"]["an empty host"], report["looks"][name]
    times = result["look ms"] / empty["look ms"]
    print(
        f"{name:20}{result['look ms']:9.1f} ms{times:8.1f} times{result['stall ms']:9.1f} ms stall"
    )


def measure(kind: str, count: int) -> dict[str, float]:
    """Return the values on a host with *count* entries of *kind*."""
    with Namespace("bench") as host:
        veth(host, DEVICE, host, "peer")
        veth(host, "up0", host, "up1")
        host.ip("addr add 10.0.0.1/8 dev up0")
        made = count // 2 if kind == "links" else count
        if made:
            nets = (f"{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(256, 256 + made))
            host.ip(*(MAKE[kind](net, n) for n, net in enumerate(nets)))
        program = [sys.executable, "-W", "ignore", "-m", "bench.host_side", "look"]
        figures: dict[str, float] = json.loads(host.run(program, timeout=300).stdout)
        return figures


def look() -> dict[str, float]:
    """Measure the check of the host side in the current namespace."""
    from dfmeta.runtime import patch

    patch()
    import eventlet

    from dfmeta.host.netlink import HostSide, WantedSide

    side = HostSide(WantedSide(DEVICE, IPv4Address(ADDRESS), 2))
    side.ensure()
    waits = [0.0]

    def wait() -> None:
        while True:
            due = time.monotonic() + TICK
            eventlet.sleep(TICK)
            waits.append(time.monotonic() - due)

    eventlet.spawn(wait)
    eventlet.sleep(PAUSE)
    times = []
    waits[:] = [0.0]
    for _ in range(LOOKS):
        began = time.perf_counter()
        side.ensure()
        times.append(1000 * (time.perf_counter() - began))
        eventlet.sleep(PAUSE)
    return {"look ms": statistics.median(times), "stall ms": 1000 * max(waits)}


if __name__ == "__main__":
    main()
