"""Starts on a switch or a host that is not as it should be."""

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, put

DOWN, UP = "Readiness has been DOWN", "is UP again"


def lines(agent: Agent, text: str) -> list[str]:
    return [line for line in agent.log().splitlines() if text in line]


def test_a_bridge_that_refuses_openflow_13_is_one_line_with_the_remedy(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent()
    assert lines(agent, DOWN) == []
    host.vsctl("set", "Bridge", BRIDGE, "protocols=OpenFlow10")
    wait_for(lambda: not agent.ready(), "readiness to go")
    wait_for(lambda: lines(agent, DOWN), "the line on readiness")
    (line,) = lines(agent, "OpenFlow 1.3")
    command = line.partition("Enable it: ")[2].split()
    assert command[:4] == ["ovs-vsctl", "add", "Bridge", BRIDGE]
    assert "unsupported version" not in agent.log()
    host.vsctl(*command[1:6])
    agent.wait_ready()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    wait_for(lambda: len(lines(agent, UP)) == len(lines(agent, DOWN)), "the end in the log")
