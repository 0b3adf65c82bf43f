"""The guests' listener without systemd: every start finds it, and its holder ends by itself."""

from tests.harness.agent import Agent
from tests.harness.guest import Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import (
    Attempt,
    Capture,
    asks_own,
    holders,
)


def test_a_holder_ends_and_guests_wait_for_the_next_start(
    host: OpenvSwitch, agent: Agent, guest: Guest
) -> None:
    agent.configure({"df_metadata": {"listener_keep": 1}})
    agent.restart()
    asks_own(guest)
    agent.kill()
    wait_for(lambda: not holders(host), "the holder's end")
    with Capture(guest.namespace, guest.device) as capture, Attempt(guest) as attempt:
        wait_for(lambda: any(syn.is_repeated for syn in capture.syns()), "a SYN sent again")
        assert not [segment for segment in capture.segments() if segment.is_reset]
        agent.start()
        assert attempt.connected_after() is not None
        assert not [segment for segment in capture.segments() if segment.is_reset]
    asks_own(guest)
    assert len(holders(host)) == 1
    assert agent.metric("dfmeta_packet_ins_total") == 0
