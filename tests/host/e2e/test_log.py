"""The daemon's log has one line on each thing that goes wrong, with the remedy, and no flood."""

from __future__ import annotations

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.netns import Namespace
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import asks_own, put, served

TAP = "tap-metadata"
ARP_IGNORE = "net.ipv4.conf.all.arp_ignore"
DOWN, UP = "Readiness has been DOWN", "is UP again"


def value(host: OpenvSwitch) -> int:
    return int(host.namespace.run(["sysctl", "-n", ARP_IGNORE]).stdout)


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


def test_the_end_of_the_switch_is_told_from_a_removal_of_flows(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    """A switch that ends removes its flows and tells of that, and blames no other program."""
    agent = make_agent()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    removed, gone = "were removed", f"The connection to {BRIDGE} was lost"
    for times, ends in enumerate(((), ("--cleanup",)), start=1):
        host.appctl("exit", *ends)
        wait_for(lambda times=times: len(lines(agent, gone)) == times, "the line")
        wait_for(lambda: not host.running("ovs-vswitchd"), "the switch to end")
        host.start("ovs-vswitchd")
        wait_for(lambda: served(guest), "the guest to be served")
    agent.wait_ready()
    log = agent.log()
    assert lines(agent, removed) == []
    assert lines(agent, "was reassigned") == lines(agent, "Cannot read the numbers") == []
    assert lines(agent, ": None") == []
    host.ofctl("del-flows", BRIDGE, "table=0")
    wait_for(lambda: lines(agent, removed), "the line on the removal")
    (line,) = lines(agent, removed)
    assert f"Flows of dfmeta {removed} from {BRIDGE}; installing them again" in line
    assert lines(agent, gone) == [one for one in log.splitlines() if gone in one]


def test_a_device_that_is_taken_away_and_given_back_is_two_lines_for_each_part(
    host: OpenvSwitch, make_agent: MakeAgent
) -> None:
    """Its row of OVSDB stays, so that nothing else tells of it."""
    agent = make_agent()
    with Namespace("elsewhere") as elsewhere:
        host.namespace.ip(f"link set {TAP} netns {elsewhere.name}")
        wait_for(lambda: not agent.ready(), "readiness to go")
        wait_for(lambda: lines(agent, f"{DOWN} for 2 s, proxy: {TAP}: "), "the line")
        parts = len(lines(agent, DOWN))
        elsewhere.ip(f"link set {TAP} netns {host.namespace.name}")
        agent.wait_ready()
    wait_for(lambda: len(lines(agent, UP)) == parts, "the end in the log")
    assert len(lines(agent, DOWN)) == parts
    host.namespace.sysctl(**{ARP_IGNORE: 0})
    wait_for(lambda: value(host) == 1, "arp_ignore to be raised again")
    wait_for(lambda: len(lines(agent, "arp_ignore 1 for all devices (it was 0)")) == 2, "a line")
    agent.restart()
    agent.stop()
    # A start and an end say nothing of it.
    assert len(lines(agent, "Readiness")) == 2 * parts
