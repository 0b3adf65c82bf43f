"""How fast one port may ask: slow it down first, refuse only what goes on regardless.

cloud-init makes 28 requests one after the other, and takes a 429 for "none": it boots without
user-data. Neutron's rates would refuse most of them. So a request over the rates is kept waiting
instead, which slows whoever asks serially to the rates; a port that has too many requests above
them all the same is refused.

Trust: a port is known by its :class:`~dfmeta.model.Endpoint`, which no guest chooses; whatever
addresses and IP versions it uses count together.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dfmeta.model import Caller

_LOOKED_AT: Final = 2
"""Ports that each request looks at, to forget those that are at rest: more than it can add."""
_ROUNDING: Final = 1e-6
"""Seconds: floating point never makes a token late by more."""


@dataclass(frozen=True, slots=True)
class Window:
    """So many queries in so many seconds; a token bucket of that size."""

    queries: int
    """At least 1."""
    seconds: float
    """More than 0."""


@dataclass(frozen=True, slots=True)
class RateSettings:
    """What ``[metadata_rate_limiting]`` says."""

    enabled: bool = False
    ip_versions: frozenset[int] = frozenset({4})
    """Of 4 and 6; requests over another are neither counted nor limited."""
    base: Window = Window(10, 10.0)
    burst: Window = Window(10, 10.0)
    delay_max: float = 2.0
    """Seconds that one request is delayed at most."""
    tolerated: int = 32
    """How many requests above either window a port may have taken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a request."""

    delay: float = 0.0
    """Seconds to wait before it is taken."""
    refuse: bool = False
    retry_after: int = 0
    """Whole seconds until one would be taken again, at least 1 when it is refused (RFC 6585, 4 and
    RFC 9110, 10.2.3)."""


@dataclass(slots=True)
class _Counted:
    """Tokens of the two buckets that a port has used and not got back, and when that was so.

    Above a bucket's size it is in debt. In tokens, not in time: they mean the same under settings
    that come later.
    """

    base: float
    burst: float
    at: float

    def pay_back(self, settings: RateSettings, now: float) -> None:
        """Give back what the time since has earned; a clock that goes back earns nothing."""
        elapsed = max(0.0, now - self.at)
        self.base = max(0.0, self.base - elapsed * _rate(settings.base))
        self.burst = max(0.0, self.burst - elapsed * _rate(settings.burst))
        self.at = max(self.at, now)


class RateLimiter:
    """Counts requests by port.

    :param settings: may be replaced at any time; what has been counted is held against the new
        ones.
    :param clock: monotonic seconds.
    """

    settings: RateSettings

    def __init__(
        self, settings: RateSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings = settings
        self._clock = clock
        # By the last request, so that the first has rested longest.
        self._ports: OrderedDict[Caller, _Counted] = OrderedDict()

    def ask(self, caller: Caller, ip_version: int) -> Verdict:
        """Count one request of a port, and say what is to become of it.

        It is delayed until both windows have a token for it, but no longer than ``delay_max``; one
        that is taken before its token is there leaves its window in debt. It is refused when that
        would be more than ``tolerated``. A refused one is not counted, or a guest that never
        stops would never be let in again.
        """
        settings = self.settings
        if not settings.enabled or ip_version not in settings.ip_versions:
            return Verdict()
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
        """Forget what a port has used: another guest has it."""
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
    """Seconds until a bucket of which so many tokens are used has one to take."""
    return max(0.0, used + 1 - window.queries) / _rate(window)
