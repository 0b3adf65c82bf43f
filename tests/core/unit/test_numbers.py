"""A guest should be served only under a number that the switch does not give to another port."""

import logging
from collections import Counter
from dataclasses import replace

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.cmd.ports import cut_off
from dfmeta.flows.port_down import LINK_DOWN, NO_FWD, NO_RECV, PortBits
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Claim
from dfmeta.model import Endpoint, PortId
from tests.core.unit.support import (
    OTHER_INSTANCE,
    Datapath,
    Rig,
    claim_of,
    let_hub_run,
    port,
    port_desc,
    syn,
)

HERE, THERE = Endpoint(13), Endpoint(14)


class Ovsdb:
    def __init__(self) -> None:
        self.asked = 0
        self.late = False
        self.rig: Rig | None = None

    def ask(self) -> int:
        self.asked += self.late
        return self.asked

    def answer(self) -> None:
        assert self.rig is not None
        self.rig.registry.answered(self.asked)
        let_hub_run()


@pytest.fixture
def ovsdb(rig: Rig) -> Ovsdb:
    ovsdb = Ovsdb()
    ovsdb.late, ovsdb.rig, rig.ask = True, rig, ovsdb.ask
    return ovsdb


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.registry.set_port(port())
    rig.registry.set_port(port(14, name="tap2", instance=OTHER_INSTANCE))
    return rig.connect()


def served(rig: Rig) -> dict[int, str]:
    certain = filter(rig.registry.certain, rig.registry.endpoints())
    found = {at.ofport: rig.registry.identity(at) for at in certain}
    return {ofport: one.instance_id for ofport, one in found.items() if one is not None}


def entering(rig: Rig) -> Counter[int]:
    """Number → how many flows guests' frames enter by."""
    numbers = (one.match.get("in_port") for one in rig.switch.dump())
    return Counter(number for number in numbers if number in (HERE.ofport, THERE.ofport))


def say(rig: Rig, reason: int, number: int, name: bytes, mac: bytes = bytes(6)) -> None:
    rig.controller.numbers.changed(rig.switch, reason, port_desc(number, name, mac))
    let_hub_run()


def claimed(rig: Rig) -> Claim:
    claim = claim_of(rig.registry, HERE)
    assert rig.registry.holds(claim)
    return claim


def test_bits_of_each_port_are_the_latest_of_the_switch(rig: Rig) -> None:
    numbers = rig.controller.numbers
    numbers.listed(rig.switch, 1, [port_desc(13, b"tap1", config=NO_RECV)], more=True)
    assert numbers.bits(13) is None, "the list is not whole yet"
    numbers.listed(rig.switch, 1, [port_desc(15, b"tap3")], more=False)
    assert [bits and bits.config for bits in map(numbers.bits, (13, 14, 15))] == [NO_RECV, None, 0]
    changed = port_desc(13, b"tap1", config=NO_FWD, state=LINK_DOWN)
    numbers.changed(rig.switch, ofp.OFPPR_MODIFY, changed)
    assert numbers.bits(13) == PortBits.of(changed)
    numbers.changed(Datapath(), ofp.OFPPR_MODIFY, port_desc(13, b"tap1"))
    assert numbers.bits(13) == PortBits.of(changed), "that is another connection's"
    cause = cut_off(port(), bits=numbers.bits, refusal=lambda _one: "full", bridge="br-int")
    assert cause.startswith("its device has no link")
    assert "`ovs-ofctl -O OpenFlow13 mod-port br-int tap1 forward`" in cause
    numbers.changed(rig.switch, ofp.OFPPR_DELETE, changed)
    assert numbers.bits(13) is None
    for refusal, words in (("", ""), ("TABLE_FULL", "refuses flows of the port (TABLE_FULL)")):
        cause = cut_off(port(), bits=numbers.bits, refusal=lambda _one: refusal, bridge="br-int")  # noqa: B023
        assert (bool(cause), words in cause) == (bool(refusal), True)


def test_ports_that_swap_numbers_are_served_once_ovsdb_agrees(rig: Rig) -> None:
    before = served(rig)
    flows = entering(rig)
    assert set(flows) == {13, 14}
    for reason, number, name in (
        (ofp.OFPPR_DELETE, 13, b"tap1"),
        (ofp.OFPPR_DELETE, 14, b"tap2"),
        (ofp.OFPPR_ADD, 14, b"tap1"),
        (ofp.OFPPR_ADD, 13, b"tap2"),
    ):
        say(rig, reason, number, name)
    assert served(rig) == {}
    let_hub_run()
    assert entering(rig) == {}
    rig.registry.set_port(port(14))
    rig.registry.set_port(port(13, name="tap2", instance=OTHER_INSTANCE))
    assert served(rig) == {13: before[14], 14: before[13]}
    let_hub_run()
    assert entering(rig) == flows


ANEW = {
    "deleted": [(ofp.OFPPR_DELETE, b"tap1", bytes(6))],
    "added": [(ofp.OFPPR_ADD, b"tap1", bytes(6))],
    "another MAC": [(ofp.OFPPR_MODIFY, b"tap1", bytes([2, 0, 0, 0, 0, 1]))],
}


