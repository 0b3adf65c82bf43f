"""Each port should have a meter of its own, and nobody else's should be touched."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.apps.meters import LEFT_OVER
from dfmeta.flows.metering import FIRST_IDS, MeterConfig, MeterCount
from dfmeta.flows.pipeline import RATES, Purpose
from dfmeta.model import Endpoint, PortId
from tests.core.flows.world import memory_of
from tests.core.unit.support import MeterMod, Rig, let_hub_run, port

FIRST_ID, SYN_RATE = FIRST_IDS[Purpose.SYN], RATES[Purpose.SYN]
OWN = FIRST_ID + 13
ALL = FIRST_IDS[Purpose.GUEST_SYN] + 13
SYNS = {ALL: RATES[Purpose.GUEST_SYN]}
"""The port's other meter, which nothing below interferes with."""


@pytest.fixture
def rig() -> Rig:
    return Rig().connect()


def meter_of_syns(rig: Rig, ofport: int = 13) -> int | None:
    (found,) = (
        flow.meter
        for flow in rig.flows()
        if flow.purpose.name == "SYN" and flow.field("in_port") == ofport
    )
    return int(found) if found is not None else None


def add(rig: Rig, ofport: int = 13) -> None:
    rig.registry.set_port(port(ofport, name=f"tap{ofport}"))
    let_hub_run()


def test_a_port_gets_a_meter_before_its_flows(rig: Rig) -> None:
    add(rig)
    assert rig.switch.meters == {OWN: SYN_RATE} | SYNS
    assert meter_of_syns(rig) == OWN
    (opening,) = (flow for flow in rig.flows() if flow.purpose is Purpose.GUEST_SYN)
    assert opening.meter == ALL
    kinds = rig.switch.kinds()
    assert kinds.index(ofp.OFPT_METER_MOD) < len(kinds) - 1


def uses(rig: Rig, meter: int) -> None:
    """Another's flow goes through *meter*."""
    datapath = rig.switch
    parser = datapath.ofproto_parser
    step = parser.OFPInstructionMeter(meter)
    mod = parser.OFPFlowMod(datapath, cookie=0x99, table_id=59, priority=7, instructions=[step])
    rig.switch.place(mod)


def foreign(rig: Rig) -> list[int]:
    return [mod.cookie for mod in rig.switch.flows if mod.cookie == 0x99]


@pytest.mark.parametrize("rate", [SYN_RATE, 4321])
def test_a_meter_that_anothers_flow_uses_stays_with_it(rig: Rig, rate: int) -> None:
    """OpenFlow would delete the flow together with the meter."""
    add(rig)
    rig.switch.meters[OWN] = rate
    uses(rig, OWN)
    rig.registry.remove_port(PortId("row-of-tap13"))
    let_hub_run()
    assert rig.switch.meters == {OWN: rate}
    rig.reconciler.reconcile()
    let_hub_run()
    assert rig.switch.meters == {OWN: rate}
    assert foreign(rig) == [0x99]


def test_a_port_that_is_back_before_the_answer_gets_other_meters(rig: Rig) -> None:
    """The removal of the first ones may be under way, and would take its new flows along."""
    add(rig)
    rig.switch.silent = True
    rig.registry.remove_port(PortId("row-of-tap13"))
    let_hub_run()
    add(rig)
    rig.switch.speak()
    others = {FIRST_ID: SYN_RATE, FIRST_ID + 1: RATES[Purpose.GUEST_SYN]}
    assert meter_of_syns(rig) == FIRST_ID
    assert rig.switch.meters == others
    rig.reconciler.reconcile()
    let_hub_run()
    assert rig.switch.meters == others


def test_flows_of_an_old_dump_bring_no_leaving_meter_back(rig: Rig) -> None:
    add(rig)
    uses(rig, OWN)
    rig.registry.remove_port(PortId("row-of-tap13"))
    let_hub_run()
    rig.meters.learn(rig.channel, {(Endpoint(13), Purpose.SYN): OWN})
    assert rig.meters.ids(Purpose.SYN) == {}


def test_foreign_meter_id_is_not_taken() -> None:
    rig = Rig()
    rig.switch.meters = {OWN: 4321, FIRST_ID: 7}
    rig.connect()
    add(rig)
    assert meter_of_syns(rig) == FIRST_ID + 1
    assert rig.switch.meters == {OWN: 4321, FIRST_ID: 7, FIRST_ID + 1: SYN_RATE} | SYNS


@pytest.mark.parametrize(
    "code", [ofp.OFPMMFC_OUT_OF_METERS, ofp.OFPMMFC_INVALID_METER, ofp.OFPMMFC_BAD_RATE]
)
def test_a_switch_that_takes_no_more_meters_is_not_asked_again_and_again(
    rig: Rig, code: int
) -> None:
    asked = []

    def refuse(mod: object) -> tuple[int, int] | None:
        if not isinstance(mod, MeterMod) or len(asked) >= 20:
            return None
        asked.append(mod)
        return ofp.OFPET_METER_MOD_FAILED, code

    rig.switch.model.refuse = refuse
    add(rig)
    assert len(asked) < 20


