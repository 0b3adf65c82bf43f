"""Beside Neutron's own agent: its meters, another firewall, Meta IPs, its first start."""

from contextlib import ExitStack

import pytest

from tests.harness.agent import Agent
from tests.harness.guest import OPENSTACK6
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import META_BRIDGE
from tests.host.e2e import test_neutron_agent as beside
from tests.host.e2e.support import asks_own, put
from tests.host.e2e.test_neutron_agent import (
    OURS,
    TABLES,
    World,
    added,
    asking,
    make_twins,
    meters,
    neutrons,
    own_flows,
    requests,
    tables,
    tell_of_twins,
    world_with,
)
from tests.host.neutron.agent import OUTSIDE, NeutronAgent

host, world, neutron, agent = beside.host, beside.world, beside.neutron, beside.agent
pytestmark = [pytest.mark.usefixtures("neutron", "agent"), pytest.mark.early]
SPOOFING = {24, 25}
"""Tables of the spoofing protection without it; in 25 nothing stands with it."""


def test_meter_of_neutrons_stays(world: World) -> None:
    guest = world.friends[1]
    before = meters(world.host)
    world.neutron.change(guest, packet_rate=3)
    wait_for(lambda: meters(world.host) != before, "Neutron to limit the guest")
    limited = meters(world.host)
    world.agent.stop()
    world.agent.clean_up()
    world.agent.start()
    asks_own(guest)
    assert meters(world.host) == limited
    world.neutron.change(guest, packet_rate=0)
    wait_for(lambda: meters(world.host) == before, "Neutron to delete its meter")
    asks_own(guest)


def test_without_its_firewall_too(world: World) -> None:
    """ARP and MAC spoofing protection stand in tables of their own then."""
    world.neutron.configure({"SECURITYGROUP": {"firewall_driver": "noop"}})
    world.neutron.restart()
    world.neutron.clean_up()
    assert tables(world.host) >= SPOOFING
    for guest in world.guests:
        asks_own(guest)
        asks_own(guest, host=OPENSTACK6)
    world.twins[1].add_address("169.254.8.16/16")
    asks_own(world.twins[1], source="169.254.8.16")


def second_bridge(host: OpenvSwitch) -> tuple[list[str], list[object], list[str]]:
    """Return its ports, its settings, and its flows that are not dfmeta's."""
    (bridge,) = [row for row in host.records("Bridge") if row["name"] == META_BRIDGE]
    settings = [bridge[name] for name in ("fail_mode", "controller", "protocols", "external_ids")]
    others = [flow for flow in host.flows(META_BRIDGE) if OURS not in flow]
    return sorted(host.ports(META_BRIDGE)), settings, others


def test_meta_ips_change_nothing_of_neutrons() -> None:
    with world_with({"df_metadata": {"identity_scheme": "meta_ip"}}) as world:
        for guest in world.guests:
            asks_own(guest)
            asks_own(guest, host=OPENSTACK6)
        assert neutrons(world.host) == world.before
        before = second_bridge(world.host)
        assert before[2] == []
        with asking(requests(world.agent), world.twins):
            world.neutron.restart()
            world.neutron.clean_up()
        assert second_bridge(world.host) == before
        world.agent.stop()
        world.agent.clean_up()
        assert own_flows(world.host) == 0


def test_all_flows_go_at_its_first_start_and_when_vswitchd_is_restarted() -> None:
    """drop_flows_on_start, and before that the bridge gets its first controller."""
    with ExitStack() as stack:
        host = stack.enter_context(OpenvSwitch(bridges=(BRIDGE, OUTSIDE)))
        twins = make_twins(host, stack)
        agent = stack.enter_context(Agent(host)).start()
        for guest in twins:
            put(agent, guest, hostname=guest.name)
            asks_own(guest)
        everything = own_flows(host)
        neutron = stack.enter_context(NeutronAgent(host, {"AGENT": {"drop_flows_on_start": True}}))
        tell_of_twins(neutron, twins)
        before = added(agent)
        with asking(requests(agent), twins):
            neutron.start()
            neutron.clean_up()
            wait_for(lambda: own_flows(host) == everything, "our flows to be back")
        assert added(agent) - before >= everything
        before = added(agent)
        with asking(requests(agent), twins):
            with neutron.rewiring():
                host.kill("ovs-vswitchd")
                host.start("ovs-vswitchd")
            wait_for(lambda: own_flows(host) == everything, "our flows to be back")
        assert added(agent) - before >= everything
        # Not as it was: Neutron forgets to translate VLANs then, without us as well.
        assert tables(host) >= TABLES
        for guest in twins:
            asks_own(guest)
        agent.stop()
