"""A guest that stands still within its handshake should be answered when it goes on."""

from tests.core.flows.frames import ethernet, ipv4, tcp
from tests.harness.agent import Agent
from tests.harness.guest import METADATA_IP, Guest
from tests.harness.poll import wait_for
from tests.host.e2e.support import Capture, Segment

ADDRESS, PORT = "10.0.0.77", 40000
"""The guest's kernel does not have the address, and so resets nothing."""
REPEATED = 4
"""SYN-ACKs until 7 seconds after the first (RFC 6298, 5.5)."""
GATEWAY_MAC = "fa:16:3e:99:99:99"
SYN, PSH, ACK = 0x02, 0x08, 0x10
REQUEST = b"GET /latest/meta-data/instance-id HTTP/1.0\r\n\r\n"


def test_a_handshake_that_pauses_for_seconds_is_completed(agent: Agent, guest: Guest) -> None:
    def send(flags: int, seq: int, ack: int = 0, data: bytes = b"") -> None:
        segment = tcp(
            dst=METADATA_IP, src=ADDRESS, sport=PORT, flags=flags, seq=seq, ack=ack, data=data
        )
        packet = ipv4(segment, dst=METADATA_IP, src=ADDRESS)
        guest.send_frames(ethernet(packet, dst=GATEWAY_MAC, src=guest.mac))

    with Capture(guest.namespace, guest.device, arriving=True) as heard:

        def answers() -> list[Segment]:
            return [
                segment for segment in heard.segments_of(PORT) if segment.destination == ADDRESS
            ]

        def syn_acks() -> list[Segment]:
            result = [answer for answer in answers() if answer.is_syn_ack]
            return result if result and len(result[0].times) >= REPEATED else []

        send(SYN, 1000)
        wait_for(lambda: bool(syn_acks()), "the last SYN-ACK")
        send(ACK | PSH, 1001, syn_acks()[0].sequence + 1, REQUEST)
        wait_for(
            lambda: any(answer.length or answer.is_reset for answer in answers()), "the answer"
        )
        assert not any(answer.is_reset for answer in answers())
