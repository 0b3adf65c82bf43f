"""A model of an OpenFlow 1.3 switch, small enough to be read in one go.

It is fed the wire bytes of every message that the app sends and answers with wire bytes; what it
executes are real frames (:mod:`tests.core.flows.frames`). It knows what dfmeta emits or may emit,
as Open vSwitch does it, and raises :class:`NotModelled` on all else: an unknown message, field,
action or instruction, a missing prerequisite, two flows of one priority that match the same frame.
``tests/host/ovs`` holds it against a real switch.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

import dfmeta.flows.entry  # noqa: F401  # adds fields of Open vSwitch to os-ken
from tests.core.flows.frames import FIELDS, Frame, NotModelled

_DATAPATH = ProtocolDesc(version=ofp.OFP_VERSION)
_ONF, _NX, _SET_CONTROLLER_ID = 0x4F4E4600, 0x2320, 20
_BUNDLE_FLAGS = ofp.ONF_BF_ATOMIC | ofp.ONF_BF_ORDERED
_BUNDLE_FAILED = (ofp.OFPET_EXPERIMENTER, 2313, _ONF)
_HEADER = 8
_READ_ONLY = {"in_port", "eth_type", "ip_proto", "ip_frag", "tcp_flags"}
_EXACT = {"eth_type", "ip_proto", "icmpv6_type", "icmpv6_code"}
_ORDER = (parser.OFPInstructionActions, parser.OFPInstructionGotoTable)
Match = dict[str, tuple[int, int]]


class RefusalError(Exception):
    """Numbers of the error that a well-formed message is answered with."""


@dataclass(frozen=True)
class Out:
    """A frame that leaves: on a port, to a controller, or to the bridge's own switching."""

    port: int
    """``OFPP_CONTROLLER`` and ``OFPP_NORMAL`` stand for themselves."""
    frame: bytes
    controller: int | None = None


@dataclass(eq=False)
class Entry:
    """A flow in a table."""

    table: int
    priority: int
    cookie: int
    flags: int
    match: Match
    """Field → value and mask."""
    instructions: list[Any]
    raw: tuple[bytes, bytes]
    """Match and instructions as they came."""
    packets: int = 0
    bytes: int = 0

    @property
    def place(self) -> tuple[int, int, Match]:
        """What makes it the same flow: another with this place replaces it."""
        return self.table, self.priority, self.match

    def covers(self, frame: Frame) -> bool:
        """Whether *frame*, masked, is what it matches."""
        return all(frame[name] & mask == value for name, (value, mask) in self.match.items())

    def within(self, match: Match) -> bool:
        """Whether *match* matches all that this one does."""
        pairs = [(*self.match.get(name, (0, 0)), *other) for name, other in match.items()]
        return all(mine & mask == mask and has & mask == want for has, mine, want, mask in pairs)


