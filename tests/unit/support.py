"""What several unit tests share: a datapath without a socket, a tiny switch, and frames.

Nothing here stands in for os-ken's parsers: every message is taken as the bytes that would have
gone to the switch, and every answer is made of bytes that os-ken reads.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any, TypeVar

import eventlet
import eventlet.green.socket
from os_ken.lib.packet import ethernet, ipv4, packet, tcp, vlan
from os_ken.ofproto import ofproto_common, ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc
from oslo_config import cfg

from dfmeta.apps.channel import Channel
from dfmeta.apps.controller import Controller
from dfmeta.apps.meters import Memory
from dfmeta.flows.desired import Guest, fixed_flows, guest_flows
from dfmeta.flows.metering import MeterConfig, MeterCount
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.service import Tap
from dfmeta.flows.wire import Wire
from dfmeta.model import Endpoint, GuestAddress, Port
from dfmeta.registry import Registry
from tests.harness.poll import wait_for

T = TypeVar("T")
INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
OTHER_INSTANCE = "0d2c8a8e-54e0-4a9d-a9b1-2f1d5c3b7e02"
PROJECT = "b9a3d2f07c7e4f4b8f4f7f0a1c2d3e4f"
GUEST_MAC = "fa:16:3e:00:00:01"
GUEST_IP = "10.0.0.5"
TAP = Tap(ofport=9, mac="02:64:66:6d:65:fe", port=18080)
DATAPATH = 0x0000AABBCCDDEEFF


def address(ip: str = GUEST_IP, mac: str = GUEST_MAC) -> GuestAddress:
    """What a guest calls itself."""
    return GuestAddress(mac, IPv4Address(ip))


Load = Callable[..., cfg.ConfigOpts]
"""The fixture that reads a configuration of the options that it is given."""


def port(
    ofport: int | None = 13,
    *,
    name: str = "tap1",
    instance: str = INSTANCE,
    project: str = PROJECT,
    dead: bool = False,
    fault: str = "",
) -> Port:
    """A guest's port; its row goes with its name."""
    return Port(
        name,
        row=f"row-of-{name}",
        ofport=ofport,
        iface_id=f"port-{name}",
        mac=GUEST_MAC,
        instance_id=instance,
        project_id=project,
        dead=dead,
        fault=fault,
    )


def syn(
    ip: str = GUEST_IP,
    *,
    mac: str = GUEST_MAC,
    source_port: int = 40000,
    bits: int = 0x02,
    vid: int | None = None,
    **of_ip: Any,
) -> bytes:
    """A segment to the service, as os-ken's packet library writes it.

    :param of_ip: further fields of the IPv4 header.
    """
    frame = packet.Packet()
    frame.add_protocol(
        ethernet.ethernet("02:64:66:6d:65:fe", mac, 0x8100 if vid is not None else 0x0800)
    )
    if vid is not None:
        frame.add_protocol(vlan.vlan(vid=vid, pcp=5, ethertype=0x0800))
    frame.add_protocol(ipv4.ipv4(src=ip, dst="169.254.169.254", **{"proto": 6} | of_ip))
    frame.add_protocol(tcp.tcp(source_port, 80, seq=1, bits=bits))
    frame.serialize()
    return bytes(frame.data)


def until(predicate: Callable[[], T], what: str, timeout: float = 5.0) -> T:
    """Wait for a true value while the hub runs. The harness' own helper would stop the hub."""

    def look() -> T:
        eventlet.sleep(0.001)
        return predicate()

    return wait_for(look, timeout, what, interval=0)


def let_hub_run() -> None:
    """Give the hub to whoever can go on now, until nobody can."""
    for _ in range(50):
        eventlet.sleep(0)


class Listener:
    """A listener whose connections come from whichever peer a test says."""

    def __init__(self) -> None:
        self._sock = eventlet.listen(("127.0.0.1", 0))
        self._peers: dict[int, str] = {}
        self.error: OSError | None = None

    @property
    def fd(self) -> Listener:
        return self

    def connect(self, peer: str) -> Any:
        guest = eventlet.green.socket.socket()
        guest.bind(("127.0.0.1", 0))
        self._peers[guest.getsockname()[1]] = peer
        with contextlib.suppress(ConnectionResetError):
            # What is too much may be reset before the guest knows that it is connected.
            guest.connect(self._sock.getsockname())
        guest.settimeout(5)
        return guest

    def accept(self) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        ours, (_ip, port) = self._sock.fd.accept()
        return ours, (self._peers.pop(port), port)

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def fileno(self) -> int:
        return int(self._sock.fileno())

    def close(self) -> None:
        self._sock.close()


