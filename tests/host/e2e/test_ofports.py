"""Port numbers that are given out anew: a guest gets its own metadata or none, never another's."""

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.core.flows import frames
from tests.harness.agent import Agent
from tests.harness.fixtures import MakeGuest
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.relay import Relay
from tests.host.e2e.support import Capture, open_connection, read_answer

PATH = "/latest/meta-data/hostname"
MAC = "fa:16:3e:00:00:07"
REQUEST = f"GET {PATH} HTTP/1.1\r\nHost: {METADATA_IP}\r\n\r\n".encode()
PATIENCE = 0.3
"""Seconds until a guest that asks again and again gives a request up."""
PSH_ACK = 0x18


host = shared.host


@pytest.fixture(scope="module")
def relay(host: OpenvSwitch) -> Iterator[Relay]:
    """Between OVSDB and the daemon."""
    with Relay(host.db_socket, host.rundir / "relay.sock") as relay:
        yield relay


@pytest.fixture(scope="module")
def agent(host: OpenvSwitch, relay: Relay) -> Iterator[Agent]:
    """The daemon, with the store."""
    with Agent(host, {"df_metadata": {"ovsdb_connection": f"unix:{relay.path}"}}) as daemon:
        yield daemon.start()
        daemon.stop()


@pytest.fixture(scope="module")
def both(host: OpenvSwitch, agent: Agent) -> Iterator[tuple[Guest, Guest]]:
    """Two guests that only their ports tell apart."""
    with Guest(host, "first", mac=MAC) as first, Guest(host, "second", mac=MAC) as second:
        yield known(agent, first), known(agent, second)


@pytest.fixture
def twins(relay: Relay, both: tuple[Guest, Guest]) -> Iterator[tuple[Guest, Guest]]:
    """The two, their addresses known."""
    all_get_own(*both)
    yield both
    relay.let_go()


def known(agent: Agent, guest: Guest) -> Guest:
    """Have the store know the guest by its name."""
    agent.put(guest.instance_id, guest.name)
    return guest


def gets_own(guest: Guest) -> bool:
    """Whether it gets an answer, which may only be its own."""
    reply = guest.curl(PATH, timeout=PATIENCE)
    assert reply.text in ("", guest.name)
    return reply.status == 200


def swap(host: OpenvSwitch, first: Guest, second: Guest, *, wait: bool = True) -> None:
    """Give each of the two the other's number."""
    numbers = second.ofport, first.ofport
    words: list[str] = []
    for guest, number in zip((first, second), numbers, strict=True):
        words += ["--", "set", "Interface", guest.port, f"ofport_request={number}"]
    host.vsctl(*words[1:], wait=wait)
    if wait:
        assert (first.ofport, second.ofport) == numbers


def restart(host: OpenvSwitch) -> None:
    """Restart ovs-vswitchd as a host that comes up does: ports first, then the bridge's flow."""
    host.start("ovs-vswitchd")
    host.ofctl("add-flow", "br-int", "priority=0,actions=NORMAL")


def all_get_own(*guests: Guest) -> None:
    """All of them are served again."""
    for guest in guests:
        guest.forget_neighbours()
        wait_for(lambda guest=guest: gets_own(guest), f"{guest.name} to be served")


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "over a restart"])
def test_port_numbers_that_change_before_ovsdb_reports_them(
    host: OpenvSwitch, agent: Agent, relay: Relay, twins: tuple[Guest, Guest], restarted: bool
) -> None:
    relay.hold()
    if restarted:
        host.stop("ovs-vswitchd")
        swap(host, *twins, wait=False)
        restart(host)
        wait_for(agent.ready, "the daemon to be connected to the switch again")
    else:
        swap(host, *twins)
    assert [gets_own(guest) for guest in twins] == [False, False]
    relay.let_go()
    all_get_own(*twins)


def test_a_kept_connection_is_of_no_use_to_the_next_guest_with_the_number(
    host: OpenvSwitch, relay: Relay, twins: tuple[Guest, Guest]
) -> None:
    first, second = twins
    with Capture(host.namespace, first.port) as seen, open_connection(first) as kept:
        kept.sendall(REQUEST)
        assert read_answer(kept) == first.name.encode()
        source = kept.getsockname()[1]
        relay.hold()
        swap(host, first, second)
        forged = continued(seen, source)
        with Capture(host.namespace, second.port) as heard:
            # What the first one would send, in at the number that was the first one's.
            second.send_frames(forged)
            kept.settimeout(PATIENCE)
            assert not answered(kept)
            relay.let_go()
            all_get_own(first, second)
            assert first.name.encode() not in b"".join(data for _, data in heard.frames())


def take_device(host: OpenvSwitch, before: Guest, after: Guest) -> None:
    """Give the second guest's device the name that the first one's has."""
    name, spare = before.port, f"old-{before.port}"
    host.namespace.ip(
        f"link set {name} down",
        f"link set {name} name {spare}",
        f"link set {after.port} down",
        f"link set {after.port} name {name}",
        f"link set {name} up",
    )
    before.port, after.port = spare, name


def test_a_port_made_anew_with_name_and_number_gets_its_own_or_nothing(
    host: OpenvSwitch, agent: Agent, relay: Relay, make_guest: MakeGuest
) -> None:
    before = known(agent, make_guest("before", mac=MAC))
    after = known(agent, make_guest("after", mac=MAC, plug=False))
    all_get_own(before)
    number, name = before.ofport, before.port
    relay.hold()
    before.del_port()
    take_device(host, before, after)
    after.plug(ofport_request=number)
    assert (after.ofport, after.port) == (number, name)
    # The first SYN of its boot; each that is repeated comes while OVSDB's news are held.
    boot = after.start_many(1, path=PATH)
    assert [gets_own(after) for _ in range(3)] == [False] * 3
    relay.let_go()
    (sample,) = boot.samples()
    assert (sample.status, sample.body) == (200, after.name.encode()), sample
    all_get_own(after)


def continued(seen: Capture, source: int) -> bytes:
    """The next segment of the guest's connection from that port, which asks once more."""
    mine = [data for _, data in seen.frames() if data[34:36] == source.to_bytes(2, "big")]
    last = mine[-1]
    start = 14 + (last[14] & 15) * 4
    seq, ack = struct.unpack_from("!II", last, start + 4)
    head = (last[start + 12] >> 4) * 4
    seq += int.from_bytes(last[16:18], "big") - 20 - head
    addresses = {"dst": METADATA_IP, "src": socket.inet_ntoa(last[26:30])}
    segment = frames.tcp(**addresses, sport=source, flags=PSH_ACK, seq=seq, ack=ack, data=REQUEST)
    return last[:14] + frames.ipv4(segment, **addresses)


def answered(connection: socket.socket) -> bytes:
    """What comes when it is asked on once more; nothing where it has ended."""
    try:
        connection.sendall(REQUEST)
        return connection.recv(65536)
    except (TimeoutError, ConnectionResetError, BrokenPipeError):
        return b""