class Switch:
    """The model.

    :param ports: numbers of the ports that there are.
    :param deliver: takes each message that the switch sends on its one controller connection.
    """

    def __init__(self, ports: Iterable[int], deliver: Callable[[bytes], object]) -> None:
        self.ports = set(ports)
        self.flows: list[Entry] = []
        self.released: list[Out] = []
        """What packet-outs have sent."""
        self.flow_mods = 0
        """How many have come, alone or in a bundle."""
        self.controller_id = 0
        self._deliver = deliver
        self._async = {ofp.OFPT_PACKET_IN: 0, ofp.OFPT_FLOW_REMOVED: 0}
        self._removed: list[bytes] = []
        self._bundles: dict[int, list[bytes]] = {}

    def receive(self, in_port: int, data: bytes) -> list[Out]:
        """Execute a frame that comes in at *in_port*."""
        return self._run(Frame(in_port, data), 0)

    def _run(self, frame: Frame, table: int) -> list[Out]:
        outs, data = list[Out](), frame.data
        while table >= 0 and (entry := self._lookup(table, frame)) is not None:
            entry.packets, entry.bytes, table = entry.packets + 1, entry.bytes + len(data), -1
            for step in entry.instructions:
                match step:
                    case parser.OFPInstructionActions():
                        outs += self._execute(frame, step.actions, entry)
                    case parser.OFPInstructionGotoTable():
                        table = step.table_id
        return outs

    def _lookup(self, table: int, frame: Frame) -> Entry | None:
        hits = [flow for flow in self.flows if flow.table == table and flow.covers(frame)]
        hits.sort(key=lambda one: one.priority, reverse=True)
        clash = len(hits) > 1 and hits[0].priority == hits[1].priority
        _require(not clash, "both of", hits[:2], "match", frame.data)
        return hits[0] if hits else None

    def _execute(self, frame: Frame, actions: Iterable[Any], entry: Entry | None) -> Iterator[Out]:
        for act in actions:
            match act:
                case parser.OFPActionSetField():
                    frame.put(act.key, _plain(act.key, act.value))
                case parser.NXActionRegMove():
                    value = frame[_name(act.src_field)] >> act.src_ofs
                    frame.put(act.dst_field, value, act.dst_ofs, act.n_bits)
                case parser.NXActionRegLoad():
                    frame.put(act.dst, act.value, act.ofs_nbits >> 6, (act.ofs_nbits & 63) + 1)
                case parser.OFPActionPushVlan():
                    frame.tag(b"\x81\x00\x00\x00")
                case parser.OFPActionPopVlan():
                    frame.tag(b"")
                case parser.OFPActionOutput():
                    yield from self._output(frame, act.port)
                case parser.NXActionResubmitTable():
                    yield from self._run(frame, act.table_id)
                case parser.NXActionController():
                    yield self._packet_in(frame, act.controller_id, entry)

    def _output(self, frame: Frame, port: int) -> Iterator[Out]:
        echo = port == frame["in_port"]  # OpenFlow 1.3.5, 7.2.5: only OFPP_IN_PORT sends back
        port = frame["in_port"] if port == ofp.OFPP_IN_PORT else port
        frame.commit()
        if not echo and port in {*self.ports, ofp.OFPP_NORMAL}:
            yield Out(port, bytes(frame.data))

    def _packet_in(self, frame: Frame, target: int, entry: Entry | None) -> Out:
        frame.commit()
        data, match = bytes(frame.data), bytearray()
        table, cookie = (entry.table, entry.cookie) if entry else (0, 0)
        parser.OFPMatch(in_port=frame["in_port"]).serialize(match, 0)
        head = ofp.OFP_NO_BUFFER, len(data), ofp.OFPR_ACTION, table, cookie
        if target == self.controller_id and self._async[ofp.OFPT_PACKET_IN] >> ofp.OFPR_ACTION & 1:
            self._send(ofp.OFPT_PACKET_IN, 0, struct.pack("!IHBBQ", *head) + match + b"\0\0" + data)
        return Out(ofp.OFPP_CONTROLLER, data, target)

    def feed(self, data: bytes) -> None:
        """Take whole messages as they stand on the wire, and answer them."""
        while data:
            version, kind, length, xid = struct.unpack_from("!BBHI", data)
            _require(version == ofp.OFP_VERSION and 8 <= length <= len(data), data)
            message, data = data[:length], data[length:]
            try:
                self._handle(kind, xid, message)
            except RefusalError as refusal:
                self._refuse(message, *refusal.args)
            for body in self._removed:
                self._send(ofp.OFPT_FLOW_REMOVED, 0, body)
            self._removed.clear()

    def _handle(self, kind: int, xid: int, message: bytes) -> None:
        match kind:
            case ofp.OFPT_FLOW_MOD:
                self._flow_mod(message)
            case ofp.OFPT_PACKET_OUT:
                self._packet_out(message)
            case ofp.OFPT_BARRIER_REQUEST:
                self._send(ofp.OFPT_BARRIER_REPLY, xid, b"")
            case ofp.OFPT_MULTIPART_REQUEST:
                self._multipart(xid, int.from_bytes(message[8:10], "big"), message)
            case ofp.OFPT_SET_ASYNC:
                masks = struct.unpack("!6I", message[8:])
                self._async = {ofp.OFPT_PACKET_IN: masks[0], ofp.OFPT_FLOW_REMOVED: masks[4]}
            case ofp.OFPT_EXPERIMENTER:
                self._experimenter(xid, struct.unpack_from("!II", message, 8), message)
            case _:
                raise NotModelled(f"message of type {kind}: {message.hex()}")

    def _send(self, kind: int, xid: int, body: bytes) -> None:
        self._deliver(struct.pack("!BBHI", ofp.OFP_VERSION, kind, 8 + len(body), xid) + body)

    def _refuse(self, message: bytes, kind: int, code: int, *experimenter: int) -> None:
        head = struct.pack(f"!HH{len(experimenter)}I", kind, code, *experimenter)
        self._send(ofp.OFPT_ERROR, int.from_bytes(message[4:8], "big"), head + message)

    def _experimenter(self, xid: int, which: tuple[int, int], message: bytes) -> None:
        body = message[16:]
        if which == (_NX, _SET_CONTROLLER_ID):
            (self.controller_id,) = struct.unpack("!6xH", body)
            return
        bundle = int.from_bytes(body[:4], "big")
        if which == (_ONF, ofp.ONF_ET_BUNDLE_ADD_MESSAGE):
            fits = body[9] == ofp.OFPT_FLOW_MOD and body[12:16] == xid.to_bytes(4, "big")
            _require(fits and bundle in self._bundles, "in bundle", bundle, body)
            self._bundles[bundle].append(message)
            return
        kind, flags = struct.unpack_from("!HH", body, 4)
        known = which == (_ONF, ofp.ONF_ET_BUNDLE_CONTROL) and flags == _BUNDLE_FLAGS
        _require(known, "experimenter message", which, body)
        if kind == ofp.ONF_BCT_COMMIT_REQUEST:
            self._commit(self._bundles.pop(bundle))
        else:
            fits = kind == ofp.ONF_BCT_OPEN_REQUEST and bundle not in self._bundles
            _require(fits, "bundle request", kind, "for bundle", bundle)
            self._bundles[bundle] = []
        self._send(ofp.OFPT_EXPERIMENTER, xid, struct.pack("!IIIHH", *which, bundle, kind + 1, 0))

    def _commit(self, messages: list[bytes]) -> None:
        before = self.flows
        for message in messages:
            try:
                self._flow_mod(message[24:])
            except RefusalError as refusal:
                self.flows = before
                self._removed.clear()
                self._refuse(message, *refusal.args)
                raise RefusalError(*_BUNDLE_FAILED) from refusal

    def _flow_mod(self, message: bytes) -> None:
        head, body = message[:_HEADER], message[_HEADER:]
        mod, entry = _flow_mod_of(*struct.unpack("!BBH4x", head), body)
        self.flow_mods += 1
        entry = replace(entry)
        if mod.command == ofp.OFPFC_ADD:
            steps = (step for step in entry.instructions if hasattr(step, "actions"))
            if any(
                isinstance(act, parser.OFPActionGroup) for step in steps for act in step.actions
            ):
                raise RefusalError(ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_OUT_GROUP)
            for former in (flow for flow in self.flows if flow.place == entry.place):
                # Without OFPFF_RESET_COUNTS the counters are kept (OpenFlow 1.3.5, 6.4).
                entry.packets, entry.bytes = former.packets, former.bytes
            self.flows = [*(flow for flow in self.flows if flow.place != entry.place), entry]
            return
        strict = mod.command == ofp.OFPFC_DELETE_STRICT
        known = strict or mod.command == ofp.OFPFC_DELETE
        _require(known and (mod.out_port, mod.out_group) == (ofp.OFPP_ANY, ofp.OFPG_ANY), mod)
        for flow in self._select(entry.table, entry.cookie, mod.cookie_mask, entry.match):
            if not strict or (flow.priority, flow.match) == (entry.priority, entry.match):
                self._remove(flow, ofp.OFPRR_DELETE)

    def _select(self, table: int, cookie: int, mask: int, match: Match) -> list[Entry]:
        flows = [flow for flow in self.flows if not (flow.cookie ^ cookie) & mask]
        return [
            flow for flow in flows if table in (flow.table, ofp.OFPTT_ALL) and flow.within(match)
        ]

    def _remove(self, flow: Entry, reason: int) -> None:
        self.flows = [other for other in self.flows if other is not flow]
        if (
            flow.flags & ofp.OFPFF_SEND_FLOW_REM
            and self._async[ofp.OFPT_FLOW_REMOVED] >> reason & 1
        ):
            head = flow.cookie, flow.priority, reason, flow.table, flow.packets, flow.bytes
            self._removed.append(struct.pack("!QHBB12xQQ", *head) + flow.raw[0])

    def _packet_out(self, message: bytes) -> None:
        buffer_id, in_port, length = struct.unpack_from("!IIH", message, 8)
        _require(buffer_id == ofp.OFP_NO_BUFFER, "a packet-out with a buffer")
        actions, at = list[Any](), 24
        while at < 24 + length:
            actions.append(parser.OFPAction.parser(message, at))
            at += actions[-1].len
        frame = Frame(in_port, message[at:])
        _check(actions, {name: frame[name] for name in FIELDS})
        self.released += self._execute(frame, actions, None)

    def _multipart(self, xid: int, kind: int, message: bytes) -> None:
        _require(kind in (ofp.OFPMP_FLOW, ofp.OFPMP_AGGREGATE), "multipart request", kind)
        table, *outs, cookie, mask = struct.unpack_from("!B3xII4xQQ", message, 16)
        _require(outs == [ofp.OFPP_ANY, ofp.OFPG_ANY], "a dump by output")
        flows = self._select(table, cookie, mask, _match(parser.OFPMatch.parser(message, 48)))
        bodies = [stats(flow) for flow in flows]
        if kind == ofp.OFPMP_AGGREGATE:
            totals = sum(flow.packets for flow in flows), sum(flow.bytes for flow in flows)
            bodies = [struct.pack("!QQI4x", *totals, len(flows))]
        bodies = bodies or [b""]
        for body in bodies:  # one reply for each: the reader has to put them together
            head = struct.pack("!HH4x", kind, ofp.OFPMPF_REPLY_MORE * (body is not bodies[-1]))
            self._send(ofp.OFPT_MULTIPART_REPLY, xid, head + body)


