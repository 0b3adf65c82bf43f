"""Cleanup should remove the flows and the state of a newer release."""

import json

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.host.e2e.support import asks_own
from tests.host.e2e.test_upgrade import VERSIONS, rewrite, versions


def test_cleanup_removes_flows_and_state_of_a_newer_release(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    agent.stop()
    rewrite(host, VERSIONS["newer"])
    state = agent.state_path / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"version": 2}))
    done = agent.clean_up()
    assert "it has format 2, this dfmeta knows 1): starting with an empty state" in done
    assert versions(host) == set()
    assert host.ports() == [guest.port]
    agent.start()
    asks_own(guest)
