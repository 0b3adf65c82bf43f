"""Reads the entries of a flow dump from their bytes, in a tenth of the time that os-ken takes.

Thousands of ports have tens of thousands of flows, and all of them are compared every half minute.
Fields and actions that do not have one of the few forms of our flows are left to os-ken. A test
checks that this module and os-ken read the same values.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final, Self

from os_ken.lib import type_desc
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser
from os_ken.ofproto import oxm_fields

from dfmeta.flows.openflow import Action, Opaque, Output, SetField, Value

_HEAD = struct.Struct(ofp.OFP_FLOW_STATS_0_PACK_STR)
_PAIR = struct.Struct("!HH")
_NUMBER = struct.Struct("!I")
_BODY = _HEAD.size


class Entry(bytes):
    """One entry, kept as bytes. It replaces os-ken's OFPFlowStats, which parses everything."""

    @property
    def length(self) -> int:
        """Number of bytes by which os-ken advances to the next entry."""
        return len(self)

    @classmethod
    def parser(cls, buf: bytearray, offset: int) -> Self:
        """Cut the entry at *offset* out of a message."""
        (length,) = struct.unpack_from("!H", buf, offset)
        if length < _BODY + 8 or offset + length > len(buf):
            raise struct.error(f"an entry of {length} bytes")
        return cls(buf[offset : offset + length])

    def stats(self) -> Any:
        """Return the entry as os-ken reads it; None when it cannot."""
        try:
            return ofp_parser.OFPFlowStats.parser(bytes(self), 0)
        except Exception:  # its parsers raise any kind of exception
            return None


# One message has hundreds of entries, and os-ken parses a message without a pause.
ofp_parser.OFPFlowStatsReply.cls_stats_body_cls = Entry


@dataclass(frozen=True, slots=True)
class Lean:
    """The contents of an entry, in the values of :mod:`dfmeta.flows.openflow`."""

    table: int
    priority: int
    cookie: int
    packets: int
    bytes: int
    match: tuple[tuple[str, Value], ...]
    actions: tuple[Action, ...]
    goto: int | None


def read(entry: bytes, odd: Callable[[bytes], Action]) -> Lean | None:
    """Read an entry; None when it is malformed, or os-ken cannot read one of its fields or actions.

    :param odd: reads an action that is neither an output nor sets one of OpenFlow's own fields.
    """
    try:
        head = _HEAD.unpack_from(entry)
        kind, length = _PAIR.unpack_from(entry, _BODY)
        if kind != ofp.OFPMT_OXM or head[0] != len(entry):
            return None
        match = tuple(sorted(_fields(entry, _BODY + 4, _BODY + length)))
        actions: tuple[Action, ...] = ()
        goto = None
        offset = _BODY + (length + 7) // 8 * 8
        while offset < len(entry):
            kind, length = _PAIR.unpack_from(entry, offset)
            end = offset + length
            if end > len(entry) or length < 8:
                return None
            if kind == ofp.OFPIT_APPLY_ACTIONS:
                actions += tuple(_actions(entry, offset + 8, end, odd))
            elif kind == ofp.OFPIT_GOTO_TABLE:
                goto = entry[offset + 4]
            elif kind == ofp.OFPIT_METER:
                actions += (Opaque(f"meter:{_NUMBER.unpack_from(entry, offset + 4)[0]}"),)
            else:
                # No flow of dfmeta has another instruction: this one is replaced.
                actions += (Opaque(f"instruction:{entry[offset:end].hex()}"),)
            offset = end
    except Exception:  # malformed, or a field or an action of an unknown form
        return None
    _length, table, _s, _ns, priority, _idle, _hard, _flags, cookie, packets, octets = head
    return Lean(table, priority, cookie, packets, octets, match, actions, goto)


def _fields(data: bytes, offset: int, end: int) -> Iterator[tuple[str, Value]]:
    while offset < end:
        (header,) = _NUMBER.unpack_from(data, offset)
        after = offset + 4 + (header & 0xFF)
        if after > end:
            raise ValueError("a field that extends beyond the match")
        field = _FIELDS.get(header)
        if field is not None:
            yield field[0], field[1](data[offset + 4 : after])
        else:
            yield _odd_field(data[offset:after])
        offset = after


def _actions(
    data: bytes, offset: int, end: int, odd: Callable[[bytes], Action]
) -> Iterator[Action]:
    while offset < end:
        kind, length = _PAIR.unpack_from(data, offset)
        after = offset + length
        if after > end or length < 8:
            raise ValueError("an action that extends beyond its instruction")
        if kind == ofp.OFPAT_SET_FIELD:
            (header,) = _NUMBER.unpack_from(data, offset + 4)
            field = _FIELDS.get(header)
            if field is None:
                yield odd(data[offset:after])
            else:
                yield SetField(field[0], field[1](data[offset + 8 : offset + 8 + (header & 0xFF)]))
        elif kind == ofp.OFPAT_OUTPUT:
            yield Output(*_NUMBER.unpack_from(data, offset + 4))
        else:
            yield odd(data[offset:after])
        offset = after


@lru_cache
def _odd_field(data: bytes) -> tuple[str, Value]:
    """Read a field with os-ken. Cached: the flows of all ports have the same few."""
    number, value, mask, _length = ofp.oxm_parse(data, 0)
    name, value = ofp.oxm_to_user(number, value, mask)
    return name.removesuffix("_nxm"), value


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _mac(data: bytes) -> str:
    return data.hex(":")


def _ipv4(data: bytes) -> str:
    return "{}.{}.{}.{}".format(*data)


def _ipv6(data: bytes) -> str:
    return str(IPv6Address(data))


def _reader(kind: Any) -> Callable[[bytes], int | str] | None:
    if isinstance(kind, type_desc.IntDescr):
        return _number
    readers = {type_desc.MacAddr: _mac, type_desc.IPv4Addr: _ipv4, type_desc.IPv6Addr: _ipv6}
    return readers.get(kind)


def _known_fields() -> Iterator[tuple[int, tuple[str, Callable[[bytes], int | str]]]]:
    for field in ofp.oxm_types:
        reader = _reader(field.type)
        if field._class == ofp.OFPXMC_OPENFLOW_BASIC and reader is not None:
            # os-ken's number contains the class.
            yield field.num << 9 | field.type.size, (field.name, reader)


_CLASS: Final = 0x1000
"""ERICOXM_OF of Open vSwitch's meta-flow.xml."""


def _field(name: str, number: int, kind: Any) -> Any:
    """Return a field of that class. os-ken derives the header's number from the class."""
    field = oxm_fields.NiciraExtended1(name, number, kind)
    field._class = _CLASS
    field.oxm_type = field.num = number | _CLASS << 7
    return field


def _register_fields() -> None:
    """Add the fields of Open vSwitch that os-ken does not know to os-ken's OpenFlow 1.3, once.

    nd_reserved and nd_options_type (ovs-fields(7), "IPv6 Neighbor Discovery Fields") belong to
    Ericsson's class of fields.
    """
    names = {field.name for field in ofp.oxm_types}
    new = [_field("nd_reserved", 1, type_desc.Int4), _field("nd_options_type", 2, type_desc.Int1)]
    ofp.oxm_types += [field for field in new if field.name not in names]
    oxm_fields.generate(ofp.__name__)


_register_fields()
_FIELDS = dict(_known_fields())
"""Header of a field without a mask (class, number, length) → its name and its reader."""
