"""haproxy's answers while the number of a port is in doubt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import DEADLINE, wait_for
from tests.harness.relay import Relay
from tests.host.e2e import shared
from tests.host.e2e.support import (
    SILENCE,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_answer,
)
from tests.host.e2e.test_haproxy import OPTIONS, REQUEST, pid, pids

host, nova, fresh_record = shared.host, shared.nova, shared.fresh_record


@pytest.fixture(scope="module")
def relay(host: OpenvSwitch) -> Iterator[Relay]:
    """Between OVSDB and the daemon."""
    with Relay(host.db_socket, host.rundir / "relay.sock") as one:
        yield one


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, nova: RecordingNova, relay: Relay) -> Iterator[Agent]:
    """The daemon with haproxy."""
    del nova
    more = {"ovsdb_connection": f"unix:{relay.path}", "hold_timeout": 60}
    with Agent(host, {**OPTIONS, "df_metadata": {**OPTIONS["df_metadata"], **more}}) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture
def guest(agent: Agent, nova: RecordingNova, make_guest: MakeGuest) -> Guest:
    one = make_guest("one", ids=project_ids("one"))
    put_nova(nova, one)
    pid(agent)
    asks_own(one)
    nova.clear()
    return one


def in_doubt(host: OpenvSwitch, agent: Agent, relay: Relay) -> None:
    """Put all numbers in doubt, until the relay lets go."""
    relay.hold()
    before = agent.log().count("Connected to")
    host.restart("ovs-vswitchd")
    # Ready alone may be what it was before the daemon has read of the end of its connection.
    wait_for(
        lambda: agent.log().count("Connected to") > before and agent.ready(),
        "the daemon to be connected to the switch again",
    )


@pytest.mark.parametrize("changed", [False, True], ids=["the same guest", "another guest"])
def test_an_answer_leaves_after_a_doubt_to_the_same_guest_alone(
    host: OpenvSwitch,
    agent: Agent,
    nova: RecordingNova,
    relay: Relay,
    guest: Guest,
    changed: bool,
) -> None:
    process = pid(agent)
    before = agent.metric("dfmeta_closed_connections_total", reason="changed")
    nova.fault(held=True, times=1)
    with open_connection(guest) as connection:
        connection.sendall(REQUEST)
        wait_for(nova.requests, "the request to reach Nova")
        in_doubt(host, agent, relay)
        if changed:
            guest.set_external_ids(vm_uuid=uuid_of("another"))
        # Nova answers, and nothing leaves while the number is in doubt.
        nova.mend()
        connection.settimeout(SILENCE)
        with pytest.raises(TimeoutError):
            connection.recv(65536)
        relay.let_go()
        connection.settimeout(SILENCE if changed else DEADLINE)
        if changed:
            # Nothing, a reset, or the end alone, as the flows of the guest before are gone or not.
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                answer = connection.recv(65536)
            assert answer == b""
        else:
            assert guest.instance_id.encode() in read_answer(connection)
    wait_for(
        lambda: (
            agent.metric("dfmeta_closed_connections_total", reason="changed") - before == changed
        ),
        "the answer to be counted",
    )
    assert pids(agent) == [process]
