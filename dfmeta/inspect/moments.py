"""Moments and spans of time in words, for listings. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float) -> str:
    """How long *seconds* are, in the largest unit that fits; less than one is ``0 s``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def clock(moment: datetime, now: datetime) -> str:
    """When *moment* was: the time of day, before it the date where that is not today's.

    :param moment: in UTC, as *now*.
    """
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"
