"""ARP (RFC 826) in flows: requests are answered by the flow that they match."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address

from dfmeta.flows.flow import (
    ARP_REPLY,
    ARP_REQUEST,
    ETH_ARP,
    Action,
    Flow,
    Move,
    Output,
    SetField,
    Value,
    flow,
    frames_of,
)
from dfmeta.flows.pipeline import PORT_IN_PORT, Purpose
from dfmeta.model import Endpoint

_MAC_BITS = 48
_IPV4_BITS = 32


def guest_request(endpoint: Endpoint, mac: str, ip: str) -> Flow:
    """Answer a request for *ip* from the guest at *endpoint* with *mac*.

    The classification flows do not match on the MAC, but the guest's network stack needs one
    (specification, "Proposed Change").
    """
    match = {**frames_of(endpoint), **question(ip)}
    return flow(Purpose.GUEST_ARP, match, actions=answer(mac, ip))


def next_hop_request(endpoint: Endpoint, mac: str, ip: str) -> Flow:
    """Answer a request for the guest next hop *ip* from the guest at *endpoint* with *mac*.

    The flow matches on the sender's address as well, see :func:`senders_of`: a probe for a
    duplicate address (RFC 5227, 2.1.1), whose sender is 0.0.0.0, is left to the bridge's owner. An
    answer to it would forbid a guest the address that it has got from DHCP.
    """
    match = {**frames_of(endpoint), **question(ip), "arp_spa": senders_of(ip)}
    return flow(Purpose.GUEST_NEXT_HOP, match, actions=answer(mac, ip))


def senders_of(ip: str) -> tuple[str, str]:
    """Return address and mask of the senders whose requests for *ip* are answered.

    A match cannot exclude 0.0.0.0. So it consists of the leading bits of *ip* up to the first one
    that is set: 10.0.0.2 gives 8.0.0.0/5, and 192.0.2.2 gives 128.0.0.0/1. A guest on the same
    network as *ip* has these bits as well, and 0.0.0.0 has not.

    :param ip: not 0.0.0.0.
    """
    number = int(IPv4Address(ip))
    first = number.bit_length() - 1
    bits = number >> first << first
    mask = (1 << _IPV4_BITS) - (1 << first)
    return str(IPv4Address(bits)), str(IPv4Address(mask))


def key_request(key: str, mac: str) -> Flow:
    """Answer the host's request for *key* with the guest's *mac*.

    The flow is in the reply table, which only frames from tap-metadata reach. *mac* is under the
    guest's control: the answer goes to tap-metadata only, and the reply flow sets its own
    destination.
    """
    return flow(Purpose.KEY_ARP, question(key), actions=answer(mac, key))


def question(ip: str) -> Mapping[str, Value]:
    """Return the match of requests for *ip*."""
    return {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST, "arp_tpa": ip}


def answer(mac: str, ip: str) -> tuple[Action, ...]:
    """Return actions that turn a request into the reply "*ip* is at *mac*", and send it back."""
    return (
        Move("eth_src", "eth_dst", _MAC_BITS),
        SetField("eth_src", mac),
        SetField("arp_op", ARP_REPLY),
        Move("arp_sha", "arp_tha", _MAC_BITS),
        Move("arp_spa", "arp_tpa", _IPV4_BITS),
        SetField("arp_sha", mac),
        SetField("arp_spa", ip),
        Output(PORT_IN_PORT),
    )
