"""What the store is to reach beside forwarding, in one run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.targets import Report, Target

FORWARDING, SQLITE, POSTGRESQL = "forwarding", "SQLite", "PostgreSQL"
WORKERS = ", 2 workers"
LOADS = {"keep-alive 1": "1 client", "keep-alive 32": "32 clients"}
"""Kept connections: what making one costs is the same for both, and more than what differs."""
BOUND, AIM = 1.5, 2.0


def ratio(report: Report, name: str, item: str, load: str) -> float:
    """Requests a second as a multiple of forwarding's, with as many workers.

    The median of the rounds' ratios: both of a ratio were measured minutes apart at most. Not a
    number where one was not measured.
    """
    other = f"{FORWARDING}{WORKERS}" if name.endswith(WORKERS) else FORWARDING
    reads = report.get("store reads", {})
    try:
        pairs = zip(*(reads[one][item][load]["rates"] for one in (name, other)), strict=True)
        return float(statistics.median(mine / theirs for mine, theirs in pairs))
    except (KeyError, ZeroDivisionError):
        return float("nan")


def targets(report: Report) -> Iterator[Target]:
    """Those that the run has figures for."""
    reads = report.get("store reads", {})
    for item in reads.get(SQLITE, {}):
        for load, clients in LOADS.items():
            name = (
                f"{SQLITE}, {item}, {clients}, kept connections: requests a second, "
                "as a multiple of forwarding's"
            )
            value = ratio(report, SQLITE, item, load)
            yield Target(name=name, value=value, bound=BOUND, aim=AIM)
    failed = sum(
        cell["failed"]
        for items in reads.values()
        for loads in items.values()
        for cell in loads.values()
    )
    if reads:
        yield Target(name="failed requests of all", value=failed, bound=0, at_most=True)
