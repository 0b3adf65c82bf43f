"""What unit tests share: datapaths without a socket, one of them to a model, and frames.

Every message to the switch is taken as its bytes, and every answer is made of bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import eventlet
import eventlet.green.socket
from click.testing import Result
from hypothesis import strategies as st
from os_ken.lib.packet import ethernet, icmpv6, ipv4, ipv6, packet, tcp, vlan
from os_ken.ofproto import ofproto_common, ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as ofp_parser
from os_ken.ofproto.ofproto_protocol import ProtocolDesc
from oslo_config import cfg
from ovs.db.data import Atom
from ovs.db.types import UuidType

from dfmeta import metrics
from dfmeta.apps.controller import Controller
from dfmeta.apps.metadata import MetadataApp
from dfmeta.flows.entry import Entry
from dfmeta.flows.integration_bridge import ServedEndpoint, Tap, fixed_flows, guest_flows
from dfmeta.flows.pipeline import Layout
from dfmeta.flows.wire import Wire
from dfmeta.identity.host_wide_allocator import HostWideAllocator
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Claim, Registry
from dfmeta.model import OFPORT_MAX, Endpoint, GuestAddress, MetaIds, Port
from dfmeta.runtime import clock
from dfmeta.runtime.hub import Turns
from tests import flowsim
from tests.core.flows.world import handle
from tests.harness.poll import DEADLINE

T = TypeVar("T")
INSTANCE = "6f1c2b5e-3a44-4a55-9d0e-7a1f0c9b1d01"
OTHER_INSTANCE = "0d2c8a8e-54e0-4a9d-a9b1-2f1d5c3b7e02"
PROJECT = "b9a3d2f07c7e4f4b8f4f7f0a1c2d3e4f"
GUEST_MAC = "fa:16:3e:00:00:01"
GUEST_IP = "10.0.0.5"
GUEST_IP6 = "fd12:3456::5"
SERVICE6 = ("fe80::a9fe:a9fe", "fd00:ec2::254")
TAP = Tap(ofport=9, mac="02:64:66:6d:65:fe", port=18080)
TAP6 = replace(TAP, ip6="fd00:a9fe:a9fe:a9fe::a9fe", guest_ip6=SERVICE6)
DATAPATH = 0x0000AABBCCDDEEFF
HERE = Endpoint(13)


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def succeeded(result: Result) -> str:
    """What a command printed that succeeded without a complaint."""
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def packet_ins(outcome: str) -> float:
    """How many packet-ins had this outcome so far."""
    return float(
        metrics.REGISTRY.get_sample_value("dfmeta_packet_ins_total", {"outcome": outcome}) or 0.0
    )


def address(ip: str = GUEST_IP, mac: str = GUEST_MAC) -> GuestAddress:
    return GuestAddress(mac, IPv4Address(ip))


def address6(ip: str = GUEST_IP6, mac: str = GUEST_MAC, service: str = SERVICE6[0]) -> GuestAddress:
    return GuestAddress(mac, IPv6Address(ip), IPv6Address(service))


def guests(
    slots: Sequence[int],
    slots6: Sequence[int],
    vids: st.SearchStrategy[int] = st.just(0),  # noqa: B008
) -> st.SearchStrategy[ServedEndpoint]:
    """Generate guests with up to three addresses of each family in these slots."""
    ipv4s = st.integers(0, 0xFFFFFFFF).map(lambda ip: replace(address(), ip=IPv4Address(ip)))
    ipv6s = st.builds(
        lambda ip, service: address6(str(IPv6Address(ip)), service=service),
        st.integers(0, (1 << 128) - 1),
        st.sampled_from(SERVICE6),
    )
    return st.builds(
        lambda endpoint, ipv4, ipv6: ServedEndpoint(endpoint, ipv4 | ipv6),
        st.builds(Endpoint, st.integers(1, OFPORT_MAX), vids),
        st.dictionaries(st.sampled_from(slots), ipv4s, max_size=3),
        st.dictionaries(st.sampled_from(slots6), ipv6s, max_size=3),
    )


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


def first_numbers(registry: Registry) -> dict[str, MetaIds]:
    """Row → the Meta addresses of its port's first numbers, as far as it has got any."""
    numbers = registry.allocator
    assert isinstance(numbers, HostWideAllocator)
    return {
        port_id.row: numbers._ids(holder)
        for port_id, holder in numbers._holders.items()
        if holder.firsts
    }


