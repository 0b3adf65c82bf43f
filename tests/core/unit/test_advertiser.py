"""Solicitations without a MAC of their sender are answered in full, and only for the service."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dfmeta.apps.advertiser import Advertiser
from dfmeta.apps.channel import Channel
from dfmeta.exceptions import NotConnectedError
from dfmeta.flows.flow import Output
from dfmeta.flows.pipeline import PORT_IN_PORT
from dfmeta.flows.service import Tap
from dfmeta.packets import parse_solicitation, write_advertisement
from dfmeta.registry import Registry
from tests.core.unit.support import SERVICE6, TAP, TAP6, packet_ins, port, solicit


class Switch:
    """Takes packet-outs."""

    def __init__(self) -> None:
        self.connected = True
        self.sent: list[Any] = []

    @property
    def wire(self) -> Switch:
        return self

    def packet_out(self, ofport: int, actions: tuple[Output, ...], frame: bytes) -> Any:
        return ofport, actions, frame

    def post(self, messages: list[Any]) -> None:
        if not self.connected:
            raise NotConnectedError(bridge="br-int")
        self.sent += messages


@pytest.fixture
def switch() -> Switch:
    return Switch()


def advertiser(switch: Switch, tap: Tap | None = TAP6) -> Advertiser:
    registry = Registry()
    registry.set_port(port(13))
    return Advertiser(cast("Channel", switch), registry, lambda: tap)


@pytest.mark.parametrize("target", SERVICE6)
def test_the_answer_goes_back_to_the_port(switch: Switch, target: str) -> None:
    frame, before = solicit(target=target, option=False), packet_ins("solicitation")
    advertiser(switch).packet_in(13, frame)
    answer = write_advertisement(parse_solicitation(frame), TAP.mac)
    assert switch.sent == [(13, (Output(PORT_IN_PORT),), answer)]
    assert packet_ins("solicitation") == before + 1


@pytest.mark.parametrize(
    ("frame", "ofport", "tap", "outcome"),
    [
        (solicit(target="fe80::1", option=False), 13, TAP6, ""),
        (solicit(option=False), 13, TAP, ""),
        (solicit(option=False), 13, None, ""),
        (solicit(option=False), 14, TAP6, "unknown_port"),
        (solicit(source="::", option=False), 13, TAP6, "malformed"),
    ],
    ids=["other target", "no IPv6", "no tap", "no guest's port", "duplicate address detection"],
)
def test_nothing_else_is_answered(
    switch: Switch, frame: bytes, ofport: int, tap: Tap | None, outcome: str
) -> None:
    before = packet_ins(outcome)
    advertiser(switch, tap).packet_in(ofport, frame)
    assert switch.sent == []
    assert not outcome or packet_ins(outcome) == before + 1


def test_a_lost_connection_is_no_error(switch: Switch) -> None:
    switch.connected = False
    advertiser(switch).packet_in(13, solicit(option=False))
    assert switch.sent == []
