"""The real app on a real switch: the right bytes leave."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import eventlet
import pytest
from eventlet.green import socket as green_socket
from os_ken.ofproto import ofproto_v1_3 as ofp

from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import METADATA_IP
from dfmeta.identity.key import IN_PORT, SLOT6
from dfmeta.model import Endpoint
from tests.core.flows.frames import (
    ATOMIC,
    AUTHENTICATION,
    DESTINATION,
    HOP_BY_HOP,
    ethernet,
    ipv4,
    link_layer,
    option,
    part,
    routing,
    tcp,
)
from tests.core.flows.world import SERVICE6, TAP6, App, Host, Host6, Link, World, settle, tap_frame
from tests.core.unit.support import until
from tests.harness.examples import FIXED
from tests.harness.netns import CommandError
from tests.harness.ovs import BRIDGE, OpenvSwitch
from tests.host.ovs.switch import ELSEWHERE, GUESTS, TAP_PORT, add_ports

ALL_PROTOCOLS = 3
"""ETH_P_ALL of linux/if_ether.h."""
TAP = Tap(TAP_PORT, "02:00:00:00:00:09", 9775)
HOST_IP_TAP = Tap(TAP_PORT, TAP.mac, 9775, ip="169.254.1.1")
HEADER = struct.Struct("!BBHI")


class Wired(App):
    """The app over a real connection."""

    def __init__(self, host: OpenvSwitch, *, tap: Tap) -> None:
        super().__init__(tap=tap)
        self._socket = green_socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(host.mgmt_socket()))
        self._socket.sendall(HEADER.pack(ofp.OFP_VERSION, ofp.OFPT_HELLO, 8, 0))
        self.link = Link(self._socket.sendall)
        self._reader = eventlet.spawn(self._read)
        self.connect(self.link)

    def __enter__(self) -> Wired:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.detach(self.link)
        self._reader.kill()
        self._socket.close()

    def inject(self, ofport: int, frame: bytes) -> None:
        """Have the switch treat *frame* as if it had come in at *ofport*."""
        parser = self.link.ofproto_parser
        through_tables = [parser.OFPActionOutput(ofp.OFPP_TABLE)]
        self.channel.post(
            [
                parser.OFPPacketOut(
                    self.link,
                    buffer_id=ofp.OFP_NO_BUFFER,
                    in_port=ofport,
                    actions=through_tables,
                    data=frame,
                )
            ]
        )

    def introduce(self, host: Host | Host6, **segment: Any) -> None:
        """Send a first SYN of *host*, again when it is lost, until the app knows the address."""
        endpoint = Endpoint(host.ofport)
        before = self.registry.slots(endpoint)
        for again in range(1, 200):
            self.inject(host.ofport, host.segment(**segment))
            if seen(lambda: self.registry.slots(endpoint) != before, 10 * again):
                break
        # The flows are sent in the hub's next turn, when the workers know the address.
        eventlet.sleep(0)
        self.reconciler.wait_for(endpoint)

    def confirmed(self) -> None:
        """Wait until the switch has everything that was sent."""
        for endpoint in self.registry.endpoints():
            self.reconciler.wait_for(endpoint)

    def _read(self) -> None:
        while True:
            head = self._exactly(HEADER.size)
            self.link.deliver(head + self._exactly(HEADER.unpack(head)[2] - HEADER.size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data)) or b""
        return data


def seen(predicate: Callable[[], bool], turns: int) -> bool:
    """Give the hub's other threads so many turns; return whether *predicate* holds meanwhile."""
    for _turn in range(turns):
        if predicate():
            return True
        eventlet.sleep(0.001)
    return False


@pytest.fixture
def bridge(shared_host: OpenvSwitch) -> OpenvSwitch:
    """A bridge with ports, whose own flow sends everything to one of them."""
    add_ports(shared_host)
    shared_host.ofctl("add-flow", BRIDGE, f"priority=0,actions=output:{ELSEWHERE}")
    return shared_host


# Bytes on the wire


