"""The daemon's own SYN: as the switch is told to send it, and what its answers mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import eventlet
import pytest
from os_ken.lib.packet.tcp import TCP_ACK, TCP_RST, TCP_SYN
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.channel import Channel
from dfmeta.apps.probe import FAILURES, Probe
from dfmeta.errors import NotConnectedError
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import Layout
from dfmeta.identity.key import IN_PORT, NEXT_HOP_MAC, PROBE_KEY
from dfmeta.packets import Segment, parse_segment, write_segment
from tests.core.unit.support import TAP, TAP6

SYN_ACK = TCP_SYN | TCP_ACK


class Host:
    """A switch with the host behind it: *answers* gives what comes back of a segment."""

    def __init__(
        self, answers: Callable[[Segment], bytes | None], *, version: int = 4, tap: Tap = TAP
    ) -> None:
        self.answers = answers
        self.sent: list[Segment] = []
        self.connected = True
        self.layout = Layout()
        self.tap: Tap | None = tap
        self.probe = Probe(cast("Channel", self), lambda: self.tap, version=version)

    @property
    def wire(self) -> Host:
        if not self.connected:
            raise NotConnectedError(bridge="br-int")
        return self

    def packet_out(self, ofport: int, actions: Any, frame: bytes) -> bytes:
        assert (ofport, [action.port for action in actions]) == (ofp.OFPP_CONTROLLER, [TAP.ofport])
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
    return lambda segment: back(segment, **how) if segment.flags == TCP_SYN else None


def test_an_answer_proves_the_path_and_is_reset() -> None:
    host = Host(of_syns())
    result = host.probe.ask()
    assert (result.answered, result.cause, result.whole) == (True, "", True)
    assert host.probe.passes
    syn, reset = host.sent
    assert (str(syn.source), str(syn.destination)) == (PROBE_KEY, TAP.ip)
    assert (syn.destination_port, syn.flags) == (TAP.port, TCP_SYN)
    assert (reset.flags, reset.sequence) == (TCP_RST, (syn.sequence + 1) & 0xFFFFFFFF)
    assert reset.source_port == syn.source_port


def test_an_answer_over_ipv6_proves_the_path_and_is_reset() -> None:
    host = Host(of_syns(), version=6, tap=TAP6)
    assert host.probe.ask().answered
    syn, reset = host.sent
    assert str(syn.source) == IN_PORT.probe_key(6)
    assert (str(syn.destination), syn.destination_port) == (TAP6.ip6, TAP6.port)
    assert reset.flags == TCP_RST
    silent = Host(lambda _segment: None, version=6, tap=TAP6)
    assert f"[{TAP6.ip6}]:{TAP6.port}" in silent.probe.ask().cause


def test_silence_and_refusal_differ() -> None:
    for answers, word in (
        (lambda _segment: None, "does not answer"),
        (of_syns(flags=TCP_RST | TCP_ACK), "refuses"),
        (of_syns(flags=TCP_ACK), "refuses"),
    ):
        result = Host(answers).probe.ask()
        assert not result.answered, word
        assert f"{TAP.ip}:{TAP.port}" in result.cause
        assert word in result.cause


def test_wrong_checksum_is_in_the_result() -> None:
    spoilt = Host(of_syns(spoil=True)).probe.ask()
    assert spoilt == replace(Host(of_syns()).probe.ask(), whole=False)


def test_segment_of_another_connection_is_no_answer() -> None:
    def others(segment: Segment) -> bytes:
        return back(replace(segment, sequence=segment.sequence ^ 1))

    host = Host(others)
    assert not host.probe.ask().answered
    host.probe.packet_in(b"nonsense")
    host.probe.packet_in(back(host.sent[0]))
    assert not host.probe.passes


def test_the_path_is_interrupted_after_two_failures() -> None:
    host = Host(of_syns())
    assert not host.probe.passes
    host.probe.ask()
    host.answers = lambda _segment: None
    for number in range(1, FAILURES + 3):
        host.probe.ask()
        assert host.probe.passes == (number < FAILURES)
    host.answers = of_syns()
    host.probe.ask()
    assert host.probe.passes


def test_a_path_that_never_worked_is_interrupted_at_once() -> None:
    host = Host(lambda _segment: None)
    assert "no probe" in host.probe.fault()
    host.probe.ask()
    assert not host.probe.passes
    assert "guests' SYNs do not reach the proxy: the host does not answer" in host.probe.fault()


def test_silence_proves_nothing_where_no_flow_leads_to_the_classification_table() -> None:
    host = Host(lambda _segment: None)
    host.layout = Layout(classification_table=3)
    assert "no flow leads to the classification table 3" in host.probe.ask().cause
    assert host.probe.passes
    host.answers = of_syns()
    assert host.probe.ask().answered
    host.answers = lambda _segment: None
    for _ in range(FAILURES):
        host.probe.ask()
    assert not host.probe.passes, "it has been answered: the flow was there"


def test_probe_without_a_connection_or_a_tap_has_a_cause() -> None:
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
        seen.append(len([one for one in host.sent if one.flags == TCP_SYN]))
        ready = len(seen) < 4
        if len(seen) == 8:
            raise EndedError

    with pytest.raises(EndedError):
        host.probe.run(lambda: ready, pause)
    assert seen == [1, 1, 2, 2, 2, 2, 2, 2]
