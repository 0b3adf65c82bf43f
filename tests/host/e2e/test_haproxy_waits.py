"""haproxy's answers under way: over a doubt about a port's number, and from any host of Nova."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.harness.relay import Relay
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_answer,
    uuid_in,
)
from tests.host.e2e.test_haproxy import OPTIONS, REQUEST, pid, pids

HOSTS = ("127.0.0.1", "127.0.0.2")
WAITS = 0.5
"""Seconds in which an answer that is to wait would come."""

host = shared.host


@pytest.fixture(scope="module")
def novas(host: OpenvSwitch) -> Iterator[list[RecordingNova]]:
    """Two hosts of Nova."""
    with (
        RecordingNova(host.namespace, host=HOSTS[0]) as first,
        RecordingNova(host.namespace, host=HOSTS[1]) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def relay(host: OpenvSwitch) -> Iterator[Relay]:
    """Between OVSDB and the daemon."""
    with Relay(host.db_socket, host.rundir / "relay.sock") as one:
        yield one


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, novas: list[RecordingNova], relay: Relay) -> Iterator[Agent]:
    """The daemon with haproxy, and both hosts of Nova."""
    options = {
        **OPTIONS,
        "DEFAULT": {**OPTIONS["DEFAULT"], "nova_metadata_host": ", ".join(HOSTS)},
        "df_metadata": {
            **OPTIONS["df_metadata"],
            "ovsdb_connection": f"unix:{relay.path}",
            # Half of it is each host's, within which a test has the switch restarted.
            "hold_timeout": 60,
        },
    }
    with Agent(host, options) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture
def guest(agent: Agent, novas: list[RecordingNova], make_guest: MakeGuest) -> Guest:
    one = make_guest("one", ids=project_ids("one"))
    for nova in novas:
        nova.mend()
        put_nova(nova, one)
    pid(agent)
    asks_own(one)
    for nova in novas:
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
    novas: list[RecordingNova],
    relay: Relay,
    guest: Guest,
    changed: bool,
) -> None:
    process = pid(agent)
    before = agent.metric("dfmeta_closed_connections_total", reason="changed")
    novas[0].fault(held=True, times=1)
    with open_connection(guest) as connection:
        connection.sendall(REQUEST)
        wait_for(novas[0].requests, "the request to reach Nova")
        in_doubt(host, agent, relay)
        if changed:
            guest.set_external_ids(vm_uuid=uuid_of("another"))
        # Nova answers, and nothing leaves while the number is in doubt.
        novas[0].mend()
        connection.settimeout(WAITS)
        with pytest.raises(TimeoutError):
            connection.recv(65536)
        relay.let_go()
        connection.settimeout(0.5 if changed else 10)
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


def test_a_new_request_in_doubt_waits_as_well(
    host: OpenvSwitch, agent: Agent, relay: Relay, guest: Guest
) -> None:
    in_doubt(host, agent, relay)
    held = agent.metric("dfmeta_held_requests_total", why="number")
    batch = guest.start_many(1, path=META_DATA)
    wait_for(lambda: agent.metric("dfmeta_held_requests_total", why="number") > held, "the request")
    relay.let_go()
    (sample,) = batch.samples()
    assert (sample.status, uuid_in(sample.body)) == (200, guest.instance_id)


def test_each_host_of_nova_gets_its_own_host_header(
    novas: list[RecordingNova], guest: Guest
) -> None:
    asks_own(guest)
    novas[0].away()
    asks_own(guest)
    for nova, address in zip(novas, HOSTS, strict=True):
        (asked,) = nova.requests()
        assert asked.header("Host") == f"{address}:8775"
        assert asked.instance_id == guest.instance_id