@pytest.fixture
def sniffers(bridge: OpenvSwitch) -> Iterator[dict[int, socket.socket]]:
    """What the switch sends out of each port."""
    sockets = {}
    for number in (*GUESTS, ELSEWHERE, TAP_PORT):
        device = f"p{number}"
        bridge.namespace.sysctl(**{f"net.ipv6.conf.{device}.disable_ipv6": 1})
        bridge.namespace.ip(f"link set {device} up")
        sniffer = bridge.namespace.open_socket(socket.AF_PACKET, socket.SOCK_RAW)
        sniffer.bind((device, ALL_PROTOCOLS))
        sockets[number] = sniffer
    yield sockets
    for sniffer in sockets.values():
        sniffer.close()


@pytest.fixture(params=[True, False], ids=["datapath with ND extensions", "without them"])
def datapath(bridge: OpenvSwitch, request: pytest.FixtureRequest) -> Iterator[OpenvSwitch]:
    """The bridge, also on what ovs-vswitchd takes for a datapath of the kernel in this respect.

    Its premise: a field that is set needs the feature.
    """
    feature = ("dpif/set-dp-features", BRIDGE, "nd_ext")
    sets = "table=7,icmp6,icmp_type=135,icmp_code=0,actions=set_field:0x60000000->nd_reserved"
    if request.param:
        bridge.ofctl("add-flow", BRIDGE, sets)
        yield bridge
        return
    bridge.appctl(*feature, "false")
    with pytest.raises(CommandError, match="BAD_SET_ARGUMENT"):
        bridge.ofctl("add-flow", BRIDGE, sets)
    yield bridge
    bridge.appctl(*feature, "true")


@pytest.mark.hypothesis  # tools/soak has more frames
@pytest.mark.parametrize("tap", [TAP, HOST_IP_TAP], ids=["ip", "host_ip"])
def test_what_leaves_the_switch_is_what_leaves_the_model_byte_for_byte(
    bridge: OpenvSwitch, sniffers: dict[int, socket.socket], tap: Tap
) -> None:
    """Checksums too, which a trace does not show."""
    hosts = [Host(1), Host(2), Host(2, ip="10.255.255.254", mac="fa:16:3e:ff:ff:fe")]
    with Wired(bridge, tap=tap) as app, World(tap=tap) as world:
        acquaint(app, world, sniffers, [(guest, {}) for guest in hosts])
        agree(app, world, sniffers, frames(hosts, tap))


@pytest.mark.hypothesis  # tools/soak has more frames
def test_ipv6_leaves_the_switch_as_it_leaves_the_model_byte_for_byte(
    datapath: OpenvSwitch, sniffers: dict[int, socket.socket]
) -> None:
    """The flags and the type of the option too, which a trace does not show."""
    hosts = [Host6(1), Host6(2), Host6(2, ip="fe80::5", mac="fa:16:3e:ff:ff:fe")]
    request = (SERVICE6[0], SERVICE6[1], SERVICE6[0])
    with Wired(datapath, tap=TAP6) as app, World(tap=TAP6) as world:
        known = [(guest, {"dst": dst}) for guest, dst in zip(hosts, request, strict=True)]
        acquaint(app, world, sniffers, known)
        agree(app, world, sniffers, frames6(hosts, request))
        bare = Host6(1).solicit(to=SERVICE6[0], options=b"")
        world.receive(1, bare)
        app.inject(1, bare)
        assert receive(sniffers[1]) == world.switch.released[-1].frame


Known = list[tuple[Host | Host6, dict[str, Any]]]


def acquaint(app: Wired, world: World, sniffers: dict[int, socket.socket], guests: Known) -> None:
    """Introduce guests to the app on the bridge and to that on the model."""
    for each in (app, world):
        for ofport in (1, 2):
            each.plug(ofport)
        for guest, segment in guests:
            each.introduce(guest, **segment)
    tap, last = sniffers[TAP_PORT], b""
    for released in world.switch.released:
        # A SYN that is sent again may be let go again.
        while (frame := receive(tap)) == last:
            continue
        assert frame == released.frame
        last = frame
    settle()
    app.confirmed()
    while select.select([tap], [], [], 0)[0]:
        assert tap.recv(2048) == last


