"""The real controller, reconciler, learner, channel and os-ken shims, on a switch of a test.

Nothing here runs by itself: :func:`settle` gives the hub's other threads their turns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, Self

import eventlet
import pytest
from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto.ofproto_protocol import ProtocolDesc

from dfmeta.apps.controller import Controller
from dfmeta.apps.metadata import MetadataApp
from dfmeta.apps.reconciler import Remembered
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import METADATA_IP, METADATA_PORT, RATES, Layout, Purpose, cookie_of
from dfmeta.identity.key import IN_PORT
from dfmeta.identity.registry import Registry
from dfmeta.model import Endpoint, Port, PortId
from dfmeta.runtime.hub import Turns
from tests.core.flows.frames import (
    Frame,
    arp,
    ends_of,
    ethernet,
    ipv4,
    ipv6,
    link_layer,
    mac,
    multicast_mac,
    neighbour,
    solicited_node,
    sums_are_right,
    tcp,
)
from tests.flowsim import Out, Switch

TAP = Tap(ofport=9, mac="02:00:00:00:00:09", port=9775)
SERVICE6 = ("fe80::a9fe:a9fe", "fd00:ec2::254")
TAP6 = replace(TAP, ip6="fd00:a9fe:a9fe:a9fe::a9fe", guest_ip6=SERVICE6)
GATEWAY_MAC = "fa:16:3e:99:99:99"
BROADCAST = "ff:ff:ff:ff:ff:ff"
versions = pytest.mark.parametrize("version", [4, 6])
"""For a test that holds over either version of IP."""
TURNS = 12
"""More than the longest chain of threads from a message sent to what its answer sets off."""


class Host:
    """One guest's network stack: makes the frames that it would send, here over IPv4."""

    version, service, usual_ip = 4, METADATA_IP, "10.0.0.5"

    def __init__(self, ofport: int, ip: str = "", mac: str = "fa:16:3e:00:00:05") -> None:
        self.ofport, self.ip, self.mac = ofport, ip or self.usual_ip, mac

    def segment(
        self,
        *,
        dst: str = "",
        headers: Iterable[tuple[int, bytes]] = (),
        tags: Iterable[int] = (),
        **fields: int,
    ) -> bytes:
        """A TCP segment to the service, a SYN to port 80 unless *fields* say otherwise."""
        ends = {"dst": dst or self.service, "src": self.ip}
        payload = tcp(**fields, **ends)  # type: ignore[arg-type]
        if self.version == 4:
            return self.packet(ipv4(payload, **ends), tags=tags)
        return self.packet(ipv6(payload, headers=headers, **ends), tags=tags)

    def question(
        self, target: str = METADATA_IP, *, op: int = 1, tags: Iterable[int] = ()
    ) -> bytes:
        """An ARP packet, a request unless *op* says otherwise."""
        packet = arp(op=op, sha=self.mac, spa=self.ip, tpa=target)
        return ethernet(packet, dst=BROADCAST, src=self.mac, kind=0x0806, tags=tags)

    def other(self, number: int) -> Self:
        """Return another address of the same guest."""
        ip = str(ip_address(self.ip) + 256 + number)
        return type(self)(self.ofport, ip=ip, mac=self.mac)

    def request(self, *, tags: Iterable[int] = ()) -> bytes:
        """Its request for the service's MAC."""
        return self.question(tags=tags)

    def packet(self, packet: bytes, *, mac: str = GATEWAY_MAC, tags: Iterable[int] = ()) -> bytes:
        """A frame with any packet of its version of IP."""
        kind = 0x0800 if self.version == 4 else 0x86DD
        return ethernet(packet, dst=mac, src=self.mac, kind=kind, tags=tags)


