"""Format points in time and durations for listings. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def span(seconds: float) -> str:
    """Return *seconds* as text in the largest unit that fits; less than one second is ``0 s``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def clock(moment: datetime, now: datetime) -> str:
    """Return the time of day of *moment*, preceded by the date if that is not today's.

    :param moment: in UTC, like *now*.
    """
    day = "" if moment.date() == now.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M:%S} UTC"
