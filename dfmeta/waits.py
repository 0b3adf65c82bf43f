"""How long the first SYNs of connections were held, for the one hold budget of their requests."""

from __future__ import annotations

from collections import OrderedDict

from dfmeta.model import Caller, Endpoint

KEPT = 1024
"""How many are remembered for the proxy."""


class Waits:
    """Caller and source port → seconds that the SYN was held."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[Caller, int], float] = OrderedDict()

    def note(self, endpoint: Endpoint, source_port: int, seconds: float) -> None:
        """Remember one; the oldest goes where there are :data:`KEPT`."""
        self._seconds[endpoint, source_port] = seconds
        while len(self._seconds) > KEPT:
            self._seconds.popitem(last=False)

    def take(self, endpoint: Caller, source_port: int) -> float:
        """Give one back, once; 0.0 when nothing was noted."""
        return self._seconds.pop((endpoint, source_port), 0.0)

    def take_all(self, endpoint: Endpoint) -> list[tuple[int, float]]:
        """Give back all of *endpoint*: source ports and seconds."""
        keys = [key for key in self._seconds if key[0] == endpoint] if self._seconds else []
        return [(key[1], self._seconds.pop(key)) for key in keys]
