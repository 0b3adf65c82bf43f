"""ARP (RFC 826) in flows: the match of a question, and the actions that make an answer of it."""

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
    """Match a question for the MAC of *ip*."""
    return {"eth_type": ETH_ARP, "arp_op": ARP_REQUEST, "arp_tpa": ip}


def answer(mac: str, ip: str) -> tuple[Action, ...]:
    """Turn a question into the answer that *mac* has *ip*, on the port that it came in on."""
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
