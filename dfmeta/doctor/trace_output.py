"""The packets that trace follows, and the output of ``ofproto/trace`` about them. Pure.

The output (ovs-vswitchd(8)) is text for people, and only its shape is stable: a line for each table
that the packet passes, its actions indented below, and the final packet at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from dfmeta.doctor.facts import KnownPort
from dfmeta.flows.family import solicited_node
from dfmeta.flows.flow import ARP_REQUEST, ND_SOLICITATION
from dfmeta.flows.integration_bridge import Tap
from dfmeta.flows.pipeline import METADATA_PORT, Purpose, is_ours, purpose_of
from dfmeta.model import GuestAddress, NextHop

_HOP: Final = re.compile(
    r"^(?P<indent>\s*)(?P<table>\d+)\. "
    r"(?:(?P<none>No match\.)|(?:(?P<match>.*), )?priority (?P<priority>\d+)"
    r"(?:, cookie (?P<cookie>0x[0-9a-f]+))?)\s*$"
)
_FINAL: Final = "Final flow: "
_FLOW: Final = "Flow: "
_UNCHANGED: Final = "unchanged"
_NOTES: Final = ("->", ">>")
_BRIDGE: Final = re.compile(r'^bridge\("(?P<name>[^"]*)"\)\s*$')
_MISS: Final = re.compile(r"reg0=0x[12]")
"""Match of the rules with which Open vSwitch itself handles a packet that no flow matches."""
ROUTER_MAC: Final = "02:00:00:00:00:01"
"""Destination MAC of the guest's SYN: any MAC will do, since no flow of dfmeta matches on it."""
SOURCE_PORT: Final = 49152
TTL: Final = 64
HOP_LIMIT_OF_ND: Final = 255
"""Other hop limits are not accepted in neighbour discovery (RFC 4861, 7.1.1)."""
UNSEEN: Final = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
"""Stands for an address that is not known yet (the IP address: RFC 5737)."""
UNSEEN6: Final = IPv6Address("2001:db8::1")
"""As :data:`UNSEEN` (RFC 3849)."""
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
_NO_MAC: Final = "00:00:00:00:00:00"


@dataclass(frozen=True, slots=True)
class Notation:
    """Names of one version of IP in the old notation of ovs-fields(7)."""

    tcp: str
    source: str
    destination: str


NOTATIONS: Final[Mapping[int, Notation]] = {
    4: Notation("tcp", "nw_src", "nw_dst"),
    6: Notation("tcp6", "ipv6_src", "ipv6_dst"),
}


def unseen(mac: str, service: str = "") -> GuestAddress:
    """Return an address that stands for one that is not known yet.

    :param mac: the guest's MAC; empty if it is not known.
    :param service: IPv6 address of the service that the guest uses; empty: it uses IPv4.
    """
    mac = mac or UNSEEN.mac
    if not service:
        return GuestAddress(mac, UNSEEN.ip)
    return GuestAddress(mac, UNSEEN6, IPv6Address(service))


def service_of(address: GuestAddress, tap: Tap) -> str:
    """Return the address of the service that packets of *address* are sent to."""
    return str(address.service or tap.guest_ip)


def tcp(
    ingress: str,
    *,
    macs: tuple[str, str],
    ips: tuple[object, object],
    ports: tuple[int, int],
    flags: str,
) -> str:
    """Return a TCP segment in ovs-ofctl(8)'s notation; pairs are of source and destination.

    :param ingress: the fields of its port, and of its VLAN tag if it has one.
    """
    of = NOTATIONS[ip_address(str(ips[0])).version]
    return (
        f"{of.tcp},{ingress},dl_src={macs[0]},dl_dst={macs[1]},{of.source}={ips[0]},"
        f"{of.destination}={ips[1]},nw_ttl={TTL},tcp_src={ports[0]},tcp_dst={ports[1]},"
        f"tcp_flags={flags}"
    )


def syn(port: KnownPort, address: GuestAddress, *, tap: Tap, flags: str = "syn") -> str:
    """Return the guest's SYN, or with other *flags* a later packet."""
    return tcp(
        _ingress(port),
        macs=(address.mac, ROUTER_MAC),
        ips=(address.ip, service_of(address, tap)),
        ports=(SOURCE_PORT, METADATA_PORT),
        flags=flags,
    )


def syn_ack(port: KnownPort, address: GuestAddress, *, slot: int, tap: Tap) -> str:
    """Return the proxy's SYN-ACK to :func:`syn`."""
    key = tap.keys.key_of(port.endpoint, slot)
    return tcp(
        f"in_port={tap.ofport}",
        macs=(tap.mac, address.mac),
        ips=(tap.service(key.version).ip, key),
        ports=(tap.port, SOURCE_PORT),
        flags="syn|ack",
    )