def test_a_switch_without_meters_is_served_without(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.switch.model.has_meters = False
    rig.connect()
    add(rig)
    assert meter_of_syns(rig) is None
    assert "has no meters" in caplog.text
    rig.reconciler.reconcile()
    assert caplog.text.count("has no meters") == 1


def test_meters_are_found_again_after_a_restart(rig: Rig) -> None:
    rig.switch.meters[OWN] = 4321
    add(rig)
    again = Rig(remembered=memory_of(rig.meters))
    again.registry.set_port(port(13, name="tap13"))
    again.switch.meters = dict(rig.switch.meters)
    again.connect()
    assert meter_of_syns(again) == FIRST_ID
    assert again.switch.meters == rig.switch.meters


def test_meters_that_our_flows_use_are_found_without_a_memory(rig: Rig) -> None:
    rig.switch.meters[OWN] = 4321
    add(rig)
    again = Rig()
    again.registry.set_port(port(13, name="tap13"))
    again.switch.meters, again.switch.flows = rig.switch.meters, rig.switch.flows
    again.connect()
    assert meter_of_syns(again) == FIRST_ID
    assert again.switch.meters == {OWN: 4321, FIRST_ID: SYN_RATE} | SYNS
    assert again.switch.flow_mods() == []


def test_cleanup_takes_remembered_meters_and_those_that_our_flows_use(rig: Rig) -> None:
    rig.switch.meters[OWN] = 4321
    add(rig)
    rig.switch.meters[FIRST_ID + 99] = SYN_RATE
    rig.switch.meters[7] = SYN_RATE
    cleanup = Rig(remembered={Purpose.SYN: {Endpoint(99): FIRST_ID + 99, Endpoint(5): 12345}})
    cleanup.switch.meters, cleanup.switch.flows = rig.switch.meters, rig.switch.flows
    cleanup.connect(tap=None)
    assert cleanup.reconciler.clear() == (16, 3)
    assert cleanup.switch.flows == []
    assert cleanup.switch.meters == {OWN: 4321, 7: SYN_RATE}


def pass_a_check(rig: Rig) -> None:
    rig.reconciler.reconcile()
    let_hub_run()
    rig.now += LEFT_OVER


def test_meters_of_a_daemon_that_was_killed_before_it_deleted_them_go(rig: Rig) -> None:
    """Its memory does not have them any more, and no flow uses them."""
    rig.switch.meters = {OWN: SYN_RATE} | SYNS | {FIRST_ID - 1: SYN_RATE, FIRST_ID + 1: 4321}
    others = {FIRST_ID - 1: SYN_RATE, FIRST_ID + 1: 4321}
    pass_a_check(rig)
    assert rig.switch.meters == {OWN: SYN_RATE} | SYNS | others
    pass_a_check(rig)
    assert rig.switch.meters == others


NUMBERS = st.integers(0, 0xFFFFFFFF)
COUNTS = st.integers(0, 0xFFFFFFFFFFFFFFFF)
LIMITS = st.integers(0, 3) | NUMBERS
BANDS = st.tuples(st.sampled_from([ofp.OFPMBT_DROP, ofp.OFPMBT_DSCP_REMARK]), LIMITS, LIMITS)


def config(number: int, flags: int, bands: list[tuple[int, int, int]]) -> bytes:
    body = b"".join(struct.pack("!HHII4x", kind, 16, *limits) for kind, *limits in bands)
    return struct.pack("!HHI", 8 + len(body), flags, number) + body


def count(number: int, flows: int, bands: list[tuple[int, int]]) -> bytes:
    body = b"".join(struct.pack("!QQ", *one) for one in bands)
    return struct.pack("!IH6xIQQII", number, 40 + len(body), flows, 9, 9, 9, 9) + body


@given(number=NUMBERS, flags=st.integers(0, 15), bands=st.lists(BANDS, max_size=3))
def test_a_meters_setting_reads_as_os_ken_reads_it(
    number: int, flags: int, bands: list[tuple[int, int, int]]
) -> None:
    data = bytearray(b"before" + config(number, flags, bands) + b"after")
    theirs = ofp_parser.OFPMeterConfigStats.parser(data, 6)
    ours = MeterConfig.parser(data, 6)
    assert (ours.length, ours.meter_id) == (theirs.length, theirs.meter_id)
    (limits, *more) = [(b.rate, b.burst_size, b.type) for b in theirs.bands] or [(0, 0, 0)]
    alike = not more and limits[0] == limits[1] and limits[2] == ofp.OFPMBT_DROP
    alike = alike and bool(theirs.flags & ofp.OFPMF_PKTPS)
    assert ours.rate == (limits[0] if alike else 0)


@given(number=NUMBERS, flows=NUMBERS, bands=st.lists(st.tuples(COUNTS, COUNTS), max_size=3))
def test_a_meters_counters_read_as_os_ken_reads_them(
    number: int, flows: int, bands: list[tuple[int, int]]
) -> None:
    data = bytearray(b"before" + count(number, flows, bands) + b"after")
    theirs = ofp_parser.OFPMeterStats.parser(data, 6)
    ours = MeterCount.parser(data, 6)
    assert (ours.meter_id, ours.flows) == (theirs.meter_id, theirs.flow_count)
    assert ours.dropped == sum(one.packet_band_count for one in theirs.band_stats)
    assert ours.length == theirs.len


@pytest.mark.parametrize("length", [0, 7, 25])
def test_an_entry_that_cannot_be_is_refused(length: int) -> None:
    data = bytearray(struct.pack("!HHI", length, 0, 1) + b"\0" * 16)
    with pytest.raises(struct.error):
        MeterConfig.parser(data, 0)
    data = bytearray(struct.pack("!IH6xIQQII", 1, length, 0, 0, 0, 0, 0))
    with pytest.raises(struct.error):
        MeterCount.parser(data, 0)
