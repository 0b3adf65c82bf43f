"""Tables of the measured values of a run of bench.store."""

from __future__ import annotations

from collections.abc import Iterator

from bench.store_targets import ratio, targets
from bench.tables import KINDS, Table, number, target_table
from bench.targets import Report

CLIENTS = {"1": "1 client", "32": "32 clients"}


def tables(report: Report) -> Iterator[tuple[str, Table]]:
    """Yield the tables that the run has values for, each after the name of its part of the page."""
    result = list(targets(report))
    if result:
        yield "targets", target_table(result)
    reads = report.get("store reads", {})
    for item in next(iter(reads.values()), {}):
        for kind, words in KINDS.items():
            for count, clients in CLIENTS.items():
                title = f"{item}, {clients}, {words}"
                yield "reads", _reads(report, item, f"{kind} {count}", title)
    if "store writes" in report:
        yield "writes", _writes(report)


def _reads(report: Report, item: str, load: str, title: str) -> Table:
    columns = ("backend", "requests/s", "of forwarding", "p50 ms", "p99 ms")
    rows = []
    for name, items in report["store reads"].items():
        cell = items[item][load]
        rows.append(
            (
                name,
                f"{cell['rate']:,.0f}",
                number(ratio(report, name, item, load)),
                number(cell["p50"]),
                number(cell["p99"]),
                # Seconds for 1,000 requests are milliseconds for one.
                number(cell["cpu"]),
                f"{cell['failed']:,} of {cell['requests']:,}",
            )
        )
    return Table(title=title, columns=(*columns, "CPU ms a request", "failed"), rows=rows)


def _writes(report: Report) -> Table:
    columns = ("interface, database", "writes/s", "p50 ms", "p99 ms", "failed")
    rows = [
        (
            name,
            f"{row['rate']:,.0f}",
            number(row["p50"]),
            number(row["p99"]),
            f"{row['failed']:,} of {row['writes']:,}",
        )
        for name, row in report["store writes"].items()
    ]
    return Table(title="Writes of 8 clients at once", columns=columns, rows=rows)
