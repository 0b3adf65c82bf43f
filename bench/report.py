"""Write a run of bench.proxy into the documentation.

::

    .venv/bin/python -m bench.report FILE

FILE is what ``python -m bench.proxy --json FILE`` has written.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.chart import chart
from bench.tables import restructured, tables
from bench.targets import Report

FOLDER = Path(__file__).resolve().parents[1] / "doc" / "source"
FIGURES = "performance-{}.inc"
PICTURE = "performance.svg"


def main() -> None:
    """Write the picture, and one file of tables for each section of the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    report: Report = json.loads(options.file.read_text())
    sections: dict[str, list[str]] = {"machine": [machine(report)]}
    for table in tables(report):
        sections.setdefault(section(table.title), []).append(restructured(table))
    for name, parts in sections.items():
        head = ".. Made by bench/report.py from a run of bench.proxy.\n"
        text = "\n".join([head, *parts])
        (FOLDER / FIGURES.format(name)).write_text(text, encoding="utf-8")
    (FOLDER / PICTURE).write_text(chart(report), encoding="utf-8")


def section(title: str) -> str:
    """Which part of the page a table belongs to."""
    if "connection" in title:
        return "kept" if "kept" in title else "new"
    return {"Boot storm": "storm", "First SYN beside a busy guest": "syn"}.get(title, title.lower())


def machine(report: Report) -> str:
    """Where the figures were taken."""
    lines = []
    for name, value in {**report["machine"], **report["versions"]}.items():
        lines += [f"{name}", f"   {value}"]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
