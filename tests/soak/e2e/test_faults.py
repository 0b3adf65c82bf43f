"""More that breaks on a host while guests send requests; see tests/host/e2e/test_faults.py."""

from collections import Counter

import pytest

from tests.harness.agent import Agent
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import test_faults as faults
from tests.host.e2e.support import (
    end_holders,
    failures,
    holders,
)
from tests.host.e2e.test_faults import (
    NORMAL,
    PATH,
    Busy,
    Fault,
    await_repair,
    has_route,
    pauses_at_worst,
)

host, agent, busy = faults.host, faults.agent, faults.busy


def delete_table_zero(host: OpenvSwitch, agent: Agent) -> None:
    """Neutron's clean-up: by cookie, in table 0."""
    host.ofctl("del-flows", "br-int", "table=0")
    host.ofctl("add-flow", "br-int", NORMAL)
    await_repair(host, agent)


def delete_reply_flows(host: OpenvSwitch, agent: Agent) -> None:
    """The table that sends no notice of removed flows."""
    host.ofctl("del-flows", "br-int", "table=201")
    await_repair(host, agent)


def set_and_delete_controller(host: OpenvSwitch, agent: Agent) -> None:
    """The bridge gains its first controller and loses its last."""
    host.vsctl("set-controller", "br-int", "tcp:127.0.0.1:9")
    await_repair(host, agent)
    host.vsctl("del-controller", "br-int")
    await_repair(host, agent)
    host.vsctl("set-fail-mode", "br-int", "standalone")


def set_link_down(host: OpenvSwitch, agent: Agent) -> None:
    """The kernel takes IPv6's address, route and neighbour away with it."""
    host.namespace.ip(f"link set {SIDE.tap} down")
    wait_for(lambda: has_route(host, 6), "the route to be back")
    await_repair(host, agent)


@pytest.mark.parametrize(
    "fault", [delete_table_zero, delete_reply_flows, set_and_delete_controller, set_link_down]
)
def test_guests_see_a_pause_at_worst(
    host: OpenvSwitch, agent: Agent, busy: Busy, fault: Fault
) -> None:
    pauses_at_worst(host, agent, busy, fault)


def test_the_holder_of_the_listener_is_replaced_when_it_dies(agent: Agent, busy: Busy) -> None:
    host = busy.agent.host
    assert len(holders(host)) == 1
    end_holders(host)
    wait_for(lambda: "holder of the listeners has ended" in agent.log(), "the daemon to notice")
    samples = busy.through(agent.restart, interval=0)
    assert failures(samples) == Counter()


def test_rows_removed_while_ovsdb_is_away_are_noticed(
    host: OpenvSwitch, agent: Agent, busy: Busy
) -> None:
    gone, stays = busy.guests
    assert gone.curl(PATH).text == gone.name
    host.kill("ovsdb-server")
    wait_for(lambda: not agent.ready(), "the daemon to notice")
    # Straight into the database file, as a back-up that is put back would change it.
    host.edit_database("Interface", gone.port, external_ids=["map", []])
    host.start("ovsdb-server")
    wait_for(lambda: agent.ready(), "the daemon to be ready")
    ports = {row["port"] for row in agent.admin("/ports").json()}
    assert ports == {stays.port}
    gone.del_port()
    gone.plug()
    wait_for(lambda: len(agent.admin("/ports").json()) == len(busy.guests), "the port")
    busy.ask_once()