class Host6(Host):
    """The same guest's IPv6."""

    version, service, usual_ip = 6, SERVICE6[0], "fd12:3456::5"

    def solicit(
        self,
        target: str = SERVICE6[0],
        *,
        to: str = "",
        options: bytes | None = None,
        headers: Iterable[tuple[int, bytes]] = (),
        tags: Iterable[int] = (),
    ) -> bytes:
        """A solicitation with its own MAC in it, by multicast unless *to* is an address."""
        own = link_layer(1, self.mac) if options is None else options
        dst = to or solicited_node(target)
        message = neighbour(135, target=target, dst=dst, src=self.ip, options=own)
        packet = ipv6(message, dst=dst, src=self.ip, proto=58, headers=headers)
        mac = GATEWAY_MAC if to else multicast_mac(dst)
        return self.packet(packet, mac=mac, tags=tags)

    def request(self, *, tags: Iterable[int] = ()) -> bytes:
        return self.solicit(tags=tags)

    def advertise(self, target: str = SERVICE6[0], *, dst: str = "ff02::1") -> bytes:
        """An advertisement that says that *target* is here."""
        own = link_layer(2, self.mac)
        message = neighbour(136, target=target, dst=dst, src=self.ip, flags=0x60000000, options=own)
        return self.packet(
            ipv6(message, dst=dst, src=self.ip, proto=58), mac=multicast_mac("ff02::1")
        )


def host(version: int, ofport: int = 1, **more: str) -> Host:
    """A guest's network stack of a version of IP, with the same addresses each time."""
    return (Host if version == 4 else Host6)(ofport, **more)


def key_of(endpoint: Endpoint | int, version: int, place: int = 0) -> str:
    """The key of one of an endpoint's slots for a version of IP, the first unless *place* says."""
    if isinstance(endpoint, int):
        endpoint = Endpoint(endpoint)
    return str(IN_PORT.key_of(endpoint, IN_PORT.slots(version)[place]))


class Link:
    """What the app takes for os-ken's datapath, and the way back from a switch to the shims."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.ofproto_version = ofp.OFP_VERSION
        described = ProtocolDesc(version=ofp.OFP_VERSION)
        self.ofproto, self.ofproto_parser = described.ofproto, described.ofproto_parser
        self.id = 0xDF
        self.app: MetadataApp | None = None
        self._write = write

    def send(self, data: bytes) -> bool:
        """Hand whole messages to the switch."""
        self._write(data)
        return True

    def deliver(self, data: bytes) -> None:
        """Take one message of the switch to the handler that os-ken would call."""
        version, kind, length, xid = struct.unpack_from("!BBHI", data)
        message = ofproto_parser.msg(self, version, kind, length, xid, data)
        assert message is not None, data.hex()
        handle(self.app, message)


def handle(app: MetadataApp | None, message: Any) -> None:
    """Call the handler of *app* that os-ken would call with *message*, if there is one."""
    handlers = {
        "OFPPacketIn": MetadataApp.packet_in,
        "OFPFlowRemoved": MetadataApp.flow_removed,
        "OFPBarrierReply": MetadataApp.barrier_reply,
        "OFPErrorMsg": MetadataApp.error,
        "OFPFlowStatsReply": MetadataApp.multipart_reply,
        "OFPAggregateStatsReply": MetadataApp.aggregate_reply,
    }
    handler = handlers.get(type(message).__name__)
    if handler is not None:
        handler(app, SimpleNamespace(msg=message))


class App:
    """The switch side of the daemon without its sockets and its timer."""

    def __init__(
        self,
        *,
        tap: Tap = TAP,
        layout: Layout | None = None,
        adopts: Callable[[Endpoint], bool] = lambda _endpoint: True,
        remembered: Callable[[], Iterable[Remembered]] = tuple,
    ) -> None:
        self.now = 100.0
        self.registry = Registry()
        self.controller = Controller(
            self.registry,
            bridge="br-int",
            layout=layout or Layout(),
            hold_timeout=10,
            datapath_id=lambda: None,
            adopts=adopts,
            remembered=remembered,
            clock=lambda: self.now,
            pause=lambda _seconds: None,
        )
        self.channel, self.floods = self.controller.bridge.channel, self.controller.floods
        self.reconciler, self.learner = self.controller.bridge.reconciler, self.controller.learner
        self.reconciler.tap = tap

    @property
    def tap(self) -> Tap:
        """Where the proxy is."""
        assert self.reconciler.tap is not None
        return self.reconciler.tap

    def connect(self, link: Link) -> None:
        """As after os-ken's handshake on *link*, and the reconcile that follows it."""
        link.app = MetadataApp(controller=self.controller)
        # A frame's packet-in is handled where the test hands it in, not in os-ken's own thread.
        link.app._turns = Turns(float("inf"))
        self.controller.bridge.connected(link)
        self.reconciler.reconcile()
        settle()

    def plug(self, ofport: Any, *, instance: str = "instance-1", **more: Any) -> Endpoint:
        """Have a guest's port appear, or change."""
        fields = {"name": f"tap{ofport}", "row": f"row-{ofport}", "iface_id": f"port-{ofport}"}
        self.registry.set_port(Port(ofport=ofport, instance_id=instance, **fields | more))
        settle()
        return Endpoint(ofport, more.get("vid", 0))

    def unplug(self, ofport: int, vid: int = 0) -> None:
        """Have a guest's port disappear."""
        self.registry.remove_port(PortId(f"row-{ofport}", vid))
        settle()