def syn(
    ip: str = GUEST_IP,
    *,
    mac: str = GUEST_MAC,
    source_port: int = 40000,
    bits: int = 0x02,
    vid: int | None = None,
    **of_ip: Any,
) -> bytes:
    """A segment to the service; *of_ip* are further fields of the IPv4 header."""
    head = ipv4.ipv4(src=ip, dst="169.254.169.254", **{"proto": 6} | of_ip)
    tag = [] if vid is None else [vlan.vlan(vid=vid, pcp=5, ethertype=0x0800)]
    return _frame(mac, 0x8100 if tag else 0x0800, *tag, head, tcp.tcp(source_port, 80, bits=bits))


def syn6(
    ip: str = GUEST_IP6,
    *,
    mac: str = GUEST_MAC,
    service: str = SERVICE6[0],
    source_port: int = 40000,
) -> bytes:
    head = ipv6.ipv6(src=ip, dst=service, nxt=6)
    return _frame(mac, 0x86DD, head, tcp.tcp(source_port, 80, bits=0x02))


def solicit(
    *,
    source: str = GUEST_IP6,
    target: str = SERVICE6[0],
    option: bool = True,
    kind: int = icmpv6.ND_NEIGHBOR_SOLICIT,
) -> bytes:
    """A unicast neighbour solicitation, with the source link-layer address as *option*."""
    sender = icmpv6.nd_option_sla(hw_src=GUEST_MAC) if option else None
    head = ipv6.ipv6(src=source, dst=target, nxt=58, hop_limit=255)
    message = icmpv6.icmpv6(type_=kind, data=icmpv6.nd_neighbor(0, target, sender))
    return _frame(GUEST_MAC, 0x86DD, head, message)


def _frame(mac: str, ethertype: int, *headers: Any) -> bytes:
    frame = packet.Packet()
    for header in (ethernet.ethernet(TAP.mac, mac, ethertype), *headers):
        frame.add_protocol(header)
    frame.serialize()
    return bytes(frame.data)


AMPLE = 30.0
"""Seconds of a limit that is not reached."""


def until(predicate: Callable[[], T], what: str) -> T:
    """Wait for a true value while the hub runs. The harness' own helper would stop the hub."""
    began = clock.now()
    while True:
        waited = clock.now() - began
        eventlet.sleep(max(0.001, min(waited * 0.1, 0.1)))
        if value := predicate():
            return value
        if waited >= DEADLINE:
            raise TimeoutError(f"timed out after {DEADLINE:g} s waiting for {what}")


def claim_of(registry: Registry, endpoint: Endpoint = HERE) -> Claim:
    """What a connection of a port's guest is accepted as."""
    learned = registry.learn(endpoint, address(), 0)
    assert learned is not None
    claim = registry.claim(IN_PORT.key_of(endpoint, learned.slot))
    assert claim is not None
    return claim


def let_hub_run() -> None:
    """Give the hub to the greenthreads that can go on now, until none can."""
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
        guest.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


class Sent(NamedTuple):
    kind: int
    xid: int
    raw: bytes
    body: Any


class PacketOut(NamedTuple):
    in_port: int
    buffer_id: int
    actions: list[Any]
    frame: bytes


class Bundle(NamedTuple):
    """The body of an ONF bundle message; ``message`` where it adds one."""

    number: int
    flags: int
    step: int | None = None
    message: Sent | None = None


def unpack(data: bytes) -> list[Sent]:
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
        case ofp.OFPT_MULTIPART_REQUEST:
            return struct.unpack_from("!H", raw, 8)[0]
        case ofp.OFPT_SET_ASYNC:
            return struct.unpack_from("!6I", raw, 8)
        case ofp.OFPT_BARRIER_REQUEST:
            assert len(raw) == 8
            return None
    raise AssertionError(f"message type {kind}, xid {xid}: {raw!r}")


