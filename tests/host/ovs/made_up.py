"""What tests of this tier make up for frames of both versions of IP."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.openflow import Flow
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.model import Endpoint
from tests.core.flows.frames import tagged
from tests.host.ovs.switch import ELSEWHERE, GUESTS, LOCAL, TAP_PORT

TAP_MAC = "02:00:00:00:00:09"
MACS = ["fa:16:3e:00:00:05", "fa:16:3e:00:00:06", TAP_MAC, "ff:ff:ff:ff:ff:ff"]
TCP_PORTS = [80, 9775, 443, 40000, 0]
IN_PORTS = [*GUESTS, ELSEWHERE, TAP_PORT, LOCAL]


macs = st.sampled_from(MACS) | st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))
tcp_ports = st.sampled_from(TCP_PORTS) | st.integers(0, 0xFFFF)
tags: st.SearchStrategy[list[int]] = st.lists(st.integers(0, 0xFFFF), max_size=3) | st.just([])
flag_sets = st.integers(0, 0xFFF)
vids = st.lists(st.sampled_from([0, 7, 4094]), min_size=1, max_size=2, unique=True)
"""The endpoints of a port: the port itself, and tagged subports."""
quick = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # A failure names its frame; to look for a shorter list of frames would take minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
floods = st.sampled_from([(), (), (Purpose.SYN,), (Purpose.GUEST_SYN,), tuple(RATES)])
"""Purposes of a guest's flows that drop, because it floods."""
octets = st.integers(0, 255)
Frames = list[tuple[int, bytes]]


@st.composite
def endpoints(draw: st.DrawFn) -> list[Endpoint]:
    """Endpoints of one or more ports."""
    ofports = draw(st.sets(st.sampled_from(GUESTS), min_size=1))
    return [Endpoint(ofport, vid) for ofport in sorted(ofports) for vid in draw(vids)]


@st.composite
def of_endpoint(draw: st.DrawFn, endpoint: Endpoint, frame: bytes) -> bytes:
    """*frame* with the tag that frames of *endpoint* have, of any priority and either type."""
    if not endpoint.vid:
        return frame
    tpid = draw(st.sampled_from([0x8100, 0x8100, 0x88A8]))
    return tagged(frame, draw(st.integers(0, 0xF)) << 12 | endpoint.vid, tpid=tpid)


@dataclass(frozen=True)
class State:
    """What a switch may have been told."""

    tap: Tap
    guests: tuple[ServedEndpoint, ...]

    def flows(self) -> list[Flow]:
        """All flows of it."""
        theirs = [
            guest_flow for guest in self.guests for guest_flow in guest_flows(guest, self.tap)
        ]
        return [*fixed_flows(self.tap), *theirs]


@st.composite
def mangled(
    draw: st.DrawFn, frames: st.SearchStrategy[bytes], others: st.SearchStrategy[int] = octets
) -> bytes:
    """Any of these, cut short, padded, or with bytes overwritten with *others*."""
    frame = bytearray(draw(frames))
    for _ in range(draw(st.integers(0, 3))):
        frame[draw(st.integers(12, len(frame) - 1))] = draw(others)
    padding = bytes(draw(st.sampled_from([0, 0, 6, 200])))
    return bytes(frame[: draw(st.integers(14, len(frame)))]) + padding


@st.composite
def overwritten(draw: st.DrawFn, frame: bytes, others: st.SearchStrategy[int] = octets) -> bytes:
    """*frame*, now and then with a byte overwritten with one of *others*."""
    if draw(st.integers(0, 9)):
        return frame
    at = draw(st.integers(12, len(frame) - 1))
    return frame[:at] + bytes((draw(others),)) + frame[at + 1 :]


@st.composite
def cases(
    draw: st.DrawFn,
    states: st.SearchStrategy[State],
    likely: Callable[[State], st.SearchStrategy[tuple[int, bytes]]],
    frames: st.SearchStrategy[Frames],
) -> tuple[State, Frames]:
    """A state, and frames of which half mean something in it."""
    state = draw(states)
    return state, draw(st.lists(likely(state), min_size=15, max_size=40)) + draw(frames)
