"""Checks of the source addresses of containers' frames (IP source guard, ARP inspection).

The root of a virtual machine sends frames in any VLAN of its trunk, with any addresses. A port that
was made for one attachment of the driver ``local`` therefore passes only frames with the MAC and
the IPv4 address of that attachment as source, in ARP as well. Over IPv6, whose addresses a
container makes itself, the interface id has to be that of the MAC (EUI-64; RFC 4291, appendix A).

A frame that passes goes back to the classification table with a mark, so that the flows of other
programs and the bridge's own switching do with it what they would have done without the check.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from dfmeta.flows.flow import (
    ARP_REQUEST,
    ETH_ARP,
    ETH_IP,
    ETH_IPV6,
    ND_ADVERTISEMENT,
    ND_SOLICITATION,
    PROTO_ICMPV6,
    Flow,
    Reclassify,
    SetField,
    Value,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import Purpose, Register, Stage
from dfmeta.model import Binding, Endpoint

_PASS: Final = (SetField(Register.CHECKED, 1), Reclassify())
_INTERFACE_ID: Final = "::ffff:ffff:ffff:ffff"
"""Mask of an IPv6 address."""
_ROUTER_ADVERTISEMENT, _REDIRECT, _MLD_REPORT = 134, 137, 143
"""Types of ICMPv6 (RFC 4861, 4; RFC 3810, 5.2)."""
_LOCAL: Final = 0x02
_NONE, _NONE6 = str(IPv4Address(0)), str(IPv6Address(0))
"""The addresses of a host that has none yet."""


def source_table() -> tuple[Flow, ...]:
    """Return the flows of the source table that do not depend on containers."""
    return (
        *(
            flow(Purpose.SOURCE_ROUTER_DROP, _icmpv6(kind))
            for kind in (_ROUTER_ADVERTISEMENT, ND_ADVERTISEMENT, _REDIRECT)
        ),
        flow(Purpose.SOURCE_DROP, {}),
    )


def source_checks(endpoint: Endpoint, binding: Binding) -> Iterator[Flow]:
    """Return the flows that pass a container's frames, and then the one that leads to them."""
    frames = {**frames_of(endpoint), "eth_src": binding.mac}
    own, mine = str(binding.ip), (interface_id(binding.mac), _INTERFACE_ID)
    arp: dict[str, Value] = {"eth_type": ETH_ARP, "arp_sha": binding.mac}
    unspecified: dict[str, Value] = {"ipv6_src": _NONE6}
    solicitation = {**_icmpv6(ND_SOLICITATION), **unspecified, "icmpv6_code": 0}
    matches: tuple[dict[str, Value], ...] = (
        {**arp, "arp_spa": own},
        # A probe, by which a host looks for others with its address (RFC 5227, 2.1.1).
        {**arp, "arp_op": ARP_REQUEST, "arp_spa": _NONE, "arp_tpa": own},
        {"eth_type": ETH_IP, "ipv4_src": own},
        # The same over IPv6 (RFC 4862, 5.4.2), and the report of groups before it (RFC 3590).
        {**solicitation, "ipv6_nd_target": mine},
        {**_icmpv6(_MLD_REPORT), **unspecified},
        {
            **_icmpv6(ND_ADVERTISEMENT),
            "icmpv6_code": 0,
            "ipv6_src": mine,
            "ipv6_nd_target": mine,
        },
    )
    for match in matches:
        yield flow(Purpose.SOURCE_OWN, {**frames, **match}, actions=_PASS)
    yield flow(
        Purpose.SOURCE_OWN6, {**frames, "eth_type": ETH_IPV6, "ipv6_src": mine}, actions=_PASS
    )
    # Tagged frames as well: no container sends them.
    unchecked = {"in_port": endpoint.ofport, Register.CHECKED: 0}
    yield flow(Purpose.GUEST_SOURCE, unchecked, goto=Stage.SOURCE)


def interface_id(mac: str) -> str:
    """Return the interface id of a MAC, as an IPv6 address of the prefix ``::/64``."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= _LOCAL
    return str(IPv6Address(int.from_bytes(octets[:3] + b"\xff\xfe" + octets[3:], "big")))


def _icmpv6(kind: int) -> dict[str, Value]:
    return {"eth_type": ETH_IPV6, "ip_proto": PROTO_ICMPV6, "icmpv6_type": kind}
