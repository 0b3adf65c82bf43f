"""Clients that are known by their address alone; see :class:`~dfmeta.proxy.claims.Claims`.

Each address has its share of connections, as each port has where a switch says who asks.

Trust: an address is as good as the network that it comes from. Nothing but shares hangs on it here.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from dfmeta.model import Caller, Endpoint, Identity, Peer, PeerAddress
from dfmeta.registry import Claim

Address = IPv4Address | IPv6Address


class Peers:
    """Gives each peer a claim that always holds."""

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """Never call *listener*: an address stays its peer's for as long as the connection is."""

    def claim(self, peer: Address) -> Claim:
        """Say whose connection it is; no peer is turned away."""
        address = getattr(peer, "ipv4_mapped", None) or peer
        return Claim(described(address), Peer(address), 0, 0, PeerAddress(address))

    def current(self, claim: Claim) -> Identity | None:
        """What is known of the peer: its address."""
        return claim.identity

    def certain(self, endpoint: Caller) -> bool:
        """Yes: no switch gives numbers here."""
        del endpoint
        return True

    def holds(self, claim: Claim) -> bool:
        """Yes: the answer goes to the address that it is of, whoever has that by now."""
        del claim
        return True

    def opened(self, claim: Claim, now: float) -> None:
        """Nothing: there are no slots."""

    def closed(self, claim: Claim, now: float) -> None:
        """Nothing, as well."""

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """No SYN was held."""
        del endpoint, source_port
        return 0.0


def described(address: Address) -> Identity:
    """Say in logs who asks, before anything else is known of it."""
    return Identity("by its address", "", "", str(address), 0)