def parsed(raw: bytes) -> Any:
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


def stats_bytes(mod: Any, *, cookie: int | None = None, packets: int, octets: int) -> bytes:
    """The entry of a dump that the flow of *mod* has on the switch."""
    body = bytearray()
    mod.match.serialize(body, 0)
    for instruction in mod.instructions:
        instruction.serialize(body, len(body))
    head = struct.pack(
        ofp.OFP_FLOW_STATS_0_PACK_STR,
        ofp.OFP_FLOW_STATS_0_SIZE + len(body),
        *(mod.table_id, 12, 34, mod.priority, 0, 0, mod.flags),
        *(mod.cookie if cookie is None else cookie, packets, octets),
    )
    return bytes(head + body)


def stats_of(mod: Any, *, packets: int = 0, octets: int = 0) -> Entry:
    """The same entry, as os-ken reads it."""
    return Entry(stats_bytes(mod, packets=packets, octets=octets))


def port_bytes(
    number: int, name: bytes, mac: bytes = bytes(6), *, config: int = 0, state: int = 0
) -> bytes:
    return struct.pack(ofp.OFP_PORT_PACK_STR, number, mac, name, config, state, *[0] * 6)


def port_desc(*described: Any, **bits: Any) -> Any:
    """The same, as os-ken reads it."""
    return ofp_parser.OFPPort.parser(port_bytes(*described, **bits), 0)


def removed_of(mod: Any) -> Any:
    match = bytearray()
    mod.match.serialize(match, 0)
    place = mod.cookie, mod.priority, ofp.OFPRR_DELETE, mod.table_id
    body = struct.pack("!QHBBIIHHQQ", *place, 1, 0, 0, 0, 0, 0)
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
        self.socket: Any = None

    def send(self, data: bytes) -> bool:
        self.writes += 1
        self.sent.extend(unpack(data))
        return True

    def close(self) -> None:
        self.closed = True

    def kinds(self) -> list[int]:
        return [message.kind for message in self.sent]

    def packet_outs(self) -> list[PacketOut]:
        return [message.body for message in self.sent if message.kind == ofp.OFPT_PACKET_OUT]

    def flow_mods(self) -> list[Any]:
        return [mod for _xid, mod in _flow_mods(self.sent)]


def _flow_mods(sent: list[Sent]) -> Iterator[tuple[int, Any]]:
    for message in sent:
        if message.kind == ofp.OFPT_FLOW_MOD:
            yield message.xid, message.body
        elif isinstance(message.body, Bundle) and message.body.message is not None:
            yield from _flow_mods([message.body.message])


Refusal = tuple[int, int]


class _Model(flowsim.Switch):
    """The model, with ports that have names, and refusals (type, code) that a test chooses."""

    def __init__(self, deliver: Callable[[bytes], object]) -> None:
        super().__init__((), deliver)
        self.refuse: Callable[[Any], Refusal | None] = lambda _mod: None
        self.names: dict[int, bytes] = {}

    def _flow_mod(self, message: bytes) -> None:
        refusal = self.refuse(parsed(message))
        if refusal is not None:
            raise flowsim.RefusalError(*refusal)
        super()._flow_mod(message)

    def _multipart(self, xid: int, kind: int, message: bytes) -> None:
        if kind == ofp.OFPMP_PORT_DESC:
            ports = [port_bytes(number, name) for number, name in self.names.items()]
            for more, part in ((ofp.OFPMPF_REPLY_MORE, ports[::2]), (0, ports[1::2])):
                body = struct.pack("!HH4x", kind, more) + b"".join(part)
                self._send(ofp.OFPT_MULTIPART_REPLY, xid, body)
        else:
            super()._multipart(xid, kind, message)