def agree(
    app: Wired, world: World, sniffers: dict[int, socket.socket], sent: Iterable[tuple[int, bytes]]
) -> None:
    """Send frames, each of which leaves on one port; the same bytes have to leave of both."""
    for in_port, frame in sent:
        (out,) = world.switch.receive(in_port, frame)
        app.inject(in_port, frame)
        eventlet.sleep(0)
        port = ELSEWHERE if out.port == ofp.OFPP_NORMAL else out.port
        assert receive(sniffers[port]) == out.frame, frame.hex()
    assert not select.select(sniffers.values(), [], [], 0)[0]


def frames(hosts: list[Host], tap: Tap) -> Iterator[tuple[int, bytes]]:
    """Requests, answers, ARP and others' traffic."""
    for guest, slot in zip(hosts, (0, 0, 1), strict=True):
        key = str(IN_PORT.key_of(Endpoint(guest.ofport), slot))
        for number in range(0, 0x10000, 0x5357 if FIXED else 0x1357):
            yield guest.ofport, guest.segment(sport=number, flags=number & 0xFF)
            yield tap.ofport, tap_frame(tap, key, dport=number, flags=number & 0xFF)
        yield guest.ofport, guest.question()
        yield tap.ofport, Host(tap.ofport, ip=tap.ip, mac=tap.mac).question(key)
        yield guest.ofport, guest.segment(dport=443)
        payload = tcp(dst=METADATA_IP, src=guest.ip, flags=0x18) + bytes(range(255))
        packet = ipv4(payload, dst=METADATA_IP, src=guest.ip)
        yield guest.ofport, ethernet(packet, dst=tap.mac, src=guest.mac)


def frames6(hosts: list[Host6], asked: Iterable[str]) -> Iterator[tuple[int, bytes]]:
    """Requests, answers, solicitations of all forms that are answered, and others' traffic."""
    chains = [
        [HOP_BY_HOP],
        [HOP_BY_HOP, DESTINATION, routing(0)],
        [routing(1)],
        [AUTHENTICATION],
        [ATOMIC],
    ]
    for guest, service, slot in zip(hosts, asked, (1, 1, 2), strict=True):
        key = str(IN_PORT.key_of(Endpoint(guest.ofport), SLOT6 + slot))
        for number in range(0, 0x10000, 0x7579 if FIXED else 0x3579):
            flags = {"flags": number & 0xFF}
            yield guest.ofport, guest.segment(sport=number, dst=service, **flags)
            yield TAP_PORT, tap_frame(TAP6, key, dport=number, **flags)
        for chain in chains:
            yield guest.ofport, guest.segment(dst=service, headers=chain)
            yield guest.ofport, guest.solicit(service, headers=chain)
        for options in options_of(guest.mac):
            yield guest.ofport, guest.solicit(service, options=options)
            yield guest.ofport, guest.solicit(service, to=service, options=options)
            padded = guest.solicit(service, options=options) + b"\xff" * 9
            yield guest.ofport, padded
        broken = bytearray(guest.solicit(service))
        broken[57] ^= 0x55  # the checksum, which Open vSwitch makes right
        yield guest.ofport, bytes(broken)
        kernel = Host6(TAP_PORT, ip=TAP6.ip6, mac=TAP6.mac)
        yield TAP_PORT, kernel.solicit(key)
        yield guest.ofport, guest.solicit("fe80::1")
        yield guest.ofport, guest.advertise(service)
        yield guest.ofport, guest.segment(dst=service, dport=443)
        yield guest.ofport, guest.segment(dst=service, headers=[part(0x0008)])


def options_of(mac: str) -> list[bytes]:
    """Options of a solicitation that has its sender's MAC among them."""
    own, nonce, long = link_layer(1, mac), option(14, b"\1" * 6), option(14, b"\2" * 14)
    return [own, own + nonce, nonce + own, own + long, long + own, own + link_layer(2, mac)]


def receive(sniffer: socket.socket) -> bytes:
    """Return the next frame that the switch has sent to a port."""
    until(lambda: bool(select.select([sniffer], [], [], 0)[0]), "a frame")
    return sniffer.recv(2048)
