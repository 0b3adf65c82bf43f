"""Guests of haproxy should be served during restarts of the switch."""

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared, test_haproxy
from tests.host.e2e.support import (
    META_DATA,
    asks_own,
    uuid_in,
)
from tests.host.e2e.test_haproxy import pid, pids

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record
agent, guest = test_haproxy.agent, test_haproxy.guest


def test_guests_are_served_during_restarts_of_the_switch(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    process = pid(agent)
    for program in ("ovs-vswitchd", "ovsdb-server"):
        batch = guest.start_many(200, path=META_DATA)
        host.restart(program)
        # The number of the port is in doubt for a moment, in which answers under way wait.
        got = {(one.status, uuid_in(one.body)) for one in batch.samples()}
        assert got == {(200, guest.instance_id)}, program
        wait_for(agent.ready, "the daemon")
        asks_own(guest)
        assert pids(agent) == [process], program
