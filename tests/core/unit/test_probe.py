"""The daemon's own SYN: as the switch is told to send it, and what its answers mean."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any, cast

import eventlet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.lib.packet import ethernet, ipv4, packet, tcp

from dfmeta.apps.channel import Channel
from dfmeta.apps.probe import FAILURES, FROM_CONTROLLER, Probe, Result
from dfmeta.exceptions import NotConnectedError, PacketError
from dfmeta.flows.key import IN_PORT, NEXT_HOP_MAC, PROBE_KEY
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.service import Tap
from dfmeta.packets import FLAG_ACK, FLAG_RST, FLAG_SYN, Segment, parse_segment, write_segment
from tests.core.unit.support import TAP, TAP6
from tests.harness.examples import examples

QUICK = 0.05
SYN_ACK = FLAG_SYN | FLAG_ACK
NUMBERS = st.integers(0, 0xFFFFFFFF)
PORTS = st.integers(0, 0xFFFF)


class Host:
    """A switch with the host behind it: *answers* gives what comes back of a segment."""

    def __init__(
        self,
        answers: Callable[[Segment], bytes | None],
        *,
        version: int = 4,
        tap: Tap = TAP,
    ) -> None:
        self.answers = answers
        self.sent: list[Segment] = []
        self.connected = True
        self.layout = Layout()
        self.tap: Tap | None = tap
        self.probe = Probe(
            cast("Channel", self),
            lambda: self.tap,
            version=version,
        )

    @property
    def wire(self) -> Host:
        if not self.connected:
            raise NotConnectedError(bridge="br-int")
        return self

    def packet_out(self, ofport: int, actions: Any, frame: bytes) -> bytes:
        assert (ofport, [one.port for one in actions]) == (FROM_CONTROLLER, [TAP.ofport])
        return frame

    def post(self, frames: list[bytes]) -> None:
        for frame in frames:
            segment, whole = parse_segment(frame)
            assert whole
            self.sent.append(segment)
            answer = self.answers(segment)
            if answer is not None:
                eventlet.spawn_n(self.probe.packet_in, answer)


def back(segment: Segment, *, flags: int = SYN_ACK, spoil: bool = False) -> bytes:
    """What the host's TCP answers *segment* with."""
    answer = Segment(
        segment.destination,
        segment.source,
        segment.destination_port,
        segment.source_port,
        4711,
        (segment.sequence + 1) & 0xFFFFFFFF,
        flags,
    )
    frame = bytearray(write_segment(answer, source_mac=TAP.mac, destination_mac=NEXT_HOP_MAC))
    frame[50] ^= spoil
    return bytes(frame)


def of_syns(**how: Any) -> Callable[[Segment], bytes | None]:
    return lambda segment: back(segment, **how) if segment.flags == FLAG_SYN else None


def test_an_answer_proves_the_path_and_is_reset() -> None:
    host = Host(of_syns())
    result = host.probe.ask()
    assert (result.answered, result.cause, result.whole) == (True, "", True)
    assert host.probe.passes
    syn, reset = host.sent
    assert (str(syn.source), str(syn.destination)) == (PROBE_KEY, TAP.ip)
    assert (syn.destination_port, syn.flags) == (TAP.port, FLAG_SYN)
    assert (reset.flags, reset.sequence) == (FLAG_RST, (syn.sequence + 1) & 0xFFFFFFFF)
    assert reset.source_port == syn.source_port


def test_an_answer_over_ipv6_proves_the_path_and_is_reset() -> None:
    host = Host(of_syns(), version=6, tap=TAP6)
    assert host.probe.ask().answered
    syn, reset = host.sent
    assert str(syn.source) == IN_PORT.probe_key(6)
    assert (str(syn.destination), syn.destination_port) == (TAP6.ip6, TAP6.port)
    assert reset.flags == FLAG_RST
    silent = Host(lambda _segment: None, version=6, tap=TAP6)
    assert f"[{TAP6.ip6}]:{TAP6.port}" in silent.probe.ask(QUICK).cause


def test_without_ipv6_no_probe_is_sent() -> None:
    host = Host(of_syns(), version=6)
    result = host.probe.ask()
    assert (result.sent, result.cause) == (False, "guests are not served over IPv6")
    assert (host.sent, host.probe.last) == ([], None)


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        (lambda _segment: None, "does not answer"),
        (of_syns(flags=FLAG_RST | FLAG_ACK), "refuses"),
        (of_syns(flags=FLAG_ACK), "refuses"),
    ],
)
def test_silence_and_refusal_are_told_apart(
    answers: Callable[[Segment], bytes | None], word: str
) -> None:
    host = Host(answers)
    result = host.probe.ask(QUICK)
    assert not result.answered
    assert word in result.cause
    assert f"{TAP.ip}:{TAP.port}" in result.cause


def test_a_wrong_checksum_is_told() -> None:
    begun = time.monotonic()
    spoilt = Host(of_syns(spoil=True)).probe.ask(QUICK)
    assert 0 <= spoilt.seconds <= time.monotonic() - begun
    whole = Host(of_syns()).probe.ask(QUICK)
    assert spoilt == replace(whole, whole=False, seconds=spoilt.seconds)


