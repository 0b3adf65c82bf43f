"""A thread that the daemon cannot do without ends by a defect: the daemon says so, ends, and is
started again, and no guest is refused meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import defective
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import META_DATA, asks_own, open_connection, put, uuid_in

MANY = 1_000_000
"""More requests than are sent until the end."""
INTERVAL = 0.1
"""Seconds between two requests of each of two at a time: one each 50 ms."""


def nothing(_host: OpenvSwitch) -> None:
    """It happens by itself."""


def another_port(host: OpenvSwitch) -> None:
    """Both OVSDB and the switch say so."""
    host.vsctl("add-port", BRIDGE, "other", "--", "set", "Interface", "other", "type=internal")


def missing(agent: Agent) -> list[str]:
    """What readiness says."""
    answer = agent.admin("/healthz/readiness")
    return list(answer.json().get("missing", [])) if answer.status == 503 else []


@pytest.mark.parametrize(
    ("module", "attribute", "cause", "thread"),
    [
        ("dfmeta.apps.learner", "Learner.expire", nothing, "watch over the flows"),
        ("dfmeta.cmd.daemon", "Daemon._updated", another_port, "delivery of OVSDB's changes"),
        ("dfmeta.apps.numbers", "Numbers.changed", another_port, "OpenFlow connection"),
    ],
    ids=["watch", "ovsdb", "openflow"],
)
def test_a_defect_in_a_thread_that_must_live_ends_the_daemon_and_no_guest_is_refused(
    host: OpenvSwitch,
    make_agent: MakeAgent,
    make_guest: MakeGuest,
    tmp_path: Path,
    module: str,
    attribute: str,
    cause: Callable[[OpenvSwitch], None],
    thread: str,
) -> None:
    trigger = tmp_path / "trigger"
    agent = make_agent(start=False)
    agent.prefix = [sys.executable, "-P", defective.__file__, str(trigger), module, attribute]
    agent.start()
    guest = make_guest("one")
    put(agent, guest)
    asks_own(guest)
    flows = len(host.flows())
    # To its end, and while no daemon runs: the start of the next one takes many times as long.
    batch = guest.start_many(MANY, 2, path=META_DATA, timeout=20, interval=INTERVAL)
    # A request that does not end keeps the daemon for as long as it may take to end.
    with open_connection(guest) as slow:
        slow.sendall(b"GET /latest/meta-data/ HTTP/1.1\r\n")
        wait_for(lambda: agent.metric("dfmeta_open_connections") >= 1, "the slow request")
        trigger.touch()
        cause(host)
        wait_for(lambda: "threads" in missing(agent), "readiness to say so")
        assert agent.wait(15) == 1
    assert f"CRITICAL dfmeta.hub The thread {thread!r} has ended" in agent.log()
    last = agent.log().splitlines()[-1]
    assert last.startswith("dfmeta-agent: ThreadEndedError in dfmeta/")
    assert f"the thread {thread!r} has ended: ZeroDivisionError: a defect" in last
    assert "in call" in agent.log(), "the traceback"
    assert len(host.flows()) == flows, "they stay"
    agent.prefix = []
    agent.start()
    asks_own(guest)
    samples = batch.finish()
    assert {(one.status, uuid_in(one.body)) for one in samples if one.status} == {
        (200, guest.instance_id)
    }
    assert [one.error for one in samples if not one.status] == []
    assert agent.metric("dfmeta_flow_mods_total") == 0
