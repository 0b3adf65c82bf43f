"""The store's speed: reads by guests, compared with forwarding to Nova, and writes.

Run as root, after ``tools/setup.sh --bench``::

    .venv/bin/python -m bench.store [--quick] [--only PART] [--json FILE]

*reads*: requests a second, times and CPU time of dfmeta-agent with SQLite, with PostgreSQL and with
forwarding, in turn, without workers and with two workers.
*writes*: records a second that 8 clients write at once, on both databases.

``doc/source/performance.rst`` explains the numbers; ``bench/report.py`` writes them there.
"""

from __future__ import annotations

import argparse
import sqlite3
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from bench import programs, store_reads, store_tables, store_writes
from bench.proxy import command, finish, versions, where
from tests.harness.ovs import UNPACKED

PARTS = ("reads", "writes")
PACKAGES = ("SQLAlchemy", "psycopg")
OTHERS = ("httplib2", "WebOb", "haproxy", "neutron")
"""Programs and packages that this bench does not use."""
ROUNDS, SECONDS = 7, 1


def main() -> None:
    """Measure and print the tables."""
    options = parse()
    programs.require()
    wanted = set(options.only or PARTS)
    report: dict[str, Any] = {"machine": where(), "versions": store_versions()}
    rounds, seconds = (1, 1) if options.quick else (ROUNDS, SECONDS)
    if "reads" in wanted:
        result = store_reads.measure(rounds=rounds, seconds=seconds)
        report["store reads"] = {
            name: {
                item: {load: asdict(cell) for load, cell in loads.items()}
                for item, loads in items.items()
            }
            for name, items in result.items()
        }
    if "writes" in wanted:
        report["store writes"] = {
            name: asdict(writes)
            for name, writes in store_writes.measure(rounds=rounds, seconds=seconds).items()
        }
    finish(report, lambda own: (table for _part, table in store_tables.tables(own)), options.json)


def parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = command(__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="PART",
        choices=PARTS,
        help=f"measure only this part ({', '.join(PARTS)}); may be given several times",
    )
    return parser.parse_args()


def store_versions() -> dict[str, str]:
    """Return the versions of all programs and packages that are measured."""
    server = next(iter(sorted(UNPACKED.glob("usr/lib/postgresql/*"))), None)
    return {
        **{name: message for name, message in versions().items() if name not in OTHERS},
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": server.name if server else "none",
        **{name: version(name) for name in PACKAGES},
    }


if __name__ == "__main__":
    main()
