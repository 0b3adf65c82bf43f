"""``identity_scheme = meta_ip`` beside Neutron's own Open vSwitch agent, which knows no br-meta."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import OPENSTACK6, Guest
from tests.harness.neutron_agent import OUTSIDE, NeutronAgent
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.scheme import META_BRIDGE
from tests.host.e2e import shared
from tests.host.e2e.support import asks_own, put
from tests.host.e2e.test_neutron_agent import (
    OURS,
    Neutrons,
    asking,
    make_twins,
    neutrons,
    requests,
    tell_of_twins,
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A compute node with Neutron's agent, on which dfmeta has Meta IPs.

    :ivar before: all that was Neutron's before dfmeta came.
    """

    host: OpenvSwitch
    neutron: NeutronAgent
    agent: Agent
    guests: tuple[Guest, ...]
    before: Neutrons


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Neutron first, and when all is as it wants it, dfmeta."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        guests = make_twins(host, stack)
        neutron = stack.enter_context(NeutronAgent(host))
        tell_of_twins(neutron, guests)
        neutron.start()
        neutron.clean_up()
        before = neutrons(host)
        options = {"df_metadata": {"identity_scheme": "meta_ip"}}
        agent = stack.enter_context(Agent(host, options)).start()
        for guest in guests:
            put(agent, guest, hostname=guest.name)
        yield World(host=host, neutron=neutron, agent=agent, guests=guests, before=before)
        agent.stop()


neutron, agent = shared.neutron_of_world, shared.agent_of_world


pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]


def all_ask(world: World) -> None:
    """Each guest gets its own document, over both versions of IP."""
    for guest in world.guests:
        asks_own(guest)
        asks_own(guest, host=OPENSTACK6)


def second_bridge(host: OpenvSwitch) -> tuple[list[str], list[Any], list[str]]:
    """Its ports, its settings, and its flows that are not dfmeta's."""
    (bridge,) = [row for row in host.records("Bridge") if row["name"] == META_BRIDGE]
    settings = [bridge[name] for name in ("fail_mode", "controller", "protocols", "external_ids")]
    others = [flow for flow in host.flows(META_BRIDGE) if OURS not in flow]
    return sorted(host.ports(META_BRIDGE)), settings, others


def test_what_is_neutrons_stays_as_it_was(world: World, agent: Agent) -> None:
    all_ask(world)
    assert neutrons(world.host) == world.before
    agent.stop()
    try:
        agent.clean_up()
        assert neutrons(world.host) == world.before
    finally:
        agent.start()
    all_ask(world)
    assert neutrons(world.host) == world.before


def test_a_restart_of_neutrons_agent_leaves_the_second_bridge_and_guests_are_served(
    world: World, neutron: NeutronAgent, agent: Agent
) -> None:
    before = second_bridge(world.host)
    assert before[2] == []
    with asking(requests(agent), world.guests):
        neutron.restart()
        neutron.clean_up()
    assert second_bridge(world.host) == before
    all_ask(world)
