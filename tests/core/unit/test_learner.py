"""A first SYN should go on once its flows stand, or wait for its port's instance, or be dropped."""

from collections.abc import Iterator
from dataclasses import replace

import eventlet
import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.learner import HELD_IN_ALL, SETTLE, HeldSyn, Holds
from dfmeta.identity.key import IN_PORT, SLOT6
from dfmeta.identity.slots import EXPECTED
from dfmeta.model import Endpoint, PortId
from dfmeta.packets import parse_syn
from tests.core.unit.support import (
    SERVICE6,
    TAP6,
    Rig,
    address,
    let_hub_run,
    packet_ins,
    port,
    syn,
    syn6,
)

HERE = Endpoint(13)


def held(
    number: int = 0, *, endpoint: Endpoint = HERE, since: float = 0.0, frame: bytes = b""
) -> HeldSyn:
    return HeldSyn(endpoint, parse_syn(syn(source_port=number)), frame, since)


def ports_of(holds: Holds, endpoint: Endpoint = HERE) -> list[int]:
    return [syn.syn.source_port for syn in holds.take(endpoint)]


def send(rig: Rig, frame: bytes, ofport: int = 13) -> None:
    rig.learner.packet_in(ofport, frame)
    let_hub_run()


@pytest.fixture
def rig(rig: Rig) -> Iterator[Rig]:
    """Ends with its connection, and so does whatever waits for the switch."""
    yield rig
    rig.disconnect()


@pytest.fixture
def waiting() -> Rig:
    rig = Rig()
    rig.registry.set_port(port(instance=""))
    return rig.connect()


def test_a_second_syn_waits_for_the_same_confirmation(rig: Rig) -> None:
    rig.switch.silent = True
    send(rig, syn(source_port=1))
    mods = len(rig.switch.flow_mods())
    send(rig, syn(source_port=2))
    assert len(rig.switch.flow_mods()) == mods
    assert rig.switch.packet_outs() == []
    rig.switch.speak()
    frames = {packet_out.frame for packet_out in rig.switch.packet_outs()}
    assert frames == {syn(source_port=1), syn(source_port=2)}


def test_a_syn_whose_flows_are_refused_is_not_released(rig: Rig) -> None:
    rig.switch.model.refuse = lambda _mod: (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)
    send(rig, syn())
    assert rig.switch.packet_outs() == []


def test_a_syn_whose_flows_a_reconcile_is_sending_waits_for_them(rig: Rig) -> None:
    rig.disconnect()
    rig.switch = rig.make_switch()
    rig.registry.learn(HERE, address(), 0)
    rig.controller.bridge.connected(rig.switch)
    eventlet.spawn(rig.reconciler.reconcile_quietly)
    let_hub_run_until_settling(rig)
    send(rig, syn())
    assert rig.switch.packet_outs() == []


def let_hub_run_until_settling(rig: Rig) -> None:
    """Answer the dumps of a reconcile, but not the barrier of what it sends."""
    answer = rig.channel.barrier_reply
    rig.channel.barrier_reply = lambda xid: None  # type: ignore[method-assign]
    let_hub_run()
    rig.channel.barrier_reply = answer  # type: ignore[method-assign]


def test_a_syn_of_a_port_that_went_meanwhile_is_not_released(rig: Rig) -> None:
    rig.switch.silent = True
    send(rig, syn())
    rig.registry.remove_port(PortId("row-of-tap1"))
    rig.switch.speak()
    assert rig.switch.packet_outs() == []


def test_ignored_packet_in_is_counted(rig: Rig) -> None:
    for frame, ofport, outcome in (
        (b"\0" * 60, 13, "malformed"),
        (syn(bits=0x04), 13, "malformed"),
        (syn(), 99, "unknown_port"),
        (syn(vid=7), 13, "unknown_port"),
    ):
        before = packet_ins(outcome)
        rig.switch.sent.clear()
        send(rig, frame, ofport)
        assert packet_ins(outcome) == before + 1
        assert rig.switch.sent == []


def test_a_syn_in_the_place_of_another_address_waits_for_the_datapath_too(rig: Rig) -> None:
    pauses: list[tuple[float, int]] = []
    rig.pause = lambda seconds: pauses.append((seconds, len(rig.switch.packet_outs())))
    for number in range(7):
        send(rig, syn(f"10.0.1.{number}"))
    assert pauses == []
    rig.now += EXPECTED
    send(rig, syn("10.0.1.7"))
    assert pauses == [(SETTLE, 7)]
    assert len(rig.switch.packet_outs()) == 8


def test_held_syn_is_given_up_after_the_hold_timeout(waiting: Rig) -> None:
    send(waiting, syn())
    waiting.now += 8.1
    waiting.learner.expire()
    assert len(waiting.learner.holds) == 0
    waiting.registry.set_port(port())
    let_hub_run()
    assert waiting.switch.packet_outs() == []


def test_a_repeated_syn_replaces_the_one_before_and_keeps_its_time() -> None:
    holds = Holds()
    holds.put(held(1, since=5.0, frame=b"old"))
    holds.put(held(2, since=6.0))
    holds.put(held(1, since=9.0, frame=b"new"))
    kept = holds.take(HERE)
    assert [(one.syn.source_port, one.since, one.frame) for one in kept] == [
        (2, 6.0, b""),
        (1, 5.0, b"new"),
    ]


def test_the_oldest_gives_way_when_all_room_is_taken() -> None:
    holds = Holds()
    for number in range(HELD_IN_ALL + 3):
        holds.put(held(1, endpoint=Endpoint(number + 1)))
        assert len(holds) <= HELD_IN_ALL
    assert [ports_of(holds, Endpoint(n)) for n in (1, 2, 3, 4)] == [[], [], [], [1]]


def test_vm_with_most_gives_way_when_all_room_is_taken() -> None:
    holds = Holds()
    holds.put(held(1, endpoint=Endpoint(7)))
    for number in range(HELD_IN_ALL + 3):
        holds.put(replace(held(1, endpoint=Endpoint(9, number + 1)), vm="tap9"))
    assert len(holds) == HELD_IN_ALL
    assert ports_of(holds, Endpoint(7)) == [1], "the only one of another"
    assert ports_of(holds, Endpoint(9, 4)) == []


def test_expiry_takes_those_that_wait_since_earlier() -> None:
    holds = Holds()
    for number in range(4):
        holds.put(held(number, since=float(number)))
    assert holds.expire(2.0) == 2
    assert ports_of(holds) == [2, 3]
    assert holds.expire(100.0) == 0


def test_a_source_or_a_service_that_does_not_exist_gets_no_slot() -> None:
    rig6 = Rig()
    rig6.registry.set_port(port())
    rig6.connect(tap=TAP6)
    for ip, service in (
        ("::ffff:10.0.0.1", SERVICE6[0]),
        (SERVICE6[1], SERVICE6[0]),
        (TAP6.ip6, SERVICE6[0]),
        (str(IN_PORT.key_of(Endpoint(14), SLOT6 + 1)), SERVICE6[0]),
        ("fd12:3456::5", "fd00:ec2::255"),
    ):
        before = packet_ins("malformed")
        send(rig6, syn6(ip, service=service))
        assert rig6.registry.slots(HERE) == {}
        assert rig6.switch.packet_outs() == []
        assert packet_ins("malformed") == before + 1, ip
