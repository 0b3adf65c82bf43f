"""Compare the proxy with its peers: one run, one stand-in for Nova, the same path to each proxy.

Run as root, after ``tools/setup.sh --bench``::

    .venv/bin/python -m bench.proxy [--quick] [--only NAME] [--json FILE]

*throughput*: requests a second, times, failures, CPU time and memory of each proxy under each load.
*engine*: requests a second with ``engine = haproxy`` beside those of its peers, in turn.
*storm*: 50 guests that boot at once, through the switch.
*syn*: a guest's first SYN while another guest keeps the proxy busy, through the switch.
*memory*: memory of the daemon by the number of guests that it knows, and that of Neutron's agent.
*map*: time of a change of haproxy's map, from the registry to haproxy's confirmation.

``doc/source/performance.rst`` explains the numbers; ``bench/report.py`` writes them there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import engine, haproxy_map, memory, programs, saturation, storm, tables, throughput
from bench.packet_path import machine
from bench.tables import Table
from bench.targets import ENGINE, HAPROXY, IN_PROCESS, IPV6, NEUTRON, OVN, Report
from tests.harness.netns import ROOT
from tests.harness.ovs import UNPACKED

PARTS = ("throughput", "engine", "storm", "syn", "memory", "map")
PACKAGES = ("eventlet", "httplib2", "WebOb", "os-ken")
ROUNDS, SECONDS = 3, 3
QUICK_GUESTS = 8
QUICK_CHANGES = 100
QUICK_TURNS = 3
WIDTH = 150


def main() -> None:
    """Measure and print the tables."""
    options = parse()
    programs.require()
    wanted = set(options.only)
    report: dict[str, Any] = {"machine": where(), "versions": versions()}
    rounds, seconds = (1, 1) if options.quick else (ROUNDS, SECONDS)
    names = chosen(wanted)
    if names:
        report["throughput"] = {
            name: {load: asdict(cell) for load, cell in loads.items()}
            for name, loads in throughput.measure(names, rounds=rounds, seconds=seconds).items()
        }
    if not wanted or ENGINE in wanted:
        turns = QUICK_TURNS if options.quick else engine.TURNS
        report[ENGINE] = engine.measure(turns=turns)
    if not wanted or "storm" in wanted:
        report["storm"] = storm.measure(rounds=rounds)
    if not wanted or "syn" in wanted:
        guests = QUICK_GUESTS if options.quick else saturation.GUESTS
        report["first SYN"] = saturation.measure(guests=guests)
    if not wanted or "memory" in wanted:
        report["memory"] = memory.measure()
    if not wanted or "map" in wanted:
        changes = QUICK_CHANGES if options.quick else haproxy_map.CHANGES
        report["map"] = haproxy_map.measure(changes=changes)
    finish(report, tables.tables, options.json)


def finish(
    report: dict[str, Any], found: Callable[[Report], Iterable[Table]], file: Path | None
) -> None:
    """Print the tables of a report, and write it to *file* if there is one."""
    report["machine"]["load after"] = load_average()
    tables.print_tables(found(report), Console(width=WIDTH))
    if file:
        file.write_text(json.dumps(report, indent=2) + "\n")


def command(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all comparisons have."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="measure one short round, for a first impression"
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command(__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        choices=(*PARTS, *throughput.proxy_starts()),
        help=f"measure only this part ({', '.join(PARTS)}), or only this proxy together with "
        "haproxy, neutron and ovn (for IPv6 also with IPv4); "
        "may be given several times",
    )
    return parser.parse_args()


def chosen(wanted: set[str]) -> Sequence[str]:
    """Return the proxies to measure, in the order of the table."""
    every = throughput.proxy_starts()
    if not wanted or "throughput" in wanted:
        return list(every)
    named = wanted & set(every)
    if IPV6 in named:
        named.add(IN_PROCESS)
    return [name for name in every if named and name in named | {HAPROXY, NEUTRON, OVN}]


def where() -> dict[str, Any]:
    """Return facts on the machine, and its load average before the run."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    result = machine()
    return {
        "cores": result["cores"],
        "processor": models[0] if models else "unknown",
        "kernel": result["kernel"],
        "date": result["date"],
        "load before": load_average(),
    }


def load_average() -> float:
    """Return the load average of the last minute (proc(5), loadavg)."""
    return os.getloadavg()[0]


def versions() -> dict[str, str]:
    """Return the versions of all programs and packages that are measured."""
    switch = subprocess.run(
        [str(UNPACKED / "usr/lib/openvswitch-switch/ovs-vswitchd"), "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    # The last commit that changed the measured code.
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "dfmeta"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "dfmeta": commit.stdout.strip() or version("dfmeta"),
        "Python": str(machine()["python"]),
        **{name: version(name) for name in PACKAGES},
        "Open vSwitch": switch.stdout.split("\n", 1)[0].split()[-1],
        **programs.versions(),
    }


if __name__ == "__main__":
    main()
