"""Addresses and networks of records."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_IPV4_BITS = 32
_MAPPED_BITS = 96
"""Bits before the IPv4 address in an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""


def parse_network(text: str) -> Network:
    """Return the network that a text names: an address or a CIDR, with the host bits masked.

    An IPv4-mapped IPv6 network is returned as an IPv4 network.

    :raises ValueError: the text is neither.
    """
    if "%" in text:
        raise ValueError("an address with a zone is valid on one host only")
    network = ip_network(text, strict=False)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def parse_address(text: str) -> Address:
    """Return the address that a text names; an IPv4-mapped IPv6 address as an IPv4 address.

    :raises ValueError: the text is not an address.
    """
    if "%" in text:
        raise ValueError("an address with a zone is valid on one host only")
    address = ip_address(text)
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def containing(address: Address) -> list[str]:
    """Return all networks that contain *address*, as :func:`str` writes them, longest first."""
    number, width = int(address), address.max_prefixlen
    family = socket.AF_INET if width == _IPV4_BITS else socket.AF_INET6
    found = []
    for prefix in range(width, -1, -1):
        number = number >> (width - prefix) << (width - prefix)
        # The C library is 10 times as fast, but writes some IPv6 addresses with an IPv4 part.
        if family == socket.AF_INET6 and number >> _IPV4_BITS in (0, 0xFFFF):
            text = str(type(address)(number))
        else:
            text = socket.inet_ntop(family, number.to_bytes(width // 8, "big"))
        found.append(f"{text}/{prefix}")
    return found