class World(App):
    """The app on the model, with ports 1 to 9 (9 is tap-metadata) and the flow NORMAL."""

    def __init__(
        self, *, switch: Switch | None = None, ports: Iterable[Port] = (), **more: Any
    ) -> None:
        super().__init__(**more)
        for port in ports:
            self.registry.set_port(port)
        self.attach(switch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.detach(self.link)
        settle()

    def attach(self, switch: Switch | None = None) -> None:
        """Connect to a switch: the one given, or a new one with the flow NORMAL alone."""
        self.link = Link(lambda data: self.switch.feed(data))
        self.switch = switch or Switch(range(1, 10), self.link.deliver)
        self.switch._deliver = self.link.deliver
        if switch is None:
            actions = [self.link.ofproto_parser.OFPActionOutput(ofp.OFPP_NORMAL)]
            self.foreign(actions=actions, priority=0)
        self.connect(self.link)

    def restarted(self, **more: Any) -> World:
        """Have another process take over the switch."""
        self.channel.detach(self.link)
        settle()
        kept = {"tap": self.tap, "ports": self.registry.ports()}
        return World(switch=self.switch, **kept | more)

    def foreign(self, *, actions: Iterable[Any] = (), **fields: Any) -> None:
        """Add a flow that is not dfmeta's."""
        parser, match = self.link.ofproto_parser, fields.pop("match", {})
        step = parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, list(actions))
        mod = parser.OFPFlowMod(
            self.link, match=parser.OFPMatch(**match), instructions=[step], **fields
        )
        self.send(mod)

    def send(self, message: Any) -> None:
        """Send the switch a message as another program does."""
        message.set_xid(0)
        message.serialize()
        self.switch.feed(bytes(message.buf))
        settle()

    def receive(self, ofport: int, frame: bytes) -> list[Out]:
        """Let *frame* come in; the app takes its packet-in, if any, and what follows is done."""
        outs = self.switch.receive(ofport, frame)
        settle()
        return outs

    def answered(self, arrived: Out) -> list[Out]:
        """Let the host's kernel answer a frame that has arrived at the proxy."""
        frame = Frame(self.tap.ofport, arrived.frame)
        key, port = ends_of(frame)["src"], frame["tcp_src"]
        return self.receive(
            self.tap.ofport, tap_frame(self.tap, key, sport=self.tap.port, dport=port)
        )

    def introduce(self, host: Host, **segment: Any) -> Out:
        """Send a first SYN of *host*; give back what the app has released of it."""
        before = len(self.switch.released)
        self.receive(host.ofport, host.segment(**segment))
        (released,) = self.switch.released[before:]
        return released

    def hold_answers(self) -> list[bytes]:
        """Let what the switch sends pile up in the list that is given back."""
        held: list[bytes] = []
        self.switch._deliver = held.append
        return held

    def let_go(self, held: list[bytes]) -> None:
        """Deliver what was held, and what comes from now on at once."""
        self.switch._deliver = self.link.deliver
        for message in held:
            self.link.deliver(message)
        settle()


