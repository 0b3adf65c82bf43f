"""Judgements on what guests were answered, as the daemon remembers it. Pure.

Trust: statuses, reasons and remedies are the daemon's own words. A guest decides no more than
whether it is named itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from dfmeta.inspect.facts import GuestFailure, KnownPort
from dfmeta.inspect.finding import Finding, listed, ok, unknown, wrong
from dfmeta.inspect.moments import clock

KINDS: Final = 4
"""Lines, one for guests that fail in the same way; those that fail otherwise are a number."""
ALL: Final = "`dfmeta ports --failing` has all of them"

Kind = tuple[int | None, str]


def guests(known: Sequence[KnownPort], now: datetime, *, running: bool) -> Iterator[Finding]:
    """Whether each guest that has asked was given what it needs.

    :param known: the guests' ports, of the running daemon.
    :param now: in UTC.
    """
    if not running:
        yield unknown("guests", "dfmeta-agent does not answer; it knows what guests were answered")
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
            f"no guest fails, of {asked} that have asked since dfmeta-agent's start; "
            f"{len(known) - asked} of {len(known)} have not asked",
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
            f"{len(found)} of {asked} guests that have asked get "
            f"{'no answer' if status is None else status} ({brief}): {named}",
            _remedy(latest[0][1], len(found)),
        )
    if rest:
        left = sum(len(found) for _kind, found in rest)
        yield wrong(
            "guests", f"{left} of {failing} guests that fail do so in {len(rest)} more ways", ALL
        )


def _remedy(failure: GuestFailure, count: int) -> str:
    return failure.remedy if count == 1 else f"{failure.remedy}; {ALL}"


def _named(port: KnownPort, failure: GuestFailure, now: datetime) -> str:
    times = "" if failure.times == 1 else f", {failure.times} times"
    return f"{port.name} (since {clock(failure.since, now)}{times})"
