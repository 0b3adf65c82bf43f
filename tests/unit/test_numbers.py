"""A guest should be served only under a number that the switch does not give to another port."""

from __future__ import annotations

import logging
import struct
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from os_ken.controller import ofp_event
from os_ken.controller.handler import MAIN_DISPATCHER
from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.apps.metadata import Handshake
from dfmeta.model import Endpoint
from tests.unit.support import (
    OTHER_INSTANCE,
    Datapath,
    Rig,
    let_hub_run,
    port,
    port_bytes,
    port_desc,
)

HERE, THERE = Endpoint(13), Endpoint(14)


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.registry.set_port(port())
    rig.registry.set_port(port(14, name="tap2", instance=OTHER_INSTANCE))
    return rig.connect()


def served(rig: Rig) -> dict[int, str]:
    """Number → instance, as requests are answered."""
    found = {at.ofport: rig.registry.identity(at) for at in rig.registry.endpoints()}
    return {ofport: one.instance_id for ofport, one in found.items() if one is not None}


def entering(rig: Rig) -> Counter[int]:
    """Number → how many flows guests' frames enter by."""
    numbers = (mod.match.get("in_port") for mod in rig.switch.flows.values())
    return Counter(number for number in numbers if number in (HERE.ofport, THERE.ofport))


def say(rig: Rig, reason: int, number: int, name: bytes) -> None:
    rig.controller.numbers.changed(rig.switch, reason, port_desc(number, name))


def test_two_ports_that_change_numbers_are_served_once_ovsdb_says_so_too(rig: Rig) -> None:
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


def test_a_port_whose_number_is_said_to_be_its_own_stays_as_it_is(rig: Rig) -> None:
    identity = rig.registry.identity(HERE)
    say(rig, ofp.OFPPR_MODIFY, 13, b"tap1")
    assert rig.registry.identity(HERE) is identity


def test_a_number_that_is_nobodys_contradicts_nothing(rig: Rig) -> None:
    identity = rig.registry.identity(HERE)
    say(rig, ofp.OFPPR_DELETE, 13, b"tap1")
    assert rig.registry.identity(HERE) is identity


def test_what_another_connection_says_is_not_heard(rig: Rig) -> None:
    stranger = Datapath()
    numbers = rig.controller.numbers
    numbers.changed(stranger, ofp.OFPPR_ADD, port_desc(13, b"tap2"))
    numbers.listed(stranger, 1, [port_desc(13, b"tap2")], more=False)
    assert set(served(rig)) == {13, 14}


def test_a_list_takes_the_place_of_what_was_known(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    say(rig, ofp.OFPPR_ADD, 14, b"tap1")
    rig.switch.names = {13: b"tap2", 1: b"tap3"}
    assert rig.controller.numbers.ask()
    assert set(served(rig)) == {14}
    assert "Port tap1 is not served: on the switch its number 13 is that of tap2" in caplog.text
    rig.switch.names = {13: b"tap1", 14: b"tap2"}
    assert rig.controller.numbers.ask()
    assert set(served(rig)) == {13, 14}


def test_a_list_that_does_not_come_is_told(rig: Rig) -> None:
    rig.disconnect()
    assert not rig.controller.numbers.ask()


def test_a_name_that_does_not_fit_into_openflow_is_known_by_its_beginning() -> None:
    rig = Rig()
    rig.registry.set_port(port(name="vhost-user-of-a-guest"))
    rig.connect()
    say(rig, ofp.OFPPR_ADD, 13, b"vhost-user-of-a")
    assert set(served(rig)) == {13}


def read(rig: Rig, kind: int, body: bytes) -> Any:
    """An event as os-ken makes it of the switch's bytes."""
    raw = struct.pack("!BBHI", ofp.OFP_VERSION, kind, 8 + len(body), 1) + body
    version, kind, length, xid = struct.unpack_from("!BBHI", raw)
    message = ofproto_parser.msg(rig.switch, version, kind, length, xid, bytearray(raw))
    return SimpleNamespace(msg=message)


def test_the_switchs_own_messages_are_understood(rig: Rig) -> None:
    handshake = Handshake(numbers=rig.controller.numbers)
    other = port_bytes(13, b"tap2")
    status = read(rig, ofp.OFPT_PORT_STATUS, struct.pack("!B7x", ofp.OFPPR_ADD) + other)
    handshake.port_status_handler(status)
    assert set(served(rig)) == {14}
    desc = struct.pack("!HH4x", ofp.OFPMP_PORT_DESC, 0) + port_bytes(14, b"tap1")
    handshake.ports_listed(read(rig, ofp.OFPT_MULTIPART_REPLY, desc))
    assert set(served(rig)) == {13}


def test_they_are_handled_as_they_are_read() -> None:
    """Not by way of an application's queue, in which requests may overtake them."""
    handshake = Handshake(numbers=Rig().controller.numbers)
    for handler, kind in (
        (handshake.port_status_handler, ofp_event.EventOFPPortStatus),
        (handshake.ports_listed, ofp_event.EventOFPPortDescStatsReply),
    ):
        caller = handler.callers[kind]
        assert (caller.dispatchers, caller.ev_source) == ([MAIN_DISPATCHER], None)
