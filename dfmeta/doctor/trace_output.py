"""The packets that trace follows, and the output of ``ofproto/trace`` about them. Pure.

The output (ovs-vswitchd(8)) is text for people, and only its shape is stable: a line for each table
that the packet passes, its actions indented below, and the final packet at the end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Self

from dfmeta.flows.pipeline import Purpose, is_ours, purpose_of
from dfmeta.model import GuestAddress

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
UNSEEN: Final = GuestAddress("02:00:00:00:00:02", IPv4Address("192.0.2.1"))
"""Stands for an address that is not known yet (the IP address: RFC 5737)."""
UNSEEN6: Final = IPv6Address("2001:db8::1")
"""As :data:`UNSEEN` (RFC 3849)."""


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


@dataclass(frozen=True, slots=True)
class Hop:
    """A table on the path, and the flow that the packet matched there."""

    table: int
    matched: bool
    priority: int = 0
    cookie: int = 0
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
    def first(self) -> Self:
        """The part of the path on the bridge where it begins."""
        return self.on(self.hops[0].bridge) if self.hops else self

    def on(self, bridge: str) -> Self:
        """Return the part of the path on *bridge*; without hops if the packet does not get there.

        It has the same final packet.
        """
        return replace(self, hops=tuple(hop for hop in self.hops if hop.bridge == bridge))


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
        bridge=bridge,
    )


def _fields(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in text.split(","))}
