"""The identity of a guest comes from its port: not from its addresses, not from its requests."""

import contextlib

from tests.harness.agent import Agent
from tests.harness.engine import BEHAVIOUR
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import Guest, uuid_of
from tests.harness.nova import RecordingNova
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import (
    META_DATA,
    SILENCE,
    TWIN_MAC,
    asks_own,
    open_connection,
    project_ids,
    put,
    put_nova,
    read_all,
    uuid_in,
)

host, nova, agent = shared.host, shared.nova, shared.nova_agent_with()
fresh_record = shared.fresh_record


def twins(make_guest: MakeGuest, *names: str, address: str = "10.0.0.5/24") -> list[Guest]:
    return [
        make_guest(name, address=address, mac=TWIN_MAC, ids=project_ids(name)) for name in names
    ]


def test_the_store_gives_two_guests_with_one_ip_and_mac_only_their_own() -> None:
    with OpenvSwitch() as switch, Agent(switch) as daemon:
        both = [
            Guest(switch, name, address="10.0.0.5/24", mac=TWIN_MAC) for name in ("left", "right")
        ]
        daemon.start()
        for guest in both:
            put(daemon, guest)
        batches = [guest.start_many(50, 50) for guest in both]
        for guest, batch in zip(both, batches, strict=True):
            samples = batch.samples()
            assert [sample.error for sample in samples if sample.status != 200] == []
            assert {uuid_in(sample.body) for sample in samples} == {guest.instance_id}
        daemon.stop()


def test_a_kept_connection_does_not_survive_a_change_of_its_port(
    host: OpenvSwitch, agent: Agent, nova: RecordingNova, make_guest: MakeGuest
) -> None:
    (guest,) = twins(make_guest, "kept")
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
    (guest,) = twins(make_guest, "late")
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
