"""ARP (RFC 826) in flows: the match of a request, and the actions that turn it into a reply."""

from __future__ import annotations

from collections.abc import Mapping

from dfmeta.flows.flow import (
    ARP_REPLY,
    ARP_REQUEST,
    ETH_ARP,
    Action,
    Move,
    Output,
    SetField,
    Value,
)
from dfmeta.flows.pipeline import PORT_IN_PORT

_MAC_BITS = 48
_IPV4_BITS = 32


def question(ip: str) -> Mapping[str, Value]:
    """Return the match of a request for the MAC of *ip*."""
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
