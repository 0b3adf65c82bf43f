"""Entries of the dumps of meters, read from their bytes: a tenth of what os-ken's reading costs.

Each port has two meters, and each of them is in two dumps every half minute. os-ken reads a message
of thousands in one go, in which nobody else runs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser

_CONFIG = struct.Struct("!HHI")
_BAND = struct.Struct("!HHII")
_STATS = struct.Struct("!IH6xI16x8x")
_BAND_STATS = struct.Struct("!QQ")
_BAND_SIZE = 16


@dataclass(frozen=True, slots=True)
class MeterConfig:
    """A meter as it is set (OpenFlow 1.3.5, 7.3.5.11)."""

    length: int
    """In bytes; os-ken goes on by it."""
    meter_id: int
    rate: int
    """Packets a second, and at once, that it lets through, when it has a band of that form alone;
    0 for any other."""

    @classmethod
    def parser(cls, buf: bytearray, offset: int) -> Self:
        """Read the entry at *offset* of a message."""
        length, _flags, meter_id = _CONFIG.unpack_from(buf, offset)
        if length < _CONFIG.size or offset + length > len(buf):
            raise struct.error(f"an entry of {length} bytes")
        rate = 0
        if length == _CONFIG.size + _BAND_SIZE:
            kind, _length, limit, burst = _BAND.unpack_from(buf, offset + _CONFIG.size)
            rate = limit if kind == ofp.OFPMBT_DROP and limit == burst else 0
        return cls(length, meter_id, rate)


@dataclass(frozen=True, slots=True)
class MeterCount:
    """What a meter has counted (OpenFlow 1.3.5, 7.3.5.10)."""

    length: int
    """In bytes; os-ken goes on by it."""
    meter_id: int
    flows: int
    """Flows that use it."""
    dropped: int
    """Packets that its bands have dropped."""

    @classmethod
    def parser(cls, buf: bytearray, offset: int) -> Self:
        """Read the entry at *offset* of a message."""
        meter_id, length, flows = _STATS.unpack_from(buf, offset)
        if length < _STATS.size or offset + length > len(buf):
            raise struct.error(f"an entry of {length} bytes")
        bands = range(offset + _STATS.size, offset + length, _BAND_STATS.size)
        dropped = sum(_BAND_STATS.unpack_from(buf, band)[0] for band in bands)
        return cls(length, meter_id, flows, dropped)


ofp_parser.OFPMeterConfigStatsReply.cls_stats_body_cls = MeterConfig
ofp_parser.OFPMeterStatsReply.cls_stats_body_cls = MeterCount
