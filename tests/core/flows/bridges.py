"""br-int and br-meta of ``identity_scheme = meta_ip``: two models of a switch, joined by a patch.

The numbers of the guests' addresses are given, so that no registry is needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from os_ken.ofproto import ofproto_v1_3 as ofp
from os_ken.ofproto import ofproto_v1_3_parser as parser

from dfmeta.flows import integration_bridge, meta_bridge
from dfmeta.flows.integration_bridge import ServedEndpoint
from dfmeta.flows.openflow import Action, Flow
from dfmeta.flows.pipeline import BR_META, METADATA_IP, METADATA_PORT, Layout
from dfmeta.flows.wire import Wire
from dfmeta.identity.key import MetaKeys
from dfmeta.model import TAP_MAC, Endpoint, GuestAddress
from tests.core.flows.frames import Frame, ends_of, ethernet, ipv4, ipv6, mac, sums_are_right, tcp
from tests.core.flows.world import Host, Host6
from tests.flowsim import Switch
from tests.harness.meta import (
    CIDR,
    PATCH_INT,
    PATCH_META,
    PORT,
    SERVICE6,
    TAP_META,
    meta_keys,
    meta_tap_of,
    patch_of,
)

NEXT_HOP_MAC = "02:64:66:6d:65:01"
"""MAC of the host's permanent neighbour behind tap-meta."""
FOREIGN = 7
"""A port of br-meta that is none of dfmeta's."""
GUESTS = (1, 2, 3)


KEYS = meta_keys()
SIZE = CIDR.num_addresses
MAC, IP, IP6 = "fa:16:3e:00:00:05", "10.0.0.5", "fd12:3456::5"
"""The addresses of two guests in one network that call themselves the same."""
KNOWN = GuestAddress(MAC, IPv4Address(IP))
KNOWN6 = [GuestAddress(MAC, IPv6Address(IP6), IPv6Address(service)) for service in SERVICE6]


def twin(ofport: int, first: int) -> ServedEndpoint:
    """A guest whose addresses have the numbers from *first* up in each version of IP."""
    ipv6 = {SIZE + first + n: known for n, known in enumerate(KNOWN6)}
    return ServedEndpoint(Endpoint(ofport), {first: KNOWN, **ipv6})


A, B = twin(1, 7), twin(2, 17)
"""Two guests that do not differ but for their ports."""
LABELS = [KEYS.label(number) for guest in (A, B) for number in guest.addresses]
"""Their Meta MACs."""


def own_keys(guest: ServedEndpoint) -> list[str]:
    """The Meta IPs of a guest, in the order of :func:`requests`."""
    return [str(KEYS.key_of(guest.endpoint, number)) for number in guest.addresses]


def requests(ofport: int) -> list[tuple[Host, str, bytes]]:
    """Each of a twin's addresses, the service's that it asks, and its SYN."""
    host, host6 = Host(ofport, IP, MAC), Host6(ofport, IP6, MAC)
    ways = [(host, METADATA_IP), *((host6, service) for service in SERVICE6)]
    return [(one, service, one.segment(dst=service)) for one, service in ways]


@dataclass(frozen=True)
class Left:
    """A frame that has left the two bridges."""

    bridge: str
    port: int
    """``OFPP_CONTROLLER`` and ``OFPP_NORMAL`` stand for themselves."""
    frame: bytes