def solicitation(port: KnownPort, address: GuestAddress, *, tap: Tap) -> str:
    """Return the guest's neighbour solicitation for the service.

    It is sent to the solicited-node multicast address (RFC 4861, 7.2.2), with the guest's MAC.
    """
    target = IPv6Address(service_of(address, tap))
    group = solicited_node(target)
    return (
        f"icmp6,{_ingress(port)},dl_src={address.mac},dl_dst=33:33:{group.packed[-4:].hex(':')},"
        f"ipv6_src={address.ip},ipv6_dst={group},nw_ttl={HOP_LIMIT_OF_ND},"
        f"icmpv6_type={ND_SOLICITATION},icmpv6_code=0,nd_target={target},nd_sll={address.mac}"
    )


def arp_request(port: KnownPort, mac: str, *, hop: NextHop) -> str:
    """Return a guest's ARP request for a guest next hop.

    Its sender is on the network of the next hop. A guest with addresses of several networks has
    next hops of each of them.
    """
    sender = IPv4Address(int(IPv4Address(hop.ip)) ^ 1)
    return (
        f"arp,{_ingress(port)},dl_src={mac},dl_dst={_BROADCAST},arp_op={ARP_REQUEST},"
        f"arp_spa={sender},arp_tpa={hop.ip},arp_sha={mac},arp_tha={_NO_MAC}"
    )


def vlan_tag(port: KnownPort) -> Mapping[str, str]:
    """Return the field of the VLAN tag that frames of *port* have; empty: they have none."""
    return {"dl_vlan": str(port.vid)} if port.vid else {}


def _ingress(port: KnownPort) -> str:
    return f"in_port={port.ofport}{f',dl_vlan={port.vid}' if port.vid else ''}"


@dataclass(frozen=True, slots=True)
class Hop:
    """A table on the path, and the flow that the packet matched there."""

    table: int
    matched: bool
    priority: int = 0
    cookie: int = 0
    match: str = ""
    actions: tuple[str, ...] = ()
    bridge: str = ""
    """Name of the bridge of the table."""

    @property
    def ours(self) -> bool:
        """Whether dfmeta installed the flow."""
        return self.matched and is_ours(self.cookie)

    @property
    def purpose(self) -> Purpose | None:
        """Purpose of the flow; None if it is not one of dfmeta's current flows."""
        return purpose_of(self.cookie) if self.matched else None

    def outputs_to(self, ofport: int) -> bool:
        """Return whether this flow sends the packet out at *ofport*."""
        return f"output:{ofport}" in self.actions


@dataclass(frozen=True, slots=True)
class Trace:
    """A packet's path through the bridge, and through those behind its patch ports."""

    hops: tuple[Hop, ...]
    final: dict[str, str]
    """Fields of the packet when it leaves the first bridge, in the old notation of ovs-fields(7)
    (``nw_dst``). Addresses of IPv6 have no zone, and may be written in another way than Python
    writes them."""

    def at(self, table: int) -> Hop | None:
        """Return the first hop in *table*; None if the packet does not pass the table."""
        return next((hop for hop in self.hops if hop.table == table), None)

    @property
    def first(self) -> Trace:
        """The part of the path on the bridge where it begins."""
        return self.on(self.hops[0].bridge) if self.hops else self

    def on(self, bridge: str) -> Trace:
        """Return the part of the path on *bridge*; without hops if the packet does not get there.

        It has the same final packet.
        """
        return Trace(tuple(hop for hop in self.hops if hop.bridge == bridge), self.final)


def parse(text: str) -> Trace:
    """Parse the whole output, except the part after a recirculation."""
    hops: list[Hop] = []
    actions: list[str] = []
    flow, final, bridge = "", "", ""
    for line in text.splitlines():
        match, begins = _HOP.match(line), _BRIDGE.match(line)
        if line.startswith(_FLOW):
            flow = line.removeprefix(_FLOW)
        elif line.startswith(_FINAL):
            final = line.removeprefix(_FINAL)
            break
        elif begins:
            bridge = begins["name"]
        elif match:
            _finish(hops, actions)
            hops.append(_hop(match, bridge))
        elif hops and line.startswith(" ") and not line.strip().startswith(_NOTES):
            actions.append(line.strip())
    _finish(hops, actions)
    return Trace(tuple(hops), _fields(flow if final in ("", _UNCHANGED) else final))


def _finish(hops: list[Hop], actions: list[str]) -> None:
    """Add the collected actions to the last hop."""
    if hops:
        hops.append(replace(hops.pop(), actions=tuple(actions)))
    actions.clear()


def _hop(match: re.Match[str], bridge: str) -> Hop:
    if match["none"] or _MISS.fullmatch(match["match"] or ""):
        return Hop(int(match["table"]), matched=False, bridge=bridge)
    return Hop(
        int(match["table"]),
        matched=True,
        priority=int(match["priority"]),
        cookie=int(match["cookie"] or "0", 16),
        match=match["match"] or "",
        bridge=bridge,
    )


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
