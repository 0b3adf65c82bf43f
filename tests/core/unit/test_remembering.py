"""The guest of a port should be known again after a restart, and no other one taken for it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from dfmeta.apps.meters import Meters
from dfmeta.cmd.remembering import Memory
from dfmeta.flows.key import PREFIX6
from dfmeta.flows.meta_key import MetaKeys
from dfmeta.flows.pipeline import Purpose
from dfmeta.model import Endpoint, Port
from dfmeta.registry import Registry
from dfmeta.state import Listeners
from tests.core.unit.support import INSTANCE, OTHER_INSTANCE, address, port

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


def of_the_host(*ports: Port) -> Registry:
    """A registry whose numbers are unique on the host."""
    keys = MetaKeys(IPv4Network("240.0.0.0/28"), PREFIX6, "fa:16:ee:00:00:00")
    registry = Registry(keys=keys)
    for one in ports:
        registry.set_port(one)
    return registry


def number(registry: Registry, endpoint: Endpoint, ip: str = "10.0.0.5") -> int:
    learned = registry.learn(endpoint, address(ip), 0.0)
    assert learned is not None
    return learned.slot


def test_numbers_of_the_host_that_rest_do_so_after_a_restart(tmp_path: Path) -> None:
    registry, memory = of_the_host(port(), port(14, name="tap2")), Memory(tmp_path)
    assert (number(registry, HERE), number(registry, Endpoint(14))) == (2, 3)
    registry.remove_port(port().id)
    memory.save(Listeners(18080, 1), registry, Meters())

    registry, memory = of_the_host(port(15, name="tap3")), Memory(tmp_path)
    assert memory.state.resting == [2]
    memory.rest_strangers(registry)
    assert sorted(registry.allotment.resting()) == [2, 3], "the guest of ofport 14 is gone as well"
    assert number(registry, Endpoint(15)) == 4


def test_a_number_of_the_host_is_kept_for_the_same_guest_alone(tmp_path: Path) -> None:
    registry, memory = of_the_host(port()), Memory(tmp_path)
    assert [number(registry, HERE, ip) for ip in ("10.0.0.5", "10.0.0.6")] == [2, 3]
    memory.save(Listeners(18080, 1), registry, Meters())

    meta = registry.unwritten()[port().row]
    for instance in (INSTANCE, OTHER_INSTANCE):
        here = replace(port(instance=instance), meta=meta)
        registry = of_the_host(port(14, name="tap2"), here)
        Memory(tmp_path).rest_strangers(registry)
        assert number(registry, Endpoint(14)) not in (2, 3)
        mine = {number(registry, HERE, ip) for ip in ("10.0.0.5", "10.0.0.6")}
        assert mine == {2, 3} if instance == INSTANCE else not mine & {2, 3}
