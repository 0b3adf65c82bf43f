"""Tables of the measured values of a run, for a terminal and for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

from bench.targets import ENGINE, HAPROXY, NEUTRON, OVN, TWO_LOADS, Report, Target, ratio, targets

COUNTS = (1, 32, 256)
KINDS = {"new": "a connection for each request", "keep-alive": "kept connections"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A title, the columns' names, and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(report: Report) -> Iterator[Table]:
    """Yield a table for each part that the run has measured."""
    result = targets(report)
    if result:
        yield target_table(result)
    if "throughput" in report:
        for kind, words in KINDS.items():
            for count in COUNTS:
                clients = "1 client" if count == 1 else f"{count} clients"
                yield _throughput(report, f"{kind} {count}", f"{clients}, {words}")
    if "storm" in report:
        yield _storm(report)
    if "first SYN" in report:
        yield _first_syns(report)
    if "memory" in report:
        yield _memory(report)
    if "map" in report:
        yield _map(report)
    if ENGINE in report:
        yield _engine(report)
        yield _pairs(report)


def target_table(measured: Iterable[Target]) -> Table:
    """Return a table of targets, and whether each is met."""
    rows = [
        (target.name, number(target.value), target.wanted, "met" if target.met else "missed")
        for target in measured
    ]
    return Table(title="Targets", columns=("target", "measured", "required", "result"), rows=rows)


def _throughput(report: Report, load: str, title: str) -> Table:
    ratios = {"of haproxy": HAPROXY, "of Neutron": NEUTRON, "of OVN": OVN}
    columns = ("proxy", "requests/s", *ratios, "p50 ms", "p99 ms", "failed")
    rows = []
    for name, loads in report["throughput"].items():
        cell = loads[load]
        rows.append(
            (
                name,
                f"{cell['rate']:,.0f}",
                *(number(ratio(report, name, other, load=load)) for other in ratios.values()),
                number(cell["p50"]),
                number(cell["p99"]),
                f"{cell['failed']:,} of {cell['requests']:,}",
                str(cell["resent"]),
                number(cell["cpu"]),
                number(cell["memory"]),
            )
        )
    more = ("SYNs resent", "CPU s/1,000", "memory MB")
    return Table(title=title, columns=(*columns, *more), rows=rows)


def _storm(report: Report) -> Table:
    columns = ("proxy", "last guest s", "half of the guests s", "failed", "CPU s")
    rows = [
        (
            name,
            *(number(row[part]) for part in ("last", "median")),
            f"{row['failed']:,.0f} of {row['requests']:,.0f}",
            *(number(row[part]) for part in ("cpu", "asking")),
        )
        for name, row in report["storm"].items()
    ]
    return Table(title="Boot storm", columns=(*columns, "load generator, CPU s"), rows=rows)


def _first_syns(report: Report) -> Table:
    columns = ("proxy, load of the other guest", "p50 ms", "p99 ms", "unanswered")
    rows = [
        (
            name,
            *(number(row[part]) for part in ("p50", "p99")),
            f"{row['unanswered']:g} of {row['count']:g}",
            f"{row['rate']:,.0f}/s",
        )
        for name, row in report["first SYN"].items()
    ]
    return Table(
        title="First SYN beside a busy guest", columns=(*columns, "rate of the load"), rows=rows
    )


def _memory(report: Report) -> Table:
    listed = {name: row for name, row in report["memory"].items() if "parts" not in name}
    # Some proxies were not measured with each number of guests.
    counts = list(dict.fromkeys(count for row in listed.values() for count in row))
    rows = [
        (name, *(f"{row[count]:,.0f}" if count in row else "-" for count in counts))
        for name, row in listed.items()
    ]
    columns = ("MB with guests", *(f"{int(count):,}" for count in counts))
    return Table(title="Memory", columns=columns, rows=rows)


def _map(report: Report) -> Table:
    rows = [
        (name, *(number(row[part]) for part in ("p50", "p99", "longest")))
        for name, row in report["map"].items()
    ]
    columns = ("change of one entry", "p50 ms", "p99 ms", "longest ms")
    return Table(title="Map of haproxy", columns=columns, rows=rows)


def _engine(report: Report) -> Table:
    """Return the table of the page about the engine haproxy: this engine and its peers."""
    columns = ("answers a second, 32 clients", *KINDS.values())
    rows = [
        (name, *(f"{loads[load]['rate']:,.0f}" for load in TWO_LOADS))
        for name, loads in report[ENGINE]["proxies"].items()
    ]
    return Table(title="Engine haproxy", columns=columns, rows=rows)


def _pairs(report: Report) -> Table:
    columns = ("requests a second, as a multiple of", *KINDS.values())
    rows = [
        (pair, *(number(statistics.median(by_load[load])) for load in TWO_LOADS))
        for pair, by_load in report[ENGINE]["ratios"].items()
    ]
    return Table(title="Engine haproxy, ratios", columns=columns, rows=rows)


def number(value: float) -> str:
    """Return *value* with three significant digits, or a dash if it is not a number."""
    if value != value:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def print_tables(found: Iterable[Table], console: Console) -> None:
    """Print the tables to a terminal."""
    for table in found:
        shown = RichTable(title=table.title, title_justify="left")
        for place, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if place else "left")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)


def restructured(table: Table) -> str:
    """Return *table* as a list-table of docutils."""
    lines = [f".. list-table:: {table.title}", "   :header-rows: 1", ""]
    for row in (table.columns, *table.rows):
        first, *rest = [cell or "\\" for cell in row]
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in rest)]
    return "\n".join([*lines, ""])
