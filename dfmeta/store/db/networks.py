"""Addresses and blocks of them, as records have them."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_IPV4_BITS = 32
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
    """Return every network that contains *address*, as :func:`str` writes it, the longest first."""
    number, width = int(address), address.max_prefixlen
    family = socket.AF_INET if width == _IPV4_BITS else socket.AF_INET6
    found = []
    for prefix in range(width, -1, -1):
        number = number >> (width - prefix) << (width - prefix)
        # The C library is 10 times as fast, but writes an IPv4 address where it takes one to be in.
        if family == socket.AF_INET6 and number >> _IPV4_BITS in (0, 0xFFFF):
            text = str(type(address)(number))
        else:
            text = socket.inet_ntop(family, number.to_bytes(width // 8, "big"))
        found.append(f"{text}/{prefix}")
    return found
