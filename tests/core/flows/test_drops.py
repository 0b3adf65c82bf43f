"""What is dropped should be counted, by why it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dfmeta.apps.drops import BY_FLOW, BY_METER
from dfmeta.flows.pipeline import METADATA_IP, Purpose
from dfmeta.metrics import REGISTRY
from dfmeta.model import Endpoint
from tests.core.flows.frames import ethernet, ipv4
from tests.core.flows.world import (
    GATEWAY_MAC,
    TAP,
    App,
    Host,
    Link,
    World,
    memory_of,
    settle,
    tap_frame,
)

REASONS = (*BY_FLOW.values(), *BY_METER.values())
ACK = 0x10


class Counted:
    """What has been counted since it was made, or since the last look."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._before = self._now()

    def since(self) -> dict[str, float]:
        """Reasons that have grown, and by how much, once the switch has been dumped."""
        self.world.reconciler.reconcile()
        settle()
        before, self._before = self._before, self._now()
        return {why: n - before[why] for why, n in self._before.items() if n != before[why]}

    @staticmethod
    def _now() -> dict[str, float]:
        values = {
            why: REGISTRY.get_sample_value("dfmeta_dropped_packets_total", {"reason": why})
            for why in REASONS
        }
        return {why: value or 0.0 for why, value in values.items()}


@pytest.fixture
def world() -> Iterator[World]:
    with World() as one:
        one.plug(1)
        one.plug(2)
        one.reconciler.reconcile()
        yield one


def fragment() -> bytes:
    packet = ipv4(b"\0" * 24, dst=METADATA_IP, src="10.0.0.5", fragment=0x2000)
    return ethernet(packet, dst=GATEWAY_MAC, src=Host(1).mac)


def test_nothing_is_counted_of_what_arrives(world: World) -> None:
    counted = Counted(world)
    world.introduce(Host(1))
    world.receive(1, Host(1).segment(flags=ACK))
    assert counted.since() == {}


def test_each_reason_is_counted_by_itself(world: World) -> None:
    counted = Counted(world)
    world.receive(1, fragment())
    world.receive(2, fragment())
    assert counted.since() == {"fragment": 2}
    world.receive(1, Host(1).segment(flags=ACK))
    assert counted.since() == {"no_connection": 1}
    world.receive(TAP.ofport, tap_frame(TAP, "128.0.0.77"))
    assert counted.since() == {"no_answer": 1}
    world.switch.exhausted = {world.meters.ids(Purpose.SYN)[Endpoint(1)]}
    world.receive(1, Host(1).segment())
    assert counted.since() == {"first_syn_rate": 1}
    world.switch.exhausted = {world.meters.ids(Purpose.GUEST_SYN)[Endpoint(2)]}
    world.receive(2, Host(2).segment())
    world.receive(2, Host(2).segment())
    assert counted.since() == {"syn_rate": 2}
    assert counted.since() == {}


def test_a_port_that_goes_and_comes_is_counted_from_zero_again(world: World) -> None:
    counted = Counted(world)
    world.receive(1, fragment())
    world.receive(1, fragment())
    assert counted.since() == {"fragment": 2}
    world.unplug(1)
    world.plug(1)
    world.receive(1, fragment())
    assert counted.since() == {"fragment": 1}


def test_what_an_earlier_run_has_counted_is_not_counted_again(world: World) -> None:
    world.receive(1, fragment())
    world.receive(1, Host(1).segment(flags=ACK))
    world.channel.detach(world.link)
    settle()
    again = World.__new__(World)
    App.__init__(again, meters=memory_of(world.meters))
    for port in world.registry.ports():
        again.registry.set_port(port)
    again.switch, again.link = world.switch, Link(again._write)
    again.switch._deliver = again.link.deliver
    counted = Counted(again)
    again.connect(again.link)
    assert counted.since() == {}
    again.receive(1, fragment())
    assert counted.since() == {"fragment": 1}
