"""From a server at 169.254.169.254 on the same bridge to dfmeta and back, while guests ask."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.harness.fixtures import MakeAgent, MakeGuest
from tests.harness.guest import METADATA_IP, Guest, Ids
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e.support import put, read_answer

PATH = "/latest/meta-data/hostname"
MANY = 1_000_000
"""More requests than are sent until the end."""
INTERVAL = 0.02
"""Seconds between two requests of each of two guests: one each 10 ms."""
OLD = b"what answered before"
REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: {METADATA_IP}\r\n\r\n".encode()


@contextlib.contextmanager
def old_server(make_guest: MakeGuest) -> Iterator[Guest]:
    """Answers at its own address and at 169.254.169.254, as Neutron's DHCP namespace does."""
    place = make_guest("qdhcp", address="10.0.0.2/24", ids=Ids(attached_mac=False))
    place.namespace.ip(f"addr add {METADATA_IP}/32 dev {place.device}")
    with place.namespace.open_socket() as listener:
        listener.bind(("0.0.0.0", 80))
        listener.listen(64)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield place
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def answer(connection: socket.socket) -> None:
    """Serve one connection for as long as its guest keeps it."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(OLD)}\r\n\r\n".encode()
    with connection, contextlib.suppress(OSError):
        while connection.recv(4096):
            connection.sendall(head + OLD)


@pytest.fixture
def guests(host: OpenvSwitch, make_guest: MakeGuest) -> Iterator[list[Guest]]:
    """One that goes through the old server's address, one that has the address on its link."""
    host.ofctl("add-flow", "br-int", "priority=0,actions=NORMAL")
    with old_server(make_guest):
        through = make_guest("through", address="10.0.0.5/24", route="host-route")
        # The harness names a next hop that nobody owns; here somebody does.
        through.namespace.ip(f"neigh del 10.0.0.2 dev {through.device}")
        yield [through, make_guest("on-link", address="10.0.0.6/24")]


def says(guest: Guest) -> bytes:
    """The body, which names the server."""
    reply = guest.curl(PATH)
    assert reply.status == 200, reply
    return reply.body


def test_guests_go_over_with_the_loss_of_a_request_under_way_at_most_and_come_back(
    host: OpenvSwitch, guests: list[Guest], make_agent: MakeAgent
) -> None:
    agent = make_agent(start=False)
    for guest in guests:
        put(agent, guest, hostname=guest.name)
    flows, ports = len(host.flows()), host.ports()
    assert [says(guest) for guest in guests] == [OLD, OLD]
    with guests[0].namespace.connect(METADATA_IP, 80) as kept:
        kept.sendall(REQUEST)
        assert read_answer(kept) == OLD
        asking = [guest.start_many(MANY, path=PATH, interval=INTERVAL) for guest in guests]
        agent.start()
        for guest in guests:
            own = guest.name.encode()
            wait_for(lambda guest=guest, own=own: says(guest) == own, "the daemon's answers")
        for guest, batch in zip(guests, asking, strict=True):
            samples = batch.finish()
            assert len(samples) > 20
            answered = [sample for sample in samples if sample.status == 200]
            # The page on migrating allows the one that is under way as the flows come.
            assert len(samples) - len(answered) <= 1, samples
            assert {sample.body for sample in answered} <= {OLD, guest.name.encode()}
            assert says(guest) == guest.name.encode()
        # What was open to the old server is not answered by another.
        kept.sendall(REQUEST)
        with pytest.raises(ConnectionResetError):
            kept.recv(4096)
    agent.stop()
    assert agent.run("--cleanup").returncode == 0
    assert (len(host.flows()), host.ports()) == (flows, ports)
    for guest in guests:
        wait_for(lambda guest=guest: says(guest) == OLD, f"{guest.name} to be back")
