"""More that breaks on a host while guests send requests; see tests/host/e2e/test_faults.py."""

import pytest

from tests.harness.agent import Agent
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.scheme import SIDE
from tests.host.e2e import test_faults as faults
from tests.host.e2e.test_faults import NORMAL, Busy, Fault, await_repair, has_route, pauses_at_worst

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