@dataclass(frozen=True)
class Sent:
    """One message to the switch, as it went over the wire."""

    kind: int
    xid: int
    raw: bytes
    body: Any


@dataclass(frozen=True)
class PacketOut:
    """The body of an OFPT_PACKET_OUT."""

    in_port: int
    buffer_id: int
    actions: list[Any]
    frame: bytes


@dataclass(frozen=True)
class MeterMod:
    """The body of an OFPT_METER_MOD."""

    command: int
    flags: int
    meter: int
    rates: tuple[int, ...]


@dataclass(frozen=True)
class Bundle:
    """The body of an ONF bundle message; ``message`` where it adds one."""

    number: int
    flags: int
    step: int | None = None
    message: Sent | None = None


def unpack(data: bytes) -> list[Sent]:
    """Read a stream of OpenFlow messages."""
    messages = []
    while data:
        version, kind, length, xid = struct.unpack_from("!BBHI", data)
        assert version == ofp.OFP_VERSION
        assert 8 <= length <= len(data)
        raw, data = data[:length], data[length:]
        messages.append(Sent(kind, xid, raw, _body(kind, xid, raw)))
    return messages


def _body(kind: int, xid: int, raw: bytes) -> Any:
    match kind:
        case ofp.OFPT_FLOW_MOD:
            return parsed(raw)
        case ofp.OFPT_EXPERIMENTER:
            message = parsed(raw)
            is_onf = message.experimenter == ofproto_common.ONF_EXPERIMENTER_ID
            return _bundle(message) if is_onf else message
        case ofp.OFPT_PACKET_OUT:
            return _packet_out(raw)
        case ofp.OFPT_METER_MOD:
            return _meter_mod(raw)
        case ofp.OFPT_MULTIPART_REQUEST:
            return struct.unpack_from("!H", raw, 8)[0]
        case ofp.OFPT_SET_ASYNC:
            return struct.unpack_from("!6I", raw, 8)
        case ofp.OFPT_BARRIER_REQUEST:
            assert len(raw) == 8
            return None
    raise AssertionError(f"message type {kind}, xid {xid}: {raw!r}")


def parsed(raw: bytes) -> Any:
    """Have os-ken read a message."""
    version, kind, length, xid = struct.unpack_from("!BBHI", raw)
    desc = ProtocolDesc(version=ofp.OFP_VERSION)
    return ofproto_parser.msg(desc, version, kind, length, xid, bytearray(raw))


def _bundle(message: Any) -> Bundle:
    if message.exp_type == ofp.ONF_ET_BUNDLE_CONTROL:
        return Bundle(message.bundle_id, message.flags, step=message.type)
    assert message.exp_type == ofp.ONF_ET_BUNDLE_ADD_MESSAGE
    number, flags = struct.unpack_from("!I2xH", message.data)
    (inner,) = unpack(bytes(message.data[8:]))
    assert inner.xid == message.xid, "the extension asks for the same xid (3.3)"
    return Bundle(number, flags, message=inner)


def _packet_out(raw: bytes) -> PacketOut:
    buffer_id, in_port, length = struct.unpack_from("!IIH", raw, 8)
    offset, end, actions = 24, 24 + length, []
    while offset < end:
        action = ofp_parser.OFPAction.parser(bytearray(raw), offset)
        actions.append(action)
        offset += action.len
    assert offset == end
    return PacketOut(in_port, buffer_id, actions, raw[end:])


def _meter_mod(raw: bytes) -> MeterMod:
    command, flags, meter = struct.unpack_from("!HHI", raw, 8)
    offset, rates = 16, []
    while offset < len(raw):
        kind, length, rate, burst = struct.unpack_from("!HHII", raw, offset)
        assert kind == ofp.OFPMBT_DROP
        assert burst >= 1
        rates.append(rate)
        offset += length
    return MeterMod(command, flags, meter, tuple(rates))


