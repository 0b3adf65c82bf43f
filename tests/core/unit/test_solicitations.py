"""Solicitations without a MAC of their sender are answered in full, and only for the service."""

from __future__ import annotations

from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.openflow import PORT_IN_PORT
from dfmeta.packets import parse_solicitation, write_advertisement
from tests.core.unit.support import SERVICE6, TAP, TAP6, Rig, let_hub_run, packet_ins, port, solicit


def connected(tap: Tap | None = TAP6) -> Rig:
    rig = Rig()
    rig.registry.set_port(port(13))
    rig.connect(tap=tap)
    rig.switch.sent.clear()
    return rig


def test_the_answer_goes_back_to_the_port() -> None:
    rig = connected()
    for target in SERVICE6:
        frame, before = solicit(target=target, option=False), packet_ins("solicitation")
        rig.learner.answer_solicitation(13, frame)
        let_hub_run()
        answer = write_advertisement(parse_solicitation(frame), TAP.mac)
        out = rig.switch.packet_outs()[-1]
        assert (out.in_port, out.frame) == (13, answer)
        assert [action.port for action in out.actions] == [PORT_IN_PORT]
        assert packet_ins("solicitation") == before + 1


def test_only_a_guests_solicitation_for_the_service_is_answered() -> None:
    bare = solicit(option=False)
    for frame, ofport, tap, outcome in (
        (solicit(target="fe80::1", option=False), 13, TAP6, ""),
        (bare, 13, TAP, ""),
        (bare, 13, None, ""),
        (bare, 14, TAP6, "unknown_port"),
        (solicit(source="::", option=False), 13, TAP6, "malformed"),
    ):
        rig, before = connected(tap), packet_ins(outcome)
        rig.learner.answer_solicitation(ofport, frame)
        let_hub_run()
        assert rig.switch.packet_outs() == [], (ofport, tap, outcome)
        assert not outcome or packet_ins(outcome) == before + 1


def test_a_lost_connection_is_no_error() -> None:
    rig = connected()
    rig.disconnect()
    rig.learner.answer_solicitation(13, solicit(option=False))
    assert rig.switch.packet_outs() == []
