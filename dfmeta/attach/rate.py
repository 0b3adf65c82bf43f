"""Limit of new attachments by time, for each VM."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEPT: Final = 4096
"""VMs that are remembered; beyond, the one that has asked least recently is forgotten."""


class Rate:
    """A bucket of tokens for each VM.

    :param rate: tokens in a second, and the most that a bucket holds; at least 1 fits.
    :param clock: seconds.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._most = rate, max(rate, 1.0)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, parent: str) -> bool:
        """Take a token of a VM; False: it has none at the moment."""
        now = self._clock()
        tokens, since = self._buckets.pop(parent, (self._most, now))
        tokens = min(tokens + max(now - since, 0.0) * self._rate, self._most)
        taken = tokens >= 1
        self._buckets[parent] = (tokens - taken, now)
        if len(self._buckets) > KEPT:
            self._buckets.popitem(last=False)
        return taken