@pytest.mark.parametrize("words", ANEW.values(), ids=ANEW)
def test_a_number_given_out_anew_is_served_once_ovsdb_has_answered(
    rig: Rig, ovsdb: Ovsdb, words: list[tuple[int, bytes, bytes]]
) -> None:
    rig.switch.model.names = {13: b"tap1", 14: b"tap2"}
    assert rig.controller.numbers.ask()
    ovsdb.answer()
    claim = claimed(rig)
    for reason, name, mac in words:
        say(rig, reason, 13, name, mac)
    assert set(served(rig)) == {14}
    assert rig.registry.claim(IN_PORT.key_of(HERE, 0)) is None
    rig.learner.packet_in(13, syn())
    assert rig.registry.slots(HERE) == {}, "the SYN is held"
    ovsdb.answer()
    assert set(served(rig)) == {13, 14}
    assert not rig.registry.holds(claim), "what was accepted before is not the new device's"
    assert len(rig.switch.packet_outs()) == 1, "the SYN goes on"


def test_the_row_of_the_next_guest_ends_no_doubt(rig: Rig, ovsdb: Ovsdb) -> None:
    say(rig, ofp.OFPPR_ADD, 13, b"tap1")
    rig.registry.remove_port(PortId("row-of-tap1"))
    rig.registry.set_port(replace(port(instance=OTHER_INSTANCE), row="another"))
    assert set(served(rig)) == {14}
    ovsdb.answer()
    assert served(rig)[13] == OTHER_INSTANCE


def test_after_a_gap_every_number_is_in_doubt_and_none_is_lost(rig: Rig, ovsdb: Ovsdb) -> None:
    """What happened while there was no connection, the next list does not say."""
    rig.switch.model.names = {13: b"tap1", 14: b"tap2"}
    assert rig.controller.numbers.ask()
    ovsdb.answer()
    claim, flows = claimed(rig), rig.flows()
    assert rig.controller.numbers.ask()
    assert rig.registry.holds(claim), "nothing was missed on the same connection"
    rig.disconnect()
    rig.switch = rig.make_switch()
    rig.switch.model.names = {13: b"tap1", 14: b"tap2"}
    rig.controller.bridge.connected(rig.switch)
    assert rig.controller.numbers.ask()
    assert served(rig) == {}
    assert not rig.registry.holds(claim)
    ovsdb.answer()
    assert set(served(rig)) == {13, 14}
    assert rig.registry.holds(claim)
    rig.reconciler.reconcile()
    assert flows <= rig.flows()


def test_port_that_went_during_a_gap_is_another_when_it_is_back(rig: Rig, ovsdb: Ovsdb) -> None:
    rig.switch.model.names = {13: b"tap1", 14: b"tap2"}
    assert rig.controller.numbers.ask()
    ovsdb.answer()
    claim = claimed(rig)
    rig.disconnect()
    rig.switch = rig.make_switch()
    rig.switch.model.names = {14: b"tap2"}
    rig.controller.bridge.connected(rig.switch)
    assert rig.controller.numbers.ask()
    ovsdb.answer()
    assert not rig.registry.holds(claim)


def test_a_name_too_long_for_openflow_is_known_by_its_devices_mac_as_well() -> None:
    rig = Rig()
    long = replace(port(name="vhost-user-of-a-guest"), device_mac="02:00:00:00:00:01")
    rig.registry.set_port(long)
    rig.connect()
    say(rig, ofp.OFPPR_ADD, 13, b"vhost-user-of-a", bytes([2, 0, 0, 0, 0, 2]))
    assert served(rig) == {}
    say(rig, ofp.OFPPR_MODIFY, 13, b"vhost-user-of-a", bytes([2, 0, 0, 0, 0, 1]))
    assert set(served(rig)) == {13}
    rig.registry.set_port(replace(long, device_mac="02:00:00:00:00:03"))
    assert served(rig) == {}
    rig.registry.set_port(long)
    assert set(served(rig)) == {13}


def test_port_status_of_another_connection_is_ignored(rig: Rig) -> None:
    stranger = Datapath()
    numbers = rig.controller.numbers
    numbers.changed(stranger, ofp.OFPPR_ADD, port_desc(13, b"tap2"))
    numbers.listed(stranger, 1, [port_desc(13, b"tap2")], more=False)
    assert set(served(rig)) == {13, 14}


def test_list_replaces_the_earlier_names(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    say(rig, ofp.OFPPR_ADD, 14, b"tap1")
    rig.switch.model.names = {13: b"tap2", 1: b"tap3"}
    assert rig.controller.numbers.ask()
    assert set(served(rig)) == {14}
    assert "Port tap1 is not served: on the switch its number 13 belongs to tap2" in caplog.text
    rig.switch.model.names = {13: b"tap1", 14: b"tap2"}
    assert rig.controller.numbers.ask()
    assert set(served(rig)) == {13, 14}
