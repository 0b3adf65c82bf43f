"""One version of IP as flows and the kernel have it: names, numbers, and answers to neighbours.

Builders of flows, the host's side and doctor's checks of it are given a family, so that a second
version is a second value and no second builder (faucet has its IPv4 and IPv6 routing tables the
same way).
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
    """The kernel's number of it (address_families(7))."""
    arp: bool
    """Neighbours are asked by ARP (RFC 826)."""
    eth_type: int
    bits: int
    """Length of an address, and so of the prefix that means one address."""
    source: str
    """Field with a packet's source address."""
    destination: str
    asked: str
    """Field with the address that a neighbour's question is about."""
    question: Callable[[str], Mapping[str, Value]]
    """The match of a question for an address."""
    answer: Callable[[str, str], tuple[Action, ...]]
    """Makes an answer of a question and sends it back: a MAC has an address."""

    @property
    def tcp(self) -> Mapping[str, Value]:
        """The match of its TCP."""
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
