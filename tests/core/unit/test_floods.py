"""However fast a guest sends, no more than the rate passes on average, and nothing of a calm one
is dropped."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest

from dfmeta.apps.floods import Arrivals, Floods, SynReading
from dfmeta.flows.pipeline import RATE_OF_VM, RATES, Purpose
from dfmeta.model import Endpoint
from dfmeta.runtime.clock import CHECK_INTERVAL

STEPS = 20
"""Number of steps of a second."""
SECONDS = 120
CONTAINERS = tuple(Endpoint(1, vid) for vid in range(1, 9))
OTHER = Endpoint(2)


class Line:
    """Guests that send at constant rates, and a switch that counts and drops as it is told."""

    def __init__(self, purpose: Purpose, rates: Mapping[Endpoint, int]) -> None:
        self._purpose, self._rates = purpose, rates
        self._counters, self.passed = Counter[Endpoint](), Counter[Endpoint]()
        self._dropping: frozenset[Endpoint] = frozenset()
        self._last = SynReading({}, 0.0)
        self.now = 0.0
        arrivals: Any = self
        self.floods = Floods(cast("Arrivals", arrivals), apply=self._apply, clock=lambda: self.now)

    def run(self) -> Counter[Endpoint]:
        """Return the number of packets of each endpoint that have passed."""
        for step in range(SECONDS * STEPS):
            self.now = step / STEPS
            for endpoint, rate in self._rates.items():
                self._send(endpoint, rate * (step + 1) // STEPS - rate * step // STEPS)
            if step % int(STEPS * CHECK_INTERVAL) == 0:
                self.floods.look()
        return self.passed

    def _send(self, endpoint: Endpoint, count: int) -> None:
        self._counters[endpoint] += count
        for _ in range(count):
            if endpoint in self._dropping:
                return
            if self._purpose is Purpose.GUEST_SYN or self.floods.admit(endpoint):
                self.passed[endpoint] += 1

    def _apply(self, endpoint: Endpoint) -> None:
        drops = self._purpose in self.floods.of(endpoint)
        self._dropping = self._dropping | {endpoint} if drops else self._dropping - {endpoint}

    def surge(self, rate: float) -> tuple[SynReading, SynReading]:
        """Read all counters, as :meth:`Arrivals.surge` does in a surge."""
        before, self._last = self._last, SynReading(dict(self._counters), self.now)
        if self._purpose is Purpose.SYN:
            return self._last, self._last
        return before, self._last

    def packets(self, endpoint: Endpoint, _purpose: Purpose) -> int:
        """Return the counter of an endpoint's flow."""
        return self._counters[endpoint]


@pytest.mark.parametrize("purpose", list(RATES))
@pytest.mark.parametrize("factor", [1.2, 2, 3, 10, 100])
def test_no_more_than_the_rate_passes_on_average(purpose: Purpose, factor: float) -> None:
    rate = RATES[purpose]
    passed = Line(purpose, {CONTAINERS[0]: int(rate * factor), OTHER: rate}).run()
    # SYNs pass for two readings until the first surge is seen.
    assert passed[CONTAINERS[0]] <= rate * (SECONDS + 2 + 2 * factor)
    assert passed[OTHER] == rate * SECONDS, "nothing of a guest at the rate is dropped"


@pytest.mark.parametrize("rate", [RATE_OF_VM // 5, RATES[Purpose.SYN], 1000])
def test_virtual_machine_passes_no_more_than_its_budget(rate: int) -> None:
    passed = Line(Purpose.SYN, dict.fromkeys(CONTAINERS, rate) | {OTHER: 50}).run()
    assert sum(passed[endpoint] for endpoint in CONTAINERS) <= RATE_OF_VM * (SECONDS + 2)
    assert passed[OTHER] == 50 * SECONDS


def test_virtual_machine_within_its_budget_loses_nothing() -> None:
    rate = RATE_OF_VM // len(CONTAINERS)
    passed = Line(Purpose.SYN, dict.fromkeys(CONTAINERS, rate)).run()
    assert set(passed.values()) == {rate * SECONDS}
