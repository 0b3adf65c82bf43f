"""Addresses and blocks of them, as records have them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAPPED_BITS = 96
"""Of the prefix before an IPv4 address that is written as an IPv6 one (RFC 4291, 2.5.5.2)."""


def parse_network(text: str) -> Network:
    """Return an address or a block of them, host bits masked; a mapped IPv4 one as IPv4.

    :raises ValueError: it is neither.
    """
    if "%" in text:
        raise ValueError("an address with a zone means something on one host alone")
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def parse_address(text: str) -> Address:
    """Return an address; a mapped IPv4 one as IPv4.

    :raises ValueError: it is none.
    """
    if "%" in text:
        raise ValueError("an address with a zone means something on one host alone")
    address = ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def containing(address: Address) -> list[str]:
    """Return every network that contains *address*, the longest prefix first."""
    kind = type(address)
    number, width = int(address), address.max_prefixlen
    return [
        f"{kind(number >> (width - prefix) << (width - prefix))}/{prefix}"
        for prefix in range(width, -1, -1)
    ]
