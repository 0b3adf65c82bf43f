"""Ids of meters, and entries of their dumps, read from their bytes in a tenth of os-ken's time.

Each port has two meters, and each of them is in two dumps every half minute. os-ken parses a
message of thousands of entries without a pause, and no other thread runs meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

from dfmeta.flows.pipeline import Purpose

FIRST_IDS: Mapping[Purpose, int] = {Purpose.SYN: 0x10000, Purpose.GUEST_SYN: 0x20000}
"""Purpose with a meter, of any pipeline → first id of its meters. A port's meter gets this id plus
the ofport, when that is free."""
ID_RANGE = 0x10000
"""Number of ids of a purpose."""
LAST_ID = 0x3FFFF
"""Last meter id. Open vSwitch's userspace datapath has 262,144 meters."""

_CONFIG = struct.Struct("!HHI")
_BAND = struct.Struct("!HHII")
_STATS = struct.Struct("!IH6xI16x8x")
_BAND_STATS = struct.Struct("!QQ")
_BAND_SIZE = 16


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """Configuration of a meter (OpenFlow 1.3.5, 7.3.5.11)."""

    length: int
    """In bytes; os-ken advances by it to the next entry."""
    meter_id: int
    rate: int
    """Packets per second, and burst in packets, if its only band drops packets above such a rate; 0
    for any other configuration."""

    @classmethod
    def parser(cls, buf: bytearray, offset: int) -> Self:
        """Read the entry at *offset* of a message."""
        length, flags, meter_id = _CONFIG.unpack_from(buf, offset)
        if length < _CONFIG.size or offset + length > len(buf):
            raise struct.error(f"an entry of {length} bytes")
        rate = 0
        if length == _CONFIG.size + _BAND_SIZE:
            kind, _length, limit, burst = _BAND.unpack_from(buf, offset + _CONFIG.size)
            packets = kind == ofp.OFPMBT_DROP and flags & ofp.OFPMF_PKTPS
            rate = limit if packets and limit == burst else 0
        return cls(length, meter_id, rate)


@dataclass(frozen=True, slots=True)
class MeterCount:
    """Counters of a meter (OpenFlow 1.3.5, 7.3.5.10)."""

    length: int
    """In bytes; os-ken advances by it to the next entry."""
    meter_id: int
    flows: int
    """Number of flows that use it."""
    dropped: int
    """Number of packets that its bands have dropped."""

    @classmethod
    def parser(cls, buf: bytearray, offset: int) -> Self:
        """Read the entry at *offset* of a message."""
        meter_id, length, flows = _STATS.unpack_from(buf, offset)
        if length < _STATS.size or offset + length > len(buf):
            raise struct.error(f"an entry of {length} bytes")
        bands = range(offset + _STATS.size, offset + length, _BAND_STATS.size)
        dropped = sum(_BAND_STATS.unpack_from(buf, band)[0] for band in bands)
        return cls(length, meter_id, flows, dropped)


def is_of_our_form(number: int, rate: int, rates: Mapping[Purpose, int]) -> bool:
    """Return whether a meter has an id of our range and a rate of ours.

    :param rates: rates of the bridge, :attr:`~dfmeta.flows.pipeline.Pipeline.rates`.
    """
    return min(FIRST_IDS.values()) <= number <= LAST_ID and rate in rates.values()


ofp_parser.OFPMeterConfigStatsReply.cls_stats_body_cls = MeterConfig
ofp_parser.OFPMeterStatsReply.cls_stats_body_cls = MeterCount
