"""A segment of a connection that the host does not know is answered with a reset, not with silence.

So a client that keeps a connection over a live migration or a change of its port connects again.
"""

import socket

import pytest

from tests.core.flows.frames import ethernet, ipv4, tcp
from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.ovs import OpenvSwitch
from tests.harness.poll import wait_for
from tests.host.e2e import shared
from tests.host.e2e.support import Capture, asks_own, open_connection, put, read_answer

ACK, PUSH, FIN = 0x10, 0x08, 0x01
PORT = 41000
REQUEST = b"GET /latest/meta-data/instance-id HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"
host, agent, guest = shared.host, shared.agent_with(), shared.guest


@pytest.mark.parametrize("flags", [ACK, ACK | PUSH, ACK | FIN], ids=["ACK", "data", "FIN"])
def test_segment_of_an_unknown_address_is_reset(
    host: OpenvSwitch, agent: Agent, guest: Guest, flags: int
) -> None:
    put(agent, guest)
    asks_own(guest)
    ends = {"dst": METADATA_IP, "src": f"10.0.0.{100 + flags}"}
    segment = tcp(**ends, sport=PORT, dport=80, flags=flags, ack=1)
    frame = ethernet(ipv4(segment, **ends), dst="02:64:66:6d:65:02", src=guest.mac)
    with Capture(guest.namespace, guest.device, arriving=True) as capture:
        guest.send_frames(frame)
        wait_for(lambda: capture.segments_of(PORT), "an answer")
        (answer,) = capture.segments_of(PORT)
    assert answer.is_reset
    asks_own(guest)


def test_replugged_ports_connection_is_reset(host: OpenvSwitch, agent: Agent, guest: Guest) -> None:
    put(agent, guest)
    with open_connection(guest) as connection:
        assert _ask(connection)
        former = guest.ofport
        guest.del_port()
        guest.plug()
        assert guest.ofport != former
        wait_for(lambda: agent.metric("dfmeta_ports", state="served") == 1, "the port")
        # The reset may arrive before the request leaves.
        with pytest.raises(ConnectionResetError):
            _ask(connection)
    asks_own(guest)


def _ask(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    return read_answer(connection)
