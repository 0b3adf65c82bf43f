"""The store's speed: what guests read of it beside forwarding to Nova, and what is written into it.

Run as root, with what ``tools/setup.sh --bench`` installs::

    .venv/bin/python -m bench.store [--quick] [--only PART] [--json FILE]

*reads*: requests a second, times and CPU time of dfmeta-agent on SQLite, on PostgreSQL and as it
forwards, in turn, in its process and with two workers.
*writes*: records a second that 8 clients write at once, on both databases.

``doc/source/performance.rst`` says what the figures mean; ``bench/report.py`` writes them there.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import programs, store_reads, store_tables, store_writes
from bench.proxy import WIDTH, load_average, versions, where
from bench.tables import print_tables
from tests.harness.ovs import UNPACKED

PARTS = ("reads", "writes")
PACKAGES = ("SQLAlchemy", "psycopg")
OTHERS = ("httplib2", "WebOb", "haproxy", "neutron")
"""What has no part in this."""
ROUNDS, SECONDS = 7, 1


def main() -> None:
    """Measure and print."""
    options = parse()
    programs.require()
    wanted = set(options.only or PARTS)
    report: dict[str, Any] = {"machine": where(), "versions": store_versions()}
    rounds, seconds = (1, 1) if options.quick else (ROUNDS, SECONDS)
    if "reads" in wanted:
        found = store_reads.measure(rounds=rounds, seconds=seconds)
        report["store reads"] = {
            name: {
                item: {load: asdict(cell) for load, cell in loads.items()}
                for item, loads in items.items()
            }
            for name, items in found.items()
        }
    if "writes" in wanted:
        report["store writes"] = {
            name: asdict(one)
            for name, one in store_writes.measure(rounds=rounds, seconds=seconds).items()
        }
    report["machine"]["load after"] = load_average()
    print_tables((table for _part, table in store_tables.tables(report)), Console(width=WIDTH))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short round: for a look only")
    parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        choices=PARTS,
        help=f"one of the parts ({', '.join(PARTS)})",
    )
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    return parser.parse_args()


def store_versions() -> dict[str, str]:
    """Of everything that takes part."""
    server = next(iter(sorted(UNPACKED.glob("usr/lib/postgresql/*"))), None)
    return {
        **{name: said for name, said in versions().items() if name not in OTHERS},
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": server.name if server else "none",
        **{name: version(name) for name in PACKAGES},
    }


if __name__ == "__main__":
    main()
