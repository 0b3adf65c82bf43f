"""A worker that hangs should be replaced."""

import os
import signal

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, asks_own, put, uuid_in
from tests.host.e2e.test_workers import lost, workers


def test_a_worker_that_hangs_is_replaced_without_a_new_guest(
    make_agent: MakeAgent, make_guest: MakeGuest
) -> None:
    agent = make_agent({"df_metadata": {"proxy_workers": 1}})
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    (hanging,) = workers(agent)
    syns = agent.metric("dfmeta_packet_ins_total")
    os.kill(hanging, signal.SIGSTOP)
    waiting = guest.start_many(1, path=META_DATA)
    wait_for(lambda: not agent.ready(), "readiness to say that no worker answers")
    assert agent.admin("/healthz/readiness").json()["missing"] == ["proxy"]
    wait_for(lambda: hanging not in workers(agent), "the one that hangs to be ended")
    wait_for(agent.ready, "another one to serve")
    (sample,) = waiting.samples()
    assert (sample.status, uuid_in(sample.body)) == (200, guest.instance_id)
    asks_own(guest)
    assert f"Worker {hanging} hangs: no answer for 5 s; it is killed" in agent.log()
    assert lost(agent, "hangs") == 1
    assert agent.metric("dfmeta_packet_ins_total") == syns, "no first SYN was needed"
