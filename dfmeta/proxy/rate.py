"""Rate limits of a port's requests: delay them first, refuse them only if the port continues.

cloud-init makes 28 requests one after the other, and treats a 429 as "not found": it boots without
user-data. Neutron's rates would refuse most of them. So a request above the rates is delayed
instead, which slows a guest with serial requests down to the rates. A port that still has too many
requests above the rates is refused.

Trust: a port is identified by its :class:`~dfmeta.model.Endpoint`, which no guest can choose; all
of its addresses and IP versions count together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dfmeta.model import Caller
from dfmeta.runtime import clock

_LOOKED_AT: Final = 2
"""Ports that each request checks in order to forget idle ones: more than a request can add."""
_ROUNDING: Final = 1e-6
"""Seconds; upper bound of the rounding error of a token's time."""


@dataclass(frozen=True, slots=True)
class Window:
    """A token bucket: a number of queries in a number of seconds."""

    queries: int
    """At least 1."""
    seconds: float
    """More than 0."""


@dataclass(frozen=True, slots=True)
class RateSettings:
    """Values of ``[metadata_rate_limiting]``."""

    enabled: bool = False
    ip_versions: frozenset[int] = frozenset({4, 6})
    """4, 6 or both; requests over another IP version are neither counted nor limited."""
    base: Window = Window(10, 10.0)
    burst: Window = Window(10, 10.0)
    delay_max: float = 2.0
    """Longest delay of a request, in seconds."""
    tolerated: int = 32
    """Number of requests above either window that are accepted from a port."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about a request."""

    delay: float = 0.0
    """Seconds to wait before the request goes on."""
    refuse: bool = False
    retry_after: int = 0
    """Whole seconds until a request would be accepted again, at least 1 for a refused one (RFC
    6585, 4 and RFC 9110, 10.2.3)."""


_ACCEPTED: Final = Verdict()


@dataclass(slots=True)
class _Counted:
    """Used tokens of a port's two buckets, and the time at which they were counted.

    More used tokens than the size of a bucket are a debt. The values are tokens, not seconds, so
    that they keep their meaning when the settings change.
    """

    base: float
    burst: float
    at: float

    def pay_back(self, settings: RateSettings, now: float) -> None:
        """Give back the tokens earned since the last call; a clock that goes back earns none."""
        elapsed = max(0.0, now - self.at)
        self.base = max(0.0, self.base - elapsed * _rate(settings.base))
        self.burst = max(0.0, self.burst - elapsed * _rate(settings.burst))
        self.at = max(self.at, now)


class RateLimiter:
    """Counts requests by port.

    :param settings: may be replaced at any time; counted requests then count against the new
        settings.
    :param clock: monotonic seconds.
    """

    settings: RateSettings

    def __init__(self, settings: RateSettings, *, clock: Callable[[], float] = clock.now) -> None:
        self.settings = settings
        self._clock = clock
        # In the order of the last request: the first port has been idle longest.
        self._ports: OrderedDict[Caller, _Counted] = OrderedDict()

    def ask(self, caller: Caller, ip_version: int) -> Verdict:
        """Count one request of a port, and return the decision about it.

        The request is delayed until both windows have a token for it, but no longer than
        ``delay_max``. A request that goes on before its token is available leaves its window in
        debt. It is refused if the debt would exceed ``tolerated``. A refused request is not
        counted; otherwise a guest that never stops would never be accepted again.
        """
        settings = self.settings
        if not settings.enabled or ip_version not in settings.ip_versions:
            return _ACCEPTED
        now = self._clock()
        self._forget_rested(now)
        counted = self._ports.setdefault(caller, _Counted(0.0, 0.0, now))
        self._ports.move_to_end(caller)
        counted.pay_back(settings, now)
        waits = (_wait(settings.base, counted.base), _wait(settings.burst, counted.burst))
        late = max(
            wait - settings.delay_max - settings.tolerated / _rate(window)
            for window, wait in zip((settings.base, settings.burst), waits, strict=True)
        )
        if late > _ROUNDING:
            return Verdict(refuse=True, retry_after=max(1, math.ceil(late - _ROUNDING)))
        counted.base += 1
        counted.burst += 1
        return Verdict(delay=min(settings.delay_max, max(waits)))

    def forget(self, caller: Caller) -> None:
        """Forget the requests of a port that another guest has now."""
        self._ports.pop(caller, None)

    def _forget_rested(self, now: float) -> None:
        for _ in range(_LOOKED_AT):
            if not self._ports:
                return
            caller, counted = next(iter(self._ports.items()))
            counted.pay_back(self.settings, now)
            if counted.base or counted.burst:
                return
            del self._ports[caller]


def _rate(window: Window) -> float:
    return window.queries / window.seconds


def _wait(window: Window, used: float) -> float:
    """Return the seconds until a bucket with *used* used tokens has one available."""
    return max(0.0, used + 1 - window.queries) / _rate(window)
