"""One version of IP for flows and the kernel: names, numbers, and answers to neighbours' requests.

Builders of flows, the host's side and doctor's checks take a family as a parameter. So a second
version needs a second value and no second builder (faucet handles its IPv4 and IPv6 routing tables
the same way).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dfmeta.flows import arp
from dfmeta.flows.flow import ETH_IP, PROTO_TCP, Action, Value


@dataclass(frozen=True, slots=True)
class Family:
    """A version of IP. Field names are OpenFlow's (OpenFlow 1.3.5, 7.2.3.7)."""

    version: int
    af: int
    """Number of the address family in the kernel (address_families(7))."""
    arp: bool
    """Whether neighbours are found with ARP (RFC 826)."""
    eth_type: int
    bits: int
    """Length of an address, which is also the prefix length of a single address."""
    source: str
    """Field with a packet's source address."""
    destination: str
    asked: str
    """Field with the address that a neighbour request asks for."""
    question: Callable[[str], Mapping[str, Value]]
    """Returns the match of a neighbour request for an address."""
    answer: Callable[[str, str], tuple[Action, ...]]
    """Returns the actions that turn a request into a reply (MAC, address) and send it back."""

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
    question=arp.question,
    answer=arp.answer,
)
