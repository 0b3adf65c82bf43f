"""What is read of meters should be what os-ken reads."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.flows.metering import MeterConfig, MeterCount

NUMBERS = st.integers(0, 0xFFFFFFFF)
COUNTS = st.integers(0, 0xFFFFFFFFFFFFFFFF)
RATES = st.integers(0, 3) | NUMBERS
BANDS = st.tuples(st.sampled_from([ofp.OFPMBT_DROP, ofp.OFPMBT_DSCP_REMARK]), RATES, RATES)


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