def test_what_does_not_answer_the_probe_is_no_answer() -> None:
    def others(segment: Segment) -> bytes:
        return back(replace(segment, sequence=segment.sequence ^ 1))

    host = Host(others)
    assert not host.probe.ask(QUICK).answered
    host.probe.packet_in(b"nonsense")
    host.probe.packet_in(back(host.sent[0]))
    assert not host.probe.passes


def test_one_probe_serves_all_that_ask_at_once() -> None:
    host = Host(of_syns())
    found: list[Result] = []
    threads = [eventlet.spawn(lambda: found.append(host.probe.ask())) for _ in range(5)]
    for thread in threads:
        thread.wait()
    assert len(found) == 5
    assert len([one for one in host.sent if one.flags == FLAG_SYN]) == 1


def test_the_path_is_interrupted_after_two_failures() -> None:
    host = Host(of_syns())
    assert not host.probe.passes
    host.probe.ask(QUICK)
    host.answers = lambda _segment: None
    for number in range(1, FAILURES + 3):
        host.probe.ask(QUICK)
        assert host.probe.passes == (number < FAILURES)
    host.answers = of_syns()
    host.probe.ask(QUICK)
    assert host.probe.passes


def test_a_path_that_never_worked_is_interrupted_at_once() -> None:
    host = Host(lambda _segment: None)
    assert "no probe" in host.probe.fault()
    host.probe.ask(QUICK)
    assert not host.probe.passes
    assert "guests' SYNs do not reach the proxy: the host does not answer" in host.probe.fault()


def test_silence_proves_nothing_where_no_flow_leads_to_the_classification_table() -> None:
    host = Host(lambda _segment: None)
    host.layout = Layout(classification_table=3)
    assert "no flow leads to the classification table 3" in host.probe.ask(QUICK).cause
    assert host.probe.passes
    host.answers = of_syns()
    assert host.probe.ask(QUICK).answered
    host.answers = lambda _segment: None
    for _ in range(FAILURES):
        host.probe.ask(QUICK)
    assert not host.probe.passes, "it has been answered: the flow was there"


def test_without_a_connection_or_a_tap_it_says_so() -> None:
    host = Host(of_syns())
    host.tap = None
    assert "tap-metadata is not in place" in host.probe.ask().cause
    host.tap, host.connected = TAP, False
    assert "br-int" in host.probe.ask().cause
    assert host.probe.last is None
    assert host.probe.report() == {
        "sent": False,
        "answered": False,
        "cause": host.probe.ask().cause,
        "seconds": 0.0,
        "whole_checksum": True,
    }


def test_it_probes_when_it_is_due_and_ready_alone() -> None:
    now, ready, seen = 0.0, True, []
    host = Host(of_syns())
    host.probe._clock = lambda: now

    class EndedError(Exception):
        """The loop is left."""

    def pause(_seconds: float) -> None:
        nonlocal now, ready
        now += 5.0
        seen.append(len([one for one in host.sent if one.flags == FLAG_SYN]))
        ready = len(seen) < 4
        if len(seen) == 8:
            raise EndedError

    with pytest.raises(EndedError):
        host.probe.run(lambda: ready, pause)
    assert seen == [1, 1, 2, 2, 2, 2, 2, 2]


@settings(deadline=None, max_examples=examples(30))
@given(
    source=st.integers(0, 0xFFFFFFFF),
    ports=st.tuples(PORTS, PORTS),
    numbers=st.tuples(NUMBERS, NUMBERS),
    flags=st.integers(0, 63),
    padding=st.integers(0, 6),
)
def test_a_segment_is_read_as_it_was_written_and_as_others_read_it(
    source: int, ports: tuple[int, int], numbers: tuple[int, int], flags: int, padding: int
) -> None:
    segment = Segment(IPv4Address(source), IPv4Address(TAP.ip), *ports, *numbers, flags)
    frame = write_segment(segment, source_mac=NEXT_HOP_MAC, destination_mac=TAP.mac)
    assert parse_segment(frame + bytes(padding)) == (segment, True)
    eth, ip, segment_read = packet.Packet(frame).protocols[:3]
    assert isinstance(eth, ethernet.ethernet)
    assert (eth.src, eth.dst) == (NEXT_HOP_MAC, TAP.mac)
    assert isinstance(ip, ipv4.ipv4)
    again = ipv4.ipv4(**{name: getattr(ip, name) for name in FIELDS_OF_IP})
    assert bytes(again.serialize(bytearray(20), None))[10:12] == frame[24:26], "its checksum"
    assert isinstance(segment_read, tcp.tcp)
    assert (segment_read.src_port, segment_read.seq, segment_read.bits) == (
        ports[0],
        numbers[0],
        flags,
    )


FIELDS_OF_IP = (
    "version",
    "header_length",
    "tos",
    "total_length",
    "identification",
    "flags",
    "offset",
    "ttl",
    "proto",
    "src",
    "dst",
)


@given(st.binary(max_size=70))
@settings(deadline=None, max_examples=examples(30))
def test_any_bytes_give_a_segment_or_a_packet_error(frame: bytes) -> None:
    try:
        assert isinstance(parse_segment(frame)[0], Segment)
    except PacketError:
        return
