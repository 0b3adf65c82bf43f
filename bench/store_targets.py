"""Targets for the store, compared with forwarding in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.targets import Report, Target

FORWARDING, SQLITE, POSTGRESQL = "forwarding", "SQLite", "PostgreSQL"
WORKERS = ", 2 workers"
LOADS = {"keep-alive 1": "1 client", "keep-alive 32": "32 clients"}
"""Kept connections only: the cost of a new connection is the same for both backends, and larger
than the difference between them."""
BOUND, AIM = 1.5, 2.0


def ratio(report: Report, name: str, item: str, load: str) -> float:
    """Return requests a second as a multiple of forwarding's, with the same number of workers.

    The result is the median of the rounds' ratios, because both values of a ratio are measured at
    most minutes apart. It is NaN if either was not measured.
    """
    other = f"{FORWARDING}{WORKERS}" if name.endswith(WORKERS) else FORWARDING
    reads = report.get("store reads", {})
    try:
        pairs = zip(
            *(reads[backend][item][load]["rates"] for backend in (name, other)), strict=True
        )
        return float(statistics.median(mine / theirs for mine, theirs in pairs))
    except (KeyError, ZeroDivisionError):
        return float("nan")


def targets(report: Report) -> Iterator[Target]:
    """Yield the targets that the run has measured."""
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
        yield Target(name="failed requests in total", value=failed, bound=0, at_most=True)