def _require(holds: bool, *said: object) -> None:
    """Raise unless it *holds*, with text that is made only then: os-ken takes long to write."""
    if not holds:
        raise NotModelled(" ".join(map(str, said)))


def _plain(name: str, value: int | str) -> int:
    if isinstance(value, str):
        return int(value.replace(":", ""), 16) if FIELDS[name][0] == 48 else int(ip_address(value))
    return value


def _holds(name: str, known: dict[str, int]) -> bool:
    """Whether a prerequisite of a field is among what is *known*."""
    needs = FIELDS[name][1]
    return not needs or any(need.items() <= known.items() for need in needs)


def _name(name: str) -> str:
    name = name.removesuffix("_nxm")
    _require(name in FIELDS, "field", name)
    return name


def _match(match: Any) -> Match:
    read: Match = {}
    known: dict[str, int] = {}
    for given, value in match.items():
        name = _name(given)
        full = (1 << FIELDS[name][0]) - 1
        # As they come: what is needed has to come before what needs it.
        _require(_holds(name, known), name, "without", FIELDS[name][1])
        pair = value if isinstance(value, tuple) else (value, full)
        read[name] = _plain(name, pair[0]), _plain(name, pair[1])
        _require(not read[name][0] & ~read[name][1], name, "has a value outside of its mask")
        _require(read[name][1] == full or name not in _EXACT, name, "with a mask")
        known[name] = read[name][0]
    return read


