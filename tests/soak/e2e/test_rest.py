"""A host at rest stays as it is: ten minutes with ``tools/soak``."""

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.scheme import SIDE
from tests.host.e2e import shared, test_rest
from tests.host.e2e.support import Capture, asks_own
from tests.host.e2e.test_rest import Monitor, is_tcp, rows

ROUNDS = 6
"""Of ten seconds."""
GROWING = ("dropped", "failed", "errors", "lost", "rejected", "flow_mods")
"""Parts of the names of counters that stand still on a host at rest."""

host, agent, guest = shared.host, shared.agent_with(), shared.guest6
monitor = test_rest.monitor


def counters(agent: Agent) -> dict[str, float]:
    """The counters of faults, and of what changes the switch."""
    return {
        name: value
        for name, value in agent.metrics().items()
        if any(part in name for part in GROWING) and "_seconds" not in name
    }


def rest(host: OpenvSwitch, rounds: int) -> None:
    """Do nothing for a while."""
    for _ in range(rounds):
        host.namespace.run(["sleep", "10"])


def test_a_host_at_rest_has_no_change_and_no_fault(
    host: OpenvSwitch, agent: Agent, guest: Guest, monitor: Monitor, soak: int
) -> None:
    asks_own(guest)
    # The frames of the start are counted within a minute.
    rest(host, ROUNDS)
    monitor.take()
    before, counted, log = rows(host), counters(agent), len(agent.log())
    with Capture(host.namespace, SIDE.tap) as capture:
        rest(host, ROUNDS * soak)
        assert agent.ready()
        assert monitor.take() == []
        assert [data for _, data in capture.frames() if not is_tcp(data)] == []
    assert rows(host) == before
    assert counters(agent) == counted
    assert "WARNING" not in agent.log()[log:]
    agent.ctl("doctor", "--failing", "--root", str(agent.folder))
    asks_own(guest)
