"""Times that the first SYNs of connections were held; they count towards hold_timeout."""

from __future__ import annotations

from collections import OrderedDict

from dfmeta.model import Caller, Endpoint

KEPT = 1024
"""Maximum number of times that are kept for the proxy."""


class Waits:
    """Caller and source port → seconds that the SYN was held."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[Caller, int], float] = OrderedDict()

    def note(self, endpoint: Endpoint, source_port: int, seconds: float) -> None:
        """Store the time of one SYN; above :data:`KEPT`, the oldest entry is dropped."""
        self._seconds[endpoint, source_port] = seconds
        while len(self._seconds) > KEPT:
            self._seconds.popitem(last=False)

    def take(self, endpoint: Caller, source_port: int) -> float:
        """Return and forget one time; 0.0 if there is none."""
        return self._seconds.pop((endpoint, source_port), 0.0)

    def take_all(self, endpoint: Endpoint) -> list[tuple[int, float]]:
        """Return and forget all times of *endpoint*: source ports and seconds."""
        keys = [key for key in self._seconds if key[0] == endpoint] if self._seconds else []
        return [(key[1], self._seconds.pop(key)) for key in keys]
