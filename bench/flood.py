"""The effect of one guest's flood on other guests: their requests with the flood and without it.

Run as root, after ``tools/setup.sh``::

    .venv/bin/python -m bench.flood [--rate 20000] [--only KIND] [--json FILE]

*own*: SYNs from one address of the flooding guest, with another source port each; *forged*: SYNs
with another MAC and address each; *forged6*: the same over IPv6. *later* are connections of a known
address, *first* those of new addresses; *later6* and *first6* are over IPv6. Ratios are to the
quiet time just before the flood, because other programs use the machine as well; *quiet* is all
these quiet times together.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, get_args

from bench.packet_path import PATH, machine, summary
from tests.harness.agent import Agent
from tests.harness.guest import EC2_6, METADATA_IP, OPENSTACK6, Guest, Sample
from tests.harness.ovs import OpenvSwitch

LATER = 1000
ADDRESSES = 7
Kind = Literal["own", "forged", "forged6"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PARTS = ("later", "first", "later6", "first6")


def main() -> None:
    """Measure and print the values."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=int, default=20_000, help="SYNs a second of the flood")
    parser.add_argument(
        "--only",
        action="append",
        choices=KINDS,
        help="measure only this kind of flood; may be given several times",
    )
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    kinds = tuple(dict.fromkeys(options.only or KINDS))
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch())
        stack.enter_context(Agent(host)).start()
        flooding = stack.enter_context(Guest(host, "flooding"))
        guests = [stack.enter_context(Guest(host, f"g{n}")) for n in range(4 * len(kinds))]
        flooding.http_many(1, path=PATH)
        # The first requests of a daemon are slower than all others.
        guests[0].http_many(LATER, path=PATH)
        all_quiet: dict[str, list[Sample]] = {part: [] for part in PARTS}
        rows: dict[str, dict[str, float]] = {}
        for number, kind in enumerate(kinds):
            four = guests[4 * number :]
            quiet = asked(four[:2])
            with flooding.flood(kind, rate=options.rate, seconds=60):
                loud = asked(four[2:4])
            for part in PARTS:
                rows[f"{kind} {part}"] = compared(loud[part], quiet[part])
                all_quiet[part] += quiet[part]
            rows[kind] = served_again(flooding)
    rows = {f"quiet {part}": summary(all_quiet[part]) for part in PARTS} | rows
    report = {
        "machine": machine() | {"load after": os.getloadavg()[0]},
        "rate": options.rate,
        "milliseconds": rows,
    }
    for name, row in rows.items():
        print(f"{name:14} " + ", ".join(f"{part} {value:g}" for part, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def asked(guests: Sequence[Guest]) -> dict[str, list[Sample]]:
    """Measure requests of a known guest, and of new addresses of another guest, over IPv4 and IPv6.

    New IPv6 addresses are unique local ones: the guests' client cannot select a link-local source.
    """
    known, new = guests
    result: dict[str, list[Sample]] = {}
    for suffix, service, addresses in (
        ("", METADATA_IP, [f"10.0.0.{30 + number}/24" for number in range(ADDRESSES)]),
        ("6", OPENSTACK6, [f"fd00:77::{number + 1}/64" for number in range(ADDRESSES)]),
    ):
        known.http_many(1, path=PATH, host=service)
        result[f"later{suffix}"] = known.http_many(LATER, path=PATH, host=service)
        result[f"first{suffix}"] = [
            sample for address in addresses for sample in first(new, address)
        ]
    return result


def compared(loud: Sequence[Sample], quiet: Sequence[Sample]) -> dict[str, float]:
    """Return the values with the flood, and the p99 as a multiple of that just before it."""
    row, before = summary(loud), summary(quiet)["answer p99"]
    return row | {"quiet p99": before, "p99 ratio": round(row["answer p99"] / before, 2)}


def first(guest: Guest, address: str) -> list[Sample]:
    """Send the first request of a new address."""
    source = address.partition("/")[0]
    is_ipv6 = ":" in source
    (guest.add_address6 if is_ipv6 else guest.add_address)(address)
    guest.forget_neighbours()
    service = EC2_6 if is_ipv6 else METADATA_IP
    return guest.http_many(1, path=PATH, host=service, source=source)


def served_again(guest: Guest) -> dict[str, float]:
    """Return the seconds until the flooding guest gets an answer again."""
    began = time.monotonic()
    while not guest.http_many(1, path=PATH, timeout=5)[0].status:
        pass
    return {"served again after": round(time.monotonic() - began, 2)}


if __name__ == "__main__":
    main()