def assert_is_for_the_proxy(out: Out, guest: Host, *, key: str, tap: Tap = TAP6) -> None:
    """A guest's frame leaves for the proxy with this key, and nothing else of it has changed."""
    frame = Frame(guest.ofport, out.frame)
    assert out.port == tap.ofport
    assert (mac(frame["eth_dst"]), mac(frame["eth_src"])) == (tap.mac, guest.mac)
    assert ends_of(frame) == {"src": key, "dst": tap.service(ip_address(key).version).ip}
    assert (frame["tcp_src"], frame["tcp_dst"]) == (40000, tap.port)
    assert sums_are_right(out.frame)


def assert_is_an_answer(out: Out, guest: Host, *, service: str = "") -> None:
    """A frame leaves at a guest's port as the service's answer to it."""
    frame = Frame(guest.ofport, out.frame)
    assert out.port == guest.ofport
    assert (mac(frame["eth_dst"]), mac(frame["eth_src"])) == (guest.mac, TAP.mac)
    assert ends_of(frame) == {"src": service or guest.service, "dst": guest.ip}
    assert (frame["tcp_src"], frame["tcp_dst"]) == (METADATA_PORT, 40000)
    assert sums_are_right(out.frame)


def flood(
    world: World, guest: Host, frame: bytes = b"", *, tags: Iterable[int] = (), count: int = 0
) -> None:
    """Send first packets of a guest until its flow drops them, *frame* or a SYN of each address."""
    for number in range(count or 2 * RATES[Purpose.SYN]):
        sender = guest if frame else guest.other(number)
        world.receive(guest.ofport, frame or sender.segment(tags=tags))


def surge(world: World, guest: Host, count: int = 2 * RATES[Purpose.GUEST_SYN]) -> None:
    """Have a guest send *count* SYNs a second, until the switch's counters have shown it.

    The first reading that follows a surge has none before it to compare with.
    """
    for number in (0, count, count):
        count_syns(world, guest.ofport, number)
        world.now += 1
        world.floods.look()
    settle()


def count_syns(world: World, ofport: int, count: int) -> None:
    """Count SYNs of a port on the switch as if they had come in."""
    cookie = cookie_of(Purpose.GUEST_SYN)
    for entry in world.switch.flows:
        if entry.cookie == cookie and entry.match["in_port"][0] == ofport:
            entry.packets += count
            return


def untouched(world: World, ofport: int, frame: bytes) -> bool:
    """Whether *frame* goes the bridge's own way, as it is, and nowhere else."""
    return world.receive(ofport, frame) == [Out(ofp.OFPP_NORMAL, frame)]


def tap_frame(
    tap: Tap, key: str, *, src: str = "", sport: int = 0, dport: int = 40000, flags: int = 0x12
) -> bytes:
    """A TCP segment that tap-metadata emits towards *key*."""
    version = ip_address(key).version
    src = src or tap.service(version).ip
    payload = tcp(dst=key, src=src, sport=sport or tap.port, dport=dport, flags=flags)
    make, kind = (ipv6, 0x86DD) if version == 6 else (ipv4, 0x0800)
    packet = make(payload, dst=key, src=src)
    return ethernet(packet, dst="fa:16:3e:0a:0b:0c", src=tap.mac, kind=kind)


def settle() -> None:
    """Give all threads of the hub their turns."""
    for _ in range(TURNS):
        eventlet.sleep(0)
