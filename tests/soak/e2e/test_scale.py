"""Some hundred ports on a real switch: all are served, and one of them costs only itself."""

from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.crowd import Crowd
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import ADDRESS_FLOWS, FIXED_FLOWS, PORT_FLOWS

PORTS = 300


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    """A host with that many ports, of the test's own."""
    with OpenvSwitch(dummies=True) as host:
        crowd = Crowd(host)
        crowd.plug(range(PORTS))
        crowd.wait_plugged(PORTS - 1)
        yield crowd


def flows(crowd: Crowd) -> int:
    return crowd.host.ofctl("dump-flows", "br-int").count("cookie=0x64666d65")


def sent(agent: Agent) -> dict[str, float]:
    """How many flow-mods of each kind there were."""
    return {
        kind: agent.metric("dfmeta_flow_mods_total", command=kind) for kind in ("add", "delete")
    }


def until_flows(crowd: Crowd, count: int) -> None:
    wait_for(lambda: flows(crowd) == count, f"{count} flows")


def learned(agent: Agent) -> float:
    return agent.metric("dfmeta_packet_ins_total", outcome="learned")


def test_hundreds_of_ports_come_stay_over_a_restart_change_and_go(crowd: Crowd) -> None:
    with Agent(crowd.host) as agent:
        agent.start()
        assert flows(crowd) == FIXED_FLOWS + PORTS * PORT_FLOWS
        assert sent(agent) == {"add": FIXED_FLOWS + PORTS * PORT_FLOWS, "delete": 0}
        assert agent.metric("dfmeta_ports", state="served") == PORTS

        for number in range(PORTS):
            crowd.ask(number)
        wait_for(lambda: learned(agent) == PORTS, "all addresses")
        full = FIXED_FLOWS + PORTS * (PORT_FLOWS + ADDRESS_FLOWS)
        until_flows(crowd, full)

        agent.restart()
        assert sent(agent) == {"add": 0, "delete": 0}
        assert flows(crowd) == full

        # One more port, another one's next guest, and one less.
        crowd.plug([PORTS])
        until_flows(crowd, full + PORT_FLOWS)
        assert sent(agent) == {"add": PORT_FLOWS, "delete": 0}
        crowd.change(0)
        until_flows(crowd, full + PORT_FLOWS - ADDRESS_FLOWS)
        assert sent(agent) == {"add": PORT_FLOWS, "delete": ADDRESS_FLOWS}
        crowd.unplug([1])
        until_flows(crowd, full - 2 * ADDRESS_FLOWS)
        assert sent(agent) == {"add": PORT_FLOWS, "delete": PORT_FLOWS + 2 * ADDRESS_FLOWS}

        crowd.unplug([0, *range(2, PORTS + 1)])
        until_flows(crowd, FIXED_FLOWS)
        assert agent.metric("dfmeta_ports", state="served") == 0
        wait_for(agent.ready, "the switch to confirm the last of it")