def stats_of(mod: Any, *, packets: int = 0, octets: int = 0) -> Any:
    """The entry of a dump that the flow of *mod* has on the switch, read from bytes."""
    body = bytearray()
    mod.match.serialize(body, 0)
    for instruction in mod.instructions:
        instruction.serialize(body, len(body))
    head = struct.pack(
        ofp.OFP_FLOW_STATS_0_PACK_STR,
        ofp.OFP_FLOW_STATS_0_SIZE + len(body),
        mod.table_id,
        1,
        0,
        mod.priority,
        0,
        0,
        mod.flags,
        mod.cookie,
        packets,
        octets,
    )
    return ofp_parser.OFPFlowStats.parser(bytes(head + body), 0)


def port_desc(
    number: int, name: bytes, mac: bytes = bytes(6), *, config: int = 0, state: int = 0
) -> Any:
    """What the switch says of a port, read from bytes."""
    data = port_bytes(number, name, mac, config=config, state=state)
    return ofp_parser.OFPPort.parser(data, 0)


def port_bytes(
    number: int, name: bytes, mac: bytes = bytes(6), *, config: int = 0, state: int = 0
) -> bytes:
    """The same, as it stands in messages."""
    return struct.pack(ofp.OFP_PORT_PACK_STR, number, mac, name, config, state, *[0] * 6)


def removed_of(mod: Any, reason: int = ofp.OFPRR_DELETE) -> Any:
    """The flow-removed message of the flow of *mod*, read from bytes."""
    match = bytearray()
    mod.match.serialize(match, 0)
    body = struct.pack(
        "!QHBBIIHHQQ", mod.cookie, mod.priority, reason, mod.table_id, 1, 0, 0, 0, 0, 0
    )
    length = 8 + len(body) + len(match)
    head = struct.pack("!BBHI", ofp.OFP_VERSION, ofp.OFPT_FLOW_REMOVED, length, 0)
    return parsed(head + body + match)


class Datapath(ProtocolDesc):  # type: ignore[misc]  # os-ken has no types
    """What os-ken's messages are bound to, without a socket: keeps what is sent."""

    def __init__(self, number: int = DATAPATH) -> None:
        super().__init__(version=ofp.OFP_VERSION)
        self.id = number
        self.sent: list[Sent] = []
        self.writes = 0
        self.closed = False

    def send(self, data: bytes) -> bool:
        """Take what a channel writes."""
        self.writes += 1
        self.sent.extend(unpack(data))
        return True

    def close(self) -> None:
        """Note that the connection was refused."""
        self.closed = True

    def kinds(self) -> list[int]:
        """Types of the messages, in order."""
        return [one.kind for one in self.sent]

    def packet_outs(self) -> list[PacketOut]:
        """Frames that were sent on."""
        return [one.body for one in self.sent if one.kind == ofp.OFPT_PACKET_OUT]

    def flow_mods(self) -> list[Any]:
        """Flow-mods in order, bundled or not."""
        return [mod for _xid, mod in _flow_mods(self.sent)]


def _flow_mods(sent: list[Sent]) -> Iterator[tuple[int, Any]]:
    for one in sent:
        if one.kind == ofp.OFPT_FLOW_MOD:
            yield one.xid, one.body
        elif isinstance(one.body, Bundle) and one.body.message is not None:
            yield from _flow_mods([one.body.message])


Refusal = tuple[int, int]


