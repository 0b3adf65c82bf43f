"""The guests' listener without systemd: every start finds it, and its holder ends by itself."""

import os
import signal

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import Attempt, Capture, asks_own, children, holders, put


def test_holder_ends_and_guests_wait(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    agent.configure({"df_metadata": {"listener_keep": 1}})
    agent.restart()
    asks_own(guest)
    agent.kill()
    wait_for(lambda: not holders(host), "the holder's end")
    waits_for_the_next_start(guest, agent)
    assert len(holders(host)) == 1
    assert agent.metric("dfmeta_packet_ins_total") == 0


def test_guests_wait_for_the_next_start_of_process_1_of_a_container(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    """Its end ends all processes of the container, the holder too."""
    agent, guest = make_agent(start=False), make_guest("one", route="gateway")
    agent.prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
    agent.start()
    put(agent, guest)
    asks_own(guest)
    (daemon,) = children(agent.pid)
    os.kill(daemon, signal.SIGTERM)
    assert agent.wait() == 0
    assert not holders(host)
    agent.prefix = []
    waits_for_the_next_start(guest, agent)


def waits_for_the_next_start(guest: Guest, agent: Agent) -> None:
    with Capture(guest.namespace, guest.device) as capture, Attempt(guest) as attempt:
        wait_for(lambda: any(syn.is_repeated for syn in capture.syns()), "a SYN sent again")
        assert not [segment for segment in capture.segments() if segment.is_reset]
        agent.start()
        assert attempt.connected_after() is not None
        assert not [segment for segment in capture.segments() if segment.is_reset]
    asks_own(guest)
