"""One version of IP for flows and the kernel: names, numbers, and how neighbours are found.

Builders of flows, the host's side and doctor's checks take a family as a parameter, as faucet's
IPv4 and IPv6 routing tables do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dfmeta.flows import arp, nd
from dfmeta.flows.flow import ETH_IP, ETH_IPV6, PROTO_TCP, Flow, Value
from dfmeta.model import Endpoint


@dataclass(frozen=True, slots=True)
class Family:
    """A version of IP. Field names are OpenFlow's (OpenFlow 1.3.5, 7.2.3.7)."""

    version: int
    af: int
    """Number of the address family in the kernel (address_families(7))."""
    arp: bool
    """Whether neighbours are found with ARP (RFC 826), and not with ICMPv6 (RFC 4861)."""
    eth_type: int
    bits: int
    """Length of an address, which is also the prefix length of a single address."""
    source: str
    """Field with a packet's source address."""
    destination: str
    asked: str
    """Field with the address that a neighbour request asks for."""
    guest_request: Callable[[Endpoint, str, str], Flow]
    """Returns the flow for a guest's neighbour request for the service (endpoint, MAC, address)."""
    key_request: Callable[[str, str], Flow]
    """Returns the flow that answers the host's neighbour request for a key (key, MAC)."""

    @property
    def tcp(self) -> Mapping[str, Value]:
        """The match of TCP packets of this version."""
        return {"eth_type": self.eth_type, "ip_proto": PROTO_TCP}


IPV4: Final = Family(
    version=4,
    af=2,
    arp=True,
    eth_type=ETH_IP,
    bits=32,
    source="ipv4_src",
    destination="ipv4_dst",
    asked="arp_tpa",
    guest_request=arp.guest_request,
    key_request=arp.key_request,
)
IPV6: Final = Family(
    version=6,
    af=10,
    arp=False,
    eth_type=ETH_IPV6,
    bits=128,
    source="ipv6_src",
    destination="ipv6_dst",
    asked="ipv6_nd_target",
    guest_request=nd.guest_request,
    key_request=nd.key_request,
)
FAMILIES: Final = (IPV4, IPV6)


def family_of(version: int) -> Family:
    """Return the family of an address's ``version``, 4 or 6."""
    return IPV4 if version == 4 else IPV6