@lru_cache(maxsize=4096)
def _flow_mod_of(version: int, kind: int, length: int, body: bytes) -> tuple[Any, Entry]:
    """A flow-mod as os-ken reads it, whatever its xid, and the flow that it names.

    os-ken takes long, and most tests' switches get the same ones.
    """
    message = bytes(_HEADER) + body
    mod = parser.OFPFlowMod.parser(_DATAPATH, version, kind, length, 0, message)
    plain = mod.buffer_id == ofp.OFP_NO_BUFFER and not mod.idle_timeout | mod.hard_timeout
    _require(plain and mod.flags in (0, ofp.OFPFF_SEND_FLOW_REM), mod)
    return mod, _entry(mod, message)


def _entry(mod: Any, message: bytes) -> Entry:
    match, ranks = _match(mod.match), [_ORDER.index(type(step)) for step in mod.instructions]
    _require(ranks == sorted(set(ranks)), "instructions out of order", mod.instructions)
    known = {name: value for name, (value, _mask) in match.items()}
    for step in mod.instructions:
        if isinstance(step, parser.OFPInstructionActions):
            _require(step.type == ofp.OFPIT_APPLY_ACTIONS, step)
            _check(step.actions, known)
        if isinstance(step, parser.OFPInstructionGotoTable):
            _require(step.table_id > mod.table_id, "in table", mod.table_id, step)
    end = 48 + (mod.match.length + 7) // 8 * 8
    raw = message[48:end], message[end:]
    return Entry(mod.table_id, mod.priority, mod.cookie, mod.flags, match, mod.instructions, raw)


