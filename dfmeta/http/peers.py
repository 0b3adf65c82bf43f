"""Clients that are known only by their address; see :class:`~dfmeta.http.server.Claims`.

Each address has its share of connections, as each port has on a host with a switch.

Trust: an address is only as trustworthy as the network that it comes from. Here it decides nothing
but shares of connections.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

from dfmeta.identity.registry import Claim
from dfmeta.model import Caller, Endpoint, Identity, Peer, PeerAddress

Address = IPv4Address | IPv6Address


class Peers:
    """Returns a claim that always holds for each peer."""

    def subscribe(self, listener: Callable[[Endpoint], None]) -> None:
        """Never call *listener*: a peer has its address for as long as its connection exists."""

    def claim(self, peer: Address) -> Claim:
        """Return the claim of a peer; no peer is refused."""
        address = getattr(peer, "ipv4_mapped", None) or peer
        return Claim(described(address), Peer(address), 0, 0, PeerAddress(address))

    def current(self, claim: Claim) -> Identity | None:
        """Return the identity of the peer, which contains only its address."""
        return claim.identity

    def certain(self, endpoint: Caller) -> bool:
        """Return True: without a switch there are no ofports that could be in doubt."""
        del endpoint
        return True

    def holds(self, claim: Claim) -> bool:
        """Return True: the answer goes to the address of the request, even if its host changed."""
        del claim
        return True

    def opened(self, claim: Claim, now: float) -> None:
        """Do nothing: there are no slots."""

    def closed(self, claim: Claim, now: float) -> None:
        """Do nothing: there are no slots."""

    def take_wait(self, endpoint: Caller, source_port: int) -> float:
        """Return 0: no SYN is held here."""
        del endpoint, source_port
        return 0.0


def described(address: Address) -> Identity:
    """Return an identity for the logs that contains only the address."""
    return Identity("by its address", "", "", str(address), 0)
