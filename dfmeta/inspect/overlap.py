"""Whether another program's match takes guests' packets to the metadata service. Pure.

Field names are os-ken's. A field that is not fixed in a guest's packets, such as its source
address, may have any value: a match on such a field takes some guest's packets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address

from dfmeta.flows.flow import ARP_REQUEST, ETH_ARP, ETH_IP, PROTO_TCP, UNTAGGED, Value
from dfmeta.flows.pipeline import METADATA_PORT

_ZERO = ("reg", "xreg", "xxreg", "metadata", "tun", "ct_", "conj_id")
"""Prefixes of the fields that are zero in a packet that has just entered at a guest's port."""
_OTHER_PROTOCOLS = ("ipv6", "icmp", "nd_", "udp", "sctp", "pbb", "mpls")
_UNTAGGED: Mapping[str, int | str] = {"vlan_vid": UNTAGGED, "vlan_tci": UNTAGGED}


def takes(match: Mapping[str, Value], ofports: Collection[int], *, ip: str) -> bool:
    """Return whether *match* takes a guest's TCP to port 80 of *ip*, or its ARP request for *ip*.

    :param ofports: port numbers of guests.
    """
    http = {
        **_UNTAGGED,
        "eth_type": ETH_IP,
        "ip_proto": PROTO_TCP,
        "ipv4_dst": ip,
        "tcp_dst": METADATA_PORT,
    }
    arp = {**_UNTAGGED, "eth_type": ETH_ARP, "arp_op": ARP_REQUEST, "arp_tpa": ip}
    return any(_fits(match, packet, ofports) for packet in (http, arp))


def _fits(
    match: Mapping[str, Value], packet: Mapping[str, int | str], ofports: Collection[int]
) -> bool:
    return all(_fits_field(field, value, packet, ofports) for field, value in match.items())


def _fits_field(
    field: str, value: Value, packet: Mapping[str, int | str], ofports: Collection[int]
) -> bool:
    name = field.removesuffix("_nxm")
    if name == "in_port":
        return _number(value[0] if isinstance(value, tuple) else value) in ofports
    if name in packet:
        return _matches(value, packet[name])
    if name.startswith(_ZERO):
        return _matches(value, 0)
    return not name.startswith(_OTHER_PROTOCOLS)


def _matches(value: Value, actual: int | str) -> bool:
    wanted, mask = value if isinstance(value, tuple) else (value, None)
    if mask is None:
        return _number(wanted) == _number(actual)
    bits = _number(mask)
    return _number(wanted) & bits == _number(actual) & bits


def _number(value: int | str) -> int:
    return value if isinstance(value, int) else int(IPv4Address(value))