class Bridges:
    """Both bridges, with the flows of *guests*; all else goes the bridges' own way (NORMAL)."""

    def __init__(
        self,
        guests: Iterable[ServedEndpoint],
        *,
        keys: MetaKeys | None = None,
        ip6: tuple[str, ...] = SERVICE6,
    ) -> None:
        self.keys = keys or meta_keys()
        self.patch, self.tap = patch_of(self.keys, ip6), meta_tap_of(self.keys, ip6)
        self.switches = {
            "br-int": Switch((*GUESTS, PATCH_INT), lambda _message: None),
            "br-meta": Switch((TAP_META, PATCH_META, FOREIGN), lambda _message: None),
        }
        self.wires = {"br-int": Wire(Layout()), "br-meta": Wire(Layout(pipeline=BR_META))}
        for bridge in self.switches:
            self._feed(bridge, self._normal(bridge))
        self.install("br-int", integration_bridge.fixed_flows(self.patch))
        self.install("br-meta", meta_bridge.fixed_flows(self.tap))
        for guest in guests:
            self.install("br-int", integration_bridge.guest_flows(guest, self.patch))
            self.install("br-meta", self.way(guest))

    def way(self, guest: ServedEndpoint) -> Iterator[Flow]:
        """Yield the flows of a guest's addresses on br-meta."""
        for slot, known in guest.addresses.items():
            self.keys.own(guest.endpoint, slot)
            yield from meta_bridge.address_flows(guest.endpoint, known, slot=slot, tap=self.tap)

    def install(self, bridge: str, flows: Iterable[Flow]) -> None:
        """Add flows to a bridge."""
        self._feed(bridge, *map(self.wires[bridge].add, flows))

    def remove(self, bridge: str, flows: Iterable[Flow]) -> None:
        """Remove flows from a bridge."""
        self._feed(bridge, *map(self.wires[bridge].remove, flows))

    def receive(self, port: int, frame: bytes, *, bridge: str = "br-int") -> list[Left]:
        """Let a frame come in; return all that leaves, whichever bridge it leaves."""
        return [*self._through(bridge, port, frame)]

    def release(self, ofport: int, actions: Iterable[Action], frame: bytes) -> list[Left]:
        """Send a frame on from br-int's port *ofport*, as the learner does with a first SYN."""
        switch = self.switches["br-int"]
        self._feed("br-int", self.wires["br-int"].packet_out(ofport, actions, frame))
        released, switch.released = switch.released, []
        return [left for out in released for left in self._after("br-int", out.port, out.frame)]

    def from_host(self, frame: bytes) -> list[Left]:
        """Let a frame of the host come in at tap-meta."""
        return self.receive(TAP_META, frame, bridge="br-meta")

    def answered(self, arrived: Left) -> list[Left]:
        """Let the listener answer a packet that has arrived on tap-meta."""
        frame = Frame(TAP_META, arrived.frame)
        return self.from_host(self.host_frame(ends_of(frame)["src"], dport=frame["tcp_src"]))

    def assert_served(self, host: Host, service: str, key: str) -> None:
        """A SYN reaches the listener with that Meta IP, and its answer the guest that sent it."""
        (arrived,) = self.receive(host.ofport, host.segment(dst=service))
        assert source_on_tap(arrived) == key
        (back,) = self.answered(arrived)
        assert is_answer(back, host, service)
        for left in (arrived, back):
            assert sums_are_right(left.frame)
        assert mac(Frame(0, back.frame)["eth_src"]) == TAP_MAC

    def host_frame(
        self, key: str, *, src: str = "", sport: int = PORT, dport: int = 40000
    ) -> bytes:
        """Return a TCP segment of the host towards *key*, in a frame to the next hop."""
        version = 6 if ":" in key else 4
        src = src or self.keys.gateway(version)
        segment = tcp(dst=key, src=src, sport=sport, dport=dport, flags=0x12)
        packet = (ipv6 if version == 6 else ipv4)(segment, dst=key, src=src)
        kind = 0x86DD if version == 6 else 0x0800
        return ethernet(packet, dst=NEXT_HOP_MAC, src=self.tap.mac, kind=kind)

    def _through(self, bridge: str, port: int, frame: bytes) -> Iterator[Left]:
        for out in self.switches[bridge].receive(port, frame):
            yield from self._after(bridge, out.port, out.frame)

    def _after(self, bridge: str, port: int, frame: bytes) -> Iterator[Left]:
        peers = {("br-int", PATCH_INT): "br-meta", ("br-meta", PATCH_META): "br-int"}
        peer = peers.get((bridge, port))
        if peer is None:
            yield Left(bridge, port, frame)
        else:
            yield from self._through(peer, PATCH_META if peer == "br-meta" else PATCH_INT, frame)

    def _normal(self, bridge: str) -> Any:
        actions = [parser.OFPActionOutput(ofp.OFPP_NORMAL)]
        step = parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, actions)
        return parser.OFPFlowMod(self.wires[bridge].datapath, priority=0, instructions=[step])

    def _feed(self, bridge: str, *messages: Any) -> None:
        for message in messages:
            message.set_xid(0)
            message.serialize()
            self.switches[bridge].feed(bytes(message.buf))


def source_on_tap(left: Left) -> str:
    """Return the source address of a packet that arrived at the proxy's listener.

    Fails for a frame that the host's kernel would not hand to the listener.
    """
    frame, keys = Frame(TAP_META, left.frame), meta_keys()
    assert (left.bridge, left.port) == ("br-meta", TAP_META)
    assert (mac(frame["eth_dst"]), frame["vlan_vid"]) == (keys.label(1), 0)
    assert frame["tcp_dst"] == PORT
    source, destination = ends_of(frame).values()
    assert destination == keys.gateway(ip_address(source).version)
    return source


def is_answer(left: Left, host: Host, service: str) -> bool:
    """Return whether a frame is an answer of *service* to that guest, at its own port."""
    frame = Frame(0, left.frame)
    return (
        (left.bridge, left.port, mac(frame["eth_dst"]), frame["vlan_vid"])
        == ("br-int", host.ofport, host.mac, 0)
        and ends_of(frame) == {"src": service, "dst": host.ip}
        and frame["tcp_src"] == METADATA_PORT
    )
