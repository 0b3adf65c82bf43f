"""A thread that the daemon cannot do without ends by a defect: the daemon says so, ends, and is
started again, and no guest is refused meanwhile."""

import sys
from pathlib import Path

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.host.e2e import defective
from tests.host.e2e.support import META_DATA, asks_own, open_connection, put, uuid_in

MANY = 1_000_000
"""More requests than are sent until the end."""
INTERVAL = 0.1
"""Seconds between two requests of each of two at a time: one each 50 ms."""


def missing(agent: Agent) -> list[str]:
    """What readiness says."""
    answer = agent.admin("/healthz/readiness")
    return list(answer.json().get("missing", [])) if answer.status == 503 else []


def test_a_defect_in_a_thread_that_must_live_ends_the_daemon_and_no_guest_is_refused(
    host: OpenvSwitch, make_agent: MakeAgent, make_guest: MakeGuest, tmp_path: Path
) -> None:
    thread = "watch over the flows"
    trigger = tmp_path / "trigger"
    agent = make_agent(start=False)
    defect = (str(trigger), "dfmeta.apps.learner", "Learner.expire")
    agent.prefix = [sys.executable, "-P", defective.__file__, *defect]
    agent.start()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    flows = len(host.flows())
    # To its end, and while no daemon runs: the start of the next one takes many times as long.
    batch = guest.start_many(MANY, 2, path=META_DATA, timeout=DEADLINE, interval=INTERVAL)
    # A request that does not end keeps the daemon for as long as it may take to end.
    with open_connection(guest) as slow:
        slow.sendall(b"GET /latest/meta-data/ HTTP/1.1\r\n")
        wait_for(lambda: agent.metric("dfmeta_open_connections") >= 1, "the slow request")
        trigger.touch()
        wait_for(lambda: "threads" in missing(agent), "readiness to say so")
        assert agent.wait() == 1
    assert f"CRITICAL dfmeta.runtime.hub The thread {thread!r} has ended" in agent.log()
    last = agent.log().splitlines()[-1]
    assert last.startswith("dfmeta-agent: ThreadEndedError in dfmeta/")
    assert f"the thread {thread!r} has ended: ZeroDivisionError: a defect" in last
    assert "in call" in agent.log(), "the traceback"
    assert len(host.flows()) == flows, "they stay"
    agent.prefix = []
    agent.start()
    asks_own(guest)
    samples = batch.finish()
    assert {(sample.status, uuid_in(sample.body)) for sample in samples if sample.status} == {
        (200, guest.instance_id)
    }
    assert [sample.error for sample in samples if not sample.status] == []
    assert agent.metric("dfmeta_flow_mods_total") == 0
