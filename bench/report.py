"""Write a run of bench.proxy into the documentation.

::

    .venv/bin/python -m bench.report FILE

FILE is what ``python -m bench.proxy --json FILE`` has written.
"""

from __future__ import annotations

import argparse
import json
import textwrap
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
    """Where the figures were taken, and with what."""
    where = report["machine"]
    parts = [f"{where['cores']} cores ({where['processor']}), Linux {where['kernel']}"]
    parts += [f"{name} {value}" for name, value in report["versions"].items()]
    busy = ", ".join(f"{where[f'load {when}']:.2f} {when}" for when in ("before", "after"))
    text = f"{'; '.join(parts)}. {where['date']}, load average {busy} the run."
    return "\n".join([*textwrap.wrap(text, 100, break_on_hyphens=False), ""])


if __name__ == "__main__":
    main()