def _check(actions: Iterable[Any], known: dict[str, int]) -> None:
    """Hold actions against what is *known* of the frames that they are done to."""
    for act in actions:
        match act:
            case parser.OFPActionSetField():
                used = [act.key]
            case parser.NXActionRegMove():
                used = [act.dst_field, act.src_field]
            case parser.NXActionRegLoad():
                used = [act.dst]
            case parser.OFPActionPushVlan(ethertype=0x8100):
                # Open vSwitch matches the packet behind two tags or not, depending on its options.
                _require(known.get("vlan_vid") == 0, act, "onto a frame that may be tagged")
                used, known = [], known | {"vlan_vid": ofp.OFPVID_PRESENT}
            case parser.OFPActionPopVlan():
                used = ["vlan_vid"]
            case parser.OFPActionOutput() | parser.NXActionController(reason=ofp.OFPR_ACTION):
                used = []
            case parser.NXActionResubmitTable(in_port=0xFFF8):
                used = []
            case parser.OFPActionGroup():  # refused: no group exists
                used = []
            case _:
                raise NotModelled(f"action {act}")
        port = getattr(act, "port", 0)
        _require(port <= ofp.OFPP_MAX or port in (ofp.OFPP_IN_PORT, ofp.OFPP_NORMAL), act)
        _require(not _READ_ONLY & {*used[:1]}, act, "sets what is read only")
        for name in map(_name, used):
            _require(_holds(name, known), act, "without", FIELDS[name][1])
            tagged = known.get("vlan_vid", 0) & ofp.OFPVID_PRESENT
            _require(name != "vlan_vid" or bool(tagged), act, "of a frame that may be untagged")
        if isinstance(act, parser.OFPActionPopVlan):
            known = known | {"vlan_vid": 0}


def stats(flow: Entry) -> bytes:
    """The entry of *flow* in a dump."""
    numbers = (
        flow.table,
        0,
        0,
        flow.priority,
        0,
        0,
        flow.flags,
        flow.cookie,
        flow.packets,
        flow.bytes,
    )
    body = struct.pack("!BxIIHHHH4xQQQ", *numbers) + flow.raw[0] + flow.raw[1]
    return (2 + len(body)).to_bytes(2, "big") + body
