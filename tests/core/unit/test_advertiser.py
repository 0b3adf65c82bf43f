"""Solicitations without a MAC of their sender are answered in full, and only for the service."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dfmeta.apps.advertiser import Advertiser
from dfmeta.apps.channel import Channel
from dfmeta.errors import NotConnectedError
from dfmeta.flows.flow import Output
from dfmeta.flows.pipeline import PORT_IN_PORT
from dfmeta.flows.service import Tap
from dfmeta.identity.registry import Registry
from dfmeta.packets import parse_solicitation, write_advertisement
from tests.core.unit.support import SERVICE6, TAP, TAP6, packet_ins, port, solicit


class Switch:
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


def test_the_answer_goes_back_to_the_port(switch: Switch) -> None:
    for target in SERVICE6:
        switch.sent.clear()
        frame, before = solicit(target=target, option=False), packet_ins("solicitation")
        advertiser(switch).packet_in(13, frame)
        answer = write_advertisement(parse_solicitation(frame), TAP.mac)
        assert switch.sent == [(13, (Output(PORT_IN_PORT),), answer)]
        assert packet_ins("solicitation") == before + 1


def test_only_a_guests_solicitation_for_the_service_is_answered(switch: Switch) -> None:
    bare = solicit(option=False)
    for frame, ofport, tap, outcome in (
        (solicit(target="fe80::1", option=False), 13, TAP6, ""),
        (bare, 13, TAP, ""),
        (bare, 13, None, ""),
        (bare, 14, TAP6, "unknown_port"),
        (solicit(source="::", option=False), 13, TAP6, "malformed"),
    ):
        before = packet_ins(outcome)
        advertiser(switch, tap).packet_in(ofport, frame)
        assert switch.sent == [], (ofport, tap, outcome)
        assert not outcome or packet_ins(outcome) == before + 1


def test_a_lost_connection_is_no_error(switch: Switch) -> None:
    switch.connected = False
    advertiser(switch).packet_in(13, solicit(option=False))
    assert switch.sent == []
