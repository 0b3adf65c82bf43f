"""Whether another program's match takes guests' packets to the metadata service. Pure.

Field names are os-ken's. A field that is not fixed in a guest's packets, such as its source
address, may have any value: a match on such a field takes some guest's packets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address

from dfmeta.flows.family import family_of
from dfmeta.flows.flow import (
    ARP_REQUEST,
    ETH_ARP,
    ETH_IPV6,
    ND_SOLICITATION,
    PROTO_ICMPV6,
    PROTO_TCP,
    TAGGED,
    UNTAGGED,
    Value,
)
from dfmeta.flows.nd import solicited_node
from dfmeta.flows.pipeline import METADATA_PORT
from dfmeta.model import Endpoint

_ZERO = ("reg", "xreg", "xxreg", "metadata", "tun", "ct_", "conj_id")
"""Prefixes of the fields that are zero in a packet that has just entered at a guest's port."""
_OTHER_PROTOCOLS = ("icmp", "nd_", "ipv6_nd_", "udp", "sctp", "pbb", "mpls")
"""Prefixes of the fields that none of these packets has; it has those that it needs by name."""
_OTHER_VERSIONS = {4: ("ipv6",), 6: ("ipv4", "arp")}
_ARP: Mapping[str, int | str] = {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST}
_SOLICITATION: Mapping[str, int | str] = {
    "eth_type": ETH_IPV6,
    "ip_proto": PROTO_ICMPV6,
    "icmpv6_type": ND_SOLICITATION,
    "icmpv6_code": 0,
}


def takes(match: Mapping[str, Value], endpoints: Collection[Endpoint], *, ip: str) -> bool:
    """Return whether *match* takes a guest's TCP to port 80 of *ip*, or its request for the MAC.

    :param endpoints: endpoints of guests.
    :param ip: address of the service; its version decides whether the MAC is requested with ARP or
        with neighbour discovery.
    """
    ofports: dict[int, set[int]] = {}
    for endpoint in endpoints:
        ofports.setdefault(endpoint.vid, set()).add(endpoint.ofport)
    return any(_takes_of(match, vid, numbers, ip) for vid, numbers in ofports.items())


def _takes_of(match: Mapping[str, Value], vid: int, ofports: Collection[int], ip: str) -> bool:
    """Return :func:`takes` for the endpoints with the VLAN id *vid*."""
    version = ip_address(ip).version
    family = family_of(version)
    tci = TAGGED | vid if vid else UNTAGGED
    tag: Mapping[str, int | str] = {"vlan_vid": tci, "vlan_tci": tci}
    http = {
        **tag,
        "eth_type": family.eth_type,
        "ip_proto": PROTO_TCP,
        family.destination: ip,
        "tcp_dst": METADATA_PORT,
    }
    others = (*_OTHER_PROTOCOLS, *_OTHER_VERSIONS[version])
    requests = [{**tag, **one, family.asked: ip} for one in _requests(ip)]
    return any(_fits(match, packet, ofports, others) for packet in (http, *requests))


def _requests(ip: str) -> Iterator[Mapping[str, int | str]]:
    address = ip_address(ip)
    if address.version == 4:
        yield _ARP
    else:
        # A solicitation is sent to the target itself or to its group (RFC 4861, 4.3).
        yield from (
            {**_SOLICITATION, "ipv6_dst": str(one)} for one in (address, solicited_node(address))
        )


def _fits(
    match: Mapping[str, Value],
    packet: Mapping[str, int | str],
    ofports: Collection[int],
    others: tuple[str, ...],
) -> bool:
    return all(_fits_field(*one, packet, ofports, others) for one in match.items())


def _fits_field(
    field: str,
    value: Value,
    packet: Mapping[str, int | str],
    ofports: Collection[int],
    others: tuple[str, ...],
) -> bool:
    """Return whether the packet may have that value.

    :param others: prefixes of the fields that the packet does not have, except those in *packet*.
    """
    name = field.removesuffix("_nxm")
    if name == "in_port":
        return _number(value[0] if isinstance(value, tuple) else value) in ofports
    if name in packet:
        return _matches(value, packet[name])
    if name.startswith(_ZERO):
        return _matches(value, 0)
    return not name.startswith(others)


def _matches(value: Value, actual: int | str) -> bool:
    wanted, mask = value if isinstance(value, tuple) else (value, None)
    if mask is None:
        return _number(wanted) == _number(actual)
    bits = _number(mask)
    return _number(wanted) & bits == _number(actual) & bits


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else int(ip_address(value))