class TinySwitch(Datapath):
    """Keeps flows and meters and confirms; it moves no packets.

    ``refuse`` says which flow-mod or meter-mod it answers with an error (type, code). While
    ``silent`` it answers nothing; :meth:`speak` gives the answers that were kept back.
    """

    def __init__(self, channel: Channel, number: int = DATAPATH) -> None:
        super().__init__(number)
        self.channel = channel
        self.flows: dict[Any, Any] = {}
        self.meters: dict[int, int] = {}
        self.has_meters = True
        self.over: dict[int, int] = {}
        """Meter → packets that it has dropped."""
        self.refuse: Callable[[Any], Refusal | None] = lambda _mod: None
        self.removed: Callable[[Any], None] = lambda _message: None
        self.names: dict[int, bytes] = {}
        self.listed: Callable[..., None] = lambda *_, **__: None
        self.silent = False
        self._late: list[Callable[[], object]] = []
        self._bundles: dict[int, list[Sent]] = {}

    def send(self, data: bytes) -> bool:
        """Do what the messages say, in order."""
        before = len(self.sent)
        super().send(data)
        for message in self.sent[before:]:
            self._do(message)
        return True

    def speak(self) -> None:
        """Give the answers that were kept back, and be silent no more."""
        self.silent = False
        late, self._late = self._late, []
        for one in late:
            one()
        let_hub_run()

    def dump(self) -> list[Any]:
        """What a dump of flows has."""
        return [stats_of(mod) for mod in self.flows.values()]

    def place(self, mod: Any) -> None:
        """Put a flow in, as somebody else would."""
        self.flows[_place(mod)] = mod

    def _answer(self, answer: Callable[[], object]) -> None:
        if self.silent:
            self._late.append(answer)
        else:
            answer()

    def _error(self, xid: int, refusal: Refusal) -> None:
        self._answer(lambda: self.channel.error(xid, *refusal))

    def _do(self, message: Sent) -> None:
        match message.kind, message.body:
            case ofp.OFPT_BARRIER_REQUEST, _:
                self._answer(lambda: self.channel.barrier_reply(message.xid))
            case ofp.OFPT_MULTIPART_REQUEST, kind:
                self._multipart(message, kind)
            case ofp.OFPT_METER_MOD, mod:
                self._meter(message.xid, mod)
            case ofp.OFPT_FLOW_MOD, mod:
                refusal = self.refuse(mod)
                if refusal is None:
                    self._mod(mod)
                else:
                    self._error(message.xid, refusal)
            case ofp.OFPT_EXPERIMENTER, Bundle() as bundle:
                self._bundle(message.xid, bundle)

    def _asked(self, raw: bytes) -> list[Any]:
        cookie, mask = struct.unpack_from("!QQ", raw, 32)
        return [mod for mod in self.flows.values() if not (mod.cookie ^ cookie) & mask]

    def _multipart(self, message: Sent, kind: int) -> None:
        xid = message.xid
        if kind == ofp.OFPMP_FLOW:
            entries = [stats_of(mod) for mod in self._asked(message.raw)]
        elif kind == ofp.OFPMP_PORT_DESC:
            self._list_ports(xid)
            return
        elif kind == ofp.OFPMP_AGGREGATE:
            entries = [ofp_parser.OFPAggregateStats(0, 0, len(self._asked(message.raw)))]
        elif not self.has_meters:
            self._error(xid, (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_MULTIPART))
            return
        else:
            (number,) = struct.unpack_from("!I", message.raw, 16)
            asked = list(self.meters) if number == ofp.OFPM_ALL else [number]
            if not self.meters.keys() >= set(asked):
                self._error(xid, (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_UNKNOWN_METER))
                return
            if kind == ofp.OFPMP_METER:
                entries = [_meter_counters(n, self._users(n), self.over.get(n, 0)) for n in asked]
            else:
                assert kind == ofp.OFPMP_METER_CONFIG
                entries = [_meter_entry(n, self.meters[n]) for n in asked]
        # In parts, as a switch sends what does not fit into one message.
        middle = len(entries) // 2
        first, second = entries[:middle], entries[middle:]
        self._answer(lambda: self.channel.multipart_reply(xid, first, more=True))
        self._answer(lambda: self.channel.multipart_reply(xid, second, more=False))

    def _list_ports(self, xid: int) -> None:
        ports = [port_desc(number, name) for number, name in self.names.items()]
        middle = len(ports) // 2
        self._answer(lambda: self.listed(self, xid, ports[:middle], more=True))
        self._answer(lambda: self.listed(self, xid, ports[middle:], more=False))

    def _users(self, meter: int) -> list[Any]:
        """Places of the flows that go through a meter."""
        return [
            place
            for place, mod in self.flows.items()
            if any(getattr(one, "meter_id", None) == meter for one in mod.instructions)
        ]

    def _meter(self, xid: int, mod: MeterMod) -> None:
        refusal = self.refuse(mod)
        if refusal is not None:
            self._error(xid, refusal)
        elif mod.command == ofp.OFPMC_DELETE:
            self.meters.pop(mod.meter, None)
            for place in self._users(mod.meter):
                del self.flows[place]
        elif mod.meter in self.meters:
            self._error(xid, (ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_METER_EXISTS))
        else:
            (self.meters[mod.meter],) = mod.rates

    def _bundle(self, xid: int, bundle: Bundle) -> None:
        if bundle.message is not None:
            self._bundles[bundle.number].append(bundle.message)
        elif bundle.step == ofp.ONF_BCT_OPEN_REQUEST:
            self._bundles[bundle.number] = []
        else:
            assert bundle.step == ofp.ONF_BCT_COMMIT_REQUEST
            mods = self._bundles.pop(bundle.number)
            for one in mods:
                refusal = self.refuse(one.body)
                if refusal is not None:
                    self._error(one.xid, refusal)
                    self._error(xid, (ofp.OFPET_EXPERIMENTER, 2308))
                    return
            for one in mods:
                self._mod(one.body)

    def _mod(self, mod: Any) -> None:
        if mod.command == ofp.OFPFC_ADD:
            self.flows[_place(mod)] = mod
            return
        for place, old in list(self.flows.items()):
            strict = mod.command != ofp.OFPFC_DELETE_STRICT or place == _place(mod)
            if strict and not (old.cookie ^ mod.cookie) & mod.cookie_mask:
                del self.flows[place]
                if old.flags & ofp.OFPFF_SEND_FLOW_REM:
                    message = removed_of(old)
                    self._answer(lambda message=message: self.removed(message))


