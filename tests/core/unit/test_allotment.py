"""Where keys contain their endpoint, no port should need a number of the host."""

from __future__ import annotations

from dfmeta.allotment import REST, PerPort
from dfmeta.flows.key import IN_PORT
from dfmeta.model import Endpoint, MetaIds
from dfmeta.registry import Registry
from dfmeta.slots import Guest
from tests.core.unit.support import address, port

HERE = Endpoint(13)


def test_there_are_no_numbers_of_the_host() -> None:
    registry = Registry()
    registry.set_port(port())
    registry.learn(HERE, address(), 0.0)
    assert isinstance(registry.allotment, PerPort)
    assert (registry.unwritten(), registry.without()) == ({}, [])
    assert registry.port_at(HERE) == port()
    assert port().meta == MetaIds()


def test_a_flow_with_the_key_of_another_endpoint_concerns_no_guest() -> None:
    registry = Registry()
    registry.set_port(port())
    learned = registry.learn(HERE, address(), 0.0)
    assert learned is not None
    registry.mistrust(Endpoint(14), learned.slot)
    assert registry.has_slot(HERE, learned)


def test_a_slot_rests_at_its_endpoint_alone() -> None:
    now = 0.0
    slots = PerPort(IN_PORT, tuple, lambda: now)
    here, there = (Guest(port(one.ofport), one, None) for one in (HERE, Endpoint(14)))
    slots.rest(None, [0, 1])
    slots.expect(HERE, [0])
    assert slots.pick(here, 4) == 0
    slots.drop(here, 0)
    assert (slots.pick(here, 4), slots.pick(there, 4)) == (1, 0)
    assert slots.resting() == []
    slots.end_sweep(slots.begin_sweep())
    assert slots.pick(here, 4) == 1, "a sweep changes nothing"
    now = REST
    assert slots.pick(here, 4) == 0
