"""The identity of a guest comes from its port: not from its addresses, not from its requests."""

import contextlib

from tests.harness.agent import Agent
from tests.harness.engine import BEHAVIOUR
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import uuid_of
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    SILENCE,
    asks_own,
    open_connection,
    project_ids,
    put_nova,
    read_all,
)

host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()
fresh_record = shared.fresh_record


def test_a_kept_connection_does_not_survive_a_change_of_its_port(
    host: OpenvSwitch, agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    guest = make_guest("kept", ids=project_ids("kept"))
    put_nova(nova, guest)
    request = f"GET {META_DATA} HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n".encode()
    with open_connection(guest) as connection:
        connection.sendall(request)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        guest.set_external_ids(vm_uuid=uuid_of("instance after"))
        if not BEHAVIOUR.ends_idle_at_once:
            wait_for(lambda: uuid_of("instance after") in agent.admin("/ports").text, "it")
            # There may be no flow any more that its end would come by.
            connection.settimeout(SILENCE)
            with contextlib.suppress(OSError):
                connection.sendall(request)
                assert connection.recv(65536) == b""
            return
        assert read_all(connection) == b""


def test_an_answer_does_not_leave_to_a_port_that_changed_since_its_request(
    agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    guest = make_guest("late", ids=project_ids("late"))
    put_nova(nova, guest)
    asks_own(guest)
    nova.clear()
    nova.fault(held=True)
    batch = guest.start_many(1)
    wait_for(nova.requests, "the request to reach Nova")
    afterwards = uuid_of("instance afterwards")
    guest.set_external_ids(vm_uuid=afterwards)
    wait_for(lambda: afterwards in agent.admin("/ports").text, "the change of the port")
    nova.mend()
    (sample,) = batch.samples()
    assert (sample.status, sample.body) == (0, b"")
