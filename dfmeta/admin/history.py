"""The last hour of this host: requests, failures and first answers of each minute, in memory.

The metrics of all processes are read once a minute and for each page. What they have grown by
belongs to the minute of the reading before. A restart of the daemon begins a new history; that of a
worker or of haproxy does not, because their counts stay in the totals.

Trust: all values are numbers that dfmeta has counted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from prometheus_client import Metric

from dfmeta.metrics import Samples
from dfmeta.runtime import clock, threads

MINUTES: Final = 60
"""Minutes that are kept."""
SERIES: Final[Mapping[str, tuple[str, str]]] = {
    "dfmeta_requests_total": ("request", "requests"),
    "dfmeta_failed_requests_total": ("failure", "failures"),
    "dfmeta_first_answers_total": ("first answer", "first answers"),
}
"""Counter → its name in the singular and the plural."""
_BUCKET: Final = "dfmeta_first_syn_seconds_bucket"
_ALL: Final = "+Inf"
_MINUTE: Final = 60
_BAR: Final = 44
"""Height of the highest bar in pixels."""
_SEEN: Final = 2
"""Height of the lowest bar in pixels."""
_TICK: Final = 10
"""Minutes between two labels of the axis."""
_EDGE: Final = 3
"""Minutes at both ends of the axis in which a label would not fit."""

Gains = dict[str, float]
"""Counter, or upper bound of a bucket in seconds → its growth; without zeros."""


class Minute(NamedTuple):
    """The growth of the counters in one minute."""

    number: int
    """Minutes since the epoch."""
    gains: Gains


class History:
    """The growth of the counters in each minute.

    :param collect: returns the metrics of all processes, whose totals never fall. May wait.
    :param clock: seconds since the epoch, because the times are shown to operators.
    """

    def __init__(
        self, collect: Callable[[], Iterable[Metric]], *, clock: Callable[[], float] = clock.wall
    ) -> None:
        self._collect, self._clock = collect, clock
        self._read_at = self._clock()
        self._looked_in = _minute_of(self._read_at)
        self._totals: Gains = {}
        self._minutes: deque[Minute] = deque(maxlen=MINUTES)

    @property
    def minutes(self) -> tuple[Minute, ...]:
        """A copy of the last minutes with any count, at most :data:`MINUTES`, for any thread."""
        return tuple(Minute(number, dict(gains)) for number, gains in self._minutes)

    def look(self) -> None:
        """Read the metrics in another greenthread if a minute has ended. Does not wait."""
        minute = _minute_of(self._clock())
        if minute != self._looked_in:
            self._looked_in = minute
            threads.spawn_detached(self.read)

    def read(self) -> Samples:
        """Read the metrics, note what they have grown by, and return them. May wait."""
        now = self._clock()
        samples: Samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self._collect()
            for sample in family.samples
            if not sample.name.endswith("_bucket") or sample.name == _BUCKET
        }
        self._note(samples)
        self._read_at = now
        return samples

    def _note(self, samples: Samples) -> None:
        totals: Gains = {}
        for (name, labels), value in samples.items():
            key = labels[0][1] if name == _BUCKET else name
            if name == _BUCKET or name in SERIES:
                totals[key] = totals.get(key, 0.0) + value
        before = self._totals
        # Two readings may overlap: the one that began earlier brings nothing new.
        gains = {key: value - before.get(key, 0.0) for key, value in totals.items()}
        gains = {key: gain for key, gain in gains.items() if gain > 0}
        self._totals = {**before, **{key: totals[key] for key in gains}}
        if gains:
            self._add(_minute_of(min(self._read_at, self._clock())), gains)

    def _add(self, minute: int, gains: Gains) -> None:
        # The host's clock was set back.
        while self._minutes and self._minutes[-1].number > minute:
            self._minutes.pop()
        if self._minutes and self._minutes[-1].number == minute:
            last = self._minutes[-1].gains
            last.update({key: last.get(key, 0.0) + gain for key, gain in gains.items()})
        else:
            self._minutes.append(Minute(minute, gains))


def chart(minutes: Sequence[Minute], *, since: float, now: float) -> dict[str, Any]:
    """Return the values of the chart of the hour that ends with the present minute.

    :param since: start of the process; like *now* in seconds since the epoch.
    """
    last = _minute_of(now)
    first = last - MINUTES + 1
    shown = [minute for minute in minutes if first <= minute.number <= last]
    start = max(0.0, since / _MINUTE - first)
    total: Gains = {}
    for minute in shown:
        total.update({key: total.get(key, 0.0) + gain for key, gain in minute.gains.items()})
    return {
        "begins": _time(max(since, first * _MINUTE)),
        "ends": _time(now),
        "start": _percent(start) if start else "",
        "series": [_bars(shown, name, first) for name in SERIES],
        "ticks": [
            (_percent(number - first), _time(number * _MINUTE), number % (2 * _TICK) != 0)
            for number in range(first + _EDGE, last + 2 - _EDGE)
            if number % _TICK == 0
        ],
        "minutes": [
            {
                "x": _percent(minute.number - first),
                "time": _time(minute.number * _MINUTE),
                "words": ", ".join(_counted(minute.gains, name) for name in SERIES),
                "counts": [minute.gains.get(name, 0.0) for name in SERIES],
                "syns": first_syns(minute.gains),
            }
            for minute in reversed(shown)
        ],
        "syns": first_syns(total),
    }


def first_syns(gains: Mapping[str, float]) -> str:
    """Return how long first SYNs took, as the bounds of their buckets; empty if there were none."""
    bounds = sorted((float(key), count) for key, count in gains.items() if key not in SERIES)
    if not bounds:
        return ""
    median, slowest = (
        next(bound for bound, count in bounds if count >= share * gains[_ALL])
        for share in (0.5, 1.0)
    )
    return f"half within {_duration(median)}, all within {_duration(slowest)}"


def _bars(minutes: Sequence[Minute], name: str, first: int) -> dict[str, Any]:
    """Return a series: its total, its largest minute, and its bars as the path of an image."""
    counts = [(minute.number - first, minute.gains.get(name, 0.0)) for minute in minutes]
    most = max((count for _, count in counts), default=0.0)
    heights = [(at, max(_SEEN, round(_BAR * count / most))) for at, count in counts if count]
    return {
        "name": SERIES[name][1],
        "total": sum(count for _, count in counts),
        "most": most,
        "path": "".join(f"M{at}.1 {_BAR}v-{height}h.8v{height}z" for at, height in heights),
    }


def _counted(gains: Mapping[str, float], name: str) -> str:
    count = gains.get(name, 0.0)
    return f"{count:,.0f} {SERIES[name][count != 1]}"


def _duration(seconds: float) -> str:
    if seconds == float(_ALL):
        return "more than 10 s"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _percent(minute: float) -> str:
    return f"{100 * minute / MINUTES:.4g}%"


def _minute_of(seconds: float) -> int:
    return int(seconds // _MINUTE)


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M}"
