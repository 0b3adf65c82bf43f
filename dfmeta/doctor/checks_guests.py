"""Checks of the last answers to each guest, as the daemon remembers them. Pure.

Trust: the daemon itself writes the statuses, reasons and remedies. A guest decides only whether its
own port is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from dfmeta.doctor.facts import GuestFailure, KnownPort
from dfmeta.doctor.finding import Finding, listed, ok, unknown, wrong
from dfmeta.doctor.timefmt import clock

KINDS: Final = 4
"""Number of lines, one for each way to fail; the guests that fail in other ways are counted."""
ALL: Final = "`dfmeta ports --failing` lists all of them"

Kind = tuple[int | None, str]


def guests(known: Sequence[KnownPort], now: datetime, *, running: bool) -> Iterator[Finding]:
    """Check that each guest that has asked for metadata got it.

    :param known: the guests' ports, from the running daemon.
    :param now: the time now, in UTC.
    """
    if not running:
        yield unknown(
            "guests",
            "not checked: dfmeta-agent, which remembers the answers to guests, does not answer",
        )
        return
    asked = sum(port.asked for port in known)
    kinds: dict[Kind, list[tuple[KnownPort, GuestFailure]]] = {}
    for port in known:
        if port.failure is not None:
            kind = port.failure.status, port.failure.brief
            kinds.setdefault(kind, []).append((port, port.failure))
    if not kinds:
        yield ok(
            "guests",
            f"no guest fails, of {asked} that have sent requests since dfmeta-agent's start; "
            f"{len(known) - asked} of {len(known)} guests have sent none",
        )
        return
    failing = sum(map(len, kinds.values()))
    ordered = sorted(kinds.items(), key=lambda one: -len(one[1]))
    shown, rest = ordered[:KINDS], ordered[KINDS:]
    for (status, brief), found in shown:
        latest = sorted(found, key=lambda one: one[1].since, reverse=True)
        named = listed(_named(port, failure, now) for port, failure in latest)
        yield wrong(
            "guests",
            f"{len(found)} of {asked} guests that have sent requests get "
            f"{'no answer' if status is None else status} ({brief}): {named}",
            _remedy(latest[0][1], len(found)),
        )
    if rest:
        left = sum(len(found) for _kind, found in rest)
        yield wrong(
            "guests", f"{left} of {failing} guests that fail do so in {len(rest)} other ways", ALL
        )


def _remedy(failure: GuestFailure, count: int) -> str:
    return failure.remedy if count == 1 else f"{failure.remedy}; {ALL}"


def _named(port: KnownPort, failure: GuestFailure, now: datetime) -> str:
    times = "" if failure.times == 1 else f", {failure.times} times"
    return f"{port.name} (since {clock(failure.since, now)}{times})"