class ModelSwitch(Datapath):
    """A datapath to the model of a switch. While ``silent``, answers wait for :meth:`speak`."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._numbers = controller.numbers
        self._app = MetadataApp(controller=controller)
        self._app._turns = Turns(float("inf"))
        self.model = _Model(self._deliver)
        self.removed: Callable[[Any], object] = controller.bridge.flow_removed
        self.silent = False
        self._late: list[Callable[[], object]] = []

    @property
    def flows(self) -> list[flowsim.Entry]:
        return self.model.flows

    @flows.setter
    def flows(self, flows: Iterable[flowsim.Entry]) -> None:
        self.model.flows = list(flows)

    def send(self, data: bytes) -> bool:
        super().send(data)
        self.model.feed(data)
        return True

    def speak(self) -> None:
        self.silent = False
        late, self._late = self._late, []
        for one in late:
            one()
        let_hub_run()

    def dump(self) -> list[Any]:
        return [ofp_parser.OFPFlowStats.parser(flowsim.stats(flow), 0) for flow in self.flows]

    def place(self, mod: Any) -> flowsim.Entry:
        """Put a flow in, as another controller would."""
        mod.set_xid(0)
        mod.serialize()
        self.model.feed(bytes(mod.buf))
        return self.flows[-1]

    def _deliver(self, data: bytes) -> None:
        version, kind, length, xid = struct.unpack_from("!BBHI", data)
        message = ofproto_parser.msg(self, version, kind, length, xid, bytearray(data))
        if self.silent:
            self._late.append(partial(self._hand_on, message))
        else:
            self._hand_on(message)

    def _hand_on(self, message: Any) -> None:
        match message:
            case ofp_parser.OFPFlowRemoved():
                self.removed(message)
            case ofp_parser.OFPPortDescStatsReply(flags=flags):
                more = bool(flags & ofp.OFPMPF_REPLY_MORE)
                self._numbers.listed(self, message.xid, message.body, more=more)
            case _:
                handle(self._app, message)


PORT_FLOWS = len(guest_flows(ServedEndpoint(Endpoint(1)), TAP))
FIXED_FLOWS = len(fixed_flows(TAP))
"""Flows of a port without a known address."""


@dataclass
class Rig:
    """The switch side of the daemon, on the model of a switch."""

    adopts: Callable[[Endpoint], bool] = lambda _endpoint: True
    now: float = 1000.0
    pause: Callable[[float], object] = lambda _seconds: None
    ask: Callable[[], int] = lambda: 0

    def __post_init__(self) -> None:
        self.registry = Registry(ask=lambda: self.ask(), clock=lambda: self.now)
        self.controller = Controller(
            self.registry,
            bridge="br-int",
            layout=Layout(),
            hold_timeout=8.0,
            datapath_id=lambda: DATAPATH,
            adopts=lambda e: self.adopts(e),
            clock=lambda: self.now,
            pause=lambda seconds: self.pause(seconds),
        )
        self.channel, self.floods = self.controller.bridge.channel, self.controller.floods
        self.reconciler, self.learner = self.controller.bridge.reconciler, self.controller.learner
        self.switch = self.make_switch()

    def make_switch(self) -> ModelSwitch:
        return ModelSwitch(self.controller)

    def connect(self, *, tap: Tap | None = TAP) -> Rig:
        """Connect and reconcile, as the daemon does at start."""
        self.controller.bridge.set_tap(tap)
        self.controller.bridge.connected(self.switch)
        if tap is not None:
            self.reconciler.reconcile()
        let_hub_run()
        return self

    def disconnect(self) -> None:
        self.controller.bridge.disconnected(self.switch)
        let_hub_run()

    def flows(self) -> set[Any]:
        """What the switch has, as flows of ours."""
        wire = Wire(self.channel.layout)
        found = [wire.found(Entry(flowsim.stats(flow))) for flow in self.switch.flows]
        return {flow.flow for flow in found if flow is not None}


class _Datum(NamedTuple):
    """A column of a row of the IDL."""

    value: Any

    def to_python(self, _row_of: object) -> Any:
        return self.value

    @property
    def values(self) -> dict[Any, None]:
        return {Atom(UuidType, row.uuid): None for row in self.value}


class IdlRow(SimpleNamespace):
    """A row as the IDL has it: its columns are attributes, and data."""

    __hash__ = object.__hash__
    _uuid_to_row = None

    @property
    def _data(self) -> dict[str, _Datum]:
        return {name: _Datum(value) for name, value in vars(self).items()}
