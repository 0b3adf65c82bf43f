"""The guest of a port should be known again after a restart, and no other one taken for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dfmeta.apps.meters import Meters
from dfmeta.cmd.remembering import Memory
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint, Port
from dfmeta.registry import Registry
from dfmeta.state import Listeners
from tests.unit.support import INSTANCE, OTHER_INSTANCE, address, port

pytestmark = pytest.mark.greenthreads

HERE, BEHIND = Endpoint(13), Endpoint(13, 100)


def registry_of(*ports: Port) -> Registry:
    registry = Registry()
    for one in ports:
        registry.set_port(one)
    return registry


def behind(instance: str = OTHER_INSTANCE) -> Port:
    """The port of a VLAN behind :func:`port`, of the same row."""
    return replace(port(instance=instance), vid=100)


@pytest.mark.parametrize("now", [False, True])
def test_two_ports_of_one_row_are_remembered_apart(tmp_path: Path, now: bool) -> None:
    registry = registry_of(port(), behind())
    registry.learn(HERE, address(), 0.0)
    for number in range(2):
        registry.learn(BEHIND, address(f"10.0.0.{number}"), 0.0)
    meters = Meters({Purpose.SYN: {HERE: 65549, BEHIND: 65536}})
    Memory(tmp_path).save(Listeners(18080, 1), registry, meters, now=now)

    memory = Memory(tmp_path)
    holders = {one: (held.instance_id, held.slots) for one, held in memory.state.holders.items()}
    assert holders == {HERE: (INSTANCE, (0,)), BEHIND: (OTHER_INSTANCE, (0, 1))}
    assert memory.meters[Purpose.SYN] == {HERE: 65549, BEHIND: 65536}
    assert memory.adopts(HERE, registry)
    assert memory.adopts(BEHIND, registry)
    exchanged = registry_of(port(instance=OTHER_INSTANCE), behind(INSTANCE))
    assert not memory.adopts(HERE, exchanged)
    assert not memory.adopts(BEHIND, exchanged)


def test_a_port_that_is_gone_is_forgotten_and_the_other_of_its_row_is_not(tmp_path: Path) -> None:
    registry, memory = registry_of(port(), behind()), Memory(tmp_path)
    memory.save(Listeners(18080, 1), registry, Meters())
    registry.remove_port(behind().id)
    memory.save(Listeners(18080, 1), registry, Meters(), now=True)
    assert set(Memory(tmp_path).state.holders) == {HERE}
