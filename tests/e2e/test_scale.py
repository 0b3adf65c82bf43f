"""Some hundred ports on a real switch: all are served, and one of them costs only itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.service import Tap
from dfmeta.model import Endpoint
from tests.harness.agent import Agent
from tests.harness.crowd import Crowd
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for

PORTS = 300
TAP = Tap(ofport=9, mac="02:64:66:6d:65:fe", port=18080)
FIXED = len(fixed_flows(TAP))
EACH = len(guest_flows(Guest(Endpoint(1), None), TAP))
"""Flows of a port without a known address."""
ADDRESS = 3
METERS = 2


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


def meters(crowd: Crowd) -> int:
    return crowd.host.ofctl("dump-meters", "br-int").count("type=drop")


def sent(agent: Agent) -> dict[str, float]:
    """How many flow-mods of each kind there were."""
    return {
        kind: agent.metric("dfmeta_flow_mods_total", command=kind) for kind in ("add", "delete")
    }


def until_flows(crowd: Crowd, count: int) -> None:
    wait_for(lambda: flows(crowd) == count, 10, f"{count} flows")


def learned(agent: Agent) -> float:
    return agent.metric("dfmeta_packet_ins_total", outcome="learned")


def test_hundreds_of_ports_come_stay_over_a_restart_change_and_go(crowd: Crowd) -> None:
    with Agent(crowd.host) as agent:
        agent.start()
        assert flows(crowd) == FIXED + PORTS * EACH
        assert meters(crowd) == PORTS * METERS
        assert sent(agent) == {"add": FIXED + PORTS * EACH, "delete": 0}
        assert agent.metric("dfmeta_ports", state="served") == PORTS

        for number in range(PORTS):
            crowd.ask(number)
        wait_for(lambda: learned(agent) == PORTS, 20, "all addresses")
        full = FIXED + PORTS * (EACH + ADDRESS)
        until_flows(crowd, full)

        agent.restart()
        assert sent(agent) == {"add": 0, "delete": 0}
        assert flows(crowd) == full

        # One more port, another one's next guest, and one less.
        crowd.plug([PORTS])
        until_flows(crowd, full + EACH)
        assert sent(agent) == {"add": EACH, "delete": 0}
        crowd.change(0)
        until_flows(crowd, full + EACH - ADDRESS)
        assert sent(agent) == {"add": EACH, "delete": ADDRESS}
        crowd.unplug([1])
        until_flows(crowd, full - 2 * ADDRESS)
        assert sent(agent) == {"add": EACH, "delete": EACH + 2 * ADDRESS}

        crowd.unplug([0, *range(2, PORTS + 1)])
        until_flows(crowd, FIXED)
        wait_for(lambda: meters(crowd) == 0, 10, "the meters to be gone")
        assert agent.metric("dfmeta_ports", state="served") == 0
        assert agent.ready()
