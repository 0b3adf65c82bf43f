"""Rate limits of a port's requests: delay them first, refuse them only if the port continues.

cloud-init makes 28 requests one after the other, and treats a 429 as "not found": it boots without
user-data. Neutron's rates would refuse most of them. So a request above the rates is delayed
instead, which slows a guest with serial requests down to the rates. A port that still has too many
requests above the rates is refused.

Trust: a port is identified by its :class:`~dfmeta.model.Endpoint`, which no guest can choose; all
of its addresses and IP versions count together.
"""

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

    @property
    def rate(self) -> float:
        """Tokens that come back in a second."""
        return self.queries / self.seconds

    def wait(self, used: float) -> float:
        """Return the seconds until a bucket with *used* used tokens has one available."""
        return max(0.0, used + 1 - self.queries) / self.rate


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


class RateLimiter:
    """Counts requests by port.

    More used tokens than the size of a bucket are a debt. The counts are tokens, not seconds, so
    that they keep their meaning when the settings change.

    :param settings: may be replaced at any time; counted requests then count against the new
        settings.
    :param clock: monotonic seconds.
    """

    settings: RateSettings

    def __init__(self, settings: RateSettings, *, clock: Callable[[], float] = clock.now) -> None:
        self.settings = settings
        self._clock = clock
        # In the order of the last request: the first port has been idle longest.
        self._ports: OrderedDict[Caller, tuple[float, tuple[float, float]]] = OrderedDict()
        """Port → time of its last request, and used tokens of base and burst at that time."""

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
        at, (base, burst) = self._used(caller, now)
        waits = settings.base.wait(base), settings.burst.wait(burst)
        late = max(
            wait - settings.delay_max - settings.tolerated / window.rate
            for window, wait in zip((settings.base, settings.burst), waits, strict=True)
        )
        refuse = late > _ROUNDING
        self._ports[caller] = at, (base, burst) if refuse else (base + 1, burst + 1)
        self._ports.move_to_end(caller)
        if refuse:
            return Verdict(refuse=True, retry_after=max(1, math.ceil(late - _ROUNDING)))
        return Verdict(delay=min(settings.delay_max, max(waits)))

    def forget(self, caller: Caller) -> None:
        """Forget the requests of a port that another guest has now."""
        self._ports.pop(caller, None)

    def _used(self, caller: Caller, now: float) -> tuple[float, tuple[float, float]]:
        """Return the used tokens of a port at *now*; a clock that goes back gives back none."""
        at, (base, burst) = self._ports.get(caller, (now, (0.0, 0.0)))
        elapsed, settings = max(0.0, now - at), self.settings
        left = base - elapsed * settings.base.rate, burst - elapsed * settings.burst.rate
        return max(at, now), (max(0.0, left[0]), max(0.0, left[1]))

    def _forget_rested(self, now: float) -> None:
        for _ in range(_LOOKED_AT):
            if not self._ports:
                return
            caller = next(iter(self._ports))
            _at, used = self._used(caller, now)
            if any(used):
                return
            del self._ports[caller]
