"""What is dropped should be counted, by why it was."""

from collections.abc import Iterator

import pytest

from dfmeta.apps.floods import BY_FLOW
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.metrics import REGISTRY
from tests.core.flows.frames import ethernet, ipv4
from tests.core.flows.world import GATEWAY_MAC, TAP, Host, World, settle, tap_frame

ACK, RST = 0x10, 0x04
FRAGMENT = ethernet(
    ipv4(b"\0" * 24, dst=METADATA_IP, src="10.0.0.5", fragment=0x2000),
    dst=GATEWAY_MAC,
    src=Host(1).mac,
)


class Counted:
    """What has been counted since it was made, or since the last look."""

    def __init__(self) -> None:
        self._before = self._now()

    def since(self, world: World) -> dict[str, float]:
        """Reasons that have grown, and by how much, once the switch has been dumped."""
        world.reconciler.reconcile()
        settle()
        before, self._before = self._before, self._now()
        return {why: n - before[why] for why, n in self._before.items() if n != before[why]}

    @staticmethod
    def _now() -> dict[str, float]:
        return {
            why: REGISTRY.get_sample_value("dfmeta_dropped_packets_total", {"reason": why}) or 0.0
            for why in BY_FLOW.values()
        }


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        world.plug(1)
        world.plug(2)
        world.reconciler.reconcile()
        yield world


def test_each_reason_is_counted_by_itself(world: World) -> None:
    counted = Counted()
    world.introduce(Host(1, ip="10.0.0.6"))
    world.receive(1, Host(1, ip="10.0.0.6").segment(flags=ACK))
    assert counted.since(world) == {}, "of what arrives"
    world.receive(1, FRAGMENT)
    world.receive(2, FRAGMENT)
    assert counted.since(world) == {"fragment": 2}
    world.receive(1, Host(1).segment(flags=RST))
    assert counted.since(world) == {"no_connection": 1}
    world.receive(TAP.ofport, tap_frame(TAP, "128.0.0.77"))
    assert counted.since(world) == {"no_answer": 1}
    assert counted.since(world) == {}


def test_a_port_that_goes_and_comes_is_counted_from_zero_again(world: World) -> None:
    counted = Counted()
    world.receive(1, FRAGMENT)
    world.receive(1, FRAGMENT)
    assert counted.since(world) == {"fragment": 2}
    world.unplug(1)
    world.plug(1)
    world.receive(1, FRAGMENT)
    assert counted.since(world) == {"fragment": 1}


def test_counts_of_an_earlier_run_are_not_counted_again(world: World) -> None:
    world.receive(1, FRAGMENT)
    world.receive(1, Host(1).segment(flags=RST))
    counted = Counted()
    with world.restarted() as again:
        assert counted.since(again) == {}
        again.receive(1, FRAGMENT)
        assert counted.since(again) == {"fragment": 1}
