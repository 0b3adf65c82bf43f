"""Choice of addresses and MACs for attachments. Pure, except for randomness."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Set
from ipaddress import IPv4Address
from typing import Final

from dfmeta.attach.model import Network

WINDOW: Final = 256
"""Addresses that one query covers."""
_WHOLE: Final = 31
"""Prefix length from which on a subnet has no address of its own and no broadcast (RFC 3021)."""
_OCTETS: Final = 6
_MULTICAST, _LOCAL = 0x01, 0x02
"""Bits of a MAC's first octet (IEEE 802, 8.2)."""


def bounds(network: Network) -> tuple[int, int]:
    """Return the first and the last address of a network that a device may have."""
    subnet = network.subnet
    first, last = int(subnet.network_address), int(subnet.broadcast_address)
    return (first, last) if subnet.prefixlen >= _WHOLE else (first + 1, last - 1)


def capacity(network: Network) -> int:
    """Return how many containers a network has addresses for."""
    first, last = bounds(network)
    others = network.taken if network.gateway is None else network.taken | {network.gateway}
    return last - first + 1 - sum(first <= int(address) <= last for address in others)


def may_have(network: Network, address: IPv4Address) -> bool:
    """Return whether a device may have an address: of the subnet, and free."""
    first, last = bounds(network)
    return (
        first <= int(address) <= last
        and address != network.gateway
        and address not in network.taken
    )


def next_address(
    network: Network, last: int | None, used: Callable[[int, int], Set[int]]
) -> int | None:
    """Return the first free address after *last*, and from the beginning after the end.

    :param last: the address that was given last; None or one outside: start at the beginning.
    :param used: returns the addresses in use, from its first to its second argument.
    :returns: None if none is free.
    """
    low, high = bounds(network)
    start = low if last is None or not low <= last < high else last + 1
    for begin, end in ((start, high), (low, start - 1)):
        for first in range(begin, end + 1, WINDOW):
            until = min(first + WINDOW - 1, end)
            in_use = used(first, until)
            for number in range(first, until + 1):
                if number not in in_use and may_have(network, IPv4Address(number)):
                    return number
    return None


def random_mac() -> str:
    """Return a locally administered unicast MAC, in lower case with colons."""
    octets = bytearray(secrets.token_bytes(_OCTETS))
    octets[0] = octets[0] & ~_MULTICAST & 0xFF | _LOCAL
    return octets.hex(":")


def is_reserved(mac: str) -> bool:
    """Return whether a unicast MAC is IANA's: those of virtual routers (VRRP) are among them."""
    return mac.startswith("00:00:5e:")