def _place(mod: Any) -> Any:
    return mod.table_id, mod.priority, tuple(sorted(mod.match.items()))


PORT_FLOWS = len(guest_flows(Guest(Endpoint(1), None), TAP))
FIXED_FLOWS = len(fixed_flows(TAP))
"""Flows of a port without a known address."""


def _meter_entry(number: int, rate: int) -> Any:
    return MeterConfig(24, number, rate)


def _meter_counters(number: int, users: list[Any], over: int) -> Any:
    return MeterCount(56, number, flows=len(users), dropped=over)


@dataclass
class Rig:
    """The switch side of the daemon, on a tiny switch."""

    hold_timeout: float = 8.0
    adopts: Callable[[Endpoint], bool] = lambda _endpoint: True
    remembered: Memory = field(default_factory=dict)
    now: float = 1000.0
    pause: Callable[[float], object] = lambda _seconds: None
    ask: Callable[[], int] = lambda: 0
    informed: Callable[[], object] = lambda: None

    def __post_init__(self) -> None:
        self.registry = Registry(ask=lambda: self.ask(), clock=lambda: self.now)
        self.controller = Controller(
            self.registry,
            bridge="br-int",
            layout=Layout(),
            hold_timeout=self.hold_timeout,
            datapath_id=lambda: DATAPATH,
            adopts=lambda e: self.adopts(e),
            meters=self.remembered,
            informed=lambda: self.informed(),
            clock=lambda: self.now,
            pause=lambda seconds: self.pause(seconds),
        )
        self.channel, self.meters = self.controller.channel, self.controller.meters
        self.reconciler, self.learner = self.controller.reconciler, self.controller.learner
        self.switch = self.make_switch()

    def make_switch(self) -> TinySwitch:
        """A switch with nothing on it."""
        switch = TinySwitch(self.channel)
        switch.removed = self.controller.flow_removed
        switch.listed = self.controller.numbers.listed
        return switch

    def connect(self, *, tap: Tap | None = TAP) -> Rig:
        """Connect and reconcile, as the daemon does at start."""
        self.controller.set_tap(tap)
        self.controller.connected(self.switch)
        if tap is not None:
            self.reconciler.reconcile()
        let_hub_run()
        return self

    def disconnect(self) -> None:
        """Lose the connection."""
        self.controller.disconnected(self.switch)
        let_hub_run()

    def flows(self) -> set[Any]:
        """What the switch has, as flows of ours."""
        wire = Wire(self.channel.layout)
        found = [wire.found(stats) for stats in self.switch.dump()]
        return {one.flow for one in found if one is not None}
