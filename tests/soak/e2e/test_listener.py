"""Two daemons of a host should leave each other the listener."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, asks_own, holders, open_connection, read_all

REQUEST = f"GET {META_DATA} HTTP/1.1\r\nHost: m\r\nConnection: close\r\n\r\n".encode()


ELSEWHERE = {"integration_bridge": "br-other", "metadata_interface": "tap-other"}


TAKEN = "Took over the listener of an earlier run"


@contextmanager
def kept_waiting(agent: Agent, guest: Guest) -> Iterator[None]:
    """A guest connects while no daemon runs; it is answered by the one that starts inside."""
    with open_connection(guest) as waiting:
        waiting.sendall(REQUEST)
        yield
        assert guest.instance_id.encode() in read_all(waiting)
    asks_own(guest)
    assert agent.log().count(TAKEN) == 1


def test_two_daemons_on_two_bridges_leave_each_other_the_listener(
    host: OpenvSwitch, agent: Agent, guest: Guest, make_agent: MakeAgent
) -> None:
    host.add_bridge("br-other")
    second = make_agent(
        {
            "df_metadata": {
                **ELSEWHERE,
                "host_ip": "169.254.1.1",
                "host_ip6": "fd00:a9fe:a9fe:a9fe::101",
                "route_table": 3,
                "admin_listen": "127.0.0.1:9698",
            }
        },
        start=False,
    )
    second.admin_port = 9698
    second.start()
    both = set(holders(host))
    assert len(both) == 2
    agent.stop()
    second.restart()
    with kept_waiting(agent, guest):
        agent.start()
    assert set(holders(host)) == both
    second.stop()
    assert agent.run("--cleanup").returncode == 1
    second.clean_up()
    wait_for(lambda: len(holders(host)) == 1, "the second one's end")
    asks_own(guest)
    agent.restart()
    asks_own(guest)
