"""Write the results of bench.proxy or bench.store into the documentation.

::

    .venv/bin/python -m bench.report FILE

FILE was written by ``python -m bench.proxy --json FILE`` or ``python -m bench.store --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

from bench import store_tables
from bench.chart import chart
from bench.tables import restructured, tables
from bench.targets import Report

FOLDER = Path(__file__).resolve().parents[1] / "doc" / "source"
FIGURES = "performance-{}.inc"
PICTURE = "performance.svg"
SECTIONS = {
    "Map of haproxy": "map",
    "Engine haproxy": "haproxy",
    "Engine haproxy, ratios": "haproxy",
}
"""Title of a table → part of the documentation; else the title itself."""


def main() -> None:
    """Write a file of tables for each section of the page, and the chart of the proxies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    report: Report = json.loads(options.file.read_text())
    run = "bench.store" if any(name.startswith("store ") for name in report) else "bench.proxy"
    for name, parts in sections(report, run).items():
        text = "\n".join([f".. Made by bench/report.py from a run of {run}.\n", *parts])
        file = FOLDER / FIGURES.format(name)
        if file.exists():  # no page includes the other tables
            file.write_text(text, encoding="utf-8")
    if run == "bench.proxy":
        (FOLDER / PICTURE).write_text(chart(report), encoding="utf-8")


def sections(report: Report, run: str) -> dict[str, list[str]]:
    """Return the name of each part of the page, with its text."""
    if run == "bench.store":
        named = [(f"store-{part}", table) for part, table in store_tables.tables(report)]
        result = {"store-machine": [machine(report)]}
    else:
        named = [(section(table.title), table) for table in tables(report)]
        result = {"machine": [machine(report)]}
    for name, table in named:
        result.setdefault(name, []).append(restructured(table))
    return result


def section(title: str) -> str:
    """Return the part of the page that a table with this title belongs to."""
    if "connection" in title:
        return "kept" if "kept" in title else "new"
    return SECTIONS.get(title, title.lower())


def machine(report: Report) -> str:
    """Return a paragraph on the machine and the versions of the programs measured."""
    where = report["machine"]
    parts = [f"{where['cores']} cores ({where['processor']}), Linux {where['kernel']}"]
    parts += [f"{name} {value}" for name, value in report["versions"].items()]
    busy = ", ".join(f"{where[f'load {when}']:.2f} {when}" for when in ("before", "after"))
    text = f"{'; '.join(parts)}. {where['date']}, load average {busy} the run."
    return "\n".join([*textwrap.wrap(text, 100, break_on_hyphens=False), ""])


if __name__ == "__main__":
    main()
